"""Loads any data set from the Hugging Face Hub, or from a local folder in the same format; options name its columns."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lit_cfl.data import Examples
from lit_cfl.data.checks import warn_of_large_inputs
from lit_cfl.datamodules.cache import Arrays, read_or_make
from lit_cfl.datamodules.columns import (
    label_space,
    labels_of,
    matrix,
    number_clients,
    pad_names,
    read_text,
    require_in_range,
    several_labels,
)
from lit_cfl.datamodules.image_sets import image_pool, pool_of
from lit_cfl.datamodules.images import Mode, Pixels, decode, pixels_in
from lit_cfl.datamodules.partition import IID, Partition, Pool
from lit_cfl.datamodules.partition.natural import Natural
from lit_cfl.datamodules.pooled import PooledDataModule
from lit_cfl.datamodules.source import Kind, Source, find
from lit_cfl.datamodules.tokens import Padding, Vocabulary
from lit_cfl.errors import InputError, Notice


@dataclass(frozen=True)
class ImageOptions:
    """Options for reading an image column.

    Args:
        pixels: Scaling of 0 to 255, as in `ImageSet`.
        mode: Conversion to grey (`L`) or colour (`RGB`); null: all images must already be the same of the two.
        size: Height and width to resize to; null: all images must have one size.
        pad: Pixels added on each side, 0 or more.
        background: Grey value of the padding, and behind transparent pixels, 0 (black) to 255 (white).
    """

    pixels: Pixels = "unit"
    mode: Mode | None = None
    size: Sequence[int] | None = None
    pad: int = 0
    background: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.background <= 255:
            raise InputError(f"data.images.background is {self.background}; give 0 to 255")
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise InputError(
                f"data.images.size is {list(self.size)}; give height and width, 1 or more, such as [28, 28]"
            )
        if self.pad < 0:
            raise InputError(f"data.images.pad is {self.pad}; it must be 0 or more")


@dataclass(frozen=True)
class TextOptions:
    """Options for converting a text column to token ids.

    Args:
        length: Tokens kept of each text, 1 or more; shorter texts are padded.
        padding: Padding at the `front` or at the `end`.
        max_words: Size of the vocabulary, 1 or more: the most frequent words of the training part.
    """

    length: int = 25
    padding: Padding = "front"
    max_words: int = 10_000

    def __post_init__(self) -> None:
        for name, value in {"length": self.length, "max_words": self.max_words}.items():
            if value < 1:
                raise InputError(f"data.text.{name} is {value}; it must be 1 or more")


class HFDataset(PooledDataModule):
    """Any data set of the Hub, or of a local folder in the same format, with columns of images, text or numbers.

    Images become uint8, texts token ids, numbers float32, or int32 if all are integers. Lists of pixels from 0 to 255
    are images, unless `kind` is numbers. Not tried on the live Hub.

    Args:
        source: Hub id, or a local folder in the same format; LITCFL_DATA=DIR maps every id to DIR/<name>.
        input_column: Column of images, texts, numbers or lists of numbers; several scalar columns as a list.
        label_column: Column of class labels: integers from 0, or strings, which are numbered in sorted order; or of
            numbers to predict; or of lists, for several labels per example: the labels that it has, or 0 or 1 for each
            label. null: no labels. The task must accept them.
        client_column: Column whose values name the natural clients; null: none.
        kind: Required content of the input column; null: any that its feature type allows (bytes are images).
        num_labels: Size of the label space; null: the number of class labels, or else the highest label + 1. 0: the
            labels are numbers, as `Regression` needs them.
        splits: Names of the training split and, optionally, of the test split; null: `train`, and `test` if the source
            has it.
        revision: Branch, tag or commit of the Hub copy.
        subset: Name of the subset, if the data set has several.
        images: Options for reading images.
        text: Options for reading texts.
        partition: Rule that divides the examples among clients; null: `Natural` with a client column, otherwise `IID`
            with 100 clients.
        options: Options of `PooledDataModule`.
    """

    def __init__(
        self,
        source: str,
        input_column: str | list[str],
        label_column: str | None,
        client_column: str | None = None,
        kind: Kind | None = None,
        num_labels: int | None = None,
        splits: list[str] | None = None,
        revision: str | None = None,
        subset: str | None = None,
        images: ImageOptions = ImageOptions(),
        text: TextOptions = TextOptions(),
        partition: Partition | None = None,
        **options: Any,
    ) -> None:
        natural = IID(num_clients=100) if client_column is None else Natural()
        super().__init__(natural if partition is None else partition, **options)
        self.source, self.revision, self.subset, self.splits = source, revision, subset, splits
        self.inputs = [input_column] if isinstance(input_column, str) else list(input_column)
        self.label_column, self.client_column = label_column, client_column
        self.kind, self.num_labels, self.images, self.text = kind, num_labels, images, text
        if splits is not None and not 1 <= len(splits) <= 2:
            raise InputError(f"data.splits is {splits}; give [TRAIN], or [TRAIN, TEST]")
        if not self.inputs:
            raise InputError("data.input_column is empty; give the name of a column")
        twice = [column for column in self.inputs if self.inputs.count(column) > 1]
        if twice:
            raise InputError(f"data.input_column names {twice[0]!r} twice; leave one out")
        if label_column in self.inputs:
            raise InputError(
                f"{label_column!r} is the label column and in data.input_column, too: the net would read the answer; "
                "leave it out of the inputs"
            )
        if client_column in self.inputs:
            warnings.warn(
                f"{client_column!r} identifies the clients and is also an input of the net; if that is not intended, "
                "leave it out of data.input_column",
                Notice,
                stacklevel=2,
            )
        if num_labels is not None and num_labels < 0:
            raise InputError(
                f"data.num_labels is {num_labels}; give 1 or more, 0 for numbers, or null to take the number from the "
                "column"
            )

    def pool(self) -> Pool:
        named = [column for column in (self.label_column, self.client_column) if column is not None]
        source = find(self.source, self.revision, subset=self.subset, names=named)
        self.commit = source.commit
        columns = (self.inputs, self.label_column, self.client_column, self.kind, self.num_labels)
        images = self.images
        read = (images.mode, images.size, images.pad, images.background, self.text)
        key = ["hf 5", source.fingerprint, repr((columns, self.subset, self.splits, read))]
        arrays = read_or_make(key, lambda: self._read(source))
        num_labels = int(arrays["num_labels"])
        if "images" in arrays:
            return image_pool(arrays, num_labels, self.images.pixels)
        inputs, labels = torch.from_numpy(arrays["inputs"]), torch.from_numpy(arrays["labels"])
        vocabulary, words = int(arrays["vocabulary"]), str(arrays["words"])
        names = tuple(arrays["label_names"].tolist())
        of_columns = () if vocabulary else self._input_names(inputs)
        examples = Examples(
            inputs, labels, num_labels, vocabulary=vocabulary, words=words, label_names=names, input_names=of_columns
        )
        warn_of_large_inputs(examples)
        return pool_of(examples, arrays)

    def _input_names(self, inputs: torch.Tensor) -> tuple[str, ...]:
        """Returns the names of the input columns; empty if the inputs were read from one column of lists."""
        return tuple(self.inputs) if inputs.ndim == 2 and inputs.shape[1] == len(self.inputs) else ()

    def _read(self, source: Source) -> Arrays:
        splits = self.splits or [split for split in ("train", "test") if split == "train" or source.has(split)]
        num_train = source.size(splits[0])
        kind = self._kind(source, splits[0])
        if kind != "numbers" and len(self.inputs) > 1:
            held = "images" if kind == "image" else "texts"
            raise InputError(
                f"data.input_column is {self.inputs}, but {self.inputs[0]!r} holds {held}; only columns of numbers "
                "can be combined into one input"
            )
        self._warn_of_unread(source, splits)
        no_text = {"vocabulary": np.array(0), "words": np.array("")}
        arrays = self._labels(source, splits) | no_text | {"num_train": np.array(num_train)}
        if kind == "numbers":
            parts = [[source.array(split, column) for split in splits] for column in self.inputs]
            numbers = matrix(parts, f"column {', '.join(self.inputs)}")
            images = pixels_in(numbers) if self.kind is None else None
            return arrays | ({"inputs": numbers} if images is None else {"images": images})
        if kind == "image":
            encoded, count, options = source.images(self.inputs[0], splits), len(arrays["labels"]), self.images
            decoded = decode(encoded, count, options.mode, options.size, options.pad, options.background)
            return arrays | {"images": decoded}
        texts = source.join_splits(self.inputs, splits)[self.inputs[0]]
        return arrays | token_ids(texts, num_train, self.text, f"column {self.inputs[0]}")

    def _warn_of_unread(self, source: Source, splits: Sequence[str]) -> None:
        asked = {*self.inputs, self.label_column, self.client_column}
        columns = [column for column in source.columns if column not in asked]
        others = [split for split in source.splits if split not in splits]
        if columns or others:
            parts = [
                f"{kind} {', '.join(names)}" for kind, names in (("columns", columns), ("splits", others)) if names
            ]
            hint = "" if self.client_column or not columns else "; data.client_column may name the clients"
            warnings.warn(f"{self.source}: the {' and the '.join(parts)} are not read{hint}", Notice, stacklevel=3)

    def _kind(self, source: Source, split: str) -> Kind:
        held = source.kind(self.inputs[0])
        if self.kind not in (None, held):
            what = {"image": "images", "text": "texts", "numbers": "numbers"}[held]
            raise InputError(
                f"data.kind is {self.kind!r}, but column {self.inputs[0]!r} holds {what}; set it to {held!r}, or null"
            )
        if held == "text" and self.kind is None:
            source.require_text(self.inputs[0], split)
        return held

    def _labels(self, source: Source, splits: Sequence[str]) -> Arrays:
        """Reads the labels, the number of classes, and each example's client if a column names it."""
        columns = [column for column in (self.label_column, self.client_column) if column is not None]
        table = source.join_splits(columns, splits) if columns else {}
        if self.label_column is None:
            count = sum(source.size(split) for split in splits)
            no_names = np.array([], np.str_)
            arrays = {"labels": np.zeros(count, np.int64), "num_labels": np.array(0), "label_names": no_names}
        else:
            values, names = table[self.label_column], source.label_names(self.label_column)
            if source.is_text and names is None and all(isinstance(value, str) for value in values):
                values = read_text(np.array(values)).tolist()
            arrays = self._classes_or_numbers(values, names)
        if self.client_column is not None:
            what = f"client column {self.client_column!r}"
            arrays["owner"], arrays["names"] = number_clients(table[self.client_column], what)
        return arrays

    def _classes_or_numbers(self, values: Sequence[Any], names: Sequence[str] | None) -> Arrays:
        """Converts labels to int64 classes `[N]`, float32 numbers `[N]`, or several labels per example `[N, L]`."""
        column = str(self.label_column)
        what = f"label column {column!r}"
        if any(isinstance(value, list) for value in values):
            table, words = several_labels(values, what, names, self.num_labels)
            return {"labels": table, "num_labels": np.array(0), "label_names": np.array(words, np.str_)}
        if self.num_labels == 0:
            numbers = matrix([[np.asarray(values)]], what)[:, 0].astype(np.float32)
            return {"labels": numbers, "num_labels": np.array(0), "label_names": np.array([], np.str_)}
        labels, words = labels_of(values, what, "give num_labels: 0 if the labels are numbers to predict")
        names = words if names is None else names
        known = self.num_labels or len(names) or label_space(labels, what)
        return {
            "labels": require_in_range(labels, known, column),
            "num_labels": np.array(known),
            "label_names": np.array(pad_names(names, known), np.str_),
        }


def token_ids(texts: Sequence[str | None], num_train: int, options: TextOptions, what: str) -> Arrays:
    """Converts texts to token ids.

    Args:
        texts: Texts, those of the training part first.
        num_train: Size of the training part, which alone determines the vocabulary.
        options: Length, padding and size of the vocabulary.
        what: Name of the column, for errors.

    Returns:
        `inputs` int32 `[N, length]` (0 = padding, 1 = unknown), and `Vocabulary.arrays`.
    """
    known = [text for text in texts if text is not None]
    if len(known) < len(texts):
        raise InputError(f"{what} holds no text in row {texts.index(None)} (from 0); fix the data or drop the row")
    vocabulary = Vocabulary.of(known[:num_train], options.max_words)
    tokens = vocabulary.encode(known, options.length, options.padding)
    return vocabulary.arrays | {"inputs": tokens}
