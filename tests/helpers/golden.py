"""Compares what is shown with a recorded text; `UPDATE=1` records it again.

A changed number shows up in the diff of a file in a folder `golden`, where a reviewer reads it. Rules that were once
wrong are worked out by hand in `tests/report/test_definitions.py`, since a careless `UPDATE=1` accepts anything.
"""

import json
import os
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

_WIDTH = 150


def check_golden(file: Path, found: object, *folders: Path) -> None:
    """Checks that a text, or a structure of lists, dictionaries and numbers as in `plain`, equals its recorded text.

    If the variable `UPDATE` is set, it is recorded. Instead of the temporary `folders`, the text has `TMP`.
    """
    text = found if isinstance(found, str) else json.dumps(plain(found))
    for folder in sorted(map(str, folders), key=len, reverse=True):
        text = text.replace(folder, "TMP")
    text = text if isinstance(found, str) else in_lines(json.loads(text)) + "\n"  # lines break at the replaced names
    if "UPDATE" in os.environ:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    recorded = file.read_text("utf-8") if file.exists() else ""
    assert text == recorded, f"{file.name} differs; if the new text is right, `UPDATE=1 pytest` records it"


def plain(found: Any) -> Any:
    """Converts a structure into what JSON holds: numbers have six digits, and a list of numbers is one line."""
    if isinstance(found, dict):
        return {str(key): plain(value) for key, value in found.items()}
    if isinstance(found, np.ndarray):
        return plain(found.tolist())
    if isinstance(found, list | tuple):
        numbers = found and all(isinstance(one, Real) and not isinstance(one, bool) for one in found)
        return " ".join(map(digits, found)) if numbers else list(map(plain, found))
    return digits(found) if isinstance(found, float) else found


def in_lines(found: Any, indent: str = "") -> str:
    """Formats what JSON holds; what fits a line is not broken."""
    text = json.dumps(found, ensure_ascii=False)
    if len(indent) + len(text) <= _WIDTH or not found or not isinstance(found, dict | list):
        return text
    deeper = indent + " "
    if isinstance(found, dict):
        names, parts, ends = [f"{json.dumps(key, ensure_ascii=False)}: " for key in found], found.values(), "{}"
    else:
        names, parts, ends = [""] * len(found), found, "[]"
    lines = ",\n".join(f"{deeper}{name}{in_lines(part, deeper)}" for name, part in zip(names, parts, strict=True))
    return f"{ends[0]}\n{lines}\n{indent}{ends[1]}"


def digits(value: Any) -> str:
    """Formats a number with six significant digits; without a minus sign if that makes it zero."""
    return f"{round(float(value), 9) + 0.0:.6g}"
