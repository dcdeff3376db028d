"""FedAvg on real models (docs/ground_truth.md, checks 1 and 2): closed forms that hold for any smooth loss."""

import pytest
import torch
from ragged import LOCAL, PLANS, SHAPE, ragged_data, task
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms import FedAvg
from lit_cfl.engines.base import Engine
from lit_cfl.engines.factory import build_engine
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.nets import MLP
from lit_cfl.seeds import generator

SEED, RATE = 5, 0.1
DOUBLE = {name: Plan(**vars(PLANS[name]) | {"precision": "64-true"}) for name in ("plain loop", "2 lanes")}
MAKE = task(lambda: MLP(12, SHAPE, 10))


def models_of(engine: Engine, data, cohorts: list[Tensor]) -> list[Tensor]:
    """The model before round 0 and after each round."""
    state, _ = FedAvg().init(engine.at(0, data), torch.Generator())
    path = [state.models[0]]
    for number, cohort in enumerate(cohorts):
        state, _ = FedAvg().round(state, cohort, engine.at(number, data), torch.Generator())
        path.append(state.models[0])
    return path


def step(engine: Engine, model: Tensor, examples: Tensor, data) -> Tensor:
    """A step of plain gradient descent on the mean loss of these examples, by autograd alone."""
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
