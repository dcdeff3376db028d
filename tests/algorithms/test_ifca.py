"""Tests IFCA on quadratic clients (docs/ground_truth.md, checks 6 and 27; C13)."""

from dataclasses import replace

import pytest
import torch
from quadratic import ids, rng
from torch.testing import assert_close

from lit_cfl.algorithms import FedAvg
from lit_cfl.algorithms.ifca import IFCA, IFCAState
from lit_cfl.errors import InputError
from lit_cfl.testing import QuadraticWork

TWO = IFCA(num_clusters=2)


def line(*centers: float, sizes: tuple[int, ...] = (), **options: object) -> QuadraticWork:
    """Makes clients on a line, with the learning rate 0.5 by default."""
    num_examples = torch.tensor(sizes or tuple(range(1, len(centers) + 1)))
    settings = {"learning_rate": 0.5} | options
    return QuadraticWork(torch.tensor(centers, dtype=torch.float64)[:, None], num_examples, **settings)


def start(work: QuadraticWork, *models: float, algorithm: IFCA = TWO) -> IFCAState:
    state, _ = replace(algorithm, num_clusters=len(models)).init(work, rng())
    return replace(state, models=torch.tensor(models, dtype=torch.float64)[:, None])


@pytest.mark.parametrize("weights", ["equal", "examples"])
def test_three_rounds_by_hand(weights: str):
    work = line(0.0, 2.0, 10.0, 14.0, 5.2, sizes=(1, 3, 1, 2, 2))
    algorithm = replace(TWO, weights=weights)
    state = start(work, 4.0, 6.0)
    state, info = algorithm.round(state, ids(0, 1, 2, 4), work, rng())
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


@pytest.mark.parametrize("averaging", ["models", "gradients"])
@pytest.mark.parametrize("weights", ["equal", "examples"])
def test_one_cluster_is_fedavg(two_sides: QuadraticWork, averaging: str, weights: str):  # check 6
    one, average = IFCA(1, weights=weights, averaging=averaging), FedAvg(weights=weights)
    a, b = one.init(two_sides, rng())[0], average.init(two_sides, rng())[0]
    for cohort in (ids(0, 3, 5), ids(1, 2), ids(4, 6, 7)):
        a, b = one.round(a, cohort, two_sides, rng())[0], average.round(b, cohort, two_sides, rng())[0]
        assert_close(a.models, b.models, rtol=0, atol=1e-14)


def test_two_sides_are_separated_by_sign_and_found():  # check 6
    work = line(1.0, -1.0, 1.0, -1.0, 1.0)
    state = start(work, 0.5, -0.5)
    for cohort in [ids(0, 1, 2), ids(3, 4), ids(1, 2, 4)] * 10:
        state, _ = TWO.round(state, cohort, work, rng())
    assert state.index.tolist() == [0, 1, 0, 1, 0]
    assert_close(state.models[:, 0], torch.tensor([1.0, -1.0], dtype=torch.float64), rtol=0, atol=1e-6)


def test_tie_goes_to_the_first_model_and_the_other_stays():  # check 6
    work = line(1.0, -1.0)
    state, _ = TWO.round(start(work, 0.2, 0.2), ids(0, 1), work, rng())
    assert state.index.tolist() == [0, 0]
    assert_close(state.models[:, 0].tolist(), [(0.6 - 0.4) / 2, 0.2])


def test_order_of_the_models_changes_the_labels_alone(two_sides: QuadraticWork):  # check 6
    a, _ = IFCA().init(two_sides, rng())
    b = replace(a, models=a.models[[2, 0, 1]])
    for cohort in (ids(0, 3, 5), ids(1, 2, 7), ids(4, 6, 3)):
        a, b = IFCA().round(a, cohort, two_sides, rng())[0], IFCA().round(b, cohort, two_sides, rng())[0]
    assert torch.equal(a.models[[2, 0, 1]], b.models)
    known = a.index >= 0
    assert torch.equal(ids(1, 2, 0)[a.index[known]], b.index[known])


def test_gradients_move_a_cluster_by_its_share_of_the_round():  # check 6
    work = line(0.0, 2.0, 10.0)
    state = start(work, 4.0, 9.0)
    averaged, _ = TWO.round(state, ids(0, 1, 2), work, rng())
    summed, _ = replace(TWO, averaging="gradients").round(state, ids(0, 1, 2), work, rng())
    factor = torch.tensor([2 / 3, 1 / 3], dtype=torch.float64)[:, None]  # the group's share |group| / |S_t|
    assert_close(summed.models - state.models, factor * (averaged.models - state.models))
    gradients = [work.gradients(state.models[j], ids(i)) for i, j in enumerate((0, 0, 1))]
    line_12 = [4 - 0.5 / 3 * (gradients[0] + gradients[1]).item(), 9 - 0.5 / 3 * gradients[2].item()]
    assert_close(summed.models[:, 0].tolist(), line_12)


