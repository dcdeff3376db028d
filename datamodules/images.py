"""Encoded images as one uint8 array, and how pixels are scaled."""

from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from lit_cfl.errors import InputError

if TYPE_CHECKING:
    import pyarrow
    from PIL.Image import Image

Mode = Literal["L", "RGB"]
Pixels = Literal["unit", "centred", "standardised", "standardised_pooled"]
_CHANNELS = {"L": 1, "RGB": 3}


def decode(
    encoded: Iterable[bytes | None],
    count: int,
    mode: Mode | None = None,
    size: Sequence[int] | None = None,
    pad: int = 0,
    background: int = 0,
) -> np.ndarray:
    """Decodes images of one mode and size to uint8 `[N, channels, height, width]`; one file is held at a time.

    Args:
        encoded: files of any format that Pillow reads, at least one.
        count: N, how many there are.
        mode: converts them to grey (`L`) or colour (`RGB`); None: they have to be one of these.
        size: height and width to resize them to (bilinear); None: they have to have one size.
        pad: pixels added on each side.
        background: their value, 0 to 255.

    Raises:
        InputError: an image that is missing, broken, or of another mode or size than the first.
    """
    opened = (_opened(row, data, mode, size) for row, data in enumerate(encoded))
    first = next(opened, None)
    if first is None:
        raise InputError("there are no images; give a source with at least one row")
    if first.mode not in _CHANNELS:
        raise InputError(
            f"image 0 has the mode {first.mode}; convert it in the source, or read it by HFDataset with images.mode: L "
            "(grey) or RGB (colour)"
        )
    height, width = first.height, first.width
    images = np.full((count, _CHANNELS[first.mode], height + 2 * pad, width + 2 * pad), background, dtype=np.uint8)
    inner = images[:, :, pad : pad + height, pad : pad + width]
    for row, image in enumerate(chain([first], opened)):
        if (image.mode, image.size) != (first.mode, first.size):
            raise InputError(
                f"image {row} is {image.mode} {image.height} x {image.width}, image 0 is {first.mode} {height} x "
                f"{width}; make them alike in the source, or read them by HFDataset with images.mode: {first.mode} and "
                f"images.size: [{height}, {width}]"
            )
        pixels = np.asarray(image)
        inner[row] = pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return images


def files_in(column: "pyarrow.ChunkedArray") -> list[bytes | None]:
    """Reads the encoded images of a column: bytes in it, or those of the files that it names."""
    from pyarrow import compute, types

    is_struct = types.is_struct(column.type)  # else bytes alone
    encoded: list[bytes | None] = (compute.struct_field(column, "bytes") if is_struct else column).to_pylist()
    if None not in encoded or not is_struct:
        return encoded
    paths = compute.struct_field(column, "path").to_pylist()
    return [
        Path(path).read_bytes() if data is None and path and Path(path).is_file() else data
        for data, path in zip(encoded, paths, strict=True)
    ]


def scaling(images: np.ndarray, num_train: int, pixels: Pixels) -> tuple[float | Tensor, float | Tensor]:
    """Finds what is taken off a pixel of 0 to 255, and the factor after that.

    Args:
        images: uint8 `[N, channels, height, width]`, the training part first.
        num_train: size of that part.
        pixels: `unit`: 0 to 1; `centred`: -1 to 1; `standardised`: (x - mean) / (std + 0.001) for each pixel, over
            the training part (Ditto's Fashion-MNIST); `standardised_pooled`: over all images (FedProx's MNIST).

    Returns:
        offset and scale: numbers, or float32 `[channels, height, width]`.
    """
    if pixels not in get_args(Pixels):
        raise InputError(f"pixels is {pixels!r}; give one of {', '.join(get_args(Pixels))}")
    if pixels == "unit":
        return 0.0, 1 / 255
    if pixels == "centred":
        return 127.5, 1 / 127.5
    mean, deviation = _statistics(images[:num_train] if pixels == "standardised" else images)
    return torch.from_numpy(mean).float(), torch.from_numpy(1 / (deviation + 0.001)).float()


def _statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes mean and deviation of each pixel, float64 `[channels, height, width]`; exact, in blocks."""
    total = np.zeros(images.shape[1:], dtype=np.int64)
    squares = np.zeros_like(total)
    for start in range(0, len(images), 1000):
        block = images[start : start + 1000].astype(np.uint32)
        total += block.sum(0, dtype=np.int64)
        squares += np.square(block).sum(0, dtype=np.int64)
    mean = total / len(images)
    return mean, np.sqrt((squares / len(images) - mean**2).clip(min=0))


def _opened(row: int, data: bytes | None, mode: Mode | None, size: Sequence[int] | None) -> "Image":
    from PIL import Image

    if data is None:
        raise InputError(f"there is no image in row {row} (from 0); mend the data or drop the row")
    try:
        image: Image.Image = Image.open(BytesIO(data))
        image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"image {row} cannot be decoded ({error}); mend the data or drop the row") from error
    image = image if mode is None else image.convert(mode)
    return image if size is None else image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
