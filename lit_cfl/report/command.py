"""`lit-cfl report`: writes the page, and figures for a paper."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lit_cfl.errors import SaveError
from lit_cfl.pictures.files import write_figure
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.progress.console import new_console
from lit_cfl.report.assemble import make_page
from lit_cfl.report.blocks import Page
from lit_cfl.report.options import read_arguments
from lit_cfl.report.page import as_html
from lit_cfl.storage.atomic_writes import name_write_errors, write_atomically


def report(arguments: Sequence[str]) -> int:
    """Writes the page that shows some directories and, on request, the page's figures."""
    given, console = read_arguments(arguments), new_console()
    out, paths = Path(given.out), list(map(Path, given.directories))
    with console.status("reading and drawing"):
        page = make_page(paths, ["lit-cfl", "report", *arguments])
        with name_write_errors(out.parent):
            out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, lambda file: file.write(as_html(page)))
        if given.figures is not None:
            write_figures(page, Path(given.figures))
            console.print(f"Figures: {given.figures}", soft_wrap=True)
    console.print(f"Page: {out}", soft_wrap=True)
    return 0


def write_figures(page: Page, folder: Path) -> None:
    """Writes a page's figures into a folder as PNG and PDF for a paper; skips those that cannot be drawn.

    Raises:
        SaveError: a file could not be written.
    """
    guard = DrawingGuard(passed=(SaveError,))
    for figure in page.figures:
        write = partial(write_figure, figure, folder / figure.name, ("png", "pdf"), titled=False)
        guard(f"figure {figure.name}", write)
