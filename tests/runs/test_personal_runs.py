"""Tests that runs with personal layers are scored, configured and opened with them."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from digits_experiment import digits
from torch.optim import SGD

from lit_cfl import Experiment, load_run, run
from lit_cfl.algorithms import IFCA, Algorithm, FedAvg, FedGroup
from lit_cfl.datamodules import Digits
from lit_cfl.engines.engine import Engine
from lit_cfl.errors import InputError
from lit_cfl.evaluation import EvaluationPlan, evaluate
from lit_cfl.local_work import Budget
from lit_cfl.nets import MLP
from lit_cfl.storage import read_table
from lit_cfl.tasks import Classification

EVERYTHING = EvaluationPlan(fine_tune=Budget(4, "steps"), per_client=True, class_counts=True)
BODY = 64 * 12 + 12  # number of weights and biases of fc1, which are shared


def net() -> Classification:
    return Classification(MLP(12, [1, 8, 8], 10), partial(SGD, lr=0.1), scores=["accuracy", "f1"])


def kept(**changes: Any) -> Experiment:
    settings: dict[str, Any] = {"task": net, "algorithm": FedAvg(), "personal": ["fc2"], "evaluation": EVERYTHING}
    return digits(**(settings | changes))


GROUPS = FedGroup(num_clusters=3, pretrain_scale=2, pretrain=Budget(5))


@pytest.mark.parametrize("algorithm", [FedAvg(), GROUPS], ids=lambda algorithm: type(algorithm).__name__)
def test_clients_are_scored_and_fine_tuned_with_their_own_layers(
    algorithm: Algorithm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    experiment = kept(algorithm=algorithm)
    path = run(experiment, tmp_path / "run").path
    prepared = experiment.prepare(3)
    *_, last = prepared.rounds()
    state, data, engine = last.state, last.data, prepared.engine
    served = experiment.algorithm.serve(state, data.population)
    right, tuned, by_global, count = [], [], [], []
    for client in data.population[served.index >= 0].tolist():
        model = served.models[served.index[client]].clone()
        if client in state.own_layers:
            model[BODY:] = state.own_layers[client]
        more = engine.at(last.index, data).fit(
            model[None], torch.tensor([client]), purpose="fine-tune", budget=Budget(4, "steps")
        )
        whole = served.extra.get("global", model).clone()
        whole[BODY:] = state.own_layers.get(client, whole[BODY:])
        for row, found in ((model, right), (more.rows[0], tuned), (whole, by_global)):
            found.append(float(engine.outcomes(row, data.test[client], data).values[0].sum()))
        count.append(len(data.test[client]))
    row, by_client = read_table(path / "metrics.csv")[-1], pd.read_parquet(path / "client_rounds.parquet")
    assert row["test/weighted_accuracy"] == pytest.approx(sum(right) / sum(count))
    assert row["test/tuned_accuracy"] == pytest.approx(sum(tuned) / sum(count))
    if "global" in served.extra:
        assert row["test/global_accuracy"] == pytest.approx(sum(by_global) / sum(count))
    mine = by_client[by_client["round"] == 3]
    assert mine["accuracy"].tolist() == pytest.approx((np.array(right) / count).tolist())
    assert [mine[[f"right_{label}" for label in range(10)]].sum(axis=1).tolist()] == [right]
    assert len({tuple(layers.tolist()) for layers in state.own_layers.values()}) == len(state.own_layers) > 5
    monkeypatch.setattr(Engine, "rows_that_fit", 5)  # fewer models than are scored
    parts = evaluate(experiment.algorithm, state, engine, data, EVERYTHING, round=last.index).metrics
    assert {name: row[name] for name in parts if name.startswith("test/")} == {
        name: value for name, value in parts.items() if name.startswith("test/")
    }
    traffic = row["traffic/models_down"] + row["traffic/models_up"]
    assert row["traffic/mib"] == pytest.approx(traffic * BODY * 4 / 2**20)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = Digits(12, validation=0.1, newcomers=0.25)
    return run(kept(data=data, algorithm=IFCA(2), rounds=2), tmp_path_factory.mktemp("personal") / "run").path


def opened(path: Path) -> Any:
    return load_run(path, kept(data=Digits(12, validation=0.1, newcomers=0.25), algorithm=IFCA(2), rounds=2))


def accuracy(module: torch.nn.Module, saved: Any, client: int) -> float:
    inputs, labels = saved.data.examples.batch(saved.data.test[client])
    return float((module(inputs).argmax(1) == labels).double().mean())


def test_opened_run_gives_each_client_its_own_model(path: Path):
    saved, rows = opened(path), read_table(path / "clients.csv")
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
    with pytest.raises(InputError, match=r"no client 12 in .*0 to 11"):
        saved.client_module(12)
    never = next(client for client in range(12) if int(saved.served().index[client]) < 0)
    with pytest.raises(InputError, match=f"client {never} has no model"):
        saved.client_module(never)


def test_newcomers_are_scored_with_the_mean_layers_of_their_cluster(path: Path):
    saved, rows = opened(path), read_table(path / "clients.csv")
    newcomers = [row for row in rows if row["newcomer"]]
    assert len(newcomers) == 3
    for row in newcomers:
        assert row["client"] not in saved.state.own_layers
        assert accuracy(saved.module(row["cluster"]), saved, row["client"]) == pytest.approx(row["accuracy"])
    placed = saved.assign(Digits(8, partition_seed=99).federated(0))
    assert torch.equal(placed.assignment.models, saved.served().models)
    assert not placed.new.any()
    assert placed.test is not None
    module = placed.module(0)
    assert torch.equal(module.net.fc2.bias, saved.module(int(placed.assignment.index[0])).net.fc2.bias)
