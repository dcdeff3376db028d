"""Tests that clients are scored and fine-tuned with their own models and layers, and that opened runs have them."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from digits_experiment import digits, timeless_rows
from quadratic import ids
from torch.optim import SGD

from lit_cfl import Experiment, load_run, run
from lit_cfl.algorithms import IFCA, Ditto, FedAvg, FedGroup, Local
from lit_cfl.datamodules import Digits
from lit_cfl.engines.engine import Engine
from lit_cfl.errors import InputError
from lit_cfl.evaluation import EvaluationPlan, evaluate
from lit_cfl.local_work import Budget
from lit_cfl.nets import MLP
from lit_cfl.runs.load_run import SavedRun
from lit_cfl.storage import read_table
from lit_cfl.tasks import Classification

STEPS = Budget(4, "steps")
EVERYTHING = EvaluationPlan(fine_tune=STEPS, per_client=True, class_counts=True)
BODY = 64 * 12 + 12  # number of weights and biases of fc1, which are shared


def net() -> Classification:
    return Classification(MLP(12, [1, 8, 8], 10), partial(SGD, lr=0.1), scores=["accuracy", "f1"])


def kept(**changes: Any) -> Experiment:
    settings: dict[str, Any] = {"task": net, "algorithm": FedAvg(), "personal": ["fc2"], "evaluation": EVERYTHING}
    return digits(**(settings | changes))


GROUPS = FedGroup(num_clusters=3, pretrain_scale=2, pretrain=Budget(5))
BY_HAND = {
    "FedAvg": kept(personal=None),
    "FedGroup": kept(personal=None, algorithm=GROUPS),
    "Ditto": kept(personal=None, algorithm=Ditto()),
    "Local": kept(personal=None, algorithm=Local()),
    "FedAvg with own layers": kept(),
    "FedGroup with own layers": kept(algorithm=GROUPS),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_clients_are_scored_and_tuned_with_their_own_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    experiment, scores = BY_HAND[name], dict[str, list[float]]()
    path = run(experiment, tmp_path / "run").path
    prepared = experiment.prepare(3)
    *_, last = prepared.rounds()
    state, data, engine, count = last.state, last.data, prepared.engine, []
    served, own_layers = experiment.algorithm.serve(state, data.population), getattr(state, "own_layers", {})
    for client in data.population[served.index >= 0].tolist():
        rows = {"weighted": served.models[served.index[client]].clone()}
        if "global" in served.extra:
            rows["global"] = served.extra["global"].clone()
        for row in rows.values():
            row[BODY:] = own_layers.get(client, row[BODY:])
        fit = engine.at(last.index, data).fit(rows["weighted"][None], ids(client), purpose="fine-tune", budget=STEPS)
        for score, row in (rows | {"tuned": fit.rows[0]}).items():
            right = engine.outcomes(row, data.test[client], data).values[0].sum()
            scores.setdefault(score, []).append(float(right))
        count.append(len(data.test[client]))
    row, by_client = read_table(path / "metrics.csv")[-1], pd.read_parquet(path / "client_rounds.parquet")
    for score, right in scores.items():
        assert row[f"test/{score}_accuracy"] == pytest.approx(sum(right) / sum(count))
    tuned = np.array(scores["tuned"]) / count
    assert row["test/mean_tuned_accuracy"] == pytest.approx(tuned.mean())
    assert row["test/worst10_tuned_accuracy"] == pytest.approx(tuned.min())  # of twelve clients or fewer
    assert row["test/tuned_accuracy"] != row["test/weighted_accuracy"]
    mine = by_client[by_client["round"] == 3]
    assert mine["accuracy"].tolist() == pytest.approx((np.array(scores["weighted"]) / count).tolist())
    assert mine[[f"right_{label}" for label in range(10)]].sum(axis=1).tolist() == scores["weighted"]
    monkeypatch.setattr(Engine, "rows_that_fit", 5)  # fewer models than are scored
    parts = evaluate(experiment.algorithm, state, engine, data, EVERYTHING, round=last.index).metrics
    assert {name: row[name] for name in parts if name.startswith("test/")} == {
        name: value for name, value in parts.items() if name.startswith("test/")
    }
    if experiment.personal:
        assert len({tuple(layers.tolist()) for layers in own_layers.values()}) == len(own_layers) > 5
        traffic = row["traffic/models_down"] + row["traffic/models_up"]
        assert row["traffic/mib"] == pytest.approx(traffic * BODY * 4 / 2**20)


def test_fine_tuning_changes_nothing_else_of_the_run(tmp_path: Path):
    plain, tuned = (
        timeless_rows(run(digits(evaluation=EvaluationPlan(fine_tune=fine_tune)), tmp_path / name).path / "metrics.csv")
        for name, fine_tune in {"plain": None, "tuned": STEPS}.items()
    )
    assert "test/tuned_accuracy" in tuned[0]
    assert plain == [{name: value for name, value in row.items() if "tuned_" not in name} for row in tuned]


def test_a_client_without_training_examples_keeps_its_model():
    prepared = digits(algorithm=FedAvg()).prepare(3)
    *_, last = prepared.rounds()
    nothing = replace(last.data.train, sizes=torch.zeros_like(last.data.train.sizes))
    data, plan = replace(last.data, train=nothing), EvaluationPlan(fine_tune=STEPS)
    found = evaluate(FedAvg(), last.state, prepared.engine, data, plan, round=last.index).metrics
    assert found["test/tuned_accuracy"] == found["test/weighted_accuracy"]
    assert found["test/worst10_tuned_accuracy"] == found["test/worst10_accuracy"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    experiment = kept(data=Digits(12, validation=0.1, newcomers=0.25), algorithm=IFCA(2), rounds=2)
    return load_run(run(experiment, tmp_path_factory.mktemp("personal") / "run").path, experiment)


def accuracy(module: torch.nn.Module, saved: SavedRun, client: int) -> float:
    inputs, labels = saved.data.examples.batch(saved.data.test[client])
    return float((module(inputs).argmax(1) == labels).double().mean())


def test_opened_run_gives_each_client_its_own_model(saved: SavedRun):
    rows = read_table(saved.path / "clients.csv")
    trained = sorted(saved.state.own_layers)
    assert 0 < len(trained) < 12
    for client in trained:
        module = saved.client_module(client)
        assert accuracy(module, saved, client) == pytest.approx(rows[client]["accuracy"])
        weights = torch.cat([module.net.fc2.weight.flatten(), module.net.fc2.bias])
        assert torch.equal(weights, saved.state.own_layers[client])
    cluster = int(saved.served().index[trained[0]])
    members = [client for client in trained if int(saved.served().index[client]) == cluster]
    mean = torch.stack([saved.state.own_layers[client] for client in members]).mean(0)
    torch.testing.assert_close(saved.module(cluster).net.fc2.bias, mean[-10:])
    never = next(client for client in range(12) if int(saved.served().index[client]) < 0)
    with pytest.raises(InputError, match=f"client {never} has no model"):
        saved.client_module(never)


def test_newcomers_are_scored_with_the_mean_layers_of_their_cluster(saved: SavedRun):
    rows = read_table(saved.path / "clients.csv")
    newcomers = [row for row in rows if row["newcomer"]]
    assert len(newcomers) == 3
    examples = sum(row["n_test"] for row in newcomers)
    right = sum(row["n_test"] * row["accuracy"] for row in newcomers)
    summary = json.loads((saved.path / "summary.json").read_text())
    assert summary["test/newcomers_accuracy"] == pytest.approx(right / examples)
    members = np.load(saved.path / "memberships.npz")["cluster"][-1]
    for row in newcomers:
        assert members[row["client"]] == -1  # they join after training
        assert row["client"] not in saved.state.own_layers
        assert accuracy(saved.module(row["cluster"]), saved, row["client"]) == pytest.approx(row["accuracy"])
    placed = saved.assign(Digits(8, partition_seed=99).federated(0))
    module = saved.module(int(placed.assignment.index[0]))
    assert torch.equal(placed.module(0).net.fc2.bias, module.net.fc2.bias)
