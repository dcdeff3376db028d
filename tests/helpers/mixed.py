"""Writes a data set in the Hub's format with a column of each kind: images, labels, clients, texts, numbers, lists."""

from pathlib import Path
from typing import Any

import datasets
from datasets import ClassLabel, List, Value
from hub import picture, pixels, write_split

FEATURES = {
    "photo": datasets.Image(),
    "kind": Value("string"),
    "rank": ClassLabel(names=["low", "mid", "high"]),
    "user": Value("string"),
    "text": Value("string"),
    "reading": List(Value("float32")),
    "heat": Value("float64"),
    "age": Value("int32"),
    "grade": Value("int64"),
}
ROWS = {
    "photo": [picture(image) for image in pixels(6, 5, 5)],
    "kind": ["dog", "ape", "dog", "cat", "ape", "ape"],
    "rank": [2, 0, 0, 2, 0, 2],
    "user": ["u9", "u10", "u9", "u9", "u10", "u9"],
    "text": ["b a b", "a c", "b", "d d d d", "a new", "b"],
    "reading": [[row, row + 0.5] for row in range(6)],
    "heat": [0.5, 1, 1.5, 2, 2.5, 3],
    "age": [30, 31, 32, 33, 34, 35],
    "grade": [0, 1, 4, 0, 1, 4],
}


def mixed(folder: Path, **changes: Any) -> str:
    """Writes the first four rows as `train`, and the others as `test`; `changes` replace columns."""
    return str(write_split(folder, FEATURES, ROWS | changes, train=4))
