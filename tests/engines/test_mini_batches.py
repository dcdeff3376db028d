"""Tests mini-batches against a loop over clients and epochs, rates that change over rounds, and augmentation.

That every way trains with them is stated by `test_ways.py`, and that a resumed run does by `test_resumed_features.py`.
"""

import ctypes
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from digits_experiment import digits
from ragged import SHAPE, in_groups
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import lr_scheduler as pytorch

import lit_cfl
from lit_cfl.config.parser import parse_run
from lit_cfl.data import Augment
from lit_cfl.data.augment import Batch
from lit_cfl.datamodules import ArrayData, Digits, Hybrid
from lit_cfl.engines import steps as compiled
from lit_cfl.engines.lr_schedule import RoundRates, SequentialSchedule
from lit_cfl.engines.mini_batches import BatchSize, LastBatch, LocalTraining, MiniBatches, draw_batches
from lit_cfl.engines.steps import draw_permutations, load_library
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget
from lit_cfl.nets import MLP
from lit_cfl.runs.run_directory import read_table
from lit_cfl.seeds import derive
from lit_cfl.tasks import Classification

SIZES, STEPS = torch.tensor([7, 1, 23, 4, 8, 20]), torch.tensor([5, 3, 7, 1, 2, 6])
SEEDS = [derive(3, "train", 5, client) for client in range(6)]


def one_by_one(seed: int, size: int, steps: int, batch_size: BatchSize, last: LastBatch) -> list[list[int]]:
    """Draws mini-batches one by one: per epoch, a `randperm` of the client's generator is cut into pieces."""
    rng, found = torch.Generator().manual_seed(seed), []
    while len(found) < steps:
        order = torch.randperm(size, generator=rng).tolist()
        width = size if batch_size == "full" else min(batch_size, size)
        pieces = [order[start : start + width] for start in range(0, size, width)]
        if len(pieces[-1]) < width and last != "keep":
            rest = pieces.pop()
            pieces[-1] += rest if last == "join" else []
        found += pieces
    return found[:steps]


def lists_of(batches: MiniBatches) -> list[list[int]]:
    return [one.tolist() for one in batches.lists()]


@pytest.mark.parametrize("last", ["keep", "drop", "join"])
@pytest.mark.parametrize("batch_size", [1, 4, 8, 100, "full"])
def test_a_cohorts_mini_batches_are_those_of_each_clients_own_generator(batch_size: BatchSize, last: LastBatch):
    table = draw_batches(SEEDS, SIZES, STEPS, batch_size, last)
    clients = zip(SEEDS, SIZES.tolist(), STEPS.tolist(), strict=True)
    found = lists_of(table)
    assert found == [batch for client in clients for batch in one_by_one(*client, batch_size, last)]
    assert found[8:15] == lists_of(draw_batches(SEEDS[2:3], SIZES[2:3], STEPS[2:3], batch_size, last))
    of_each = [int(part.sum()) for part in table.counts.split(STEPS.tolist())]
    local = LocalTraining(1, batch_size, last)
    assert local.count_examples(Budget(1, "steps"), STEPS, SIZES).tolist() == of_each


class Other:
    """Stand-in for compiled code whose permutations differ from PyTorch's, which is not used."""

    def permute(self, *given: int) -> None:
        ctypes.memset(given[-1], 255, 8)  # -1, as memory that is not written may hold permutations of before


@pytest.mark.parametrize("library", ["compiled", None, Other()], ids=["compiled", "PyTorch", "another shuffle"])
def test_each_client_gets_the_permutations_of_its_own_generator_in_turn(library: Any, monkeypatch: pytest.MonkeyPatch):
    found = load_library()[0] if library == "compiled" else library
    if library == "compiled" and found is not None:
        assert compiled._draws_as_pytorch(found)
    monkeypatch.setattr(compiled, "load_library", lambda: (found, ""))
    rng = torch.Generator().manual_seed(0)
    for clients, largest, most in ((300, 60, 4), (70, 1, 2), (70, 2, 3), (30, 5000, 2), (3, 9, 90), (1, 5, 0)):
        sizes = torch.randint(1, largest + 1, (clients,), generator=rng)
        counts = torch.randint(0, most + 1, (clients,), generator=rng)
        seeds = [derive(5, "train", client) for client in range(clients)]
        ends = [0, *(sizes * counts).cumsum(0).tolist()]
        drawn = draw_permutations(seeds, sizes, counts)
        assert len(drawn) == ends[-1]
        for seed, size, count, ends_of in zip(seeds, sizes.tolist(), counts.tolist(), pairwise(ends), strict=True):
            own = torch.Generator().manual_seed(seed)
            expected = [torch.randperm(size, generator=own) for _ in range(count)]
            assert torch.equal(drawn[slice(*ends_of)], torch.cat([drawn[:0], *expected]))


