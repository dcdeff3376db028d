"""Draws figures as SVG for an HTML page, with real text and the page's colours."""

import re
from html import escape
from io import StringIO

from matplotlib import rc_context

from lit_cfl.pictures.figure import Figure, draw, short
from lit_cfl.pictures.panels import Note

_DPI = 150  # resolution of cells
_MOST_NOTED = 400  # a figure with more points than this has no notes, to keep the page small


def as_svg(figure: Figure) -> str:
    """Draws a figure as an SVG element of a page; browsers show the notes of its points at the pointer."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": figure.name}):
        file, drawn = StringIO(), draw(figure)
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        drawn.savefig(file, format="svg", transparent=True, dpi=_DPI, metadata=metadata)
    svg = "<svg" + file.getvalue().partition("<svg")[2]
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)  # the page's styles set the size
    if sum(len(dots.x) for panel in figure.panels for dots in panel.points) <= _MOST_NOTED:
        svg = _add_notes(figure, svg)
    return re.sub(r'<g id="[^"]*"', "<g", svg).replace("#000000", "currentColor")  # all figures have the same ids


def _add_notes(figure: Figure, svg: str) -> str:
    """Adds the notes of points to their marks, as titles."""
    for number, panel in enumerate((panel for row in figure.rows for panel in row), 1):
        for k, dots in enumerate(panel.points if panel is not None else ()):
            start = svg.index(f'<g id="points-{k}"', svg.index(f'<g id="axes_{number}"'))
            parts = svg[start:].split("<use ", len(dots.notes))
            pairs = zip(parts[1:], dots.notes, strict=True)
            svg = svg[:start] + "<use ".join([parts[0], *(mark.replace("/>", _title(note), 1) for mark, note in pairs)])
    return svg


def _title(note: Note) -> str:
    """Writes a note as the content and the end of its mark."""
    lines = [f"{name} {short(value)}" for name, value in note.items() if value is not None]
    return f"><title>{escape(chr(10).join(lines))}</title></use>"
