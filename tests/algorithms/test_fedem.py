"""Tests FedEM against rounds worked out by hand, against FedAvg, and against its authors' code."""

import json
from dataclasses import replace
from functools import partial
from math import log, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from quadratic import Clients, clients_at, f64, ids, rng
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl.algorithms import FedEM
from lit_cfl.algorithms.fedem import FedEMState, mean_shares, responsibilities
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.evaluation import EvaluationPlan, evaluate
from lit_cfl.tasks import Classification

W1 = sqrt(2 * log(3))  # F(W1) = log 3 for a client at 0


def two_clients() -> Clients:
    """Makes client 0 with two examples at 0, client 1 with six at W1, and client 2 without data."""
    return clients_at(0.0, W1, 9.0, sizes=(2, 6, 0))


def two_models(weights: Tensor | None = None) -> FedEMState:
    known = torch.zeros(3, 2, dtype=torch.float64) if weights is None else weights
    return FedEMState(f64([0.0], [W1]), known)


def test_responsibilities_are_weights_times_likelihoods_normalised():
    losses = f64([0.0, log(3), 1.0], [log(3), 0.0, 1.0])  # rows: two models; columns: three examples
    weights = f64([0.5, 0.5], [0.2, 0.8])
    found = responsibilities(weights, losses, ids(0, 0, 1))
    assert_close(found, f64([3 / 4, 1 / 4, 0.2], [1 / 4, 3 / 4, 0.8]))
    assert_close(mean_shares(found, ids(0, 0, 1), 2), f64([0.5, 0.5], [0.2, 0.8]))


def test_large_losses_lose_no_digits_and_a_diverged_model_explains_nothing():
    losses = f64([5000.0, torch.nan, torch.inf], [5000.0 + log(3), 7.0, torch.inf])
    found = responsibilities(f64([0.5, 0.5]), losses, ids(0, 0, 0))
    assert_close(found, f64([3 / 4, 0.0, 0.5], [1 / 4, 1.0, 0.5]))
    zero = responsibilities(f64([0.0, 1.0]), f64([0.0], [50.0]), ids(0))  # a weight of zero stays zero
    assert zero.flatten().tolist() == [0, 1]


def test_round_by_hand():
    state, info = FedEM(2).round(two_models(), ids(0, 1), two_clients(), rng())
    assert_close(state.weights, f64([3 / 4, 1 / 4], [1 / 4, 3 / 4], [0, 0]))
    # model 0: client 0 stays at 0, client 1 goes 0.5 * 1/4 of the way to W1; model 1 the other way round; 2 to 6
    first, second = W1 / 8, 7 / 8 * W1
    assert_close(state.models, f64([6 / 8 * first], [(2 * second + 6 * W1) / 8]))
    assert info.loss == pytest.approx(log(3) / 4)  # the mean of 3/4 * 0 + 1/4 * log 3 over both clients
    assert (info.down, info.up, info.skipped) == (4, 4, 0)
    # distance of each local model from the mean
    away = 6 / 8 * first + 2 / 8 * first + 6 / 8 * (W1 - second) + 2 / 8 * (W1 - second)
    assert info.scores["train/discrepancy"] == pytest.approx(away / 4)


def test_weights_continue_from_the_clients_own_and_stay_if_it_was_not_drawn_or_has_no_data():
    fresh = two_models(f64([3 / 4, 1 / 4], [0.0, 0.0], [0.0, 0.0]))
    state, _ = FedEM(2).round(fresh, ids(1, 0), two_clients(), rng())
    assert_close(state.weights, f64([9 / 10, 1 / 10], [1 / 4, 3 / 4], [0, 0]))
    before = f64([3 / 4, 1 / 4], [0.4, 0.6], [0.1, 0.9])
    state, info = FedEM(2).round(two_models(before), ids(0, 2), two_clients(), rng())
    assert_close(state.weights, f64([9 / 10, 1 / 10], [0.4, 0.6], [0.1, 0.9]))
    assert (info.down, info.up, info.skipped) == (4, 2, 1)
    nobody, info = FedEM(2).round(two_models(before), ids(2), two_clients(), rng())
    assert torch.equal(nobody.models, two_models().models)
    assert (info.up, info.skipped) == (0, 1)


