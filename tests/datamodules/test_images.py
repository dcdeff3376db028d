import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hub import picture, pixels
from own_arrays import assert_refused
from PIL import Image

from lit_cfl.data import Examples
from lit_cfl.datamodules.images import decode, scaling
from lit_cfl.errors import Notice

BLACK, DEEP = np.zeros((4, 4), np.uint8), np.zeros((4, 4), np.uint16)


def encoded(*images: np.ndarray, format: str = "PNG") -> list[bytes]:
    return [picture(image, format)["bytes"] for image in images]


def saved(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 3)])
def test_images_have_channels_first_and_exact_pixels(format: str, shape: tuple[int, ...]):
    images = pixels(5, *shape)
    decoded = decode(encoded(*images, format=format), 5)
    assert (decoded.dtype, decoded.flags.c_contiguous) == (np.uint8, True)
    assert np.array_equal(decoded, images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2))


def test_padding_is_background_on_each_side():
    decoded = decode(encoded(*pixels(3, 28, 28)), 3, pad=2, background=255)
    assert decoded.shape == (3, 1, 32, 32)
    assert np.array_equal(decoded[:, 0, 2:30, 2:30], pixels(3, 28, 28))
    decoded[:, :, 2:30, 2:30] = 255
    assert (decoded == 255).all()


def test_mode_and_size_make_different_images_alike():
    grey, colour = np.full((6, 4), 7, dtype=np.uint8), np.full((8, 8, 3), 7, dtype=np.uint8)
    decoded = decode(encoded(grey, colour), 2, mode="RGB", size=[3, 2])  # height, then width
    assert np.array_equal(decoded, np.full((2, 3, 3, 2), 7))
    palette = saved(Image.new("P", (4, 4)))
    assert decode([palette], 1, mode="L").shape == (1, 1, 4, 4)
    red_green_blue = decode(encoded(np.diag([255] * 3).astype(np.uint8)[None]), 1, mode="L")
    assert red_green_blue.flatten().tolist() == [76, 150, 29]


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
@pytest.mark.parametrize("mode", [None, "L", "RGB"])
def test_sixteen_bits_are_scaled_and_never_clipped(format: str, mode: Any):
    deep = np.array([[0, 257, 1000], [30_000, 60_000, 65_535]], np.uint16)
    with pytest.warns(Notice, match="16 bits .* 65535 becomes 255"):
        decoded = decode(encoded(deep, deep[::-1].copy(), format=format), 2, mode=mode, pad=1)
    expected = np.pad([[0, 1, 4], [117, 233, 255]], 1)  # v / 257
    assert decoded.shape == (2, 3 if mode == "RGB" else 1, 4, 5)
    assert (decoded[0] == expected).all()
    assert (decoded[1] == expected[::-1]).all()


def test_bits_are_those_of_the_largest_pixel_of_all(recwarn: pytest.WarningsRecorder):
    twelve = [np.full((2, 2), value, np.uint16) for value in (0, 1000, 4095)]
    with pytest.warns(Notice, match="12 bits .* 4095 becomes 255"):
        decoded = decode(encoded(*twelve), 3)
    assert decoded[:, 0, 0, 0].tolist() == [0, 62, 255]
    assert decode(encoded(np.array([[7, 255], [0, 1]], np.uint16)), 1).tolist() == [[[[7, 255], [0, 1]]]]
    assert not [one for one in recwarn if one.category is Notice]


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
@pytest.mark.parametrize("target", ["L", "RGB"])
def test_transparent_pixels_show_the_background(mode: str, target: Any):
    image = Image.fromarray(np.array([[[100, 255], [100, 0], [200, 51]]], np.uint8), "LA")  # grey and opacity
    file = saved(image if mode == "LA" else image.convert(mode))
    decoded = decode([file], 1, mode=target)
    assert decoded.shape == (1, 3 if target == "RGB" else 1, 1, 3)
    assert (decoded[0] == [[100, 0, 40]]).all()  # 200 * 51 / 255
    assert (decode([file], 1, mode=target, background=255)[0] == [[100, 255, 244]]).all()


@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_images_are_turned_as_their_camera_says(orientation: int, turns: int):
    image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    exif = image.getexif()
    exif[0x0112] = orientation
    assert np.array_equal(decode([saved(image, exif=exif)], 1)[0, 0], np.rot90(np.arange(6).reshape(2, 3), turns))


FLOATS = encoded(np.array([[0.25, 1]], np.float32), format="TIFF")
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "another size": (lambda: decode(encoded(BLACK, BLACK, BLACK[:3], BLACK[:2]), 4), "image 2 | [3, 4] | [4, 4]"),
    "colour after grey": (lambda: decode(encoded(BLACK, *pixels(1, 4, 4, 3)), 2), "image 1 | uint8 [4, 4, 3] | [4, 4]"),
    "8 bits after 16": (lambda: decode(encoded(DEEP, BLACK), 2, mode="L"), "image 1 is uint8 | image 0 is uint16"),
    "floats": (lambda: decode(encoded(BLACK) + FLOATS, 2), "image 1 | float32 (0.25 to 1)"),
    "no image file": (lambda: decode([*encoded(BLACK), b"hello"], 2), "image 1"),
    "missing": (lambda: decode([*encoded(BLACK), None], 2), "row 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_image_is_named(name: str):
    assert_refused(*REFUSED[name])


def scaled(images: np.ndarray, num_train: int, how: Any) -> torch.Tensor:
    offset, scale = scaling(images, num_train, how)
    pool = Examples(torch.from_numpy(images), torch.zeros(len(images), dtype=torch.int64), 1, scale, offset=offset)
    return pool.batch(torch.arange(len(images)))[0]


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
