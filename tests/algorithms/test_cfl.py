"""Tests CFL on quadratic clients (docs/ground_truth.md, checks 12 and 19; C29 to C32).

Worked by hand: eight clients around the corners A (4, 1), B (4, -1), C (-4, 1), D (-4, -1), two at each and not side by
side, of weights 12, 12, 4, 4; half a step towards the own corner a round. Their weighted mean is (2, 0).
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from quadratic import ids, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms import CFL, Algorithm, FedAvg, Info
from lit_cfl.algorithms.splits import SplitState
from lit_cfl.errors import InputError
from lit_cfl.testing import QuadraticWork

A, B, C, D = (4.0, 1.0), (4.0, -1.0), (-4.0, 1.0), (-4.0, -1.0)
CORNERS = torch.tensor([A, C, B, D, D, B, A, C], dtype=torch.float64)
SIZES = ids(5, 3, 9, 1, 3, 3, 7, 1)
BY_HAND = CFL(eps1=0.3, eps2=0.5, warmup_rounds=0)
SPLITS = CFL(eps1=100.0, eps2=0.0, warmup_rounds=0)  # splits whenever a cluster has three clients
EVERYONE = torch.arange(8)


def work_of(centers: Tensor = CORNERS, sizes: Tensor = SIZES, **options: object) -> QuadraticWork:
    return QuadraticWork(centers, sizes, learning_rate=0.5, **options)


def begun(algorithm: Algorithm, work: QuadraticWork, *model: float) -> SplitState:
    """Returns the state before round 0, with this model."""
    state, _ = algorithm.init(work, rng())
    return replace(state, models=torch.tensor([model], dtype=torch.float64))


def rounds(
    algorithm: Algorithm, work: QuadraticWork, state: SplitState, number: int = 6
) -> Iterator[tuple[SplitState, Info]]:
    for round in range(number):
        state, info = algorithm.round(state, work.population, work.at(round), rng(round))
        yield state, info


def after_both_splits(**options: object) -> SplitState:
    work = work_of(**options)
    return list(rounds(BY_HAND, work, begun(BY_HAND, work, 2, 0)))[-1][0]


def test_three_splits_as_worked_by_hand():
    found = list(rounds(BY_HAND, work_of(), begun(BY_HAND, work_of(), 2, 0)))
    numbers = [state.index.tolist() for state, _ in found]
    assert numbers[:3] == [[0, 1, 0, 1, 1, 0, 0, 1]] * 3  # corners A and B are together, and so are C and D
    assert numbers[3:5] == [[0, 1, 2, 1, 1, 2, 0, 1]] * 2  # B leaves A; ids, not positions in the cluster (C30)
    assert numbers[5] == [0, 1, 2, 3, 3, 2, 0, 1]  # D leaves C
    states = [state for state, _ in found]
    assert states[0].models.tolist() == [[2, 0], [2, 0]]  # both clusters continue from the mean
    assert states[1].models.tolist() == [[3, 0], [-1, 0]]
    assert states[2].models.tolist() == [[3.5, 0], [-2.5, 0]]
    assert states[3].models.tolist() == [[3.75, 0], [-3.25, 0], [3.75, 0]]
    assert states[4].models.tolist() == [[3.875, 0.5], [-3.625, 0], [3.875, -0.5]]
    assert states[5].models.tolist() == [[3.9375, 0.75], [-3.8125, 0], [3.9375, -0.75], [-3.8125, 0]]


def test_u_v_and_parents_as_worked_by_hand():
    infos = [info for _, info in rounds(BY_HAND, work_of(), begun(BY_HAND, work_of(), 2, 0))]
    nan = float("nan")
    u = [[0, nan], [1, 3], [0.5, 1.5], [0.25, 0.75, nan], [0.51539, 0.375, 0.51539], [0.25769, 0.1875, 0.25769, nan]]
    v = [[9.25, nan], [1.25, 9.25], [0.5, 2.5], [0.3125, 0.8125, nan], [0.265625, 0.390625, 0.265625]]  # squared norms
    for info, expected in zip(infos, u, strict=True):
        assert_close(info.clusters["u"], torch.tensor(expected).double(), equal_nan=True, rtol=1e-4, atol=1e-12)
    for info, expected in zip(infos, v, strict=False):
        assert_close(info.clusters["v"].square(), torch.tensor(expected).double(), equal_nan=True)
    parents = [info.clusters["parent"].tolist() for info in infos]
    assert parents == [[-1, 0]] * 3 + [[-1, 0, 0]] * 2 + [[-1, 0, 0, 1]]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (
            [(1, 0, 0.1, 2.0), (3, 0, 0.5, 2.0), (4, 0, 0.45, 1.9)],
            "never fell below eps1 (0.4); its minimum was 0.45",
        ),
        (
            [(3, 0, 0.5, 2.0), (4, 0, 0.3, 1.25), (5, 0, 0.2, 1.5)],
            "largest norm of an update, reached 1.5, and eps2 is 1.6",
        ),
        ([(3, 0, 0.3, 2.0)], "but the clients' updates allowed no split"),
        ([(3, 0, 0.3, 2.0), (4, 0, 0.3, 2.0), (4, 1, None, None)], None),
        ([(1, 0, 0.1, 2.0), (2, 0, 0.1, 2.0)], None),  # during the warm-up
    ],
)
def test_a_run_without_a_split_says_which_threshold_was_not_passed(rows: list[tuple], reason: str | None):
    table = [dict(zip(("round", "cluster", "u", "v"), row, strict=True)) for row in rows]
    found = CFL(warmup_rounds=2).explain_result(lambda: table)
    assert found is None if reason is None else found is not None and reason in found, found


def test_of_each_split_the_start_and_the_parts_mean_updates_are_kept():
    state = after_both_splits()
    assert state.starts.tolist() == [[2, 0], [3.5, 0], [-3.625, 0]]
    assert state.part_cluster.tolist() == [0, 1, 0, 2, 1, 3]
    assert state.part_split.tolist() == [0, 0, 1, 1, 2, 2]
    halves = [[0.25, 0.5], [0.25, -0.5], [-0.1875, 0.5], [-0.1875, -0.5]]
    assert state.part_means.tolist() == [[1, 0], [-3, 0], *halves]


def test_only_a_clusters_own_clients_count_for_its_criterion():
    # in round 3, v is 0.559 in the cluster with small u, and 0.90 in the other one
    stricter = replace(BY_HAND, eps2=0.56)
    state, _ = list(rounds(stricter, work_of(), begun(stricter, work_of(), 2, 0)))[-1]
    assert state.index.tolist() == [0, 1, 0, 1, 1, 0, 0, 1]


def test_similarity_of_the_cluster_looked_at_is_shown_with_its_clients():
    _, info = list(rounds(BY_HAND, work_of(), begun(BY_HAND, work_of(), 2, 0), 4))[3]
    assert info.similarity.clients.tolist() == [0, 2, 5, 6]  # the clients are in corners A, B, B, A
    expected = torch.tensor([[1, -1, -1, 1], [-1, 1, 1, -1], [-1, 1, 1, -1], [1, -1, -1, 1]]).double()
    assert_close(info.similarity.matrix, torch.where(expected > 0, 1.0, -0.6).double())


def test_discrepancy_is_the_distance_from_the_new_mean():
    _, info = next(rounds(BY_HAND, work_of(), begun(BY_HAND, work_of(), 2, 0)))
    assert_close(info.scores["train/discrepancy"], (1.25**0.5 + 9.25**0.5) / 2)
    assert info.loss == pytest.approx((24 * (4 + 1) + 8 * (36 + 1)) / 2 / 32)


def test_without_a_split_it_is_fedavg():
    never, average = replace(BY_HAND, eps2=100.0), FedAvg()
    state, joint = never.init(work_of(), rng())[0], average.init(work_of(), rng())[0]
    for number in range(5):
        state, _ = never.round(state, EVERYONE, work_of().at(number), rng())
        joint, _ = average.round(joint, EVERYONE, work_of().at(number), rng())
    assert_close(state.models, joint.models)


@pytest.mark.parametrize("spread", [0.0, 0.15])
def test_alike_clients_are_never_split(spread: float):  # check 19
    noise = spread * torch.randn(9, 6, generator=rng(1), dtype=torch.float64)
    work = work_of(noise + 2, torch.arange(1, 10))
    state, _ = BY_HAND.init(work, rng())
    found = list(rounds(BY_HAND, work, state, 20))
    assert float(found[-1][1].clusters["u"]) < 0.3  # the mean update is small
    assert len(found[-1][0].models) == 1


def opposite(*sides: float) -> QuadraticWork:
    """Makes one client per value, with its centre at 4 times the value; all have equal sizes."""
    return work_of(4 * torch.tensor([[side] for side in sides]).double(), torch.full((len(sides),), 3))


@pytest.mark.parametrize(
    ("options", "split"),
    [
        ({}, True),
        ({"eps2": 2.0}, False),  # v is 2, not above it
        ({"eps1": 1e-9}, True),  # u is 0
        ({"warmup_rounds": 6}, False),
        ({"warmup_rounds": 5}, True),
    ],
)
def test_two_opposite_tasks_are_split_under_these_rules_alone(options: dict[str, float], split: bool):
    algorithm = replace(CFL(eps1=0.5, eps2=1.9, warmup_rounds=0), **options)
    work = opposite(1, -1, -1, 1)
    state, info = algorithm.round(begun(algorithm, work, 0), work.population, work.at(5), rng())
    assert state.index.tolist() == ([0, 1, 1, 0] if split else [0] * 4)
    if split:
        assert info.similarity.matrix[0].tolist() == [1, -1, -1, 1]  # 1 within a part, -1 across: a gap of 2


def test_cluster_whose_mean_moves_by_eps1_is_not_split():
    work = opposite(1, -1, -1, 1)
    state = begun(SPLITS, work, 0.5)  # u is 0.25
    assert len(replace(SPLITS, eps1=0.25).round(state, work.population, work, rng())[0].models) == 1
    assert len(replace(SPLITS, eps1=0.2501).round(state, work.population, work, rng())[0].models) == 2


def test_cluster_of_two_is_never_split_and_one_of_three_is():
    for sides, clusters in {(1.0, -1.0): 1, (1.0, -1.0, 1.0): 2}.items():
        work = opposite(*sides)
        state, _ = SPLITS.round(begun(SPLITS, work, 0), work.population, work, rng())
        assert len(state.models) == clusters


def test_single_linkage_finds_the_optimal_bipartition_and_complete_does_not():  # C29
    angles = torch.tensor([0, 38, 80, 121, 170]).double().deg2rad()
    work = work_of(torch.stack([angles.cos(), angles.sin()], 1), ids(1, 2, 3, 4, 5))
    found = {}
    for linkage in ("single", "complete"):
        algorithm = replace(SPLITS, linkage=linkage)
        found[linkage] = algorithm.round(begun(algorithm, work, 0, 0), work.population, work, rng())[0].index.tolist()
    assert found == {"single": [0, 0, 0, 0, 1], "complete": [0, 0, 1, 1, 1]}


@pytest.mark.parametrize(("weights", "model", "u"), [("examples", [1, 0], 1.0), ("equal", [0, 0], 0.0)])
def test_mean_and_criterion_have_the_same_weights(weights: str, model: list[float], u: float):  # C32
    algorithm = replace(BY_HAND, weights=weights)
    state, info = algorithm.round(begun(algorithm, work_of(), 0, 0), EVERYONE, work_of(), rng())
    assert info.clusters["u"][0] == u
    assert state.models.tolist() == ([model] if u else [model, model])  # the cluster is split if u is below eps1


def test_client_without_data_stays_with_the_part_that_keeps_the_number():
    # client 5, in corner B, has no data; the total weight of each corner is unchanged
    sizes = ids(5, 3, 12, 1, 3, 0, 7, 1)
    work = work_of(sizes=sizes)
    found = list(rounds(BY_HAND, work, begun(BY_HAND, work, 2, 0)))
    state, info = found[-1]
    assert state.index.tolist() == [0, 1, 2, 3, 3, 0, 0, 1]
    assert (info.down, info.up, info.skipped) == (8, 7, 1)
    assert torch.equal(state.models, after_both_splits().models)


def test_round_in_which_nobody_can_train_changes_nothing():
    state = after_both_splits()
    after, info = BY_HAND.round(state, EVERYONE, work_of(sizes=torch.zeros(8, dtype=torch.int64)), rng())
    assert torch.equal(after.models, state.models)
    assert torch.equal(after.index, state.index)
    assert info.clusters["u"].isnan().all()
    assert info.clusters["v"].isnan().all()
    assert info.up == 0


def with_newcomers(*centers: tuple[float, float], sizes: Tensor | None = None) -> QuadraticWork:
    more = torch.tensor(centers, dtype=torch.float64)
    sizes = torch.full((len(more),), 2) if sizes is None else sizes
    return work_of(torch.cat([CORNERS, more]), torch.cat([SIZES, sizes]))


def test_newcomers_are_in_no_cluster_before_they_are_placed():
    work = work_of()
    work.population = ids(0, 1, 2, 4, 5)
    state, _ = BY_HAND.init(work, rng())
    assert BY_HAND.serve(state, EVERYONE).index.tolist() == [0, 0, 0, -1, 0, 0, -1, -1]
    placed, info = BY_HAND.place(state, ids(7), work, rng())
    assert BY_HAND.serve(placed, EVERYONE).index.tolist() == [0, 0, 0, -1, 0, 0, -1, 0]
    assert info.down == 0  # there is only one model to choose from


def test_newcomers_walk_down_the_tree_of_splits():
    state, work = after_both_splits(), with_newcomers((-3, -2), (5, -1), (-5, 2), (3, 1))
    placed, info = BY_HAND.place(state, ids(8, 9, 10, 11), work, rng())
    assert BY_HAND.serve(placed, ids(8, 9, 10, 11)).index.tolist() == [3, 2, 1, 0]
    assert (info.down, info.up) == (8, 8)  # four models at the first split, two at each of the others
    assert torch.equal(placed.index[:8], state.index)


def test_newcomers_train_from_where_the_split_was_made_not_from_todays_models():
    state, work = after_both_splits(), with_newcomers((-3, -2), (5, -1))
    moved = replace(state, models=torch.full_like(state.models, 1e3))
    assert BY_HAND.place(moved, ids(8, 9), work, rng())[0].index[8:].tolist() == [3, 2]


def test_the_old_clients_are_placed_where_they_are():
    state = after_both_splits()
    assert torch.equal(BY_HAND.place(state, EVERYONE, work_of(), rng())[0].index, state.index)


def test_newcomer_without_data_finds_no_cluster_once_there_are_two():
    work = with_newcomers((-3, -2), (5, -1), sizes=ids(0, 4))
    first, info = BY_HAND.place(begun(BY_HAND, work_of(), 2, 0), ids(8, 9), work, rng())
    assert first.index[8:].tolist() == [0, 0]  # there is only one model to choose from
    assert info.down == 0
    assert BY_HAND.place(after_both_splits(), ids(8, 9), work, rng())[0].index[8:].tolist() == [-1, 2]


def test_newcomer_with_a_zero_update_goes_to_the_part_with_the_old_number():
    state, _ = next(rounds(BY_HAND, work_of(), begun(BY_HAND, work_of(), 2, 0)))
    assert BY_HAND.place(state, ids(8), with_newcomers((2, 0)), rng())[0].index[8].item() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eps1": 0.0}, "eps1 is 0.0"),
        ({"eps1": float("nan")}, "eps1 is nan"),
        ({"eps2": -0.5}, "eps2 is -0.5"),
        ({"warmup_rounds": -1}, "warmup_rounds is -1"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, float], words: str):
    with pytest.raises(InputError, match=words):
        CFL(**options)


def test_search_waits_for_the_first_split():
    assert CFL(warmup_rounds=7).first_clustering_round() == 7