@pytest.mark.parametrize(("steps", "weight"), [(1, 3 / 4), (2, 9 / 10), (3, 27 / 28)])
def test_newcomers_take_em_steps_from_equal_weights_and_change_no_model(steps: int, weight: float):
    before = two_models(f64([0.1, 0.9], [0.5, 0.5], [0.3, 0.7]))
    state, info = FedEM(2, newcomer_steps=steps).place(before, ids(1, 0, 2), two_clients(), rng())
    assert_close(state.weights, f64([weight, 1 - weight], [1 - weight, weight], [0.3, 0.7]))
    assert torch.equal(state.models, before.models)
    assert_close(info.closeness, f64([1 - weight, weight], [weight, 1 - weight], [torch.nan] * 2), equal_nan=True)
    assert (info.down, info.up, info.skipped) == (6, 0, 1)


def test_clients_beyond_the_table_are_served_nothing_until_they_are_placed():
    work, state = two_clients(), two_models(f64([0.25, 0.75]))
    assert FedEM(2).serve(two_models(f64([0.5, 0.5], [0, 0])), ids(1, 0)).index.tolist() == [-1, 0]  # ties: the lowest
    assert FedEM(2).serve(state, ids(1, 0)).index.tolist() == [-1, 1]
    placed, _ = FedEM(2, newcomer_steps=1).place(state, ids(1), work, rng())
    served = FedEM(2).serve(placed, ids(1, 0, 2))
    assert served.index.tolist() == [1, 1, -1]
    assert_close(served.weights, f64([0.25, 0.75], [0.25, 0.75], [0, 0]))


# The results of the authors' code; experiments/studies/fedem_code.md says how they were made
TABLE: dict[str, Any] = json.loads(Path(__file__).with_name("fedem_authors.json").read_text())
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 2e-6}  # for six rounds in float32


def clients() -> FederatedData:
    """Makes the four clients of the authors' run; the last one is a newcomer."""
    parts, test = TABLE["clients"], TABLE["settings"]["test"]
    inputs = torch.cat([torch.tensor(part["inputs"]) for part in parts])
    labels = torch.cat([torch.tensor(part["labels"]) for part in parts])
    whole = ClientIndex.from_sizes(torch.arange(len(labels)), torch.tensor([len(part["labels"]) for part in parts]))
    train = whole.sizes - test
    none = ClientIndex.empty(len(parts))
    newcomers = torch.arange(len(parts)) == len(parts) - 1
    examples = Examples(inputs, labels, 3)
    unknown = torch.full((len(parts),), -1)
    return FederatedData(examples, whole.first(train), none, whole.after(train), unknown, newcomers=newcomers)


def engine(way: str) -> Engine:
    settings = TABLE["settings"]
    task = partial(_linear, settings["lr"])
    return build_engine(task, Plan(way, precision="64-true"), 0, LocalTraining(settings["epochs"], "full"))


def _linear(lr: float) -> Classification:
    return Classification(nn.Linear(4, 3), partial(torch.optim.SGD, lr=lr))


@pytest.mark.parametrize("way", ["trainer", "loop", "stack"])
def test_weights_models_and_scores_are_those_of_the_published_code(way: str):
    ours, data, algorithm = engine(way), clients(), FedEM(2, newcomer_steps=1)
    state, _ = algorithm.init(ours.at(0, data), rng())
    state = replace(state, models=f64(*TABLE["starts"]))
    for number, expected in enumerate(TABLE["rounds"]):
        state, _ = algorithm.round(state, data.population, ours.at(number, data), rng())
        assert_close(state.weights[:3], f64(*expected["weights"]), **CLOSE)
        assert_close(state.models, f64(*expected["models"]), **CLOSE)
        found = evaluate(algorithm, state, ours, data, EvaluationPlan(), round=number).scores["test"]
        assert_close(found.loss / found.count, f64(*expected["loss"]), **CLOSE)
        assert_close(found.of_clients(), f64(*expected["accuracy"]), **CLOSE)
    for steps, expected in enumerate(TABLE["newcomer"], 1):
        placed, _ = FedEM(2, newcomer_steps=steps).place(state, ids(3), ours.at(6, data), rng())
        assert_close(placed.weights[3], f64(*expected), **CLOSE)
