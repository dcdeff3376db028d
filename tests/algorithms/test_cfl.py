"""Tests CFL on quadratic clients (docs/ground_truth.md, checks 12 and 19; C29 to C32).

Worked by hand: eight clients around the corners A (4, 1), B (4, -1), C (-4, 1), D (-4, -1), two at each and not side by
side, of weights 12, 12, 4, 4; half a step towards the own corner a round. Their weighted mean is (2, 0).
"""

from dataclasses import replace

import pytest
import torch
from few_rounds import SPLITS, begin, last, run
from quadratic import Clients, clients_at, f64, ids, rng
from torch.testing import assert_close

from lit_cfl.algorithms import CFL
from lit_cfl.algorithms.splits import SplitState

A, B, C, D = (4.0, 1.0), (4.0, -1.0), (-4.0, 1.0), (-4.0, -1.0)
CORNERS, SIZES = (A, C, B, D, D, B, A, C), (5, 3, 9, 1, 3, 3, 7, 1)
BY_HAND, ALWAYS = CFL(eps1=0.3, eps2=0.5, warmup_rounds=0), CFL(**SPLITS)
EVERYONE = torch.arange(8)
NAN = float("nan")


def corners(*more: tuple[float, float], sizes: tuple[int, ...] = SIZES) -> Clients:
    """Makes the clients at the corners, and newcomers with two examples each."""
    return clients_at(*CORNERS, *more, sizes=(*sizes, *[2] * len(more)))


def begun(algorithm: CFL = BY_HAND) -> SplitState:
    return begin(algorithm, corners(), [2.0, 0.0])


def after_three_splits() -> SplitState:
    return last(BY_HAND, corners(), [EVERYONE] * 6, begun())


def test_three_splits_as_worked_by_hand():
    states, infos = zip(*run(BY_HAND, corners(), [EVERYONE] * 6, begun()), strict=True)
    numbers = [state.index.tolist() for state in states]
    assert numbers[:3] == [[0, 1, 0, 1, 1, 0, 0, 1]] * 3  # corners A and B are together, and so are C and D
    assert numbers[3:5] == [[0, 1, 2, 1, 1, 2, 0, 1]] * 2  # B leaves A; ids, not positions in the cluster (C30)
    assert numbers[5] == [0, 1, 2, 3, 3, 2, 0, 1]  # D leaves C
    assert [state.models.tolist() for state in states] == [
        [[2, 0], [2, 0]],  # both clusters continue from the mean
        [[3, 0], [-1, 0]],
        [[3.5, 0], [-2.5, 0]],
        [[3.75, 0], [-3.25, 0], [3.75, 0]],
        [[3.875, 0.5], [-3.625, 0], [3.875, -0.5]],
        [[3.9375, 0.75], [-3.8125, 0], [3.9375, -0.75], [-3.8125, 0]],
    ]
    u = [[0, NAN], [1, 3], [0.5, 1.5], [0.25, 0.75, NAN], [0.51539, 0.375, 0.51539], [0.25769, 0.1875, 0.25769, NAN]]
    v = [[9.25, NAN], [1.25, 9.25], [0.5, 2.5], [0.3125, 0.8125, NAN], [0.265625, 0.390625, 0.265625]]  # squared norms
    for info, expected in zip(infos, u, strict=True):
        assert_close(info.clusters["u"], f64(*expected), equal_nan=True, rtol=1e-4, atol=1e-12)
    for info, expected in zip(infos, v, strict=False):
        assert_close(info.clusters["v"].square(), f64(*expected), equal_nan=True)
    assert [info.clusters["parent"].tolist() for info in infos] == [[-1, 0]] * 3 + [[-1, 0, 0]] * 2 + [[-1, 0, 0, 1]]
    assert_close(infos[0].scores["train/discrepancy"], (1.25**0.5 + 9.25**0.5) / 2)
    assert infos[0].loss == pytest.approx((24 * (4 + 1) + 8 * (36 + 1)) / 2 / 32)
    # the similarity of the cluster that is split: clients in the corners A, B, B, A
    assert infos[3].similarity.clients.tolist() == [0, 2, 5, 6]
    sides = f64(1, -1, -1, 1)
    assert_close(infos[3].similarity.matrix, torch.where(torch.outer(sides, sides) > 0, 1.0, -0.6).double())
    # of each split, the start and the parts' mean updates
    assert states[5].starts.tolist() == [[2, 0], [3.5, 0], [-3.625, 0]]
    assert states[5].part_cluster.tolist() == [0, 1, 0, 2, 1, 3]
    assert states[5].part_split.tolist() == [0, 0, 1, 1, 2, 2]
    halves = [[0.25, 0.5], [0.25, -0.5], [-0.1875, 0.5], [-0.1875, -0.5]]
    assert states[5].part_means.tolist() == [[1, 0], [-3, 0], *halves]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([(1, 0, 0.1, 2.0), (3, 0, 0.5, 2.0), (4, 0, 0.45, 1.9)], "eps1 (0.4); its minimum was 0.45"),
        ([(3, 0, 0.5, 2.0), (4, 0, 0.3, 1.25), (5, 0, 0.2, 1.5)], "reached 1.5, and eps2 is 1.6"),
        ([(3, 0, 0.3, 2.0)], "the clients' updates allowed no split"),
        ([(3, 0, 0.3, 2.0), (4, 0, 0.3, 2.0), (4, 1, None, None)], None),
        ([(1, 0, 0.1, 2.0), (2, 0, 0.1, 2.0)], None),  # during the warm-up
    ],
)
def test_a_run_without_a_split_says_which_threshold_was_not_passed(rows: list[tuple], reason: str | None):
    table = [dict(zip(("round", "cluster", "u", "v"), row, strict=True)) for row in rows]
    found = CFL(warmup_rounds=2).explain_result(lambda: table)
    assert found is None if reason is None else found is not None and reason in found, found


