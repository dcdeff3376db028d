import json
from functools import partial
from itertools import product
from math import isnan, nan
from pathlib import Path

import pytest
import torch
from digits_experiment import digits
from own_arrays import assert_refused
from quadratic import f64, ids
from torch import Tensor

from lit_cfl import run
from lit_cfl.client_scores import SetPredictions, SplitScores
from lit_cfl.datamodules import Digits
from lit_cfl.early_stopping import StopRule
from lit_cfl.evaluation import EvaluationPlan
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR
from lit_cfl.scores import SetScore, read_scores
from lit_cfl.storage import read_table
from lit_cfl.tasks import Classification
from lit_cfl.tasks.named_scores import named_scores

OUTPUTS = f64([2.0, 0.0, 1.0], [0.0, 3.0, 1.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.5], [0.3, 0.2, 0.1])
LABELS = ids(0, 1, 1, 1, 0)


def score(name: str) -> SetScore:
    (found,) = named_scores([name])
    assert isinstance(found, SetScore)
    return found


def of(name: str, outputs: Tensor = OUTPUTS, labels: Tensor = LABELS) -> float:
    return score(name).of_set(outputs, labels)


def pairs(shares: Tensor, positive: Tensor) -> float:
    """Computes the share of correctly ordered pairs of a positive and a negative example; ties count half."""
    order = [(a > b) + (a == b) / 2 for a, b in product(shares[positive].tolist(), shares[~positive].tolist())]
    return sum(order) / len(order)


def test_named_scores_by_hand():
    shares = OUTPUTS.softmax(1)
    assert of("auroc") == pytest.approx((pairs(shares[:, 0], LABELS == 0) + pairs(shares[:, 1], LABELS == 1)) / 2)
    assert of("f1") == pytest.approx((2 * 2 / (3 + 2) + 2 * 2 / (2 + 3)) / 2)  # predictions are 0 1 0 1 0
    assert of("f1_1") == pytest.approx(4 / 5)
    assert of("balanced_accuracy") == pytest.approx((1 + 2 / 3) / 2)
    # no example has label 0
    assert of("balanced_accuracy", OUTPUTS, ids(2, 1, 1, 1, 2)) == pytest.approx((0 + 2 / 3) / 2)
    sure = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.35, 0.65], [0.2, 0.8]], dtype=torch.float64).log()
    gap = (abs(0.5 - 0.9) * 2 + abs(1 - 0.65) + abs(0 - 0.8)) / 4  # one bin has two examples
    assert of("calibration_error", sure, ids(0, 1, 1, 0)) == pytest.approx(gap, rel=1e-5)


def test_a_score_is_undefined_where_no_example_can_decide_it():
    assert isnan(of("auroc", OUTPUTS, ids(1, 1, 1, 1, 1)))
    assert isnan(of("f1_2"))
    assert isnan(of("f1", OUTPUTS[:0], LABELS[:0]))
    assert of("f1_0", OUTPUTS[1:2], LABELS[1:2] * 0) == 0.0  # a label that is never predicted


def results(outputs: Tensor, labels: Tensor, lists: list[Tensor], list_of: Tensor) -> SplitScores:
    predictions = SetPredictions(outputs, labels, lists, list_of)
    sums, weights = predictions.of_clients(score("auroc"))
    count = torch.tensor([len(lists[k]) for k in list_of.tolist()])
    loss = torch.zeros(len(list_of), dtype=torch.float64)
    return SplitScores((score("auroc"),), count, loss, sums[None], weights[None], predictions)


def test_a_set_is_that_of_a_client_of_a_cluster_or_of_all():
    lists = [ids(0, 1), ids(2, 4), ids(1, 3)]  # the third client has only one class
    found = results(OUTPUTS, LABELS, lists, ids(1, 0, 2, 1))
    assert found.of_clients().tolist()[:2] == [of("auroc", OUTPUTS[k], LABELS[k]) for k in (lists[1], lists[0])]
    assert isnan(found.of_clients()[2])
    together = torch.cat([lists[0], lists[2]])
    assert found.weighted_means(ids(1, 2)) == {"auroc": of("auroc", OUTPUTS[together], LABELS[together])}
    whole = torch.cat([lists[1], lists[0], lists[2], lists[1]])
    metrics = found.metrics("test")
    assert metrics["test/weighted_auroc"] == of("auroc", OUTPUTS[whole], LABELS[whole])
    assert metrics["test/undefined_auroc"] == 1
    known = [float(found.of_clients()[k]) for k in (0, 1, 3)]
    assert metrics["test/mean_auroc"] == pytest.approx(sum(known) / 3)
    assert metrics["test/worst10_auroc"] == min(known)


def test_a_model_that_diverged_has_no_score_rather_than_none_to_count():
    outputs = OUTPUTS.clone()
    outputs[1, 2] = nan
    metrics = results(outputs, LABELS, [ids(0, 1), ids(2, 4)], ids(0, 1)).metrics("test")
    assert isnan(metrics["test/mean_auroc"])
    assert metrics["test/undefined_auroc"] == 0


def test_files_hold_the_score_of_each_client_and_cluster_and_a_run_can_stop_by_it(tmp_path: Path):
    stop = StopRule(metric="val/weighted_f1", target=0.01)
    tuned = EvaluationPlan(fine_tune=Budget(1))
    sgd, names = partial(torch.optim.SGD, lr=0.1), ["f1", "f1_3"]

    def task() -> Classification:
        return Classification(MCLR([1, 8, 8], 10), sgd, scores=names)

    few = Digits(num_clients=40, validation=0.1)  # nine test examples each, so that some clients have no 3
    path = run(digits(task=task, data=few, stop=stop, evaluation=tuned), tmp_path).path
    (row,) = read_table(path / "metrics.csv")
    clients = [one for one in read_table(path / "clients.csv") if one["cluster"] is not None]
    known = [one["f1_3"] for one in clients if one["f1_3"] is not None]
    assert row["test/mean_f1_3"] == pytest.approx(sum(known) / len(known))
    assert row["test/undefined_f1_3"] == len(clients) - len(known) > 0
    assert row["test/mean_f1"] == pytest.approx(sum(one["f1"] for one in clients) / len(clients))
    assert all(one["f1"] is not None for one in read_table(path / "clusters.csv"))
    assert row["test/tuned_f1"] > 0
    assert [one.name for one in read_scores(json.loads((path / "summary.json").read_text()))] == names


def most(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.max()


OWN = SetScore("least", higher_is_better=False, function=lambda outputs, labels: outputs.min())


def test_own_scores_are_functions_by_their_path_or_objects():
    first, second, third = named_scores([f"{__name__}.most", f"{__name__}.OWN", SetScore("m", function=most)])
    directions = {one.name: one.higher_is_better for one in (first, second, third)}
    assert directions == {"most": True, "least": False, "m": True}
    assert isinstance(first, SetScore)
    assert first.of_set(OUTPUTS, LABELS) == 3.0


def test_wrong_names_and_functions_are_refused():
    assert_refused(lambda: named_scores(["f2"]), "'f2' | f1?")
    assert_refused(lambda: named_scores(["nowhere.kappa"]), "'nowhere.kappa' | ModuleNotFoundError")
    assert_refused(lambda: named_scores(["f1", "accuracy", "f1"]), "names f1, accuracy, f1; give each once")
    two = SetScore("two", function=lambda outputs, labels: outputs[0])
    assert_refused(lambda: two.of_set(OUTPUTS, LABELS), "'two' returned a tensor of shape")
    assert_refused(lambda: of("f1_30"), "'f1_30' | 0 to 2")
