"""The command line of `lit-cfl report`. Imports nothing heavy."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from lit_cfl.errors import InputError, LineParser, suggest

_FIGURES = (".png", ".pdf", ".svg")
_EPILOG = """\
DIR is the directory of a run, a comparison (lit-cfl compare) or a study (lit-cfl tune). Several are
shown on one page; their runs must have the same data, except that comparisons on different data are ranked.
"""


def read_arguments(arguments: Sequence[str]) -> Namespace:
    """Reads the command line. Raises InputError, also for a missing directory."""
    parser = LineParser(
        prog="lit-cfl report",
        description="Shows runs, comparisons and studies on one page, a file that needs no network.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("directories", nargs="+", metavar="DIR", help="a directory that run, compare or tune wrote")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="the page (default: report.html)")
    parser.add_argument("--figures", metavar="DIR", help="also draw each figure as PNG and PDF, for a paper")
    given = parser.parse_args(list(arguments))
    out = Path(given.out)
    if out.is_dir() or given.out.endswith("/"):
        raise InputError(f"--out {out} is a directory; name a file, such as {out / 'report.html'}")
    if given.figures is not None and Path(given.figures).suffix.lower() in _FIGURES:
        raise InputError(
            f"--figures {given.figures} names a file, but each figure gets a separate file, as PNG and PDF; name a "
            f"folder, such as {Path(given.figures).with_suffix('')}"
        )
    for path in map(Path, given.directories):
        if not path.is_dir():
            near = suggest(path.name, [one.name for one in path.parent.glob("*/")])
            wrong = f"{path} is a file" if path.exists() else f"there is no directory {path}{near}"
            raise InputError(f"{wrong}; give a directory that lit-cfl run, compare or tune wrote")
    return given
