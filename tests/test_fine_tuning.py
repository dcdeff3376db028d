"""Tests that fine-tuning before evaluation gives the right scores, and has no other effect on the run."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from digits_experiment import digits
from torch.optim.lr_scheduler import LambdaLR

from lit_cfl import Experiment, run
from lit_cfl.algorithms import Algorithm, Ditto, FedAvg, FedGroup, Local
from lit_cfl.early_stopping import StopRule
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.errors import InputError
from lit_cfl.evaluation import EvaluationPlan, evaluate
from lit_cfl.local_work import Budget
from lit_cfl.metric_names import higher_is_better
from lit_cfl.scores import CLASSIFIER
from lit_cfl.storage import read_table

TUNED = ("test/tuned_accuracy", "test/worst10_tuned_accuracy")
FINE_TUNE = EvaluationPlan(fine_tune=Budget(4, "steps"))


def tuned_by_hand(experiment: Experiment) -> tuple[float, float, list[float]]:
    """Fine-tunes each client's model separately; returns the accuracies that the run should report."""
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
    accuracies = sorted(r / n for r, n in zip(right, count, strict=True))
    return sum(right) / sum(count), sum(accuracies[: max(1, len(accuracies) // 10)]), accuracies


@pytest.mark.parametrize("algorithm", [FedAvg(), FedGroup(num_clusters=2, pretrain_scale=2), Ditto(), Local()])
def test_tuned_scores_are_those_of_clients_that_trained_their_own_model_on(algorithm: Algorithm, tmp_path: Path):
    experiment = digits(algorithm=algorithm, evaluation=FINE_TUNE)
    weighted, worst, accuracies = tuned_by_hand(experiment)
    row = read_table(run(experiment, tmp_path).path / "metrics.csv")[-1]
    assert row[TUNED[0]] == pytest.approx(weighted)
    assert row[TUNED[1]] == pytest.approx(worst / max(1, len(accuracies) // 10))
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


def test_training_at_rate_zero_leaves_the_scores(tmp_path: Path):
    never = LocalTraining(1, 20, lr_schedule=partial(LambdaLR, lr_lambda=lambda round: 0.0))
    row = read_table(
        run(digits(algorithm=FedAvg(), evaluation=FINE_TUNE, local=never), tmp_path / "zero").path / "metrics.csv"
    )[-1]
    assert row["test/tuned_accuracy"] == row["test/weighted_accuracy"]
    assert row["test/worst10_tuned_accuracy"] == row["test/worst10_accuracy"]


def test_chunks_change_no_bit(monkeypatch: pytest.MonkeyPatch):
    experiment = digits(algorithm=FedAvg(), evaluation=FINE_TUNE)
    prepared = experiment.prepare(3)
    *_, last = prepared.rounds()

    def found() -> dict[str, float]:
        return evaluate(FedAvg(), last.state, prepared.engine, last.data, FINE_TUNE, round=last.index).metrics

    whole = found()
    monkeypatch.setattr(Engine, "rows_that_fit", 1)
    assert found() == whole


def test_a_resumed_run_has_the_same_scores(tmp_path: Path):
    whole = run(digits(evaluation=FINE_TUNE), tmp_path / "whole")
    run(digits(evaluation=FINE_TUNE, rounds=2), tmp_path / "parts")
    parts = run(digits(evaluation=FINE_TUNE), tmp_path / "parts", mode="resume")
    rows = [[row[name] for row in read_table(f.path / "metrics.csv") for name in TUNED] for f in (whole, parts)]
    assert rows[0] == rows[1]
    assert all(higher_is_better(name, CLASSIFIER) for name in TUNED)


def test_a_client_without_training_examples_keeps_its_model_and_bad_budgets_are_refused():
    experiment = digits(algorithm=FedAvg(), evaluation=FINE_TUNE)
    prepared = experiment.prepare(3)
    *_, last = prepared.rounds()
    sizes = last.data.train.sizes.clone()
    sizes[:] = 0
    idle = replace(last.data, train=replace(last.data.train, sizes=sizes))
    metrics = evaluate(FedAvg(), last.state, prepared.engine, idle, FINE_TUNE, round=last.index).metrics
    assert metrics["test/tuned_accuracy"] == metrics["test/weighted_accuracy"]
    with pytest.raises(InputError, match="a budget of 0 epochs trains nothing; give 1 or more"):
        EvaluationPlan(fine_tune=Budget(0))
    assert torch.equal(sizes, torch.zeros_like(sizes))


def test_fine_tuned_validation_score_stops_a_run(tmp_path: Path):
    experiment = digits(algorithm=FedAvg(), evaluation=FINE_TUNE, rounds=6)
    rows = read_table(run(experiment, tmp_path / "whole").path / "metrics.csv")
    target = max(row["val/tuned_accuracy"] for row in rows[:3])
    first = next(row["round"] for row in rows if row["val/tuned_accuracy"] >= target)
    rule = StopRule("val/tuned_accuracy", target=target)
    stopped = run(replace(experiment, stop=rule), tmp_path / "stopped")
    assert stopped.summary["stopped"] == f"val/tuned_accuracy reached {target}"
    assert stopped.summary["round"] == first <= 3


def test_fine_tuned_score_without_fine_tuning_is_refused_before_the_start():
    rule = StopRule("val/worst10_tuned_accuracy", patience=2)
    with pytest.raises(
        InputError, match=r"stop\.metric is 'val/worst10_tuned_accuracy', but evaluation\.fine_tune is null.*set eval"
    ):
        digits(stop=rule).prepare(3)
    digits(stop=rule, evaluation=FINE_TUNE).prepare(3)
