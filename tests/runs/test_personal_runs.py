"""Tests runs with personal layers: scored, resumed and opened with them, and equal in every engine."""

import signal
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from digits_experiment import digits, timeless_rows
from torch.optim import SGD

from lit_cfl import Experiment, load_run, run
from lit_cfl.algorithms import IFCA, Algorithm, FedAvg, FedGroup, FlexCFL, StoCFL
from lit_cfl.config.variants import load_experiment
from lit_cfl.datamodules import Digits
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError, Interrupted
from lit_cfl.evaluation import EvaluationPlan, evaluate
from lit_cfl.experiment import CheckpointPlan
from lit_cfl.local_work import Budget
from lit_cfl.nets import MLP
from lit_cfl.rounds import Cohorts, rounds
from lit_cfl.runs.run import RunCallbacks
from lit_cfl.storage import read_table
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.tasks import Classification

pytestmark = pytest.mark.nightly  # a table of tests states these facts

EVERYTHING = EvaluationPlan(fine_tune=Budget(4, "steps"), per_client=True, class_counts=True)
ALWAYS = CheckpointPlan(0)
HEAD = 12 * 10 + 10  # number of weights and biases of fc2
BODY = 64 * 12 + 12


def net() -> Classification:
    return Classification(MLP(12, [1, 8, 8], 10), partial(SGD, lr=0.1), scores=["accuracy", "f1"])


def kept(**changes: Any) -> Experiment:
    settings: dict[str, Any] = {"task": net, "algorithm": FedAvg(), "personal": ["fc2"], "evaluation": EVERYTHING}
    return digits(**(settings | changes))


GROUPS = FedGroup(num_clusters=3, pretrain_scale=2, pretrain=Budget(5))


@pytest.mark.parametrize("algorithm", [FedAvg(), GROUPS], ids=lambda algorithm: type(algorithm).__name__)
def test_clients_are_scored_and_fine_tuned_with_their_own_layers(algorithm: Algorithm, tmp_path: Path):
    experiment = kept(algorithm=algorithm)
    path = run(experiment, tmp_path / "run").path
    prepared = experiment.prepare(3)
    *_, last = prepared.rounds()
    state, data, engine = last.state, last.data, prepared.engine
    served = experiment.algorithm.serve(state, data.population)
    right, tuned, count = [], [], []
    for client in data.population[served.index >= 0].tolist():
        model = served.models[served.index[client]].clone()
        if client in state.own_layers:
            model[BODY:] = state.own_layers[client]
        more = engine.at(last.index, data).fit(
            model[None], torch.tensor([client]), purpose="fine-tune", budget=Budget(4, "steps")
        )
        for row, found in ((model, right), (more.rows[0], tuned)):
            found.append(float(engine.outcomes(row, data.test[client], data).values[0].sum()))
        count.append(len(data.test[client]))
    row, by_client = read_table(path / "metrics.csv")[-1], pd.read_parquet(path / "client_rounds.parquet")
    assert row["test/weighted_accuracy"] == pytest.approx(sum(right) / sum(count))
    assert row["test/tuned_accuracy"] == pytest.approx(sum(tuned) / sum(count))
    mine = by_client[by_client["round"] == 3]
    assert mine["accuracy"].tolist() == pytest.approx((np.array(right) / count).tolist())
    assert [mine[[f"right_{label}" for label in range(10)]].sum(axis=1).tolist()] == [right]
    assert len({tuple(layers.tolist()) for layers in state.own_layers.values()}) == len(state.own_layers) > 5
    traffic = row["traffic/models_down"] + row["traffic/models_up"]
    assert row["traffic/mib"] == pytest.approx(traffic * BODY * 4 / 2**20)


def test_global_model_is_scored_with_the_layers_of_each_client(tmp_path: Path):
    experiment = kept(algorithm=GROUPS)
    prepared = experiment.prepare(3)
    *_, last = prepared.rounds()
    served = experiment.algorithm.serve(last.state, last.data.population)
    right = count = 0.0
    for client in last.data.population[served.index >= 0].tolist():
        row = served.extra["global"].clone()
        row[BODY:] = last.state.own_layers.get(client, row[BODY:])
        right += float(prepared.engine.outcomes(row, last.data.test[client], last.data).values[0].sum())
        count += len(last.data.test[client])
    found = evaluate(experiment.algorithm, last.state, prepared.engine, last.data, EvaluationPlan(), round=last.index)
    assert found.metrics["test/global_accuracy"] == pytest.approx(right / count)


