"""Makes a table with a column of each kind: images, labels, texts, numbers and lists."""

import datasets
from datasets import ClassLabel, List, Value
from hub import picture, pixels

MIXED = {
    "image": datasets.Image(),
    "label": ClassLabel(names=["cat", "dog"]),
    "text": Value("string"),
    "weight": Value("float64"),
    "reading": List(Value("float32")),
}

ROWS = {
    "image": [picture(image) for image in pixels(3, 4, 4)],
    "label": [1, 0, 1],
    "text": ["a b", None, "c"],
    "weight": [0.5, 1.5, -2.0],
    "reading": [[1, 2], [3, 4], [5, 6]],
}
