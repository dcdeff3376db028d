"""Tests clients with mixtures of models: how they are scored, and that files record their weights."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import log
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from digits_experiment import digits
from quadratic import ids
from ragged import SHAPE, ragged_data
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl import load_run, run
from lit_cfl.algorithms import Assignment, FedAvg, FedEM
from lit_cfl.algorithms.check_answers import check_assignment
from lit_cfl.client_scores import SplitScores, score_clients
from lit_cfl.clustering.cluster_scores import mean_entropy
from lit_cfl.data import ClientIndex, FederatedData
from lit_cfl.datamodules import Digits
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.task_protocol import TaskFactory
from lit_cfl.errors import InputError
from lit_cfl.nets import MCLR
from lit_cfl.runs.load_run import SavedRun
from lit_cfl.scores import SetScore
from lit_cfl.storage import read_table
from lit_cfl.tasks import Classification, MultiLabel

WEIGHTS = torch.tensor([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0], [0.1, 0.2, 0.7]], dtype=torch.float64)
CLIENTS = ids(5, 2, 3)
SGD, LOOP = partial(torch.optim.SGD, lr=0.1), Plan("loop", precision="64-true")


def as_test(data: FederatedData) -> FederatedData:
    """Returns the same clients with their training examples as test examples."""
    return replace(data, test=data.train)


def scored(make: TaskFactory, data: FederatedData, weights: Tensor = WEIGHTS) -> SplitScores:
    engine = build_engine(make, LOOP, 5, LocalTraining())
    models = torch.stack([engine.initial(number) for number in range(3)])
    return score_clients(engine, models, ids(0, 1, 2), CLIENTS, data, "test", weights=weights)


def linear(*scores: SetScore) -> Classification:
    return Classification(MCLR(SHAPE, 10), SGD, scores=scores or None)


def test_a_score_of_sets_reads_the_mixed_probabilities():
    largest = SetScore("largest", function=lambda outputs, labels: outputs.softmax(1).max(1).values.mean())
    data = as_test(ragged_data())
    found = scored(lambda: linear(largest), data)
    inputs, _ = data.examples.batch(data.train[5], torch.float64)
    engine = build_engine(linear, LOOP, 5, LocalTraining())
    with torch.no_grad():
        each = [engine.module(engine.initial(number)).eval()(inputs) for number in range(3)]
    mixed = sum(w * out.softmax(1) for w, out in zip(WEIGHTS[0], each, strict=True))
    assert float(found.of_clients()[0]) == pytest.approx(float(mixed.max(1).values.mean()), rel=1e-12)


def test_probabilities_of_labels_that_are_nearly_sure_are_mixed():
    # outputs of 3 models for 2 labels
    outputs = torch.tensor([[[0.0, 3.0]], [[2.0, -400.0]], [[-1.0, 800.0]]], dtype=torch.float64)
    mixed = MultiLabel(nn.Linear(1, 2)).mix_outputs(outputs, WEIGHTS[:1])
    shares = torch.einsum("kno,nk->no", outputs.sigmoid(), WEIGHTS[:1])
    assert_close(mixed.sigmoid(), shares, rtol=1e-12, atol=0)


def test_clients_that_share_examples_are_scored_with_their_own_weights():
    data = ragged_data()
    shared = ClientIndex(torch.arange(20), torch.zeros(6, dtype=torch.int64), torch.full((6,), 20))
    alone, together = (scored(linear, replace(data, test=test)) for test in (shared.pack(), shared))
    assert torch.equal(alone.loss, together.loss)
    assert len(together.loss.unique()) == 3


class ByNet(Classification):
    def outcomes(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        outputs = self.net(batch[0])
        return nn.functional.cross_entropy(outputs, batch[1], reduction="none"), outputs.argmax(1) == batch[1]


class WithoutMixing(Classification):
    mix_outputs = property()  # hides the method: `hasattr` returns False


def test_a_task_that_cannot_mix_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"ByNet.outcomes does not call the module itself, self\(inputs\)"):
        scored(lambda: ByNet(MCLR(SHAPE, 10), SGD), as_test(ragged_data()))
    with pytest.raises(InputError, match=r"FedEM mixes .*WithoutMixing has no `mix_outputs"):
        run(digits(algorithm=FedEM(2), task=lambda: WithoutMixing(MCLR([1, 8, 8], 10), SGD)), tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.csv").exists()  # before anything is trained


class Soft(FedAvg):
    mixes_models: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("kind", "served", "message"),
    [
        (FedAvg, Assignment(torch.ones(2, 4), ids(0), weights=torch.tensor([[1.0, 0.0]])), "gives weights"),
        (Soft, Assignment(torch.ones(2, 4), ids(0)), "gives no weights"),
        (Soft, Assignment(torch.ones(2, 4), ids(0), weights=torch.ones(1, 1)), r"shape \[1, 1\]; give \[1, 2\]"),
        (Soft, Assignment(torch.ones(2, 4), ids(0), weights=torch.tensor([[1.5, -0.5]])), "do not sum to 1"),
        (Soft, Assignment(torch.ones(2, 4), ids(0), weights=torch.tensor([[0.4, 0.6]])), "not the largest weight"),
    ],
)
def test_an_answer_other_than_a_mixture_is_refused(kind: Callable, served: Assignment, message: str):
    with pytest.raises(InputError, match=message):
        check_assignment(kind(), served, torch.zeros_like(served.index), 4)


def test_entropy_is_the_mean_over_clients_in_nats():
    weights = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]], dtype=torch.float64)
    last = -0.25 * log(0.25) - 0.75 * log(0.75)
    assert mean_entropy(weights) == pytest.approx((log(2) + 0 + last) / 3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    data = Digits(num_clients=12, validation=0.1, newcomers=0.25, rotations=[0, 180])
    experiment = digits(algorithm=FedEM(3), data=data, rounds=4, cohort_size=4)
    return load_run(run(experiment, tmp_path_factory.mktemp("mixtures") / "run").path, experiment)


def test_files_of_a_run_hold_the_weights_of_every_client(saved: SavedRun):
    rows, metrics = read_table(saved.path / "clients.csv"), read_table(saved.path / "metrics.csv")
    weights = torch.zeros(12, 3, dtype=torch.float64)
    for row in rows:
        own = [row[f"weight_{number}"] for number in range(3)]
        if row["cluster"] is None:
            assert own == [None] * 3
            continue
        weights[row["client"]] = torch.tensor(own, dtype=torch.float64)
        assert sum(own) == pytest.approx(1)
        assert own.index(max(own)) == row["cluster"]
    newcomers = torch.tensor([row["newcomer"] for row in rows]).bool()
    assert (weights[newcomers].sum(1) > 0.99).all()
    served = saved.served()
    assert torch.equal(served.weights[~newcomers], weights[~newcomers])
    known = weights[~newcomers & (weights.sum(1) > 0)]
    assert metrics[-1]["clusters/entropy"] == pytest.approx(mean_entropy(known))
    assert 0 < metrics[-1]["clusters/entropy"] <= log(3)


def test_newcomers_of_a_saved_run_get_weights_and_no_single_module(saved: SavedRun):
    others = Digits(num_clients=3, partition_seed=8).federated(0)
    placed = saved.assign(others)
    weights = placed.assignment.weights
    assert_close(weights.sum(1), torch.ones(3, dtype=torch.float64))
    assert torch.equal(placed.closeness, weights)
    with pytest.raises(InputError, match="newcomer 1 uses a mixture"):
        placed.module(1)
    with pytest.raises(InputError, match=r"client \d+ uses a mixture"):
        saved.client_module(int((saved.served().index >= 0).nonzero()[0]))
