"""Tests that fine-tuning before evaluation gives the right scores, and has no other effect on the run."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from digits_experiment import digits

from lit_cfl import Experiment, run
from lit_cfl.algorithms import Algorithm, Ditto, FedAvg, FedGroup, Local
from lit_cfl.data import FederatedData
from lit_cfl.engines.engine import Engine
from lit_cfl.evaluation import EvaluationPlan, evaluate
from lit_cfl.local_work import Budget
from lit_cfl.storage import read_table

TUNED = ("test/tuned_accuracy", "test/worst10_tuned_accuracy")
FINE_TUNE = EvaluationPlan(fine_tune=Budget(4, "steps"))


def tuned_by_hand(experiment: Experiment) -> tuple[float, list[float]]:
    """Fine-tunes each client's model separately; returns the accuracy over examples, and those of the clients."""
    prepared = experiment.prepare(3)
    *_, last = prepared.rounds()
    served = experiment.algorithm.serve(last.state, last.data.population)
    right, count, work = [], [], prepared.engine.at(last.index, last.data)
    for client, model in zip(last.data.population, served.index, strict=True):
        if model < 0:
            continue
        start = served.models[model][None]
        row = work.fit(start, client[None], purpose="fine-tune", budget=Budget(4, "steps")).rows[0]
        outcomes = prepared.engine.outcomes(row, last.data.test[int(client)], last.data)
        right.append(float(outcomes.values.sum()))
        count.append(len(last.data.test[int(client)]))
    return sum(right) / sum(count), [r / n for r, n in zip(right, count, strict=True)]


@pytest.mark.parametrize("algorithm", [FedAvg(), FedGroup(num_clusters=2, pretrain_scale=2), Ditto(), Local()])
def test_tuned_scores_are_those_of_clients_that_trained_their_own_model_on(algorithm: Algorithm, tmp_path: Path):
    experiment = digits(algorithm=algorithm, evaluation=FINE_TUNE)
    weighted, accuracies = tuned_by_hand(experiment)
    row = read_table(run(experiment, tmp_path).path / "metrics.csv")[-1]
    assert row[TUNED[0]] == pytest.approx(weighted)
    assert row[TUNED[1]] == pytest.approx(min(accuracies))  # of twelve clients or fewer
    assert row["test/mean_tuned_accuracy"] == pytest.approx(sum(accuracies) / len(accuracies))
    assert row["test/tuned_accuracy"] != row["test/weighted_accuracy"]


def test_nothing_else_of_the_run_changes(tmp_path: Path):
    plain, tuned = (
        read_table(run(digits(**options), tmp_path / name).path / "metrics.csv")
        for name, options in {"plain": {}, "tuned": {"evaluation": FINE_TUNE}}.items()
    )
    assert TUNED[0] not in plain[0]
    for before, after in zip(plain, tuned, strict=True):
        assert {k: v for k, v in before.items() if "time/" not in k} == {
            k: v for k, v in after.items() if "time/" not in k and "tuned_" not in k
        }


def test_a_client_without_training_examples_keeps_its_model_and_chunks_change_no_bit(monkeypatch: pytest.MonkeyPatch):
    prepared = digits(algorithm=FedAvg(), evaluation=FINE_TUNE).prepare(3)
    *_, last = prepared.rounds()

    def found(data: FederatedData) -> dict[str, float]:
        return evaluate(FedAvg(), last.state, prepared.engine, data, FINE_TUNE, round=last.index).metrics

    whole = found(last.data)
    monkeypatch.setattr(Engine, "rows_that_fit", 1)
    assert found(last.data) == whole
    sizes = torch.zeros_like(last.data.train.sizes)
    idle = found(replace(last.data, train=replace(last.data.train, sizes=sizes)))
    assert idle["test/tuned_accuracy"] == idle["test/weighted_accuracy"] == whole["test/weighted_accuracy"]
    assert idle["test/worst10_tuned_accuracy"] == idle["test/worst10_accuracy"]
