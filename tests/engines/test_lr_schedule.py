"""Tests learning rates that change over rounds: against PyTorch's schedulers, in every engine, after a resume."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from digits_experiment import digits
from ragged import LOCAL, PLANS, SHAPE, fitted, in_groups, rows_of, task
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim import lr_scheduler as pytorch
from torch.testing import assert_close

import lit_cfl
from lit_cfl.engines.lr_schedule import RoundRates, SequentialSchedule
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError
from lit_cfl.nets import MLP
from lit_cfl.runs.run_directory import read_table
from lit_cfl.tasks import Classification

Make = Callable[[Optimizer], pytorch.LRScheduler]
WARM_UP: Make = partial(pytorch.LinearLR, start_factor=0.25, total_iters=4)
COSINE: Make = partial(pytorch.CosineAnnealingLR, T_max=8, eta_min=0.01)
SCHEDULES: dict[str, tuple[Make, Make]] = {  # our schedules, and the same ones from PyTorch
    name: (make, make)
    for name, make in {
        "warm-up": WARM_UP,
        "step": partial(pytorch.StepLR, step_size=3, gamma=0.5),
        "exponential": partial(pytorch.ExponentialLR, gamma=0.9),
        "cosine": COSINE,
        "several steps": partial(pytorch.MultiStepLR, milestones=[2, 5], gamma=0.1),
    }.items()
} | {
    "warm-up, then cosine": (
        partial(SequentialSchedule, schedulers=[WARM_UP, COSINE], milestones=[4]),
        lambda optimizer: pytorch.SequentialLR(optimizer, [WARM_UP(optimizer), COSINE(optimizer)], [4]),
    ),
}
HALVED = partial(pytorch.ExponentialLR, gamma=0.5)
MLP12 = task(lambda: MLP(12, SHAPE, 10), in_groups)


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_those_of_pytorchs_scheduler_group_by_group(name: str):
    ours, theirs = SCHEDULES[name]
    rates, module = RoundRates(ours, MLP12()), MLP12()
    optimizer = in_groups(module.parameters())
    scheduler, expected = theirs(optimizer), []
    for _ in range(10):
        expected.append(tuple(group["lr"] for group in optimizer.param_groups))
        optimizer.step()
        scheduler.step()
    assert [rates.at(round) for round in range(10)] == expected
    # the rate does not depend on earlier calls, as after a resume
    assert RoundRates(ours, MLP12()).at(9) == expected[9]


def test_rates_by_hand():
    def first(make: Make, *rounds: int) -> list[float]:
        rates = RoundRates(make, MLP12())
        return [rates.at(round)[0] for round in rounds]

    assert first(WARM_UP, 0, 2, 4, 9) == pytest.approx([0.025, 0.0625, 0.1, 0.1])
    assert first(SCHEDULES["step"][0], 0, 2, 3, 6) == pytest.approx([0.1, 0.1, 0.05, 0.025])
    assert first(SCHEDULES["exponential"][0], 0, 1, 5) == pytest.approx([0.1, 0.09, 0.1 * 0.9**5])
    assert first(COSINE, 0, 4, 8) == pytest.approx([0.1, 0.055, 0.01])
    assert first(SCHEDULES["warm-up, then cosine"][0], 0, 4, 8, 12) == pytest.approx([0.025, 0.1, 0.055, 0.01])


QUARTERED = {
    "sgd in groups": (in_groups, lambda p: _with_rates(in_groups(p), 0.025, 0.075)),
    "momentum": (
        partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
        partial(SGD, lr=0.025, momentum=0.9, weight_decay=0.01),
    ),
    "adam": (partial(Adam, lr=0.04, weight_decay=0.01), partial(Adam, lr=0.01, weight_decay=0.01)),
}  # each optimizer, and the same with a quarter of its learning rates


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "plan"), list(product(QUARTERED, PLANS)))
def test_every_engine_trains_with_the_rates_of_the_round(name: str, plan: str):
    """After two rounds that halve the learning rates, training equals that with a quarter of the rates."""
    optimizer, at_quarter = QUARTERED[name]
    net = lambda: MLP(12, SHAPE, 10)  # noqa: E731
    how = replace(PLANS[plan], precision="64-true")
    local = replace(LOCAL, lr_schedule=HALVED, gradient_clip=0.5)
    found, _ = fitted(task(net, optimizer), how, local=local, prox=0.3)
    expected, _ = fitted(task(net, at_quarter), how, local=replace(local, lr_schedule=None), prox=0.3)
    exact = how.engine != "stack"  # in a stack the rate is a tensor, which rounds in another order
    assert_close(rows_of(found), rows_of(expected), rtol=0, atol=0 if exact else 1e-13)
    assert_close(found.losses, expected.losses, rtol=0, atol=0 if exact else 1e-13, equal_nan=True)


def _with_rates(optimizer: Optimizer, *rates: float) -> Optimizer:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    return optimizer


@pytest.mark.ray
def test_workers_have_the_rates_of_the_round(cluster: None):
    local = replace(LOCAL, lr_schedule=lambda optimizer: pytorch.ExponentialLR(optimizer, 0.5))
    alone, _ = fitted(MLP12, Plan("loop"), local=local)
    work, engine = fitted(MLP12, Plan("loop", workers=1), local=local)
    try:
        assert torch.equal(rows_of(work), rows_of(alone))
    finally:
        engine.close()


class OwnScheduler(Classification):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return {"optimizer": optimizer, "lr_scheduler": pytorch.StepLR(optimizer, 1)}


class TwoOptimizers(Classification):
    def configure_optimizers(self):
        return [super().configure_optimizers(), super().configure_optimizers()]


def net() -> nn.Module:
    return MLP(12, SHAPE, 10)


@pytest.mark.parametrize(
    ("schedule", "module", "expected"),
    [
        (pytorch.ReduceLROnPlateau, MLP12, "ReduceLROnPlateau, which needs a metric; give a scheduler that counts"),
        (pytorch.CosineAnnealingLR, MLP12, "cannot be made: TypeError: .*T_max.*; change its init_args"),
        (
            partial(pytorch.OneCycleLR, max_lr=1, total_steps=3),
            MLP12,
            "OneCycleLR changes momentum, too.*cycle_momentum",
        ),
        (partial(pytorch.LambdaLR, lr_lambda=lambda round: 1 - round), MLP12, r"rate -0\.\d+ in round 3; .* 0 or more"),
        (
            partial(pytorch.OneCycleLR, max_lr=1, total_steps=3, cycle_momentum=False),
            MLP12,
            "OneCycleLR gives no learning rate for round 5: ValueError: Tried to step 4 times.*run fewer rounds",
        ),
        (HALVED, lambda: OwnScheduler(net(), in_groups), "OwnScheduler has the scheduler StepLR; return the optimizer"),
        (
            HALVED,
            lambda: TwoOptimizers(net(), in_groups),
            "needs one optimizer, but .* of TwoOptimizers does not return exactly",
        ),
    ],
)
def test_what_has_no_rates_is_refused_in_one_line(schedule: Make, module: Callable, expected: str):
    with pytest.raises(InputError, match=expected):
        RoundRates(schedule, module()).at(5)


def test_run_logs_its_rates_and_resumes_to_the_bit(tmp_path: Path):
    def experiment(rounds: int) -> lit_cfl.Experiment:
        return digits(rounds=rounds, local=LocalTraining(1, 20, lr_schedule=HALVED))

    whole = lit_cfl.run(experiment(4), tmp_path / "whole")
    lit_cfl.run(experiment(2), tmp_path / "parts")
    parts = lit_cfl.run(experiment(4), tmp_path / "parts", mode="resume")
    rows = [read_table(finished.path / "metrics.csv") for finished in (whole, parts)]
    without_clocks = [[{k: v for k, v in row.items() if not k.startswith("time/")} for row in table] for table in rows]
    assert without_clocks[0] == without_clocks[1]
    assert [row["train/lr"] for row in rows[0]] == [0.1, 0.05, 0.025, 0.0125]
    constant = lit_cfl.run(digits(), tmp_path / "constant")
    assert "train/lr" not in read_table(constant.path / "metrics.csv")[0]
