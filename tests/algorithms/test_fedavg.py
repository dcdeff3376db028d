"""FedAvg against closed forms on quadratic clients (docs/ground_truth.md, checks 1 to 3)."""

from dataclasses import replace

import pytest
import torch
from quadratic import ids, quadratic_clients, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms import Algorithm, FedAvg
from lit_cfl.testing import QuadraticWork, check_algorithm


def train(algorithm: Algorithm, work: QuadraticWork, cohorts: list[Tensor]) -> list[Tensor]:
    """The model before round 0 and after each round."""
    state, _ = algorithm.init(work, rng())
    path = [state.models[0]]
    for number, cohort in enumerate(cohorts):
        state, _ = algorithm.round(state, cohort, work.at(number), rng(number))
        path.append(state.models[0])
    return path


def test_equal_weights_keep_the_contract():
    check_algorithm(FedAvg(weights="equal"))


def test_single_client_follows_its_closed_form():
    work = quadratic_clients(1)  # eta .25, E 3
    path = train(FedAvg(), work, [ids(0)] * 4)
    assert len(path) == 5
    for t, model in enumerate(path):
        assert_close(model, work.centers[0] + 0.75 ** (3 * t) * (path[0] - work.centers[0]))


def test_model_converges_to_the_weighted_mean_of_the_centres():
    work = quadratic_clients(5)
    path = train(FedAvg(), work, [torch.arange(5)] * 60)
    weights = work.num_examples / work.num_examples.sum()
    assert_close(path[-1], weights.double() @ work.centers)


def test_equal_weights_converge_to_the_plain_mean():
    work = quadratic_clients(5)
    assert_close(train(FedAvg("equal"), work, [torch.arange(5)] * 60)[-1], work.centers.mean(0))


def test_one_step_of_everyone_is_a_step_of_gradient_descent_on_the_whole():
    work = quadratic_clients(4, steps=1)
    before, after = train(FedAvg(), work, [torch.arange(4)])
    weights = (work.num_examples / work.num_examples.sum()).double()
    assert_close(after, before - 0.25 * weights @ (before - work.centers))


def test_weights_are_those_of_the_cohort_alone():
    work = quadratic_clients(6)
    before, after = train(FedAvg(), work, [ids(1, 4)])  # n = 2 and 5
    local = work.centers + 0.75**3 * (before - work.centers)
    assert_close(after, (2 * local[1] + 5 * local[4]) / 7)


def test_order_and_duplication_of_clients_change_nothing():
    work = quadratic_clients(4)
    doubled = QuadraticWork(work.centers.repeat(2, 1), 3 * work.num_examples.repeat(2), 0.25, steps=3)
    expected = train(FedAvg(), work, [torch.arange(4)] * 3)[-1]
    assert_close(train(FedAvg(), work, [ids(2, 0, 3, 1)] * 3)[-1], expected)
    assert_close(train(FedAvg(), doubled, [torch.arange(8)] * 3)[-1], expected)


def test_round_without_anybody_keeps_the_model():
    before, after = train(FedAvg(), quadratic_clients(3), [ids()])
    assert torch.equal(before, after)


def test_client_without_data_is_skipped_and_counted():
    work = QuadraticWork(torch.tensor([[2.0, 2.0], [50.0, 50.0]]), ids(3, 0), 1.0)
    state, _ = FedAvg("equal").init(work, rng())
    state, info = FedAvg("equal").round(state, ids(0, 1), work, rng())
    assert state.models.tolist() == [[2.0, 2.0]]
    assert info.skipped == 1


def test_discrepancy_with_identical_data_is_zero():  # check 26
    work = QuadraticWork(torch.ones(3, 2).double(), ids(1, 2, 3), 0.25, steps=3)
    state, _ = FedAvg().init(work, rng())
    _, info = FedAvg().round(state, ids(0, 1, 2), work, rng())
    assert info.scores["train/discrepancy"] == pytest.approx(0, abs=1e-15)


def test_everyone_is_served_from_the_start():
    work = quadratic_clients(3)
    state, _ = FedAvg().init(work, rng())
    assert FedAvg().serve(state, ids(2, 0, 99)).index.tolist() == [0, 0, 0]


def test_arguments_are_never_changed():
    work = quadratic_clients(4)
    state, _ = FedAvg().init(work, rng())
    kept = replace(state, models=state.models.clone())
    FedAvg().round(state, ids(0, 1), work, rng())
    assert torch.equal(state.models, kept.models)
