"""Loads any data set from the Hugging Face Hub, or from a local folder in the same format; options name its columns."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lit_cfl.data import Examples
from lit_cfl.data.checks import warn_of_large_inputs
from lit_cfl.datamodules.cache import Arrays, read_or_make
from lit_cfl.datamodules.columns import classes_of, matrix, number_clients, read_text, several_labels, times_of
from lit_cfl.datamodules.image_sets import image_pool, pool_of
from lit_cfl.datamodules.images import Mode, Pixels, decode, pixels_in
from lit_cfl.datamodules.partition import IID, Partition, Pool
from lit_cfl.datamodules.partition.natural import Natural
from lit_cfl.datamodules.pooled import PooledDataModule
from lit_cfl.datamodules.source import Kind, Source, find
from lit_cfl.datamodules.tokens import Padding, Vocabulary
from lit_cfl.errors import InputError, Notice
from lit_cfl.options import FROM_0, FROM_1, Bounds, bounded, require_options


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
    pad: int = bounded(0, FROM_0)
    background: int = bounded(0, Bounds("0 to 255", lambda value: 0 <= value <= 255))

    def __post_init__(self) -> None:
        require_options(self, "data.images.")
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise InputError(f"data.images.size is {self.size}; give height and width, 1 or more, such as [28, 28]")


@dataclass(frozen=True)
class TextOptions:
    """Options for converting a text column to token ids.

    Args:
        length: Tokens kept of each text, 1 or more; shorter texts are padded.
        padding: Padding at the `front` or at the `end`.
        max_words: Size of the vocabulary, 1 or more: the most frequent words of the training part.
    """

    length: int = bounded(25, FROM_1)
    padding: Padding = "front"
    max_words: int = bounded(10_000, FROM_1)

    def __post_init__(self) -> None:
        require_options(self, "data.text.")


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
        time_column: Column of numbers or dates: a client is tested on its last examples, so that the future does not
            train. It needs a single split; null: test examples are those of the test split, or drawn at random.
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
        time_column: str | None = None,
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
        self.label_column, self.client_column, self.time_column = label_column, client_column, time_column
        self.kind, self.num_labels, self.images, self.text = kind, num_labels, images, text
        if splits is not None and not 1 <= len(splits) <= 2:
            raise InputError(f"data.splits is {splits}; give [TRAIN], or [TRAIN, TEST]")
        if not self.inputs or len(set(self.inputs)) < len(self.inputs):
            raise InputError(f"data.input_column is {self.inputs}; give one or more columns, each once")
        if label_column in self.inputs:
            raise InputError(
                f"{label_column!r} is the label column and in data.input_column, too: the net would read the answer; "
                "leave it out of the inputs"
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
        columns = (self.inputs, self.label_column, self.client_column, self.time_column, self.kind, self.num_labels)
        images = self.images
        read = (images.mode, images.size, images.pad, images.background, self.text)
        key = ["hf 8", source.fingerprint, repr((columns, self.subset, self.splits, read))]
        arrays = read_or_make(key, lambda: self._read(source))
        return replace(self._pool_of(arrays), is_ordered=self.time_column is not None)

    def _pool_of(self, arrays: Arrays) -> Pool:
        num_labels = int(arrays["num_labels"])
        if "images" in arrays:
            return image_pool(arrays, num_labels, self.images.pixels)
        inputs, labels = torch.from_numpy(arrays["inputs"]), torch.from_numpy(arrays["labels"])
        vocabulary, words = int(arrays["vocabulary"]), str(arrays["words"])
        names = tuple(arrays["label_names"].tolist())
        # one column of lists gives no names
        of_columns = tuple(self.inputs) if not vocabulary and inputs.shape[1:] == (len(self.inputs),) else ()
        examples = Examples(
            inputs, labels, num_labels, vocabulary=vocabulary, words=words, label_names=names, input_names=of_columns
        )
        warn_of_large_inputs(examples)
        return pool_of(examples, arrays)

    def _read(self, source: Source) -> Arrays:
        """Reads all columns, in the order of time if there is a column of times."""
        splits = self.splits or [split for split in ("train", "test") if split == "train" or source.has(split)]
        arrays = self._read_rows(source, splits)
        if self.time_column is None:
            return arrays
        if len(splits) > 1:
            raise InputError(
                f"data.time_column and the split {splits[1]!r} both say which examples are for testing; leave out the "
                f"column, or set data.splits to [{splits[0]}]"
            )
        words = source.table([self.time_column], splits)[self.time_column]
        order = np.argsort(times_of(words, f"time column {self.time_column!r}"), kind="stable")
        return arrays | {
            name: arrays[name][order] for name in ("images", "inputs", "labels", "owner") if name in arrays
        }

    def _read_rows(self, source: Source, splits: Sequence[str]) -> Arrays:
        kind, *_ = map(source.kind, self.inputs)
        if self.kind not in (None, kind):
            raise InputError(
                f"data.kind is {self.kind!r}, but column {self.inputs[0]!r} holds {kind}; set it to {kind!r}, or null"
            )
        if kind != "numbers" and len(self.inputs) > 1:
            raise InputError(
                f"data.input_column is {self.inputs}, but {self.inputs[0]!r} holds {kind}; only columns of numbers can "
                "be combined into one input"
            )
        arrays = self._read_labels_and_clients(source, splits)
        if kind == "image":
            encoded, count, options = source.images(self.inputs[0], splits), len(arrays["labels"]), self.images
            decoded = decode(encoded, count, options.mode, options.size, options.pad, options.background)
            return arrays | {"images": decoded}
        if kind == "text":
            texts = source.table(self.inputs, splits)[self.inputs[0]]
            if None in texts:
                raise InputError(
                    f"column {self.inputs[0]} holds no text in row {texts.index(None)} (from 0); fix the data or drop "
                    "the row"
                )
            # the training part, which comes first, alone determines the vocabulary
            vocabulary = Vocabulary.of(texts[: int(arrays["num_train"])], self.text.max_words)
            tokens = vocabulary.encode(texts, self.text.length, self.text.padding)
            return arrays | vocabulary.arrays | {"inputs": tokens}
        parts = [[source.array(split, column) for split in splits] for column in self.inputs]
        numbers = matrix(parts, f"column {', '.join(self.inputs)}")
        images = pixels_in(numbers) if self.kind is None else None
        return arrays | ({"inputs": numbers} if images is None else {"images": images})

    def _read_labels_and_clients(self, source: Source, splits: Sequence[str]) -> Arrays:
        """Reads all columns but the inputs; the vocabulary is that of inputs without words."""
        columns = [column for column in (self.label_column, self.client_column) if column is not None]
        table = source.table(columns, splits) if columns else {}
        read: tuple[np.ndarray, int, tuple[str, ...]] = np.zeros(sum(map(source.size, splits)), np.int64), 0, ()
        if self.label_column is not None:
            read = self._labels(source, self.label_column, table[self.label_column])
        labels, num_labels, names = read
        arrays = {
            "labels": labels,
            "num_labels": np.array(num_labels),
            "label_names": np.array(names, np.str_),
            "num_train": np.array(source.size(splits[0])),
            "vocabulary": np.array(0),
            "words": np.array(""),
        }
        if self.client_column is not None:
            what = f"client column {self.client_column!r}"
            arrays["owner"], arrays["names"] = number_clients(table[self.client_column], what)
        return arrays

    def _labels(self, source: Source, column: str, values: Sequence[Any]) -> tuple[np.ndarray, int, tuple[str, ...]]:
        """Converts labels to int64 classes `[N]`, float32 numbers `[N]`, or several labels per example `[N, L]`.

        Returns:
            the labels, the number of classes (0 if they are not classes), and the labels' names.
        """
        what, names = f"label column {column!r}", source.label_names(column)
        if names is not None and source.is_image_folder and self.client_column is None:
            warnings.warn(
                f"the names of the folders in {source.name} are the labels, {_count_classes(names)}; if the folders "
                f"are clients, write {source.name}/metadata.csv with the columns file_name, label and user, and set "
                "data.client_column to user",
                Notice,
                stacklevel=2,
            )
        if source.is_text and names is None and all(isinstance(value, str) for value in values):
            values = read_text(np.array(values)).tolist()
        if any(isinstance(value, list) for value in values):
            table, words = several_labels(values, what, names, self.num_labels)
            return table, 0, words
        if self.num_labels == 0:
            return matrix([[np.asarray(values)]], what)[:, 0].astype(np.float32), 0, ()
        return classes_of(values, what, self.num_labels, names)


def _count_classes(names: Sequence[str]) -> str:
    """Counts classes, with the names of the first three."""
    listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} {'class' if len(names) == 1 else 'classes'} ({listed})"
