"""Decodes images into one uint8 array, and finds the scaling of their pixel values."""

import warnings
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from lit_cfl.errors import InputError, Notice

if TYPE_CHECKING:
    import pyarrow

Mode = Literal["L", "RGB"]
Pixels = Literal["unit", "centred", "standardised", "standardised_pooled"]


def decode(
    encoded: Iterable[bytes | None],
    count: int,
    mode: Mode | None = None,
    size: Sequence[int] | None = None,
    pad: int = 0,
    background: int = 0,
) -> np.ndarray:
    """Decodes images one by one into one array, uint8 `[N, channels, height, width]`.

    Images are rotated by their EXIF orientation. Grey images of 9 to 16 bits are scaled to bytes: with b the bits that
    the largest pixel of all images needs, 2^b - 1 becomes 255.

    Args:
        encoded: Image files in any format that Pillow reads, at least one.
        count: N, the number of images.
        mode: Conversion to grey (`L`) or colour (`RGB`); None: all images must already be the same of the two.
        size: Height and width to resize to (bilinear); None: all images must have one size.
        pad: Pixels added on each side.
        background: Grey value of the padding, and behind transparent pixels, 0 to 255.

    Raises:
        InputError: an image is missing, broken, or differs from the first in mode, depth or size; or pixels are floats
            or integers beyond 16 bits.
    """
    opened = (_decode_one(row, data, mode, size, background) for row, data in enumerate(encoded))
    first = next(opened, None)
    if first is None:
        raise InputError("there are no images; give a source with at least one row")
    height, width = first.shape[:2]
    channels = 3 if mode == "RGB" or first.ndim == 3 else 1
    images = np.empty((count, channels, height, width), first.dtype)
    for row, pixels in enumerate(chain([first], opened)):
        if (pixels.dtype, pixels.shape) != (first.dtype, first.shape):
            mine, others = (f"{one.dtype} {list(one.shape)}" for one in (pixels, first))
            raise InputError(
                f"image {row} is {mine}, image 0 is {others}; make them equal in the source, or read them by HFDataset "
                "with images.mode and images.size"
            )
        images[row] = pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    images = _scale_to_bytes(images) if images.dtype == np.uint16 else images
    sides = (pad, pad)
    return np.pad(images, ((0, 0), (0, 0), sides, sides), constant_values=background) if pad else images


def _scale_to_bytes(images: np.ndarray) -> np.ndarray:
    """Scales uint16 images `[N, ...]` to uint8, so that the largest value of their bit depth becomes 255."""
    bits = max(8, int(images.max()).bit_length())
    if bits > 8:
        warnings.warn(Notice(f"images of {bits} bits are scaled to 8: {2**bits - 1} becomes 255"), stacklevel=3)
    scaled = np.empty(images.shape, np.uint8)
    for image, into in zip(images, scaled, strict=True):  # one by one, as floats take much memory
        into[...] = np.rint(image.astype(np.float32) * (255 / (2**bits - 1)))
    return scaled


def pixels_in(numbers: np.ndarray) -> np.ndarray | None:
    """Returns numbers `[N, height, width]` or `[N, channels, height, width]` as uint8 images with a channel axis.

    None if these are not whole numbers of 0 to 255, or none is above 1. The channels of colour images may be last.

    Raises:
        InputError: either of two axes may hold the channels.
    """
    if numbers.ndim not in (3, 4) or not 1 < numbers.max() <= 255 or numbers.min() < 0:
        return None
    images = numbers.astype(np.uint8)
    if (images != numbers).any():
        return None
    if images.ndim == 3:
        return images[:, None]
    first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
    if first == last:
        raise InputError(
            f"lists of pixels have shape {images.shape[1:]}: which axis holds the channels? Save them as images by "
            "dataset.cast_column(NAME, datasets.Image()), or set data.kind to numbers to leave them as they are"
        )
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)) if last else images


def files_in(column: "pyarrow.ChunkedArray") -> list[bytes | None]:
    """Reads the encoded images of a column, given as bytes or as file names."""
    from pyarrow import compute, types

    is_struct = types.is_struct(column.type)  # otherwise the column holds plain bytes
    encoded: list[bytes | None] = (compute.struct_field(column, "bytes") if is_struct else column).to_pylist()
    if None not in encoded or not is_struct:
        return encoded
    paths = compute.struct_field(column, "path").to_pylist()
    return [
        Path(path).read_bytes() if data is None and path and Path(path).is_file() else data
        for data, path in zip(encoded, paths, strict=True)
    ]


def scaling(images: np.ndarray, num_train: int, pixels: Pixels) -> tuple[float | Tensor, float | Tensor]:
    """Finds the offset and the factor with which pixel values from 0 to 255 are scaled.

    Args:
        images: Images, uint8 `[N, channels, height, width]`, the training part first.
        num_train: Size of the training part.
        pixels: Scaling; see `ImageSet`.

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
    """Computes mean and standard deviation of each pixel over all images, float64 `[channels, height, width]` each."""
    total = np.zeros(images.shape[1:], dtype=np.int64)
    squares = np.zeros_like(total)
    for start in range(0, len(images), 1000):
        block = images[start : start + 1000].astype(np.uint32)
        total += block.sum(0, dtype=np.int64)
        squares += np.square(block).sum(0, dtype=np.int64)
    mean = total / len(images)
    return mean, np.sqrt((squares / len(images) - mean**2).clip(min=0))


def _decode_one(
    row: int, data: bytes | None, mode: Mode | None, size: Sequence[int] | None, background: int
) -> np.ndarray:
    """Decodes one image: uint8 `[height, width]` or `[height, width, 3]`; uint16 for grey of more than 8 bits."""
    from PIL import Image, ImageOps

    if data is None:
        raise InputError(f"there is no image in row {row} (from 0); fix the data or drop the row")
    try:
        image: Image.Image = Image.open(BytesIO(data))
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"image {row} cannot be decoded ({error}); fix the data or drop the row") from error
    is_deep = image.mode[0] in "IF"
    if is_deep:  # Image.convert would clip them at 255
        pixels = np.asarray(image)
        if image.mode == "F" or pixels.min() < 0 or pixels.max() > 0xFFFF:
            raise InputError(
                f"image {row} holds {pixels.dtype} ({pixels.min():.6g} to {pixels.max():.6g}), which bytes cannot "
                "hold; scale it to 8 or 16 bits in the source, or give the pixels as floats to ArrayData"
            )
        image = Image.fromarray(pixels.astype(np.float32))
    elif mode is None and image.mode not in ("L", "RGB"):
        raise InputError(
            f"image {row} has the mode {image.mode}; convert it in the source, or read it by HFDataset with "
            "images.mode: L (grey) or RGB (colour)"
        )
    if image.has_transparency_data:
        kind = "L" if image.mode in ("L", "LA", "La") else "RGB"
        ground = Image.new("RGBA", image.size, (background, background, background, 255))
        image = Image.alpha_composite(ground, image.convert("RGBA")).convert(kind)
    image = image if mode is None or is_deep else image.convert(mode)
    image = image if size is None else image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.rint(np.asarray(image)).astype(np.uint16) if is_deep else np.asarray(image)
