"""Writes a file for `ArrayData` with MNIST's images, their labels, and the NIST writer of each.

    python benchmarks/mnist_writers.py --qmnist FOLDER [--mnist ylecun/mnist] [--out mnist_by_writer.npz]

FOLDER holds `qmnist-train-labels-idx2-int.gz` and `qmnist-test-labels-idx2-int.gz` of QMNIST (Yadav and Bottou, Cold
Case: The Lost MNIST Digits, NeurIPS 2019; https://github.com/facebookresearch/qmnist). Its labels follow the order of
MNIST's 60,000 training images; the first 10,000 of its test labels follow that of the test images. `--writers FILE` is
an alternative: a .npz file with `train_writer`, `train_label`, `test_writer` and `test_label`.

The file has x (bytes), y and client: the training images, then the test images. No person wrote images of both parts,
so the writers of the test images are additional clients. `--mnist` is a Hub id or a folder in the Hub's format.
"""

import argparse
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lit_cfl.data.npz import read_npz
from lit_cfl.datamodules import MNIST
from lit_cfl.errors import InputError

_MAGIC = 0x0C02  # magic number of IDX files with int32 values and two axes
_CLASS, _WRITER = 0, 2  # columns of QMNIST's label table
_SIZES = {"train": 60_000, "test": 10_000}
_KEYS = ("train_writer", "train_label", "test_writer", "test_label")


def read_qmnist(folder: Path) -> dict[str, np.ndarray]:
    """Reads the writers and labels of MNIST's images from QMNIST's label tables."""
    found = {}
    for split, size in _SIZES.items():
        path = folder / f"qmnist-{split}-labels-idx2-int.gz"
        try:
            numbers = np.frombuffer(gzip.decompress(path.read_bytes()), ">i4")
        except (OSError, EOFError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error}); fetch it from QMNIST's repository") from error
        if len(numbers) < 3 or numbers[0] != _MAGIC or numbers[1] * numbers[2] != len(numbers) - 3:
            raise InputError(f"{path} is not a label table in IDX format; fetch it from QMNIST's repository again")
        table = numbers[3:].reshape(numbers[1], numbers[2])[:size]
        found |= {f"{split}_writer": table[:, _WRITER], f"{split}_label": table[:, _CLASS]}
    return found


def join_parts(writers: Mapping[str, np.ndarray], images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Joins images, labels and writers of both parts into the arrays x, y and client.

    Args:
        writers: Writers and labels, `train_...` and `test_...`.
        images: Images of MNIST, the training part first, uint8 `[N, 1, 28, 28]`.
        labels: Labels `[N]`.

    Raises:
        InputError: The writers and the images do not belong together.
    """
    train, test = (writers[f"{split}_writer"].astype(np.int64) for split in _SIZES)
    theirs = np.concatenate([writers[f"{split}_label"] for split in _SIZES])
    if len(theirs) != len(labels) or (theirs != labels).any():
        raise InputError(
            f"the writers belong to {len(theirs)} images and MNIST has {len(labels)}, or their labels differ: give "
            "MNIST in its original order, and QMNIST's tables unchanged"
        )
    return {"x": images, "y": labels, "client": np.concatenate([train, test + int(train.max()) + 1])}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="MNIST with the writer of each image, for ArrayData")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--qmnist", type=Path, help="folder with QMNIST's two label tables")
    given.add_argument("--writers", type=Path, help=".npz file with writers and labels, instead of --qmnist")
    parser.add_argument("--mnist", default="ylecun/mnist", help="MNIST: a Hub id, or a folder in the Hub's format")
    parser.add_argument("--out", type=Path, default=Path("mnist_by_writer.npz"))
    options = parser.parse_args(arguments)
    try:
        writers = read_qmnist(options.qmnist) if options.qmnist else read_npz(options.writers, _KEYS, required=_KEYS)
        pool = MNIST(options.mnist).pool()
        found = join_parts(writers, pool.examples.inputs.numpy(), pool.labels.numpy())
    except InputError as error:
        parser.error(str(error))
    np.savez(options.out, **found)
    sizes = np.unique(found["client"], return_counts=True)[1]
    print(f"{options.out}: {len(found['y']):,} images of {len(sizes)} writers, {sizes.min()} to {sizes.max()} each")


if __name__ == "__main__":
    main()
