"use strict";
(function () {
  const store = document.getElementById("figures");
  const figures = new Map((store ? JSON.parse(store.textContent) : []).map((figure) => [figure.name, figure]));
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const config = { responsive: true, displaylogo: false, displayModeBar: false, doubleClick: "reset", showTips: false };

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function withAlpha(hex, alpha) {
    const parts = [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
    return `rgba(${parts.join(",")},${alpha})`;
  }

  // Numbers of a string of bytes in base64.
  function bytes(text) {
    return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  }

  function axis(more) {
    return Object.assign(
      { gridcolor: colour("--line"), linecolor: colour("--soft"), zeroline: false, automargin: true, ticks: "outside",
        tickcolor: colour("--line") },
      more,
      { title: Object.assign({ standoff: 8, font: { size: 13 } }, more.title) },
    );
  }

  function layout(more) {
    const hover = { bgcolor: colour("--paper"), bordercolor: colour("--soft"), font: { color: colour("--text"), size: 13 },
      align: "left" };
    return Object.assign(
      { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hoverlabel: hover,
        font: { color: colour("--text"), size: 12, family: "inherit" }, margin: { l: 48, r: 14, t: 10, b: 44 },
        dragmode: touch ? false : "zoom" },
      more,
    );
  }

  function drawPanel(figure, hidden) {
    const traces = figure.traces.map((trace) => {
      const own = structuredClone(trace);
      own.visible = hidden.has(own.meta) ? "legendonly" : true;
      if (own.band) {
        own.fillcolor = withAlpha(own.band, 0.18);
        delete own.band;
      }
      if (own.marker) {
        own.marker.line = { width: own.type === "bar" ? 0.5 : 0.8, color: colour("--raised") };
      }
      for (const part of [own.line, own.marker]) {
        if (part && part.color === "#000000") part.color = colour("--text");
      }
      return own;
    });
    const more = { xaxis: axis(figure.axes.x), yaxis: axis(figure.axes.y), barmode: "overlay" };
    more.hovermode = figure.together ? "x unified" : "closest";
    if (figure.diagonal !== undefined) addDiagonal(more, traces, figure.diagonal);
    return [traces, layout(more)];
  }

  function addDiagonal(more, traces, half) {
    const values = traces.flatMap((trace) => [...trace.x, ...trace.y]).filter((value) => value > 0);
    const low = Math.min(...values), high = Math.max(...values);
    const line = { type: "line", layer: "below", x0: low, x1: high, line: { color: colour("--soft"), width: 1 } };
    if (more.yaxis.type !== "log") Object.assign(more.yaxis, { scaleanchor: "x", constrain: "domain" });
    more.shapes = [{ ...line, y0: low, y1: high }];
    for (const shift of half ? [-half, half] : []) {
      more.shapes.push({ ...line, y0: low + shift, y1: high + shift, line: { ...line.line, dash: "dot" } });
    }
  }

  function drawMatrix(figure, place) {
    const frame = figure.frames[place];
    const size = frame.labels.length, upper = bytes(frame.cells), scale = (figure.high - figure.low) / figure.levels;
    const z = Array.from({ length: size }, () => new Array(size));
    for (let row = 0, k = 0; row < size; row++) {
      for (let column = row; column < size; column++, k++) {
        z[row][column] = z[column][row] = upper[k] > figure.levels ? null : upper[k] * scale + figure.low;
      }
    }
    const [zmin, zmax] = figure.shown.map((level) => level * scale + figure.low);
    const trace = { type: "heatmap", x: frame.labels, y: frame.labels, z, zmin, zmax, colorscale: "Cividis", hoverongaps: false,
      colorbar: { title: { text: figure.value, side: "right" }, thickness: 12, outlinewidth: 0 },
      hovertemplate: "%{y}<br>%{x}<br>" + figure.value + " %{z:.2f}<extra></extra>" };
    const middles = frame.groups.map((_, k) => frame.labels[Math.floor((frame.edges[k] + frame.edges[k + 1] - 1) / 2)]);
    const shapes = frame.edges.slice(1, -1).flatMap((edge) => {
      const line = { type: "line", line: { color: "#ffffff", width: 1.2 } };
      const low = -0.5, high = size - 0.5, at = edge - 0.5;
      return [{ ...line, x0: low, x1: high, y0: at, y1: at }, { ...line, x0: at, x1: at, y0: low, y1: high }];
    });
    return [[trace], layout({
      shapes,
      xaxis: axis({ type: "category", title: { text: figure.axis }, showticklabels: false, showgrid: false, ticks: "" }),
      yaxis: axis({ type: "category", title: { text: "cluster" }, autorange: "reversed", showgrid: false, ticks: "",
        tickvals: middles, ticktext: frame.groups }),
    })];
  }

  function drawGrid(figure) {
    const count = figure.names.length, columns = figure.columns.length, cells = bytes(figure.cells);
    const colours = figure.colours.flatMap((own, k) => [[k / count, own], [(k + 1) / count, own]]);
    const base = { type: "heatmap", y: figure.rows, zmin: -0.5, zmax: count - 0.5, colorscale: colours, showscale: false };
    const z = figure.rows.map((_, row) => Array.from(cells.subarray(row * columns, (row + 1) * columns)));
    const traces = [{ ...base, x: figure.columns, z, customdata: z.map((row) => row.map((own) => figure.names[own])),
      hovertemplate: `%{y}<br>${figure.x} %{x}<br>%{customdata}<extra></extra>` }];
    const annotations = figure.ends.map(([y, text]) => (
      { xref: "paper", x: 1, xanchor: "left", xshift: 1, y, text, showarrow: false, font: { size: 11 } }));
    const more = {
      annotations,
      margin: { l: 48, r: 24, t: 10, b: 44 },
      xaxis: axis({ type: "category", title: { text: figure.x }, nticks: 10, showgrid: false }),
      yaxis: axis({ type: "category", title: { text: figure.y }, autorange: "reversed", showticklabels: false, ticks: "",
        showgrid: false }),
    };
    if (figure.side) {
      const side = Array.from(bytes(figure.side), (own) => [own]);
      traces.push({ ...base, x: ["true"], z: side, xaxis: "x2", customdata: side.map(([own]) => [figure.names[own]]),
        hovertemplate: "%{y}<br>%{customdata}<extra></extra>" });
      more.yaxis.anchor = "x2";
      more.xaxis.domain = [0.085, 1];
      more.xaxis2 = axis({ type: "category", domain: [0, 0.05], showgrid: false });
    }
    return [traces, layout(more)];
  }

  function draw(box) {
    const holder = box.querySelector(".plot"), figure = figures.get(box.id);
    const slider = box.querySelector(".slider input");
    const hidden = new Set([...box.querySelectorAll('button[aria-pressed="false"]')].map((button) => button.dataset.name));
    try {
      const [traces, look] = figure.kind === "panel" ? drawPanel(figure, hidden)
        : figure.kind === "grid" ? drawGrid(figure)
        : drawMatrix(figure, slider ? Number(slider.value) : figure.frames.length - 1);
      if (figure.kind === "matrix") holder.style.height = `${Math.min(figure.height, 0.95 * holder.clientWidth)}px`;
      Plotly.react(holder, traces, look, config);
      box.dataset.drawn = "yes";
    } catch (error) {
      holder.textContent = `This figure could not be drawn (${error.message}); its values are in the table below.`;
      reportError(error);
    }
  }

  const boxes = [...document.querySelectorAll("figure")];
  for (const box of boxes) {
    const slider = box.querySelector(".slider input");
    if (slider) {
      slider.addEventListener("input", () => {
        const title = figures.get(box.id).frames[Number(slider.value)].title;
        box.querySelector("output").textContent = title;
        slider.setAttribute("aria-valuetext", title);
        draw(box);
      });
    }
    for (const button of box.querySelectorAll("[data-toggles] button")) {
      button.addEventListener("click", () => {
        button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "true" ? "false" : "true");
        draw(box);
      });
    }
  }

  // The first second is spent before the page counts as loaded, so that a screenshot or a print has figures.
  const waiting = [...boxes];
  function drawWaiting() {
    const began = performance.now();
    while (waiting.length && performance.now() - began < 1000) draw(waiting.shift());
    if (waiting.length) setTimeout(drawWaiting);
  }
  drawWaiting();

  dark.addEventListener("change", () => boxes.filter((box) => box.dataset.drawn).forEach(draw));
  window.addEventListener("beforeprint", () => boxes.filter((box) => !box.dataset.drawn).forEach(draw));

  const reload = Number(document.body.dataset.reload);
  if (reload) {
    const titles = () => [...document.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent);
    const open = new Set(JSON.parse(sessionStorage.getItem("open") || "[]"));
    for (const summary of document.querySelectorAll("summary")) summary.parentElement.open = open.has(summary.textContent);
    setInterval(() => {
      if (!document.getElementById("reload").checked) return;
      sessionStorage.setItem("open", JSON.stringify(titles()));
      location.reload();
    }, 1000 * reload);
  }
})();
