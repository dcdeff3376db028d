"""Decoding images and scaling pixels: exact pixels, hand arithmetic, and errors that name the image."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from hub import picture, pixels
from PIL import Image

from lit_cfl.data import Examples
from lit_cfl.datamodules.images import decode, scaling
from lit_cfl.errors import InputError


def encoded(images: np.ndarray, format: str = "PNG") -> list[bytes]:
    return [picture(image, format)["bytes"] for image in images]


def saved(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF"])
def test_grey_images_are_one_channel_with_exact_pixels(format: str):
    images = pixels(5, 6, 4)
    assert np.array_equal(decode(encoded(images, format), 5), images[:, None])


def test_colour_images_are_three_channels_first_with_exact_pixels():
    images = pixels(5, 6, 4, 3)
    decoded = decode(encoded(images), 5)
    assert decoded.dtype == np.uint8
    assert decoded.flags.c_contiguous
    assert np.array_equal(decoded, images.transpose(0, 3, 1, 2))


def test_padding_is_background_on_each_side():
    decoded = decode(encoded(pixels(3, 28, 28)), 3, pad=2, background=255)
    assert decoded.shape == (3, 1, 32, 32)
    assert np.array_equal(decoded[:, 0, 2:30, 2:30], pixels(3, 28, 28))
    decoded[:, :, 2:30, 2:30] = 255
    assert (decoded == 255).all()


def test_size_is_height_then_width():
    flat = np.full((6, 4), 9, dtype=np.uint8)
    assert np.array_equal(decode(encoded(flat[None]), 1, size=[3, 2]), np.full((1, 1, 3, 2), 9))


def test_mode_and_size_make_different_images_alike():
    grey, colour = np.full((4, 4), 7, dtype=np.uint8), np.full((8, 8, 3), 7, dtype=np.uint8)
    decoded = decode([*encoded(grey[None]), *encoded(colour[None])], 2, mode="RGB", size=[4, 4])
    assert np.array_equal(decoded, np.full((2, 3, 4, 4), 7))


@pytest.mark.parametrize(
    "other", [np.zeros((4, 5), np.uint8), np.zeros((5, 4), np.uint8), np.zeros((4, 4, 3), np.uint8)]
)
def test_first_image_that_differs_is_named_with_both_sizes(other: np.ndarray):
    files = [*encoded(pixels(2, 4, 4)), *encoded(other[None]), *encoded(pixels(1, 9, 9))]
    mode = "RGB" if other.ndim == 3 else "L"
    expected = f"image 2 is {mode} {other.shape[0]} x {other.shape[1]}, image 0 is L 4 x 4; .* images.size: \\[4, 4\\]"
    with pytest.raises(InputError, match=expected):
        decode(files, 4)


def test_other_modes_name_the_remedy():
    palette = saved(Image.new("P", (4, 4)))
    with pytest.raises(
        InputError, match=r"image 0 has the mode P; .* by HFDataset with images.mode: L \(grey\) or RGB"
    ):
        decode([palette], 1)
    assert decode([palette], 1, mode="L").shape == (1, 1, 4, 4)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"hello", "image 1 cannot be decoded"),
        (b"", "image 1 cannot be decoded"),
        (encoded(pixels(1, 40, 40))[0][:300], "image 1 cannot be decoded"),
        (None, "there is no image in row 1"),
    ],
    ids=["foreign", "empty", "truncated", "missing"],
)
def test_broken_image_is_named(data: bytes | None, expected: str):
    with pytest.raises(InputError, match=expected):
        decode([*encoded(pixels(1, 40, 40)), data], 2)


def test_no_images_at_all_are_an_error():
    with pytest.raises(InputError, match="there are no images"):
        decode([], 0)


def scaled(images: np.ndarray, num_train: int, how: Any) -> torch.Tensor:
    offset, scale = scaling(images, num_train, how)
    pool = Examples(torch.from_numpy(images), torch.zeros(len(images), dtype=torch.int64), 1, scale, offset=offset)
    return pool.batch(torch.arange(len(images)))[0]


def test_scaling_by_no_known_name_is_refused():
    with pytest.raises(
        InputError, match="pixels is 'half'; give one of unit, centred, standardised, standardised_pooled"
    ):
        scaling(pixels(3, 1, 2, 2), 2, "half")


def test_unit_and_centred_pixels_by_hand():
    image = np.array([0, 51, 255], dtype=np.uint8).reshape(1, 1, 1, 3)
    assert scaled(image, 1, "unit").flatten().tolist() == pytest.approx([0, 0.2, 1])
    assert scaled(image, 1, "centred").flatten().tolist() == pytest.approx([-1, -0.6, 1])


@pytest.mark.parametrize(("how", "part"), [("standardised", 1500), ("standardised_pooled", 2500)])
def test_standardised_pixels_are_the_papers_formula(how: str, part: int):
    images = pixels(2500, 1, 3, 2)
    images[:, 0, 0, 0] = 200  # a pixel that never changes
    known = images[:part].astype(np.float64)
    expected = (images - known.mean(0)) / (known.std(0) + 0.001)
    assert np.allclose(scaled(images, 1500, how), expected, atol=1e-4)
    assert scaling(images, 1500, how)[0].shape == (1, 3, 2)
