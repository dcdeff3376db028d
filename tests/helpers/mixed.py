"""Writes a data set in the Hub's format with a column of each kind: images, labels, clients, texts, numbers, lists."""

from pathlib import Path
from typing import Any

import datasets
from datasets import ClassLabel, List, Value
from hub import picture, pixels, write_split

COLUMNS = {
    "photo": (datasets.Image(), [picture(image) for image in pixels(6, 5, 5)]),
    "kind": (Value("string"), ["dog", "ape", "dog", "cat", "ape", "ape"]),
    "rank": (ClassLabel(names=["low", "mid", "high"]), [2, 0, 0, 2, 0, 2]),
    "user": (Value("string"), ["u9", "u10", "u9", "u9", "u10", "u9"]),
    "text": (Value("string"), ["b a b", "a c", "b", "d d d d", "a new", "b"]),
    "reading": (List(Value("float32")), [[row, row + 0.5] for row in range(6)]),
    "heat": (Value("float64"), [0.5, 1, 1.5, 2, 2.5, 3]),
    "age": (Value("int32"), [30, 31, 32, 33, 34, 35]),
    "grade": (Value("int64"), [0, 1, 4, 0, 1, 4]),
}
FEATURES, ROWS = ({name: column[k] for name, column in COLUMNS.items()} for k in (0, 1))


def mixed(folder: Path, **changes: Any) -> str:
    """Writes the first four rows as `train`, and the others as `test`; `changes` replace columns."""
    return str(write_split(folder, FEATURES, ROWS | changes, train=4))