Make = Callable[[Optimizer], pytorch.LRScheduler]
WARM_UP: Make = partial(pytorch.LinearLR, start_factor=0.25, total_iters=4)
COSINE: Make = partial(pytorch.CosineAnnealingLR, T_max=8, eta_min=0.01)
STEP: Make = partial(pytorch.StepLR, step_size=3, gamma=0.5)
HALVED: Make = partial(pytorch.ExponentialLR, gamma=0.5)
SEQUENCE: Make = partial(SequentialSchedule, schedulers=[WARM_UP, STEP, COSINE], milestones=[4, 8])
SCHEDULES: dict[str, tuple[Make, dict[int, float]]] = {  # rates of a group that starts with 0.1, by round
    "warm-up": (WARM_UP, {0: 0.025, 2: 0.0625, 4: 0.1, 9: 0.1}),
    "step": (STEP, {0: 0.1, 2: 0.1, 3: 0.05, 6: 0.025}),
    "exponential": (HALVED, {0: 0.1, 1: 0.05, 5: 0.1 / 32}),
    "cosine": (COSINE, {0: 0.1, 4: 0.055, 8: 0.01}),
    "warm-up, then steps, then cosine": (SEQUENCE, {0: 0.025, 4: 0.1, 7: 0.05, 8: 0.1, 12: 0.055}),
}


def in_sequence(optimizer: Optimizer) -> pytorch.LRScheduler:
    return pytorch.SequentialLR(optimizer, [each(optimizer) for each in (WARM_UP, STEP, COSINE)], [4, 8])


def module() -> Classification:
    return Classification(MLP(12, SHAPE, 10), in_groups)


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_those_of_pytorchs_scheduler_group_by_group(name: str):
    ours, by_hand = SCHEDULES[name]
    rates, optimizer = RoundRates(ours, module()), in_groups(module().parameters())
    scheduler, expected = (in_sequence if ours is SEQUENCE else ours)(optimizer), []
    for _ in range(13):
        expected.append(tuple(group["lr"] for group in optimizer.param_groups))
        optimizer.step()
        scheduler.step()
    assert [rates.at(round) for round in range(13)] == expected
    assert [rates.at(round)[0] for round in by_hand] == pytest.approx(list(by_hand.values()))
    assert [rates.at(round)[1] for round in by_hand] != pytest.approx(list(by_hand.values()))
    # the rate does not depend on earlier calls, as after a resume
    assert RoundRates(ours, module()).at(9) == expected[9]


class OwnScheduler(Classification):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return {"optimizer": optimizer, "lr_scheduler": pytorch.StepLR(optimizer, 1)}


ONE_CYCLE = partial(pytorch.OneCycleLR, max_lr=1, total_steps=3)


@pytest.mark.parametrize(
    ("schedule", "kind", "named"),
    [
        (pytorch.ReduceLROnPlateau, Classification, "ReduceLROnPlateau"),
        (pytorch.CosineAnnealingLR, Classification, "T_max"),
        (ONE_CYCLE, Classification, "cycle_momentum"),
        (partial(pytorch.LambdaLR, lr_lambda=lambda round: 1 - round), Classification, r"-0\.\d+ in round 3"),
        (partial(ONE_CYCLE, cycle_momentum=False), Classification, "OneCycleLR .*round 5"),
        (HALVED, OwnScheduler, "OwnScheduler .*StepLR"),
    ],
)
def test_what_has_no_rates_is_refused(schedule: Make, kind: type[Classification], named: str):
    with pytest.raises(InputError, match=named):
        RoundRates(schedule, kind(MLP(12, SHAPE, 10), in_groups)).at(5)


def test_a_run_logs_its_rates(tmp_path: Path):
    scheduled = digits(rounds=3, local=LocalTraining(1, 20, lr_schedule=HALVED))
    found = lit_cfl.run(scheduled, tmp_path / "scheduled")
    assert [row["train/lr"] for row in read_table(found.path / "metrics.csv")] == [0.1, 0.05, 0.025]


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
