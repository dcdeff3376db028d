"""Tests FedAvg against closed forms (docs/ground_truth.md, checks 1 to 3), and in limiting cases on nets."""

import pytest
import torch
from quadratic import ids, quadratic_clients, rng
from ragged import LOCAL, PLANS, SHAPE, ragged_data, task
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms import Algorithm, FedAvg
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.nets import MLP
from lit_cfl.seeds import generator
from lit_cfl.testing import QuadraticWork


def train(algorithm: Algorithm, work: QuadraticWork, cohorts: list[Tensor]) -> list[Tensor]:
    """Trains with these cohorts; returns the model before round 0 and after each round."""
    state, _ = algorithm.init(work, rng())
    path = [state.models[0]]
    for number, cohort in enumerate(cohorts):
        state, _ = algorithm.round(state, cohort, work.at(number), rng(number))
        path.append(state.models[0])
    return path


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


def test_discrepancy_with_identical_data_is_zero():  # check 26
    work = QuadraticWork(torch.ones(3, 2).double(), ids(1, 2, 3), 0.25, steps=3)
    state, _ = FedAvg().init(work, rng())
    _, info = FedAvg().round(state, ids(0, 1, 2), work, rng())
    assert info.scores["train/discrepancy"] == pytest.approx(0, abs=1e-15)


SEED, RATE = 5, 0.1


DOUBLE = {name: Plan(**vars(PLANS[name]) | {"precision": "64-true"}) for name in ("plain loop", "2 lanes")}


MAKE = task(lambda: MLP(12, SHAPE, 10))


def models_of(engine: Engine, data, cohorts: list[Tensor]) -> list[Tensor]:
    """Trains with FedAvg on an engine; returns the model before round 0 and after each round."""
    state, _ = FedAvg().init(engine.at(0, data), torch.Generator())
    path = [state.models[0]]
    for number, cohort in enumerate(cohorts):
        state, _ = FedAvg().round(state, cohort, engine.at(number, data), torch.Generator())
        path.append(state.models[0])
    return path


def step(engine: Engine, model: Tensor, examples: Tensor, data) -> Tensor:
    """Returns the model after one step of gradient descent on the mean loss of these examples."""
    module = engine.module(model)
    loss = module.losses(data.examples.batch(examples, torch.float64)).mean()
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    return model - RATE * torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("plan", DOUBLE)
def test_single_client_is_plain_training_on_the_same_batches(plan: str):  # check 1
    data, client = ragged_data(), torch.tensor([3])
    engine = build_engine(MAKE, DOUBLE[plan], SEED, LOCAL)
    first, *path = models_of(engine, data, [client] * 3)
    model = first
    for number, found in enumerate(path):
        rng = generator(SEED, "train", number, 3)
        for _ in range(LOCAL.epochs):
            for batch in torch.randperm(36, generator=rng).split(LOCAL.batch_size):
                model = step(engine, model, data.train[3][batch], data)
        assert_close(found, model, rtol=0, atol=1e-12)
    assert (path[-1] - first).norm() > 0.1


@pytest.mark.parametrize("plan", DOUBLE)
def test_full_batch_step_of_everyone_is_a_step_on_all_data(plan: str):  # check 2: E = 1, weights n_i
    data, everyone = ragged_data(), torch.arange(6)
    engine = build_engine(MAKE, DOUBLE[plan], SEED, LocalTraining(1, "full"))
    model, *path = models_of(engine, data, [everyone] * 3)
    assert len(path) == 3
    for found in path:
        model = step(engine, model, data.train.entries, data)
        assert_close(found, model, rtol=0, atol=1e-12)
