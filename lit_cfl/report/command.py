"""`lit-cfl report`: writes the page, and figures for a paper."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lit_cfl.errors import LineParser
from lit_cfl.report.assemble import make_page
from lit_cfl.report.page import as_html
from lit_cfl.storage.atomic_writes import name_write_errors, write_atomically


def report(arguments: Sequence[str]) -> int:
    """Writes the page of some directories."""
    parser = LineParser(
        prog="lit-cfl report",
        description="Shows runs, comparisons, studies and reproductions on one page, a file that needs no network.",
        allow_abbrev=False,
    )
    parser.add_argument("directories", nargs="+", metavar="DIR", help="that run, compare, tune or reproduce wrote")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="the page (default: report.html)")
    parser.add_argument("--no-data", action="store_true", help="do not load the clients' data (labels and images)")
    given = parser.parse_args(list(arguments))
    console, out = Console(), Path(given.out)
    paths = [Path(path) for path in given.directories]
    page = make_page(
        paths, ["lit-cfl", "report", *arguments], not given.no_data, lambda line: console.print(line, style="dim")
    )
    with name_write_errors(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, lambda file: file.write(as_html(page)))
    console.print(f"Page: {out}", soft_wrap=True, highlight=False, markup=False)
    return 0
