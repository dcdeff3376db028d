"""Draws figures as SVG for an HTML page, with real text, the page's colours, and values as notes at the marks."""

from collections.abc import Iterator
from io import StringIO
from typing import Any
from xml.etree import ElementTree

from matplotlib import rc_context

from lit_cfl.pictures.figure import Figure, draw, short
from lit_cfl.pictures.panels import Bars, Curve, Panel, Points

Part = Curve | Points | Bars
_NAMESPACE = "{http://www.w3.org/2000/svg}"
_DPI = 150  # resolution of cells
_MOST_NOTED = 1000  # a figure with more points than this has no notes, to keep the page small
_LOOK: Any = {  # each point of a curve gets an invisible mark, which carries its note
    "svg.fonttype": "none",
    "lines.marker": "o",
    "lines.markersize": 4,
    "lines.markerfacecolor": "none",
    "lines.markeredgecolor": "none",
}


def as_svg(figure: Figure) -> str:
    """Draws a figure as an SVG element of a page.

    `data-name` is the name of a group of marks, `data-legend` that of an entry in the legend, and `data-note` says what
    a mark shows.
    """
    with rc_context({**_LOOK, "svg.hashsalt": figure.name}):
        file, drawn = StringIO(), draw(figure)
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        drawn.savefig(file, format="svg", transparent=True, dpi=_DPI, metadata=metadata)
    ElementTree.register_namespace("", _NAMESPACE[1:-1])
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(file.getvalue())  # noqa: S314  # our own
    for size in ("width", "height"):
        del root.attrib[size]  # the page's styles set the size
    panels = [panel for row in figure.rows for panel in row]
    noted = sum(len(dots.x) for panel in panels if panel is not None for dots in panel.points) <= _MOST_NOTED
    for number, panel in enumerate(panels, 1):
        axes = root.find(f".//{_NAMESPACE}g[@id='axes_{number}']")
        if panel is not None and axes is not None:
            _annotate(axes, panel, noted)
    for group in root.iter(f"{_NAMESPACE}g"):
        # drops the id, which would occur in all figures of a page
        kind, _, place = group.attrib.pop("id", "").partition("-")
        if kind == "legend":
            group.attrib |= {"data-legend": list(figure.styles)[int(place)], "role": "button", "tabindex": "0"}
    return ElementTree.tostring(root, "unicode").replace("#000000", "currentColor")


def _annotate(axes: ElementTree.Element, panel: Panel, noted: bool) -> None:
    """Adds the names of curves, points and bars to their SVG groups, and notes to the marks."""
    parts: dict[str, Part] = {f"curve-{k}": part for k, part in enumerate(panel.curves)}
    parts |= {f"band-{k}": part for k, part in enumerate(panel.curves)}
    parts |= {f"points-{k}": part for k, part in enumerate(panel.points)}
    parts |= {f"bars-{k}": part for k, part in enumerate(panel.bars)}
    # iterators, since each bar of a series is a separate group with the same id
    notes = {gid: _notes(part, panel) for gid, part in parts.items()}
    for group in axes.iter(f"{_NAMESPACE}g"):
        gid = group.get("id", "")
        if gid in parts:
            group.set("data-name", parts[gid].name)
            if gid.startswith("bars"):
                group.set("data-note", next(notes[gid]))
            for mark in [] if gid.startswith("band") else group.iter(f"{_NAMESPACE}use"):
                if noted:
                    mark.set("data-note", next(notes[gid]))
                if gid.startswith("points"):
                    group.set("style", mark.attrib.pop("style"))  # sets the style once for all marks


def _notes(part: Part, panel: Panel) -> Iterator[str]:
    """Yields the note of each mark."""
    if isinstance(part, Bars):
        places = part.places or [f"{short(float(x))} to {short(x + part.width)}" for x in part.x]
        for place, height in zip(places, part.height, strict=True):
            yield f"{part.name}\n{place}: {short(height)}"
    elif isinstance(part, Points) and part.notes:
        for note in part.notes:
            yield "\n".join(f"{key} {value}" for key, value in note.items() if value is not None)
    else:
        step = part.step if isinstance(part, Curve) else 1
        words = part.notes if isinstance(part, Curve) and part.notes else list(map(short, part.y))
        for x, y, word in zip(part.x[::step], part.y[::step], words[::step], strict=True):
            place, value = panel.x_ticks.get(x, short(x)), panel.y_ticks.get(y, word)
            yield f"{part.name}\n{panel.x} {place}\n{panel.y} {value}"
