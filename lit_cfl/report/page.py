"""Writes a page as one HTML file that needs nothing else: its styles, script, plotting library and data are inside."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import Environment

from lit_cfl.pictures.cells import CellGrid
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.panels import Curve, Panel, Points, Style
from lit_cfl.report.blocks import Block, Figure, Page, Section, Table
from lit_cfl.report.interactive import described

MOST_BYTES = 8 * 2**20
_HERE = "lit_cfl.report"
_IN_SCRIPTS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_MOST_NAMED = 40  # values of a grid
_MOST_ROWS = 600  # of a table that a figure makes of its values


def as_html(page: Page, reload_seconds: int | None = None) -> bytes:
    """Formats a page.

    Args:
        page: of sections.
        reload_seconds: after which it loads itself again; None = never.
    """
    page = _without_broken(page)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["legend"] = legend
    environment.filters["values"] = values_of
    environment.filters["groupby_kind"] = _figures_together
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["data_uri"] = lambda png: f"data:image/png;base64,{b64encode(png).decode()}"
    figures = page.figures
    text = environment.from_string(_read("page.html")).render(
        page=page,
        reload_seconds=reload_seconds,
        css=_read("page.css"),
        script=_read("page.js"),
        library=_read("plotly-cartesian.min.js") if figures else "",
        data=in_script([described(figure) for figure in figures]),
    )
    return text.encode()


def _without_broken(page: Page) -> Page:
    """Leaves out the figures that cannot be described, and names them among the problems."""
    problems: list[str] = []
    guard = DrawingGuard(lambda line: problems.append(f"{line}."))

    def shown(section: Section) -> Section:
        blocks = [
            block
            for block in section.blocks
            if not isinstance(block, Figure) or guard(block.title, partial(_described, block)) is not None
        ]
        return replace(section, blocks=blocks, parts=[shown(part) for part in section.parts])

    sections = [shown(section) for section in page.sections]
    return replace(page, sections=sections, problems=[*page.problems, *problems])


def _described(figure: Figure) -> tuple[object, ...]:
    return in_script(described(figure)), legend(figure), values_of(figure)


def in_script(content: Any) -> str:
    """Formats JSON that can stand in a script element: no character in it can end the element."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return "".join(_IN_SCRIPTS.get(character, character) for character in text)


def _figures_together(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Divides blocks into stretches of figures, which lie side by side, and of others."""
    return [
        {"figures": figures, "blocks": list(found)}
        for figures, found in groupby(blocks, lambda block: isinstance(block, Figure))
    ]


def _read(name: str) -> str:
    return files(_HERE).joinpath(name).read_text("utf-8")


def legend(figure: Figure) -> list[dict[str, str]]:
    """Lists names and looks of what a figure shows, where there are or could be several.

    Returns:
        for each its `name`, `colour`, `kind` (`line`, `marker` or `area`), and `dash` or `marker`.
    """
    drawing = figure.drawing
    if isinstance(drawing, CellGrid):
        looks = list(drawing.looks.items())[:_MOST_NAMED]
        return [{"name": name, "colour": colour, "kind": "area"} for name, colour in looks]
    if not isinstance(drawing, Panel) or max(len(drawing.names), len(figure.styles)) < 2:
        return []
    kinds = {part.name: "marker" for part in drawing.points} | {part.name: "line" for part in drawing.curves}
    kinds |= {part.name: "area" for part in drawing.bars}
    return [_look(name, kinds[name], figure.styles) for name in figure.styles if name in kinds]


def _look(name: str, kind: str, styles: Mapping[str, Style]) -> dict[str, str]:
    style = styles[name]
    dashes = " ".join(f"{part:g}" for part in style.line[1]) if isinstance(style.line, tuple) else ""
    return {"name": name, "colour": style.colour, "kind": kind, "dash": dashes, "marker": style.marker}


def values_of(figure: Figure) -> Table | None:
    """Returns the table of what a hover over a figure shows."""
    if figure.table is not None or not isinstance(figure.drawing, Panel):
        return figure.table
    panel, rows = figure.drawing, []
    parts: list[Curve | Points] = [*panel.curves, *panel.points]
    for part in parts:
        rows += [
            [part.name, _shown(x, panel.x_ticks), _shown(y, panel.y_ticks)] for x, y in zip(part.x, part.y, strict=True)
        ]
    for bars in panel.bars:
        rows += [[bars.name, f"{x:.4g}", f"{y:.4g}"] for x, y in zip(bars.x, bars.height, strict=True)]
    return Table(f"{figure.title}: values", ["", panel.x or "x", panel.y or "y"], rows[:_MOST_ROWS], folded=True)


def _shown(value: float, ticks: Mapping[float, str]) -> str:
    return ticks.get(float(value), f"{value:.4g}")
