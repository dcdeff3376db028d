"""The timetable of a stack, and how much of its work is of use."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged import LOCAL, SHAPE, SIZES, fitted, ragged_data, task
from torch.testing import assert_close

from lit_cfl.cli.main import main
from lit_cfl.engines.base import Effort
from lit_cfl.engines.batches import ShuffledBatches, num_steps
from lit_cfl.engines.factory import build_engine
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked.engine import StackedEngine
from lit_cfl.engines.stacked.runner import Runner
from lit_cfl.engines.stacked.schedule import (
    busy_lanes,
    pool_capacity,
    pool_groups,
    schedule_by_cost,
    schedule_lanes,
    width_for,
    widths_of,
)
from lit_cfl.local_work import Budget
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


def test_stack_of_many_widths_gives_the_same_rows():
    make, data = task(lambda: MCLR(SHAPE, 10)), ragged_data()
    for prox in (0.0, 0.3):
        expected, _ = fitted(make, Plan("stacked"), prox=prox)
        engine = build_engine(make, Plan("stacked", lanes=8, narrow=1), 5, LOCAL)
        effort = Effort()
        engine._runner = Runner(
            engine._steps,
            engine.layout,
            engine._optimizer,
            widths=[8, 4, 2, 1],
            call_cost=0.0,
            steps=1,
            batch_size=10,
            device="cpu",
            dtype=torch.float32,
            effort=effort,
        )
        models, clients = torch.stack([engine.initial(number) for number in range(3)]), torch.arange(6)
        found = engine.at(2, data).fit(models, clients, clients % 2, prox=prox, centers=models, center=2)
        assert_close(found.rows, expected.rows, rtol=0, atol=1e-6)
        assert_close(found.losses, expected.losses, rtol=0, atol=1e-6, equal_nan=True)
        assert 0 <= effort.waste < 0.2


def test_engine_says_how_much_of_its_work_was_of_use():
    _, engine = fitted(task(lambda: MCLR(SHAPE, 10)), Plan("stacked", lanes=2, narrow=1, steps_per_call=5))
    assert isinstance(engine, StackedEngine)
    useful = sum(num_steps(LOCAL.budget, 3, size, 10) for size in SIZES)
    assert (engine.effort.useful, engine.effort.computed % 5) == (useful, 0)
    assert 0 < engine.effort.waste < 0.5


@pytest.mark.parametrize("lanes", [1, 2])
def test_summary_says_how_much_was_wasted(lanes: int, tmp_path: Path):
    words = [
        "--engine",
        "stacked",
        "--plan.lanes",
        str(lanes),
        "--plan.compile",
        "false",
        "--run_dir",
        str(tmp_path / "run"),
    ]
    assert main(["run", "--config", "quickstart", "--tiny", "--quiet", *words]) == 0
    wasted = json.loads((tmp_path / "run" / "summary.json").read_text())["time/wasted_share"]
    assert wasted is None if lanes == 1 else 0 < wasted < 0.5


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(9, 20), st.integers(1, 4))
def test_groups_fit_the_pool_and_keep_the_order(sizes: list[int], capacity: int, lanes: int):
    groups = pool_groups(torch.tensor(sizes, dtype=torch.int64), capacity, lanes)
    assert [size for group in groups for size in sizes[group]] == sizes
    assert all(sizes[group] and sum(sizes[group]) <= capacity for group in groups)


def test_groups_leave_no_lane_idle_where_enough_clients_fit():
    sizes = torch.full((20,), 10)
    assert [group.stop for group in pool_groups(sizes, 60, 4)] == [4, 8, 12, 16, 20]  # six fit, four have lanes
    assert [group.stop for group in pool_groups(sizes, 110, 4)] == [8, 16, 20]
    assert [group.stop for group in pool_groups(sizes, 30, 4)] == [3, 6, 9, 12, 15, 18, 20]
    assert [group.stop for group in pool_groups(sizes, 60, 1)] == [6, 12, 18, 20]
    large = torch.full((20,), 9_600)
    assert pool_capacity(large, 784 * 4, 4) == 4 * 9_600
    assert [group.stop for group in pool_groups(large, 4 * 9_600, 4)] == [4, 8, 12, 16, 20]


def test_pool_has_room_for_the_largest_client_and_grows_with_the_lanes():
    image, mib = 3 * 32 * 32 * 4, 2**20
    many, few = torch.full((100,), 500), torch.full((100,), 40)
    assert [pool_capacity(many, image, lanes) * image // mib for lanes in (1, 4, 16, 256)] == [63, 63, 255, 768]
    assert pool_capacity(few, image, 256) == pool_capacity(few, image, 4)  # all of them fit
    assert pool_capacity(torch.tensor([3, 70_000]), image, 1) == 70_000
    assert pool_capacity(torch.tensor([3, 70_000]), image, 4) == 70_003  # no more than there are
    assert pool_capacity(torch.full((9,), 200_000), image, 256) == 4 * 200_000
    assert pool_capacity(many, image, 64) // 500 >= 64  # so that no lane of 64 is idle


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 25), st.integers(1, 30), st.integers(1, 12))
def test_table_holds_the_batches_of_the_loop(size: int, batch_size: int, steps: int):
    def rng() -> torch.Generator:
        return torch.Generator().manual_seed(4)

    table = ShuffledBatches(size, batch_size, rng()).all(steps)
    batches, loop = [], ShuffledBatches(size, batch_size, rng())
    while len(batches) < steps:
        batches += list(loop)
    assert [row[row >= 0].tolist() for row in table] == [batch.tolist() for batch in batches[:steps]]


def test_steps_of_a_budget():
    assert num_steps(Budget(3), 3, 21, 10) == 9
    assert num_steps(Budget(3, "epochs", "full"), 3, 21, "full") == 3
    assert num_steps(Budget(4, "steps"), 4, 21, 10) == 4
    assert num_steps(Budget(4, "steps"), 4, 0, 10) == 0
