"""Tests learning rates that change over rounds: against PyTorch's schedulers and by hand, and which have none.

That every way trains with them is stated by `test_ways.py`, and that a resumed run does by `test_resumed_features.py`.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from digits_experiment import digits
from ragged import SHAPE, in_groups
from torch.optim import Optimizer
from torch.optim import lr_scheduler as pytorch

import lit_cfl
from lit_cfl.engines.lr_schedule import RoundRates, SequentialSchedule
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.errors import InputError
from lit_cfl.nets import MLP
from lit_cfl.runs.run_directory import read_table
from lit_cfl.tasks import Classification

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