def test_scores_do_not_depend_on_how_many_models_are_held_at_once(monkeypatch: pytest.MonkeyPatch):
    experiment = kept()
    prepared = experiment.prepare(3)
    *_, last = prepared.rounds()
    arguments = (experiment.algorithm, last.state, prepared.engine, last.data, EVERYTHING)
    whole = evaluate(*arguments, round=last.index)
    monkeypatch.setattr(Engine, "rows_that_fit", 5)
    parts = evaluate(*arguments, round=last.index)
    assert parts.metrics == whole.metrics
    for name in ("count", "loss", "sums", "weights", "by_class"):
        assert torch.equal(getattr(parts.scores["test"], name), getattr(whole.scores["test"], name))


@pytest.mark.parametrize(
    "algorithm",
    [IFCA(2), GROUPS, FlexCFL(2, pretrain_scale=3), StoCFL()],
    ids=["IFCA", "FedGroup", "FlexCFL", "StoCFL"],
)
def test_run_is_resumed_to_the_bit(algorithm: Algorithm, tmp_path: Path):
    options = {"algorithm": algorithm, "checkpoint": ALWAYS}
    whole = run(kept(rounds=4, **options), tmp_path / "whole").path

    def leave(row: dict[str, Any]) -> None:
        if row["round"] == 2:  # the row is written, but not the checkpoint, as after a kill at this point
            copytree(tmp_path / "run", tmp_path / "killed")
        if row["round"] == 3:
            raise Interrupted(signal.SIGTERM)

    with pytest.raises(Interrupted):
        run(kept(rounds=4, **options), tmp_path / "run", RunCallbacks(row=leave))
    for name in ("run", "killed"):
        path = run(kept(rounds=4, **options), tmp_path / name, mode="resume").path
        assert timeless_rows(path) == timeless_rows(whole)
        assert (path / "clients.csv").read_bytes() == (whole / "clients.csv").read_bytes()
        states = [Checkpoint(folder).load()["state"]["own_layers"] for folder in (path, whole)]
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(states[0][client], states[1][client]) for client in states[0])
    with pytest.raises(InputError, match=r"personal: \['fc2'\] -> None"):
        run(kept(rounds=4, personal=None, **options), tmp_path / "run", mode="resume")


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
    with pytest.raises(InputError, match=r"there is no client 12 in .*; clients are 0 to 11"):
        saved.client_module(12)
    never = next(client for client in range(12) if int(saved.served().index[client]) < 0)
    with pytest.raises(InputError, match=f"client {never} has no model yet; use `assign`"):
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


PLANS = {
    name: Plan(name, precision="64-true", lanes=lanes) for name, lanes in {"trainer": 1, "loop": 1, "stack": 3}.items()
}


def end_of(plan: Plan, algorithm: Algorithm) -> Any:
    experiment = kept(algorithm=algorithm)
    engine = build_engine(net, plan, 3, experiment.local)
    try:
        data = experiment.data.federated(3)
        *_, last = rounds(experiment.algorithm, engine, data, Cohorts(5), seed=3, num_rounds=3)
    finally:
        engine.close()
    return last.state


@pytest.mark.parametrize(
    ("name", "algorithm"),
    list(product([name for name in PLANS if name != "trainer"], [GROUPS, IFCA(2), StoCFL(psi="gradient")])),
)
def test_every_engine_gives_the_trainers_result(name: str, algorithm: Algorithm):
    found, expected = end_of(PLANS[name], algorithm), end_of(PLANS["trainer"], algorithm)
    assert found.own_layers.keys() == expected.own_layers.keys()
    for client, layers in expected.own_layers.items():
        torch.testing.assert_close(found.own_layers[client], layers, rtol=0, atol=1e-11)
    torch.testing.assert_close(found.models, expected.models, rtol=0, atol=1e-11)


@pytest.mark.ray
@pytest.mark.parametrize("algorithm", [GROUPS, IFCA(2)], ids=lambda a: type(a).__name__)
def test_workers_give_the_same_bits(cluster: None, algorithm: Algorithm):
    found = end_of(Plan("chain", workers=2), algorithm)
    expected = end_of(Plan("chain"), algorithm)
    assert torch.equal(found.models, expected.models)
    assert all(torch.equal(found.own_layers[client], expected.own_layers[client]) for client in expected.own_layers)


def test_configuration_has_personal_layers_and_can_do_without():
    words = ["--personal", "[fc2]", "--task.net", "MLP"]
    experiment = load_experiment("fedavg/digits", words)
    assert experiment.to_dict()["personal"] == ["fc2"]
    assert experiment.to_dict()["algorithm"]["class_path"] == "lit_cfl.algorithms.FedAvg"
    assert type(load_experiment(experiment.to_dict(), ["--personal", "null"]).algorithm) is FedAvg
    changed = replace(kept(server=partial(SGD, lr=0.5)), algorithm=kept(server=partial(SGD, lr=0.5)).algorithm)
    assert changed.to_dict()["algorithm"]["class_path"] == "lit_cfl.algorithms.fedavg.FedAvg"
    assert type(changed.with_options(personal=None, server=None).algorithm) is FedAvg
