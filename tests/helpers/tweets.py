"""Writes tweets in the Hub's format, and word vectors for them."""

from pathlib import Path
from typing import Any

from datasets import Value
from hub import write

from lit_cfl.datamodules.partition import Natural
from lit_cfl.datamodules.sent140 import Sent140

FEATURES = {name: Value("string") for name in ("text", "date", "user", "query")} | {"sentiment": Value("int32")}
TWEETS = [
    ("good day , good night", "ann", 4),
    ("bad day", "bob", 0),
    ("so so", "ann", 2),
    ("Good !", "ann", 4),
    ("bad bad night", "bob", 0),
    ("sad", "cat", 0),
]
VECTORS = "good 1 2 3\nbad -1 -2.5 -3e0\nunheard 7 7 7\n, 4 5 6\n"


def tweets(folder: Path, rows: list[tuple[Any, Any, Any]] = TWEETS) -> str:
    """Writes tweets in the Hub's format; as in the real data set, the split `test` has other users."""
    parts = {"train": rows, "test": [("of somebody else", "zoe", 4), ("no opinion", "yan", 2)]}
    same = {"date": "Mon Apr 06 22:19:45 PDT 2009", "query": "NO_QUERY"}
    columns = {
        split: dict(zip(("text", "user", "sentiment"), map(list, zip(*part, strict=True)), strict=True))
        | {name: [value] * len(part) for name, value in same.items()}
        for split, part in parts.items()
    }
    return str(write(folder / "tweets", {name: FEATURES[name] for name in columns["train"]}, **columns))


def all_users(folder: Path, **options: Any) -> Sent140:
    return Sent140(tweets(folder), length=4, partition=Natural(test=0.0), **options)


def glove(folder: Path, content: str | bytes = VECTORS) -> Path:
    path = folder / "vectors.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
