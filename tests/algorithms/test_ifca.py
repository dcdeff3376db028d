"""Tests IFCA on quadratic clients (docs/ground_truth.md, checks 6 and 27; C13)."""

from dataclasses import replace

import pytest
import torch
from few_rounds import begin, last, states
from quadratic import clients_at, f64, ids, quadratic_clients, rng
from torch.testing import assert_close

from lit_cfl.algorithms.ifca import IFCA

TWO = IFCA(num_clusters=2)


@pytest.mark.parametrize("weights", ["equal", "examples"])
def test_three_rounds_by_hand(weights: str):
    work = clients_at(0.0, 2.0, 10.0, 14.0, 5.2, sizes=(1, 3, 1, 2, 2))
    algorithm = replace(TWO, weights=weights)
    state, info = algorithm.round(begin(algorithm, work, 4.0, 6.0), ids(0, 1, 2, 4), work, rng())
    assert state.index.tolist() == [0, 0, 1, -1, 1]  # 5.2 is nearer to 6 than to 4
    first, second = (2 + 3) / 2, (8 + 5.6) / 2
    if weights == "examples":
        first, second = (1 * 2 + 3 * 3) / 4, (1 * 8 + 2 * 5.6) / 3
    assert_close(state.models[:, 0].tolist(), [first, second])
    assert info.loss == pytest.approx((1 * 8 + 3 * 2 + 1 * 8 + 2 * 0.32) / 7)
    assert (info.down, info.up, info.skipped) == (4 * 2, 4, 0)

    state, info = algorithm.round(state, ids(1, 3), work, rng())
    first, second = (first + 2) / 2, (second + 14) / 2
    assert state.index.tolist() == [0, 0, 1, 1, 1]
    assert_close(state.models[:, 0].tolist(), [first, second])

    state, info = algorithm.round(state, ids(2, 4), work, rng())
    first, second = (first + 5.2) / 2, (second + 10) / 2
    assert state.index.tolist() == [0, 0, 1, 1, 0]  # after this round, the second model is too far from 5.2
    assert_close(state.models[:, 0].tolist(), [first, second])
    assert (info.down, info.up) == (2 * 2, 2)


def test_tie_goes_to_the_first_model_and_the_other_stays():  # check 6
    work = clients_at(1.0, -1.0)
    state = last(TWO, work, [ids(0, 1)], begin(TWO, work, 0.2, 0.2))
    assert state.index.tolist() == [0, 0]
    assert_close(state.models[:, 0].tolist(), [(0.6 - 0.4) / 2, 0.2])


def test_order_of_the_models_changes_the_labels_alone():  # check 6
    work = quadratic_clients(8)
    start, cohorts = begin(IFCA(), work), [ids(0, 3, 5), ids(1, 2, 7), ids(4, 6, 3)]
    turned = replace(start, models=start.models[[2, 0, 1]])
    for a, b in zip(states(IFCA(), work, cohorts, start), states(IFCA(), work, cohorts, turned), strict=True):
        assert torch.equal(a.models[[2, 0, 1]], b.models)
        known = a.index >= 0
        assert torch.equal(ids(1, 2, 0)[a.index[known]], b.index[known])


def test_gradients_move_a_cluster_by_its_share_of_the_round():  # check 6
    work = clients_at(0.0, 2.0, 10.0)
    state = begin(TWO, work, 4.0, 9.0)
    averaged, _ = TWO.round(state, ids(0, 1, 2), work, rng())
    summed, _ = replace(TWO, averaging="gradients").round(state, ids(0, 1, 2), work, rng())
    factor = f64([2 / 3], [1 / 3])  # the group's share |group| / |S_t|
    assert_close(summed.models - state.models, factor * (averaged.models - state.models))
    assert_close(summed.models[:, 0].tolist(), [4 - 0.5 / 3 * (4 + 2), 9 + 0.5 / 3 * 1])


def test_gradients_weighted_by_examples_count_by_their_share_of_the_rounds_examples():
    work = clients_at(0.0, 2.0, 10.0, sizes=(1, 3, 4))
    algorithm = replace(TWO, averaging="gradients", weights="examples")
    after = last(algorithm, work, [ids(0, 1, 2)], begin(TWO, work, 4.0, 9.0))
    assert after.models[:, 0].tolist() == [4 - (1 * 2 + 3 * 1) / 8, 9 + 4 * 0.5 / 8]


def test_unselected_client_keeps_its_cluster_unless_all_choose_again():  # C13
    work, after_shift = clients_at(0.0, 1.0, 10.0), clients_at(9.0, 1.0, 10.0)
    state = last(TWO, work, [ids(0, 1, 2)], begin(TWO, work, 2.0, 8.0))
    sticky, info = TWO.round(state, ids(1), after_shift.at(1), rng())
    assert sticky.index.tolist() == [0, 0, 1]
    assert info.down == 2
    again, info = replace(TWO, reassign_at_evaluation=True).round(state, ids(1), after_shift.at(1), rng())
    assert again.index.tolist() == [1, 0, 1]
    assert torch.equal(again.models, sticky.models)
    assert info.down == 2 + 3 * 2


def test_choosing_again_is_by_the_models_after_the_round():
    work = clients_at(0.0, 5.2)
    # client 1 (5.2, not selected) is nearer to 4.4 before the round, which moves that model to 2.2
    after = last(replace(TWO, reassign_at_evaluation=True), work, [ids(0)], begin(TWO, work, 4.4, 6.2))
    assert after.index.tolist() == [0, 1]


def test_model_that_diverged_is_chosen_by_nobody():
    work = clients_at(0.0, 10.0)
    placed, info = TWO.place(begin(TWO, work, float("nan"), 8.0), ids(0, 1), work, rng())
    assert placed.index.tolist() == [1, 1]
    assert (info.down, info.up) == (4, 0)


def test_clusters_start_from_different_initial_models():
    work = quadratic_clients(8)
    state, info = IFCA().init(work, rng())
    assert_close(state.models, torch.stack([work.initial(number) for number in range(3)]))
    assert (info.down, info.up) == (0, 0)