@pytest.mark.parametrize(
    ("sides", "start", "options", "clusters"),
    [
        ((1, -1, -1, 1), 0.0, {}, 2),
        ((1, -1, -1, 1), 0.0, {"eps2": 2.0}, 1),  # v is 2, not above it
        ((1, -1, -1, 1), 0.0, {"eps2": 1.999}, 2),
        ((1, -1, -1, 1), 0.0, {"eps1": 1e-9}, 2),  # u is 0
        ((1, -1, -1, 1), 0.5, {"eps1": 0.25}, 1),  # u is 0.25, not below it
        ((1, -1, -1, 1), 0.5, {"eps1": 0.2501}, 2),
        ((1, -1, -1, 1), 0.0, {"warmup_rounds": 6}, 1),
        ((1, -1, -1, 1), 0.0, {"warmup_rounds": 5}, 2),
        ((1, -1), 0.0, {}, 1),  # a cluster of two is never split
        ((1, -1, 1), 0.0, {"eps1": 10.0}, 2),
    ],
)
def test_opposite_tasks_are_split_under_these_rules_alone(sides, start, options: dict[str, float], clusters: int):
    algorithm = replace(CFL(eps1=0.5, eps2=1.9, warmup_rounds=0), **options)
    work = clients_at(*(4.0 * side for side in sides), sizes=[3] * len(sides))  # updates of 2 and -2 from 0
    state, info = algorithm.round(begin(algorithm, work, start), work.population, work.at(5), rng())
    assert state.index.tolist() == ([0] * len(sides) if clusters == 1 else [int(side < 0) for side in sides])
    if clusters == 2:
        assert info.similarity.matrix[0].tolist() == list(sides)  # 1 within a part, -1 across: a gap of 2


@pytest.mark.parametrize(("linkage", "expected"), [("single", [0, 0, 0, 0, 1]), ("complete", [0, 0, 1, 1, 1])])
def test_single_linkage_finds_the_optimal_bipartition_and_complete_does_not(linkage: str, expected: list[int]):  # C29
    angles = f64(0, 38, 80, 121, 170).deg2rad()
    work = clients_at(*torch.stack([angles.cos(), angles.sin()], 1).tolist())
    algorithm = replace(ALWAYS, linkage=linkage)
    assert last(algorithm, work, [torch.arange(5)], begin(algorithm, work, [0.0, 0.0])).index.tolist() == expected


@pytest.mark.parametrize(("weights", "model", "u"), [("examples", [1, 0], 1.0), ("equal", [0, 0], 0.0)])
def test_mean_and_criterion_have_the_same_weights(weights: str, model: list[float], u: float):  # C32
    algorithm = replace(BY_HAND, weights=weights)
    state, info = algorithm.round(begin(algorithm, corners(), [0.0, 0.0]), EVERYONE, corners(), rng())
    assert info.clusters["u"][0] == u
    assert state.models.tolist() == ([model] if u else [model, model])  # the cluster is split if u is below eps1


def test_round_in_which_nobody_can_train_changes_nothing():
    state = after_three_splits()
    after, info = BY_HAND.round(state, EVERYONE, corners(sizes=(0,) * 8), rng())
    assert torch.equal(after.models, state.models)
    assert torch.equal(after.index, state.index)
    assert info.clusters["u"].isnan().all()
    assert info.clusters["v"].isnan().all()
    assert info.up == 0


def test_newcomers_are_in_no_cluster_before_they_are_placed():
    work = corners()
    work.population = ids(0, 1, 2, 4, 5)
    state = begin(BY_HAND, work)
    assert BY_HAND.serve(state, EVERYONE).index.tolist() == [0, 0, 0, -1, 0, 0, -1, -1]
    placed, info = BY_HAND.place(state, ids(7), work, rng())
    assert BY_HAND.serve(placed, EVERYONE).index.tolist() == [0, 0, 0, -1, 0, 0, -1, 0]
    assert info.down == 0  # there is only one model to choose from


def test_newcomers_walk_down_the_tree_of_splits_from_where_each_split_was_made():
    state, work = after_three_splits(), corners((-3, -2), (5, -1), (-5, 2), (3, 1))
    placed, info = BY_HAND.place(state, ids(8, 9, 10, 11), work, rng())
    assert BY_HAND.serve(placed, ids(8, 9, 10, 11)).index.tolist() == [3, 2, 1, 0]
    assert (info.down, info.up) == (8, 8)  # four models at the first split, two at each of the others
    assert torch.equal(placed.index[:8], state.index)
    moved = replace(state, models=torch.full_like(state.models, 1e3))  # today's models do not matter
    assert BY_HAND.place(moved, ids(8, 9), work, rng())[0].index[8:10].tolist() == [3, 2]
    assert torch.equal(BY_HAND.place(state, EVERYONE, work, rng())[0].index[:8], state.index)


def test_newcomer_without_data_finds_no_cluster_once_there_are_two():
    work = corners((-3, -2), (5, -1))
    work.num_examples = work.num_examples.index_fill(0, ids(8), 0)
    first, info = BY_HAND.place(begun(), ids(8, 9), work, rng())
    assert first.index[8:].tolist() == [0, 0]  # there is only one model to choose from
    assert info.down == 0
    assert BY_HAND.place(after_three_splits(), ids(8, 9), work, rng())[0].index[8:].tolist() == [-1, 2]
