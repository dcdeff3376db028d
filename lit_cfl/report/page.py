"""Writes a page as one self-contained HTML file, including styles and figures."""

from dataclasses import replace
from functools import partial
from importlib.resources import files

from jinja2 import Environment

from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.svg import as_svg
from lit_cfl.report.blocks import Page


def as_html(page: Page) -> bytes:
    """Formats a page as HTML. Figures that cannot be drawn are left out and listed among the problems."""
    problems: list[str] = []
    guard = DrawingGuard(lambda line: problems.append(f"{line}."))
    drawn = {figure.name: guard(figure.title, partial(as_svg, figure)) for figure in page.figures}
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["kind"] = lambda block: type(block).__name__
    text = environment.from_string(_read("page.html")).render(
        page=replace(page, problems=[*page.problems, *problems]), drawn=drawn, css=_read("page.css")
    )
    return text.encode()


def _read(name: str) -> str:
    return files("lit_cfl.report").joinpath(name).read_text("utf-8")
