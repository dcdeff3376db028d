"""The schedule of a stack's lanes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged import SHAPE, fitted, task
from torch.testing import assert_close

from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked import way as stack_way
from lit_cfl.engines.stacked.lane_schedule import (
    busy_lanes,
    schedule_by_cost,
    schedule_lanes,
    width_for,
    widths_of,
)
from lit_cfl.nets import MCLR

JOBS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@settings(deadline=None, derandomize=True)
@given(JOBS, st.integers(1, 8))
def test_every_job_sits_alone_and_as_long_as_it_needs(calls: list[int], lanes: int):
    lane_slots = schedule_lanes(torch.tensor(calls), lanes)
    assert sorted(lane_slot.fit for lane_slot in lane_slots) == list(range(len(calls)))
    assert all(lane_slot.stop - lane_slot.start == calls[lane_slot.fit] for lane_slot in lane_slots)
    taken = [(lane_slot.lane, call) for lane_slot in lane_slots for call in range(lane_slot.start, lane_slot.stop)]
    assert len(set(taken)) == len(taken) == sum(calls)
    assert {lane for lane, _ in taken} <= set(range(lanes))


@settings(deadline=None, derandomize=True)
@given(JOBS, st.integers(1, 8))
def test_lanes_have_no_gaps_and_the_first_is_busy_longest(calls: list[int], lanes: int):
    lane_slots = schedule_lanes(torch.tensor(calls), lanes)
    busy = busy_lanes(lane_slots)
    assert sum(busy) == sum(calls)  # no gaps
    assert busy == sorted(busy, reverse=True)
    assert len(busy) <= sum(calls) / lanes + max(calls)  # Graham's bound


def test_longest_job_comes_first():
    lane_slots = {
        lane_slot.fit: (lane_slot.lane, lane_slot.start) for lane_slot in schedule_lanes(torch.tensor([2, 5, 3, 1]), 2)
    }
    assert lane_slots == {1: (1, 0), 2: (0, 0), 0: (0, 3), 3: (0, 5)} or lane_slots[1][1] == lane_slots[2][1] == 0


@pytest.mark.parametrize("seed", range(5))
def test_heavy_tailed_cohorts_waste_less_than_a_fifth(seed: int):
    rng = np.random.default_rng(seed)
    sizes = 10 + rng.lognormal(3, 1.2, 20).astype(int)  # like MNIST-1000: tens, some of many hundreds
    steps = torch.from_numpy(10 * -(-sizes // 10))
    busy = busy_lanes(schedule_lanes(-(-steps // 5), 4))
    computed = sum(5 * (4 if lanes > 1 else 1) for lanes in busy)
    assert int(steps.sum()) <= computed
    assert 1 - int(steps.sum()) / computed < 0.2


@pytest.mark.parametrize("cohort", [20, 100])
@pytest.mark.parametrize("seed", range(5))
def test_wide_stacks_of_a_gpu_cost_little_more_than_the_work_itself(seed: int, cohort: int):
    sizes = 10 + np.random.default_rng(seed).lognormal(3, 1.2, cohort).astype(int)
    steps = torch.from_numpy(10 * -(-sizes // 10))
    lanes = -(-cohort // 8) * 8
    widths = widths_of(lanes, -(-lanes // 27))
    assert len(widths) == 4
    calls, computed = [], []
    for call_cost in (0.0, 5.0, 1000.0):  # of a large model, a medium one and a small one
        lane_slots = schedule_by_cost(steps, widths, call_cost)
        busy = busy_lanes(lane_slots)
        calls.append(len(busy))
        computed.append(sum(width_for(lanes, widths) for lanes in busy))
        least = max(int(steps.max()), int(steps.sum()) / lanes)  # calls that any schedule needs
        assert call_cost * len(busy) + computed[-1] < 1.25 * (call_cost * least + int(steps.sum()))
    assert calls == sorted(calls, reverse=True)
    assert computed == sorted(computed)
    assert calls[-1] == int(steps.max())  # as in the widest stack


@pytest.mark.parametrize(
    ("lanes", "narrow", "widths"),
    [(24, 1, [24, 8, 3, 1]), (161, 6, [161, 54, 18, 6]), (4, 2, [4, 3, 2]), (1, 1, [1])],
)
def test_widths_are_in_equal_ratios(lanes: int, narrow: int, widths: list[int]):
    assert widths_of(lanes, narrow) == widths


def test_clients_of_equal_steps_all_train_at_once():
    steps, widths = torch.full((20,), 60), [24, 12, 5]
    assert {lane_slot.start for lane_slot in schedule_by_cost(steps, widths, 5.0)} == {0}
    lane_slots = schedule_by_cost(steps, widths, 0.5)  # 24 lanes would waste a sixth: 60 * 24.5 > 240 * 5.5
    assert max(lane_slot.lane for lane_slot in lane_slots) == 4
    lane_slots = schedule_by_cost(steps, widths, float("inf"))
    assert {lane_slot.start for lane_slot in lane_slots} == {0}


@pytest.mark.parametrize("prox", [0.0, 0.3])
def test_stack_of_many_widths_gives_the_same_rows(prox: float, monkeypatch: pytest.MonkeyPatch):
    make = task(lambda: MCLR(SHAPE, 10))
    expected, _ = fitted(make, Plan("loop"), prox=prox)
    monkeypatch.setattr(stack_way, "width_for", lambda busy, _: width_for(busy, [8, 4, 2, 1]))
    found, _ = fitted(make, Plan("stack", lanes=8), prox=prox)
    assert_close(found.rows, expected.rows, rtol=0, atol=1e-6)
    assert_close(found.losses, expected.losses, rtol=0, atol=1e-6, equal_nan=True)
