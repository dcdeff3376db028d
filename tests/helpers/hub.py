"""Writes tiny data sets in the Hub's format."""

import io
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from PIL import Image

SHARED = Path(__file__).parents[3] / "shared" / "data"
DIGITS = [str(digit) for digit in range(10)]


def fresh_caches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses empty caches for one test, and unsets LITCFL_DATA."""
    monkeypatch.setenv("LITCFL_CACHE", str(folder / "cache"))
    # set directly, since the environment variable is read at import
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "hf")
    monkeypatch.delenv("LITCFL_DATA", raising=False)


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Limits the size of written files in bytes; writing more fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write(folder: Path, features: Mapping[str, Any], **parts: Mapping[str, Sequence[Any]]) -> Path:
    """Writes a Parquet file `<split>-00000-of-00001.parquet` for each split."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, columns in parts.items():
        part = Dataset.from_dict(dict(columns), features=Features(dict(features)))
        part.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder


def write_split(folder: Path, features: Mapping[str, Any], columns: Mapping[str, Sequence[Any]], train: int) -> Path:
    """Writes the first `train` rows as the split `train`, and the others, if there are some, as `test`."""
    rows = {"train": slice(train), "test": slice(train, None)}
    parts = {split: {name: values[part] for name, values in columns.items()} for split, part in rows.items()}
    return write(folder, features, **{split: part for split, part in parts.items() if all(map(len, part.values()))})


def picture(pixels: np.ndarray, format: str = "PNG") -> dict[str, Any]:
    """Encodes pixels, uint8 `[height, width]` or `[height, width, 3]`, as the Hub stores images."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format)
    return {"bytes": file.getvalue(), "path": None}


def pixels(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def write_images(folder: Path, train: int = 30, test: int = 12) -> Path:
    """Writes random images whose labels cycle through all digits."""
    images = [picture(image) for image in pixels(train + test, 28, 28)]
    features = {"image": datasets.Image(), "label": ClassLabel(names=DIGITS)}
    return write_split(folder, features, {"image": images, "label": [row % 10 for row in range(len(images))]}, train)


def tweets(folder: Path, rows: list[tuple[Any, Any, Any]]) -> str:
    """Writes tweets (text, user, sentiment); as in the real data set, the split `test` has other users."""
    features = {"text": Value("string"), "user": Value("string"), "sentiment": Value("int32")}
    features |= {"date": Value("string"), "query": Value("string")}
    same = ("Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY")
    parts = {"train": rows, "test": [("of somebody else", "zoe", 4), ("no opinion", "yan", 2)]}
    columns = {split: map(list, zip(*((*row, *same) for row in part), strict=True)) for split, part in parts.items()}
    named = {split: dict(zip(features, each, strict=True)) for split, each in columns.items()}
    return str(write(folder / "tweets", features, **named))


def glove(folder: Path, content: str | bytes) -> Path:
    """Writes word vectors."""
    path = folder / "vectors.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
