"""Tests decoding of images and scaling of pixels: exact values, and errors that name the image."""

import io
import re
from typing import Any

import numpy as np
import pytest
import torch
from hub import picture, pixels
from PIL import Image

from lit_cfl.data import Examples
from lit_cfl.datamodules.images import decode, scaling
from lit_cfl.errors import InputError, Notice


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
    expected = f"image 2 is uint8 {list(other.shape)}, image 0 is uint8 [4, 4]; make them equal in the source, or read"
    with pytest.raises(InputError, match=re.escape(expected)):
        decode(files, 4)


def test_other_modes_name_the_remedy():
    palette = saved(Image.new("P", (4, 4)))
    with pytest.raises(
        InputError, match=r"image 0 has the mode P; .* by HFDataset with images.mode: L \(grey\) or RGB"
    ):
        decode([palette], 1)
    assert decode([palette], 1, mode="L").shape == (1, 1, 4, 4)


# What a byte cannot hold


def file_of(pixels: np.ndarray, format: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
@pytest.mark.parametrize("mode", [None, "L", "RGB"])
def test_sixteen_bits_are_scaled_and_never_clipped(format: str, mode: Any):
    deep = np.array([[0, 257, 1000], [30_000, 60_000, 65_535]], np.uint16)
    with pytest.warns(Notice, match="images of 16 bits are scaled to 8: 65535 becomes 255"):
        decoded = decode([file_of(deep, format), file_of(deep[::-1].copy(), format)], 2, mode=mode, pad=1)
    expected = np.pad([[0, 1, 4], [117, 233, 255]], 1)  # v / 257
    assert decoded.shape == (2, 3 if mode == "RGB" else 1, 4, 5)
    assert (decoded[0] == expected).all()
    assert (decoded[1] == expected[::-1]).all()


def test_bits_are_those_of_the_largest_pixel_of_all():
    twelve = [np.full((2, 2), value, np.uint16) for value in (0, 1000, 4095)]
    with pytest.warns(Notice, match="images of 12 bits are scaled to 8: 4095 becomes 255"):
        decoded = decode([file_of(image) for image in twelve], 3)
    assert decoded[:, 0, 0, 0].tolist() == [0, 62, 255]


def test_eight_bits_in_a_file_of_sixteen_stay(recwarn: pytest.WarningsRecorder):
    decoded = decode([file_of(np.array([[7, 255], [0, 1]], np.uint16))], 1)
    assert decoded.tolist() == [[[[7, 255], [0, 1]]]]
    assert not [one for one in recwarn if one.category is Notice]


def test_sixteen_bits_are_resized_before_they_are_scaled():
    deep = np.array([[0, 65_535]], np.uint16).repeat(2, 0)
    with pytest.warns(Notice, match="16 bits"):
        assert decode([file_of(deep)], 1, size=[1, 1]).tolist() == [[[[128]]]]


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (
            np.array([[0.25, 1]], np.float32),
            r"image 1 holds float32 \(0.25 to 1\), which bytes cannot hold; scale it to",
        ),
        (np.array([[0, 70_000]], np.int32), r"image 1 holds int32 \(0 to 70000\)"),
        (np.array([[-1, 7]], np.int32), r"image 1 holds int32 \(-1 to 7\)"),
    ],
)
@pytest.mark.parametrize("mode", [None, "L"])
def test_floats_and_large_integers_are_refused_by_name(pixels: np.ndarray, expected: str, mode: Any):
    with pytest.raises(InputError, match=expected):
        decode([file_of(np.zeros((1, 2), np.uint8)), file_of(pixels, "TIFF")], 2, mode=mode)


@pytest.mark.parametrize("first", [0, 1])
def test_eight_and_sixteen_bits_are_not_mixed(first: int):
    files = [file_of(np.zeros((2, 2), np.uint8)), file_of(np.zeros((2, 2), np.uint16))]
    kinds = ("uint16", "uint8") if first == 0 else ("uint8", "uint16")
    with pytest.raises(InputError, match=f"image 1 is {kinds[0]} .*, image 0 is {kinds[1]} .*; make them equal"):
        decode([files[first], files[1 - first]], 2, mode="L")


def transparent(mode: str, colour: int, alpha: list[int]) -> bytes:
    """Encodes an image of two pixels that have the same colour and these opacities."""
    grey = np.array([[[colour, alpha[0]], [colour, alpha[1]]]], np.uint8)
    image = Image.fromarray(grey, "LA")
    return saved(image if mode == "LA" else image.convert(mode))


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
@pytest.mark.parametrize("target", ["L", "RGB"])
def test_transparent_pixels_show_the_background(mode: str, target: Any):
    decoded = decode([transparent(mode, 100, [255, 0])], 1, mode=target, background=255)
    assert decoded.shape == (1, 3 if target == "RGB" else 1, 1, 2)
    assert (decoded[0] == [[100, 255]]).all()
    half = decode([transparent(mode, 200, [255, 51])], 1, mode=target)  # 200 * 51 / 255
    assert (half[0] == [[200, 40]]).all()


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_transparent_colour_of_a_file_shows_the_background(mode: str):
    image = Image.fromarray(np.array([[3, 200]], np.uint8))
    image = image.convert(mode) if mode != "P" else image.quantize(2)
    index = image.getpixel((0, 0))
    file = io.BytesIO()
    image.save(file, "PNG", transparency=index)
    assert decode([file.getvalue()], 1, mode="L", background=90)[0].tolist() == [[[90, 200]]]


@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_images_are_turned_as_their_camera_says(orientation: int, turns: int):
    image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    exif = image.getexif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    image.save(file, "PNG", exif=exif)
    assert np.array_equal(decode([file.getvalue()], 1)[0, 0], np.rot90(np.arange(6).reshape(2, 3), turns))


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
