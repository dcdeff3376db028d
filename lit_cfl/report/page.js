"use strict";
for (const box of document.querySelectorAll("figure")) {
  // A name in the legend hides what it names.
  for (const entry of box.querySelectorAll("[data-legend]")) {
    const toggle = () => {
      const hidden = entry.getAttribute("aria-pressed") !== "false";
      entry.setAttribute("aria-pressed", String(!hidden));
      for (const part of box.querySelectorAll("[data-name]")) {
        if (part.dataset.name === entry.dataset.legend) part.style.display = hidden ? "none" : "";
      }
    };
    entry.setAttribute("aria-pressed", "true");
    entry.addEventListener("click", toggle);
    entry.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        toggle();
      }
    });
  }
  // The slider goes through the states of a figure.
  const slider = box.querySelector(".slider input"), states = [...box.querySelectorAll(".state")];
  if (slider) {
    slider.addEventListener("input", () => {
      states.forEach((state, k) => { state.hidden = k !== Number(slider.value); });
      const name = states[slider.value].dataset.state;
      box.querySelector("output").textContent = name;
      slider.setAttribute("aria-valuetext", name);
    });
  }
}

// The mark nearest to the pointer, or to a finger, says what it shows.
const note = document.getElementById("note");
function show(event) {
  const plot = event.target.closest(".plot");
  let nearest = 24, found = null;
  for (const mark of plot ? plot.querySelectorAll("[data-note]") : []) {
    const place = mark.getBoundingClientRect();
    if (!place.width) continue;
    const x = Math.max(place.left - event.clientX, 0, event.clientX - place.right);
    const y = Math.max(place.top - event.clientY, 0, event.clientY - place.bottom);
    if (Math.hypot(x, y) < nearest) [nearest, found] = [Math.hypot(x, y), mark];
  }
  note.hidden = !found;
  if (!found) return;
  note.textContent = found.dataset.note;
  note.style.left = `${Math.min(event.clientX + 14, innerWidth - note.offsetWidth - 8)}px`;
  note.style.top = `${Math.max(8, event.clientY - note.offsetHeight - 10)}px`;
}
for (const name of ["pointermove", "pointerdown"]) document.addEventListener(name, show);
document.addEventListener("scroll", () => { note.hidden = true; });
