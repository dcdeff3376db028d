"""Describes figures for the script of the page, which draws them with Plotly: plain data, ready for JSON."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from lit_cfl.pictures.cells import LEVELS, CellGrid, Matrix, stretches
from lit_cfl.pictures.panels import Bars, Curve, Panel, Points, Style
from lit_cfl.report.blocks import Figure

_SYMBOLS = {"o": "circle", "^": "triangle-up", "s": "square", "D": "diamond", "v": "triangle-down", "P": "cross",
            "X": "x", "x": "x-thin-open"}  # fmt: skip
_MOST_NAMED = 20  # groups beside a matrix
_DIGITS = 5
_MOST_TICKS = 10
_UNKNOWN = Style("#888888")


def described(figure: Figure) -> dict[str, Any]:
    """Describes a figure: what to draw, with text escaped, for Plotly reads some of HTML."""
    drawing = figure.drawing
    about: dict[str, Any] = {"name": figure.name, "height": figure.height}
    if isinstance(drawing, Panel):
        return about | _panel(drawing, figure.styles)
    return about | (_matrix(drawing) if isinstance(drawing, Matrix) else _grid(drawing))


def symbol(marker: str) -> str:
    """Returns Plotly's name of a marker."""
    return _SYMBOLS.get(marker, "circle")


def dash(line: object) -> str:
    """Returns Plotly's name of a style of lines, which here are tuples of points on and off."""
    if isinstance(line, tuple):
        return ",".join(f"{2 * part:g}px" for part in line[1])
    return {"--": "dash", ":": "dot", "-.": "dashdot"}.get(str(line), "solid")


def _panel(panel: Panel, styles: Mapping[str, Style]) -> dict[str, Any]:
    traces: list[dict[str, Any]] = []
    for curve in panel.curves:
        traces += _curve(curve, styles.get(curve.name, _UNKNOWN))
    traces += [_bars(bars, styles.get(bars.name, _UNKNOWN)) for bars in panel.bars]
    traces += [_points(points, styles.get(points.name, _UNKNOWN)) for points in panel.points]
    axes = {
        "x": _axis(panel.x, panel.x_ticks, panel.logarithmic),
        "y": _axis(panel.y, panel.y_ticks, panel.logarithmic),
    }
    heights = [value for curve in panel.curves for value in curve.y] + [v for dots in panel.points for v in dots.y]
    if heights and not panel.y_ticks and all(value == int(value) for value in heights):
        axes["y"] |= {"rangemode": "tozero"} | ({"dtick": 1} if max(heights) <= _MOST_TICKS else {})
    if panel.limits is not None:
        axes["y"]["range"] = list(panel.limits)
    together = len(panel.curves) > 1 and not panel.points and not panel.y_ticks
    found: dict[str, Any] = {"kind": "panel", "traces": traces, "axes": axes, "together": together}
    return found if panel.diagonal is None else found | {"diagonal": panel.diagonal}


def _axis(title: str, ticks: Mapping[float, str], logarithmic: bool) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": escape(title)}}
    if logarithmic:
        axis["type"] = "log"
    if ticks:
        axis |= {"tickvals": list(ticks), "ticktext": [escape(_cut(name)) for name in ticks.values()]}
        axis["range"] = [min(ticks) - 0.5, max(ticks) + 0.5]
    return axis


def _cut(text: str, most: int = 28) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _curve(curve: Curve, style: Style) -> list[dict[str, Any]]:
    name = escape(curve.name)
    single = len(curve.x) == 1
    line = {
        "type": "scatter",
        "mode": "lines+markers" if single else "lines",
        "name": name,
        "meta": curve.name,
        "x": _numbers(curve.x),
        "y": _numbers(curve.y),
        "line": {"color": style.colour, "dash": dash(style.line), "width": 2},
        "hovertemplate": "%{y:.4~g}<extra>" + name + "</extra>",
    }
    if not len(curve.low):
        return [line]
    around = {"type": "scatter", "mode": "lines", "meta": curve.name, "line": {"width": 0}, "hoverinfo": "skip"}
    low = around | {"x": line["x"], "y": _numbers(curve.low)}
    high = around | {"x": line["x"], "y": _numbers(curve.high), "fill": "tonexty", "band": style.colour}
    return [low, high, line]


def _points(points: Points, style: Style) -> dict[str, Any]:
    name = escape(points.name)
    notes = [escape(note).replace("\n", "<br>") for note in points.notes]
    found: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers+text" if points.labels else "markers",
        "name": name,
        "meta": points.name,
        "x": _numbers(points.x),
        "y": _numbers(points.y),
        "marker": {"color": style.colour, "symbol": symbol(style.marker), "size": _size(style)},
        "hovertemplate": ("%{customdata}" if notes else "%{x}, %{y}") + "<extra>" + name + "</extra>",
    }
    if notes:
        found["customdata"] = notes
    if points.labels:
        found |= {"text": [escape(label) for label in points.labels], "textposition": "middle right"}
        found["cliponaxis"] = False
    return found


def _size(style: Style) -> float:
    return (
        2.4 * style.size * (1.3 if style.marker in ("^", "v") else 1.0)
    )  # Plotly's triangles are smaller than its discs


def _bars(bars: Bars, style: Style) -> dict[str, Any]:
    name = escape(bars.name)
    edges = [f"{x:.4g} to {x + bars.width:.4g}" for x in bars.x]
    found: dict[str, Any] = {
        "type": "bar",
        "name": name,
        "meta": bars.name,
        "x": _numbers(bars.x),
        "y": _numbers(bars.height),
        "width": bars.width,
        "offset": 0,
        "marker": {"color": style.colour},
        "customdata": edges,
        "hovertemplate": "%{customdata}: %{y}<extra>" + name + "</extra>",
    }
    return found | ({"base": _numbers(bars.base)} if len(bars.base) else {})


def _numbers(values: Sequence[float]) -> list[float]:
    """Shortens numbers to five digits that count, relative to the greatest."""
    return [float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else int(value) for value in values]


def _matrix(matrix: Matrix) -> dict[str, Any]:
    frames = []
    for frame in matrix.frames:
        edges, names = stretches(frame.groups)
        few = len(names) <= _MOST_NAMED
        upper = frame.cells[np.triu_indices(len(frame.cells))]
        frames.append(
            {
                "title": frame.title,
                "labels": [escape(label) for label in frame.labels],
                "cells": _encoded(upper),
                "edges": edges if few else [],
                "groups": [escape(name) for name in names] if few else [],
            }
        )
    shown = [(value - matrix.low) / max(matrix.high - matrix.low, 1e-9) * LEVELS for value in matrix.shown]
    return {
        "kind": "matrix",
        "frames": frames,
        "low": matrix.low,
        "high": matrix.high,
        "levels": LEVELS,
        "shown": shown,
        "value": escape(matrix.name),
        "axis": escape(matrix.axis),
    }


def _grid(grid: CellGrid) -> dict[str, Any]:
    return {
        "kind": "grid",
        "cells": _encoded(grid.cells),
        "side": None if grid.side is None else _encoded(grid.side),
        "names": [escape(name) for name in grid.names],
        "colours": list(grid.colours),
        "ends": [[middle, escape(mark)] for middle, mark in grid.ends],
        "rows": [escape(name) for name in grid.rows],
        "columns": [escape(name) for name in grid.columns],
        "x": escape(grid.x),
        "y": escape(grid.y),
    }


def _encoded(cells: np.ndarray) -> str:
    return b64encode(np.ascontiguousarray(cells, dtype=np.uint8).tobytes()).decode()
