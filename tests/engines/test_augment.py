"""Tests augmentation: what is shown, how it is named, and what is refused.

That every way trains with it, and that all else sees the unaugmented examples, is stated by `test_ways.py`, and that a
resumed run does by `test_resumed_features.py`.
"""

from typing import Any

import numpy as np
import pytest
import torch
from digits_experiment import digits
from torch import Tensor, nn

from lit_cfl.config.parser import parse_run
from lit_cfl.data import Augment
from lit_cfl.data.augment import Batch
from lit_cfl.datamodules import ArrayData, Digits, Hybrid
from lit_cfl.errors import InputError

BOTH, CLASSES = Augment(crop=2, flip=True), [0, 1, 0, 1]


def windows(image: Tensor, augment: Augment) -> set[tuple[float, ...]]:
    """Returns all possible results of an augmentation: slices of the padded image, and their mirror images."""
    p, (height, width) = augment.crop, image.shape[1:]
    wide = nn.functional.pad(image, (p, p, p, p))
    found = [wide[:, y : y + height, x : x + width] for y in range(2 * p + 1) for x in range(2 * p + 1)]
    found += [window.flip(2) for window in found] if augment.flip else []
    return {tuple(window.flatten().tolist()) for window in found}


@pytest.mark.parametrize("augment", [Augment(1), Augment(0, True), BOTH], ids=str)
def test_every_window_of_the_padded_image_is_shown_and_no_other_as_often(augment: Augment):
    image, count = torch.arange(1.0, 2 * 4 * 3 + 1).view(2, 4, 3), 20_000
    changed, labels = augment((image.expand(count, -1, -1, -1), torch.arange(count)), torch.arange(count) << 32)
    assert torch.equal(labels, torch.arange(count))
    shown, counts = changed.flatten(1).unique(dim=0, return_counts=True)
    expected = windows(image, augment)
    assert {tuple(window.tolist()) for window in shown} == expected
    share = count / len(expected)
    assert (counts - share).abs().max() < 5 * share**0.5


# How it is given


def shift(batch: Batch, keys: Tensor) -> Batch:
    return batch[0] + 1, batch[1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--data.augment.crop", "1", "--data.augment.flip", "true"], Augment(1, True)),
        (["--data.augment", f"{__name__}.shift"], shift),
    ],
)
def test_the_command_line_names_it(words: list[str], expected: Any):
    assert parse_run(["--config", "quickstart", *words]).experiment.data.augment == expected


def prepared(augment: Any) -> Any:
    return digits(data=Digits(num_clients=12, augment=augment)).prepare(0)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Augment(-1), "data.augment.crop is -1"),
        (lambda: Augment(), "data.augment changes nothing"),
        (lambda: Digits(augment=4), "data.augment is 4"),
        (lambda: Digits(augment="nowhere.change"), "'nowhere.change'"),
        (lambda: ArrayData(np.zeros((4, 5)), CLASSES, augment=BOTH).examples, r"shape \(5,\)"),
        (lambda: ArrayData(np.zeros((4, 1, 2, 9)), CLASSES, augment=BOTH).examples, "crop is 2.* 2 x 9"),
        (lambda: Hybrid([Digits(), Digits(augment=BOTH)]), r"crop=2, flip=True\) in parts.1. .Digits."),
        (lambda: prepared(lambda batch, keys: (batch[0][:, :, 1:], batch[1])), r"float32 \(10, 1, 7, 8\)"),
        (lambda: prepared(lambda batch, keys: (batch[0] + torch.rand(1), batch[1])), "when called again"),
        (lambda: prepared(lambda batch, keys: (batch[0] + batch[0].mean(), batch[1])), "other examples"),
        (lambda: prepared(lambda batch, keys: (batch[0] @ keys, batch[1])), "data.augment .*RuntimeError"),
    ],
)
def test_what_cannot_augment_everywhere_alike_is_refused(make: Any, named: str):
    with pytest.raises(InputError, match=named):
        make()
