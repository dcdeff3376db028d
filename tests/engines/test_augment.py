"""Tests augmentation: what is shown, which examples are changed and which are not, and what is refused.

That every way trains with it is stated by `test_ways.py`, and that a resumed run does by `test_resumed_features.py`.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from digits_experiment import digits
from quadratic import ids
from ragged import SHAPE, SIZES, ragged_data, task
from torch import Tensor, nn

from lit_cfl.config.parser import parse_run
from lit_cfl.data import Augment, FederatedData
from lit_cfl.data.augment import AugmentFunction, Batch
from lit_cfl.datamodules import ArrayData, Digits, Hybrid
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.cohort import CohortFit
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError
from lit_cfl.nets import MLP

BOTH, CLASSES = Augment(crop=2, flip=True), [0, 1, 0, 1]


def augmented(augment: AugmentFunction | None = BOTH) -> FederatedData:
    data = ragged_data()
    return replace(data, examples=replace(data.examples, augment=augment))


def engine_of() -> Engine:
    return build_engine(task(lambda: MLP(12, SHAPE, 10)), Plan("loop"), 5, LocalTraining(3, 10))


def works_of(data: FederatedData, engine: Engine, **options: Any) -> list[CohortFit]:
    """Trains all clients, and returns what the engine's way of training received, one group of clients each."""
    way, seen = engine.way, list[CohortFit]()
    fit = way.fit
    way.fit = lambda work, ended: seen.append(work) or fit(work, ended)  # type: ignore[method-assign,func-returns-value]
    clients = data.num_examples.nonzero().flatten()
    engine.at(2, data).fit(engine.initial(0)[None], clients, **options).rows  # noqa: B018
    return seen


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


def test_mini_batches_are_those_without_augmentation_changed_one_by_one():
    weights, seen = torch.arange(sum(SIZES)) / 100, []
    (plain,), (changed,) = (works_of(augmented(a), engine_of(), weights=weights) for a in (None, BOTH))
    assert plain.weights is not None
    assert changed.weights is not None
    assert changed.sizes.tolist() == plain.num_seen.tolist()
    lists, own = plain.batches.lists(), changed.batches.lists()
    for client, (start, mine, first) in enumerate(zip(plain.starts, changed.starts, plain.first_steps, strict=True)):
        for step in range(first, first + int(plain.steps[client])):
            before, after = start + lists[step], mine + own[step]
            assert torch.equal(changed.labels[after], plain.labels[before])
            assert torch.equal(changed.weights[after], plain.weights[before])
            for a, b in zip(plain.inputs[before], changed.inputs[after], strict=True):
                assert tuple(b.flatten().tolist()) in windows(a, BOTH)
                seen.append(not torch.equal(a, b))
    assert 0.9 < np.mean(seen) < 1  # about one of 50 images stays unchanged


def test_losses_gradients_scores_and_statistics_see_the_unaugmented_data():
    engine, clients, seen = engine_of(), ids(1, 3), []
    model = engine.initial(0)
    for augment in (None, BOTH):
        data = augmented(augment)
        work = engine.at(2, data)
        found = [work.losses(model[None], clients), work.gradients(model, clients)]
        found.append(engine.outcomes(model, data.train[3], data).losses)
        seen.append([*found, *work.map(lambda inputs, labels: inputs.sum((1, 2, 3)), clients)])
    assert all(map(torch.equal, *seen))


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
