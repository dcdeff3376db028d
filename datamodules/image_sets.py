"""Image sets of the papers: MNIST, Fashion-MNIST, CIFAR-10, EMNIST letters."""

import inspect
from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from lit_cfl.data import Examples
from lit_cfl.datamodules.cache import Arrays, read_or_make
from lit_cfl.datamodules.columns import labels_of, number_clients, require_in_range
from lit_cfl.datamodules.images import Pixels, decode, scaling
from lit_cfl.datamodules.partition import IID, Partition, Pool
from lit_cfl.datamodules.pooled import PooledDataModule
from lit_cfl.datamodules.source import Source, find
from lit_cfl.errors import InputError


class ImageSet(PooledDataModule, ABC):
    """A set of labelled images from the Hugging Face Hub or a local folder.

    A subclass names its columns and labels. The images stay uint8; decoded images are cached
    (`lit_cfl.datamodules.cache`).

    Args:
        source: Hub id, or a local folder in the same format; LITCFL_DATA=DIR maps every id to DIR/<name>.
        revision: Branch, tag or commit of the Hub copy.
        pixels: Scaling of 0 to 255. `unit`: 0 to 1; `centred`: -1 to 1; `standardised`: (x - mean) / (std + 0.001) of
            each pixel over the source's training part (Ditto's Fashion-MNIST); `standardised_pooled`: over all images
            (FedProx's MNIST).
        pad: Pixels of background added on each side, 0 or more (2 makes 28 x 28 images 32 x 32, as VGG16 needs).
        partition: Rule that divides the images among clients.
        options: Options of `PooledDataModule`.
    """

    image_column: ClassVar[str] = "image"
    label_column: ClassVar[str] = "label"
    client_column: ClassVar[str | None] = None
    background: ClassVar[int] = 0
    num_labels: int = 10

    def __init__(
        self,
        source: str,
        revision: str | None = None,
        pixels: Pixels = "unit",
        pad: int = 0,
        partition: Partition = IID(num_clients=100),
        **options: Any,
    ) -> None:
        super().__init__(partition, **options)
        if pad < 0:
            raise InputError(f"data.pad is {pad}; it must be 0 or more")
        self.source, self.revision, self.pixels, self.pad = source, revision, pixels, pad

    def relabel(self, labels: np.ndarray, names: Sequence[str] | None) -> np.ndarray:
        """Converts the source's labels to the labels of this set.

        Args:
            labels: Labels of the source, int64 `[N]`.
            names: Names of the source's class labels, or None.

        Returns:
            int64 `[N]`, 0 to `num_labels - 1`; -1 leaves the image out.
        """
        return require_in_range(labels, self.num_labels, f"label column {self.label_column!r}")

    def pool(self) -> Pool:
        source = find(self.source, self.revision, names=[self.client_column] if self.client_column else [])
        self.commit = source.commit
        kind = type(self)
        columns = (self.image_column, self.label_column, self.client_column, self.num_labels, self.background)
        key = ["images 4", source.fingerprint, kind.__module__, kind.__qualname__, str(self.pad), *map(str, columns)]
        key += [*_own_source(kind), *self.variant]
        return image_pool(read_or_make(key, lambda: self._read(source)), self.num_labels, self.pixels)

    @property
    def variant(self) -> tuple[str, ...]:
        """Options, apart from the source, on which the cached arrays depend."""
        return ()

    def _read(self, source: Source) -> Arrays:
        splits = [split for split in ("train", "test") if split == "train" or source.has(split)]
        columns = [self.label_column, *([self.client_column] if self.client_column else [])]
        table = source.table(columns, splits)
        raw, words = labels_of(table[self.label_column], f"label column {self.label_column!r}")
        names = words or source.label_names(self.label_column)
        labels = self.relabel(raw, names)
        kept = np.flatnonzero(labels >= 0)
        if not len(kept):
            raise InputError(f"{self.source} holds no image with one of these labels; give another source")
        unchanged = type(self).relabel is ImageSet.relabel and len(names or ()) == self.num_labels
        encoded = source.images(self.image_column, splits, kept)
        arrays = {
            "images": decode(encoded, len(kept), pad=self.pad, background=self.background),
            "labels": labels[kept],
            "num_train": np.array((kept < source.size("train")).sum()),
            "label_names": np.array(names if unchanged and names else [], np.str_),
        }
        if self.client_column is not None:
            ids = [table[self.client_column][row] for row in kept]
            arrays["owner"], arrays["names"] = number_clients(ids, f"client column {self.client_column!r}")
        return arrays


