"""How results show themselves: in a line, and in a notebook as a table with pictures."""

from base64 import b64encode
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

_LONGEST = 120  # characters of a line
# columns of metrics.csv and results.csv that a notebook shows
MAIN = (
    r"^(algorithm|seed|round|(val|test)/(weighted|mean|worst10)_\w+|clusters/(count|ari)|traffic/mib|time/elapsed_.*"
    r"|runs|test_(mean|sd)|worst10|difference.*|(ari|clusters)_mean|mib|seconds)$"
)


def short_repr(of: Any) -> str:
    """Shows an object of a dataclass in a line of at most 120 characters: tensors by their shapes, objects by class."""
    shown = ", ".join(f"{one.name}={_brief(getattr(of, one.name))}" for one in fields(of))
    return shorten(f"{type(of).__name__}({shown})")


def shorten(line: str) -> str:
    """Leaves out the middle of a line of more than 120 characters."""
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 23]}...{line[-20:]}"


def _brief(value: Any) -> str:
    if hasattr(value, "shape"):
        return str(list(value.shape))
    if isinstance(value, str | list | tuple):
        value = value[:40]  # there may be a million names
    plain = isinstance(value, str | list | tuple | int | float | Path | None)
    return " ".join(str(value).split())[:40] if plain else type(value).__name__


def as_html(of: object, folder: Path, *tables: "DataFrame", text: str = "") -> str:
    """Formats a result for a notebook: its repr, a text, its tables, and the PNGs in `folder / "pictures"`."""
    shape: dict[str, Any] = {"index": False, "na_rep": "", "max_rows": 30, "max_cols": 20, "border": 0}
    known = (table.dropna(axis=1, how="all") for table in tables)
    rows = "\n".join(table.to_html(float_format="{:.4g}".format, **shape) for table in known)
    pictures = [b64encode(file.read_bytes()).decode() for file in sorted((folder / "pictures").glob("*.png"))]
    shown = "".join(f'<img src="data:image/png;base64,{content}" width="500">' for content in pictures)
    lines = "\n".join(f"<p>{escape(line)}</p>" for line in (repr(of), text) if line)
    return f"{lines}\n{rows}\n{shown}"