def test_gradients_weighted_by_examples_count_by_their_share_of_the_rounds_examples():
    work = line(0.0, 2.0, 10.0, sizes=(1, 3, 4))
    algorithm = replace(TWO, averaging="gradients", weights="examples")
    after, _ = algorithm.round(start(work, 4.0, 9.0), ids(0, 1, 2), work, rng())
    assert after.models[:, 0].tolist() == [4 - (1 * 2 + 3 * 1) / 8, 9 + 4 * 0.5 / 8]


def test_gradients_of_clients_without_data_do_not_count():
    work = line(0.0, 2.0, 10.0, sizes=(1, 0, 5))
    state = replace(start(work, 4.0, 9.0), index=ids(-1, 0, -1))  # client 1 lost its data
    after, info = replace(TWO, averaging="gradients").round(state, ids(0, 1, 2), work, rng())
    assert_close(after.models[:, 0].tolist(), [4 - 2 / 2, 9 + 0.5 / 2])
    assert (info.up, info.skipped) == (2, 1)


def test_client_without_data_stays_where_it_is():
    work = line(0.0, 2.0, 10.0, sizes=(0, 3, 0))
    state = replace(start(work, 4.0, 9.0), index=ids(-1, -1, 0))
    after, info = TWO.round(state, ids(0, 1, 2), work, rng())
    assert after.index.tolist() == [-1, 0, 0]
    assert after.models[:, 0].tolist() == [3.0, 9.0]
    assert (info.down, info.up, info.skipped) == (6, 1, 2)


def test_unselected_client_keeps_its_cluster_unless_all_choose_again():  # C13
    work, after_shift = line(0.0, 1.0, 10.0), line(9.0, 1.0, 10.0)
    state, _ = TWO.round(start(work, 2.0, 8.0), ids(0, 1, 2), work, rng())
    sticky, info = TWO.round(state, ids(1), after_shift.at(1), rng())
    assert sticky.index.tolist() == [0, 0, 1]
    assert info.down == 2
    again, info = replace(TWO, reassign_at_evaluation=True).round(state, ids(1), after_shift.at(1), rng())
    assert again.index.tolist() == [1, 0, 1]
    assert torch.equal(again.models, sticky.models)
    assert info.down == 2 + 3 * 2


def test_choosing_again_is_by_the_models_after_the_round():
    work = line(0.0, 5.2)
    # client 1 (5.2, not selected) is nearer to 4.4 before the round, which moves that model to 2.2
    state = start(work, 4.4, 6.2)
    after, _ = replace(TWO, reassign_at_evaluation=True).round(state, ids(0), work, rng())
    assert after.index.tolist() == [0, 1]


def test_newcomer_takes_the_model_with_the_minimum_training_loss():
    work = line(0.0, 1.0, 10.0, 7.0)
    state, _ = TWO.round(start(work, 2.0, 8.0), ids(0, 1), work, rng())
    placed, info = TWO.place(replace(state, index=state.index[:3]), ids(3), work, rng())
    assert placed.index.tolist() == [0, 0, -1, 1]
    assert (info.down, info.up) == (2, 0)


def test_model_that_diverged_is_chosen_by_nobody():
    work = line(0.0, 10.0)
    placed, _ = TWO.place(start(work, float("nan"), 8.0), ids(0, 1), work, rng())
    assert placed.index.tolist() == [1, 1]


def test_clusters_start_from_different_initial_models(two_sides: QuadraticWork):
    state, info = IFCA().init(two_sides, rng())
    assert_close(state.models, torch.stack([two_sides.initial(number) for number in range(3)]))
    assert (info.down, info.up) == (0, 0)


def test_bad_hyper_parameters_are_refused():
    with pytest.raises(InputError, match="num_clusters is 0"):
        IFCA(num_clusters=0)
    with pytest.raises(InputError, match="shift_threshold is"):
        IFCA(shift_threshold=-0.1)


def test_more_clusters_than_clients_with_data_are_refused():
    work = line(0.0, 1.0, 2.0, sizes=(1, 0, 4))
    IFCA(2).check(work)
    with pytest.raises(InputError, match="num_clusters is 3, but only 2 clients can be clustered; lower it to 2"):
        IFCA(3).check(work)