def image_pool(arrays: Arrays, num_labels: int, pixels: Pixels) -> Pool:
    """Makes a pool of decoded images.

    Args:
        arrays: `images` uint8 `[N, channels, height, width]`, and the arrays that `pool_of` needs.
        num_labels: Size of the label space.
        pixels: Scaling, as in `ImageSet`.
    """
    offset, scale = scaling(arrays["images"], int(arrays["num_train"]), pixels)
    images, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    names = tuple(arrays["label_names"].tolist())
    return pool_of(Examples(images, labels, num_labels, scale, offset=offset, label_names=names), arrays)


def pool_of(examples: Examples, arrays: Arrays) -> Pool:
    """Makes a pool from examples and arrays: `num_train`, and for natural clients `owner` int64 `[N]` and `names`."""
    num_train = int(arrays["num_train"])
    if "owner" not in arrays:
        return Pool(examples, num_train)
    return Pool(examples, num_train, torch.from_numpy(arrays["owner"]), tuple(arrays["names"].tolist()))


class MNIST(ImageSet):
    """Handwritten digits (LeCun et al., 1998): 60,000 training and 10,000 test images, grey, 28 x 28, 10 labels.

    Args:
        source: Hub id, or a local folder in the same format.
        options: Options of `ImageSet`.
    """

    def __init__(self, source: str = "ylecun/mnist", **options: Any) -> None:
        super().__init__(source, **options)


class FashionMNIST(ImageSet):
    """Pieces of clothing (Xiao et al., 2017): 60,000 training and 10,000 test images, grey, 28 x 28, 10 labels.

    Args:
        source: Hub id, or a local folder in the same format.
        options: Options of `ImageSet`.
    """

    def __init__(self, source: str = "zalandoresearch/fashion_mnist", **options: Any) -> None:
        super().__init__(source, **options)


class CIFAR10(ImageSet):
    """Vehicles and animals (Krizhevsky, 2009): 50,000 training and 10,000 test images, colour, 32 x 32, 10 labels.

    Args:
        source: Hub id, or a local folder in the same format.
        options: Options of `ImageSet`.
    """

    image_column: ClassVar[str] = "img"

    def __init__(self, source: str = "uoft-cs/cifar10", **options: Any) -> None:
        super().__init__(source, **options)


class EMNISTLetters(ImageSet):
    """Handwritten letters (Cohen et al., 2017): 124,800 training and 20,800 test images, grey, 28 x 28, 26 labels.

    Not tried on the live Hub, whose card says labels 0 to 25. EMNIST's own files count from 1, and so do labels that
    reach 26.

    Args:
        source: Hub id, or a local folder in the same format.
        options: Options of `ImageSet`.
    """

    num_labels = 26

    def __init__(self, source: str = "tanganke/emnist_letters", **options: Any) -> None:
        super().__init__(source, **options)

    def relabel(self, labels: np.ndarray, names: Sequence[str] | None) -> np.ndarray:
        if labels.max(initial=0) == 26 and labels.min() == 0:
            raise InputError(f"{self.source} holds labels 0 and 26, but there are 26 letters; give another source")
        return super().relabel(labels - 1 if labels.max(initial=0) == 26 else labels, names)


def _own_source(kind: type) -> list[str]:
    """Returns the source code of a user's class, which is part of the cache key; empty for our classes."""
    if kind.__module__.partition(".")[0] == "lit_cfl":
        return []
    try:
        return [inspect.getsource(kind)]
    except (OSError, TypeError):  # no source, for example of a class defined in an interactive session
        return []
