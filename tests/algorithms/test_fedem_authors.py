"""FedEM against the published code on the same small clients: weights, models, and losses of mixed probabilities.

`benchmarks/peers/fedem_authors.py` made the table with the classes of github.com/omarfoq/FedEM (996fadd), in float32.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from quadratic import ids, rng
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl.algorithms import FedEM
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.base import Engine
from lit_cfl.engines.factory import build_engine
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.evaluation import EvaluationPlan, evaluate
from lit_cfl.tasks import Classification

TABLE: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "results" / "fedem_authors.json").read_text()
)
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 2e-6}  # six rounds of float32 there


def clients() -> FederatedData:
    """All four clients; the last one is a newcomer."""
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


def as_tensor(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.long
@pytest.mark.parametrize("way", ["trainer", "loop", "stack", "chain"])
def test_weights_models_and_scores_are_those_of_the_published_code(way: str):
    ours, data, algorithm = engine(way), clients(), FedEM(2, newcomer_steps=1)
    state, _ = algorithm.init(ours.at(0, data), rng())
    state = replace(state, models=as_tensor(TABLE["starts"]))
    for number, expected in enumerate(TABLE["rounds"]):
        state, _ = algorithm.round(state, data.population, ours.at(number, data), rng())
        assert_close(state.weights[:3], as_tensor(expected["weights"]), **CLOSE)
        assert_close(state.models, as_tensor(expected["models"]), **CLOSE)
        found = evaluate(algorithm, state, ours, data, EvaluationPlan(), round=number).scores["test"]
        assert_close(found.loss / found.count, as_tensor(expected["loss"]), **CLOSE)
        assert_close(found.of_clients(), as_tensor(expected["accuracy"]), **CLOSE)
    for steps, expected in enumerate(TABLE["newcomer"], 1):
        placed, _ = FedEM(2, newcomer_steps=steps).place(state, ids(3), ours.at(6, data), rng())
        assert_close(placed.weights[3], as_tensor(expected), **CLOSE)


def test_the_table_has_rounds_in_which_weights_move_and_models_differ():
    first, last = (as_tensor(TABLE["rounds"][k]["weights"]) for k in (0, -1))
    assert len(TABLE["rounds"]) == 6
    assert (first - last).abs().min() > 0.05
    assert (as_tensor(TABLE["rounds"][-1]["models"]) - as_tensor(TABLE["starts"])).abs().max() > 0.2
