"""Tests FedAvg against closed forms (docs/ground_truth.md, checks 1 to 3), and in limiting cases on nets."""

import pytest
import torch
from few_rounds import begin, last, run
from quadratic import ids, quadratic_clients
from ragged import LOCAL, PLANS, SHAPE, ragged_data, task
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms import FedAvg
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.nets import MLP
from lit_cfl.seeds import generator


@pytest.mark.parametrize("rule", ["examples", "equal"])
def test_model_converges_to_the_mean_of_the_centres(rule: str):
    work = quadratic_clients(5)
    weights = work.num_examples.double() if rule == "examples" else torch.ones(5).double()
    assert_close(last(FedAvg(rule), work, [torch.arange(5)] * 60).models[0], weights @ work.centers / weights.sum())


def test_weights_are_those_of_the_cohort_alone():
    work = quadratic_clients(6)
    local = work.centers + 0.75**3 * (begin(FedAvg(), work).models - work.centers)
    ((after, info),) = run(FedAvg(), work, [ids(1, 4)])  # n = 2 and 5
    assert_close(after.models[0], (2 * local[1] + 5 * local[4]) / 7)
    distances = (local[ids(1, 4)] - after.models).norm(dim=1)
    assert info.scores["train/discrepancy"] == pytest.approx(float(distances.mean()))


SEED, RATE = 5, 0.1
DOUBLE = {name: Plan(**vars(PLANS[name]) | {"precision": "64-true"}) for name in ("plain loop", "2 lanes")}


def trained(plan: str, data, cohort: Tensor, local: LocalTraining) -> tuple[Engine, list[Tensor]]:
    """Trains an MLP with FedAvg for three rounds; returns the engine, and the model before and after each round."""
    engine = build_engine(task(lambda: MLP(12, SHAPE, 10)), DOUBLE[plan], SEED, local)
    state, _ = FedAvg().init(engine.at(0, data), torch.Generator())
    path = [state.models[0]]
    for number in range(3):
        state, _ = FedAvg().round(state, cohort, engine.at(number, data), torch.Generator())
        path.append(state.models[0])
    return engine, path


def step(engine: Engine, model: Tensor, examples: Tensor, data) -> Tensor:
    """Returns the model after one step of gradient descent on the mean loss of these examples."""
    module = engine.module(model)
    loss = module.losses(data.examples.batch(examples, torch.float64)).mean()
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    return model - RATE * torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("plan", DOUBLE)
def test_single_client_is_plain_training_on_the_same_batches(plan: str):  # check 1
    data = ragged_data()
    engine, (model, *path) = trained(plan, data, ids(3), LOCAL)
    for number, found in enumerate(path):
        rng = generator(SEED, "train", number, 3)
        for _ in range(LOCAL.epochs):
            for batch in torch.randperm(36, generator=rng).split(LOCAL.batch_size):
                model = step(engine, model, data.train[3][batch], data)
        assert_close(found, model, rtol=0, atol=1e-12)


@pytest.mark.parametrize("plan", DOUBLE)
def test_full_batch_step_of_everyone_is_a_step_on_all_data(plan: str):  # check 2: E = 1, weights n_i
    data = ragged_data()
    engine, (model, *path) = trained(plan, data, torch.arange(6), LocalTraining(1, "full"))
    for found in path:
        model = step(engine, model, data.train.entries, data)
        assert_close(found, model, rtol=0, atol=1e-12)
