"""Tests the ready-made tasks other than Classification: hand-worked values, every engine, and wrong labels."""

import json
import re
from dataclasses import replace
from math import exp, isnan, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quadratic import ids
from small_tasks import OWNERS, Bigram, X, language, numbers, regression, sentences
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl.algorithms import IFCA, FeSEM, FlexCFL
from lit_cfl.algorithms.base import Algorithm
from lit_cfl.cli.main import main
from lit_cfl.client_scores import score_clients
from lit_cfl.data import FederatedData
from lit_cfl.datamodules.arrays import ArrayData
from lit_cfl.datamodules.partition import IID, Dirichlet
from lit_cfl.datamodules.shift import LabelDrift, SwapPart
from lit_cfl.datamodules.skew import LabelShifts
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.task_protocol import outcomes_of
from lit_cfl.errors import InputError
from lit_cfl.nets import MCLR
from lit_cfl.scores import Score, SetScore, read_scores
from lit_cfl.storage import read_table
from lit_cfl.tasks import Classification, NextToken, Regression
from lit_cfl.tasks.base import Batch


def engine(task: Any, name: str = "trainer", **plan: Any) -> Engine:
    return build_engine(task, Plan(name, **plan), 0, LocalTraining(2, 4))


# Hand arithmetic


def test_regression_by_hand():
    task = Regression(nn.Linear(1, 1))
    with torch.no_grad():
        task.net.weight.fill_(2)
        task.net.bias.fill_(1)
    batch = torch.tensor([[0.0], [1.0], [-1.0]]), torch.tensor([1.5, 0.0, -1.0])  # predicted: 1, 3, -1
    losses, errors = task.outcomes(batch)
    assert task.losses(batch).tolist() == losses.tolist() == [0.25, 9, 0]
    assert errors.tolist() == [0.5, 3, 0]
    assert task.training_step(batch, 0).item() == pytest.approx(9.25 / 3)
    assert task.predict_step(batch).tolist() == [1, 3, -1]


def test_scores_of_regression_by_hand():
    mae, mse, r2, rmse = Regression(nn.Identity(), scores=["mae", "mse", "r2", "rmse"]).scores
    predicted, labels = torch.tensor([[2.0], [4], [9]], dtype=torch.float64), torch.tensor([1.0, 5, 6])
    assert isinstance(r2, SetScore)
    assert isinstance(rmse, SetScore)
    assert rmse.of_set(predicted, labels) == pytest.approx(sqrt((1 + 1 + 9) / 3))
    assert r2.of_set(predicted, labels) == pytest.approx(1 - (1 + 1 + 9) / (9 + 1 + 4))  # the labels' mean is 4
    assert r2.of_set(labels[:, None].double(), labels) == 1.0
    assert r2.of_set(torch.full((3, 1), 4.0, dtype=torch.float64), labels) == 0.0
    assert [score.higher_is_better for score in (mae, mse, r2, rmse)] == [False, False, True, False]
    assert [score.title for score in (mae, mse, r2, rmse)] == ["MAE", "MSE", "R2", "RMSE"]
    assert Regression(nn.Identity()).scores == (mae,)


def test_r2_is_undefined_if_all_labels_are_equal_but_rmse_is_not():
    r2, rmse = (one for one in Regression(nn.Identity(), scores=["r2", "rmse"]).scores if isinstance(one, SetScore))
    predicted, constant = torch.tensor([[0.1], [0.2], [2.1]], dtype=torch.float64), torch.full((3,), 0.1)
    assert isnan(r2.of_set(predicted, constant))  # although the mean of the labels may round
    assert isnan(r2.of_set(predicted[:1], constant[:1] + 1))
    assert rmse.of_set(predicted, constant) == pytest.approx(sqrt((0 + 0.1**2 + 2**2) / 3))
    assert isnan(rmse.of_set(predicted[:0], constant[:0]))


def test_scores_of_regression_are_over_each_client_and_over_all_examples():
    x, y = np.array([[0.0], [1], [2], [5], [7]]), np.array([1.0, 1, 4, 5, 5])
    scored = engine(lambda: Regression(nn.Linear(1, 1), scores=["rmse", "mse", f"{__name__}.largest_error", "r2"]))
    data = ArrayData(x, y, client=[0, 0, 0, 1, 1], test=0.0).federated(0)
    data = FederatedData(data.examples, data.train, data.train, data.train, data.true_clusters)
    identity = scored.initial(0)[None] * 0
    identity[0, 0] = 1  # predicts x: the errors are -1, 0, -2 and 0, 2
    metrics = score_clients(scored, identity, ids(0, 0), ids(0, 1), data, "test").metrics("test")
    assert metrics["test/weighted_rmse"] == pytest.approx(sqrt(9 / 5))
    assert metrics["test/weighted_mse"] == pytest.approx(9 / 5) == metrics["test/loss"]
    assert metrics["test/mean_rmse"] == pytest.approx((sqrt(5 / 3) + sqrt(4 / 2)) / 2)
    assert metrics["test/worst10_rmse"] == pytest.approx(sqrt(4 / 2))
    assert metrics["test/weighted_largest_error"] == 2
    # the labels' mean is 3.2 over all examples and 2 over those of the first client; the second has equal labels
    assert metrics["test/weighted_r2"] == pytest.approx(1 - 9 / (2 * 2.2**2 + 0.8**2 + 2 * 1.8**2))
    assert metrics["test/mean_r2"] == pytest.approx(1 - 5 / (1 + 1 + 4))
    assert (metrics["test/undefined_r2"], metrics["test/undefined_rmse"]) == (1, 0)


def largest_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Computes the largest absolute error: a score of the user's own."""
    return (outputs[:, 0] - labels).abs().max()


def test_other_scores_of_regression_are_refused_with_those_that_it_knows():
    with pytest.raises(
        InputError,
        match=r"'rsme', which is not a score \(did you mean rmse\?\)\. Known: mae, mse, r2, rmse, and your own",
    ):
        Regression(nn.Linear(1, 1), scores=["mae", "rsme"])
    with pytest.raises(InputError, match=r"task\.scores is \[\]; give a list of scores, such as \[mae, rmse\]"):
        Regression(nn.Linear(1, 1), scores=[])


class Deviations(Regression):
    """Regression with a score of its own that is a mean over examples, next to one of sets."""

    scores = (Score("within_one"), *Regression.scores, SetScore("largest_error", False, function=largest_error))

    def outcomes(self, batch: Batch) -> tuple[Tensor, ...]:
        losses, errors, outputs = super().outcomes(batch)
        return losses, errors < 1, errors, outputs


class Within(Regression):
    """Regression with one score of its own that is a mean over examples."""

    scores = (Score("within_one"),)

    def outcomes(self, batch: Batch) -> tuple[Tensor, ...]:
        losses, errors = super().outcomes(batch)
        return losses, errors < 1


def test_a_subclass_of_regression_has_scores_of_its_own():
    batch = torch.tensor([[2.0], [4.5]]), torch.tensor([1.0, 5])
    assert outcomes_of(Within(nn.Identity()), batch).tolist() == [[1, 0.25], [0, 1], [1, 1]]
    found = outcomes_of(Deviations(nn.Identity()), batch)
    assert found.tolist() == [[1, 0.25], [0, 1], [1, 1], [1, 0.5], [1, 1], [2, 4.5]]


def test_a_run_has_the_scores_of_regression_in_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    content = f"""
rounds: 2
cohort_size: 2
data: {{class_path: {__name__}.Numbers}}
task: {{class_path: Regression, init_args: {{net: {{class_path: MCLR}}}}}}
algorithm: FedAvg
"""
    monkeypatch.chdir(tmp_path)
    Path("numbers.yaml").write_text(content)
    given = ["--task.scores", "[rmse, r2]", "--stop", '{"metric": "val/weighted_rmse", "target": 0.01}']
    assert main(["run", "--config", "numbers.yaml", *given, "--run_dir", "run", "--quiet"]) == 0
    last = read_table(Path("run/metrics.csv"))[-1]
    assert last["test/weighted_rmse"] == pytest.approx(sqrt(last["test/loss"]), rel=1e-6)
    assert last["test/weighted_r2"] <= 1
    assert {"rmse", "r2"} <= set(read_table(Path("run/clients.csv"))[0])
    for file in ("summary.json", "environment.json"):
        scores = read_scores(json.loads(Path("run", file).read_text()))
        assert [(score.name, score.higher_is_better, score.is_share) for score in scores] == [
            ("rmse", False, False),
            ("r2", True, False),
        ]
    assert "test/min_weighted_rmse" in Path("run/summary.json").read_text()
    assert main(["report", "run"]) == 0
    assert "RMSE" in Path("report.html").read_text()


class Numbers(ArrayData):
    """Data module of `numbers`, with validation data."""

    def __init__(self) -> None:
        super().__init__(X, X.sum(1) - 1, client=OWNERS, test=0.25, validation=0.25)


@pytest.mark.parametrize("outputs", [2, 3])
def test_a_net_with_several_outputs_is_refused_for_regression(outputs: int):
    data = numbers().federated(0)
    with pytest.raises(
        InputError, match=rf"the net returns shape \(\d, {outputs}\) for \d labels; return one number per label"
    ):
        require_trainable(engine(lambda: Regression(nn.Linear(2, outputs))), data)


def certain(share: float) -> NextToken:
    """Makes a task that, after token k, predicts token k + 1 modulo 4 with probability `share`."""
    task = NextToken(Bigram())
    rest = (1 - share) / 3
    with torch.no_grad():
        task.net.table.copy_(torch.full((4, 4), rest).log())
        task.net.table[torch.arange(4), (torch.arange(4) + 1) % 4] = log(share)
    return task


def test_a_sequences_loss_is_the_mean_over_its_tokens_and_padding_is_not_predicted():
    task, batch = certain(0.7), (torch.tensor([[1, 2, 3, 0], [1, 3, 3, 3], [3, 0, 0, 0]]), torch.zeros(3))
    losses, (nll, tokens), (right, weights) = task.outcomes(batch)
    # 1 2 3 is predicted with probability 0.7, 1 3 3 3 with 0.1, and 3 has nothing to predict
    expected = [-log(0.7), -log(0.1), 0]
    assert_close(losses, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)
    assert torch.equal(nll, losses)
    assert tokens.tolist() == weights.tolist() == [2, 3, 0]
    assert right.tolist() == [1, 0, 0]
    assert_close(task.losses(batch).double(), losses, rtol=0, atol=1e-6)


def test_without_padding_every_token_is_predicted():
    task = NextToken(Bigram(), padding=None)
    assert task.outcomes((torch.tensor([[0, 0, 0, 0]]), torch.zeros(1)))[1][1].tolist() == [3]


def test_perplexity_and_token_accuracy_are_over_all_tokens_of_all_clients():
    data = sentences(test=0.0).federated(0)
    scored = engine(lambda: certain(0.7))
    data = FederatedData(data.examples, data.train, data.train, data.train, data.true_clusters)
    found = score_clients(scored, scored.initial(0)[None], ids(0, 0), ids(0, 1), data, "test")
    # 1 2 3: 2 of 2 right; 1 3: 0 of 1; 2 2 2 2: 0 of 3. Client 0 has 1 2 3 twice, client 1 has it once
    right, wrong = ids(4, 2).tolist(), ids(4, 8).tolist()
    assert found.weights.tolist() == [[8, 10], [8, 10]]
    assert found.sums[1].tolist() == right
    mean = [(-r * log(0.7) - w * log(0.1)) / (r + w) for r, w in zip(right, wrong, strict=True)]
    assert_close(found.of_clients(0), torch.tensor(mean, dtype=torch.float64).exp(), rtol=1e-6, atol=0)
    metrics = found.metrics("test")
    assert metrics["test/weighted_token_accuracy"] == pytest.approx(6 / 18)
    assert metrics["test/weighted_perplexity"] == pytest.approx(exp((-6 * log(0.7) - 12 * log(0.1)) / 18))
    assert metrics["test/worst10_perplexity"] == pytest.approx(max(map(exp, mean)))


# Engines


def scored() -> Regression:
    return Regression(MCLR([2], 1), scores=["rmse", "mae", "r2"])


@pytest.mark.parametrize(("task", "module"), [(regression, numbers), (scored, numbers), (language, sentences)])
@pytest.mark.parametrize("plan", [{"name": "loop"}, {"name": "stack", "lanes": 4}], ids=["loop", "stack"])
def test_every_engine_trains_and_scores_alike(task: Any, module: Any, plan: dict[str, Any]):
    data = module().federated(0)
    found = []
    for one in (engine(task), engine(task, **plan)):
        require_trainable(one, data)
        fitted = one.at(1, data).fit(one.initial(0)[None], ids(0, 1))
        scores = score_clients(one, fitted.rows, ids(0, 1), ids(0, 1), data, "test")
        found.append((fitted.rows, torch.stack([scores.loss, *scores.sums])))
    for mine, theirs in zip(*found, strict=True):
        assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert not torch.equal(found[0][0][0], found[0][0][1])


# Labels of the wrong kind


@pytest.mark.parametrize(
    ("task", "module", "message"),
    [
        (
            lambda: Classification(MCLR([2], 3)),
            numbers(),
            r"Classification takes labels that are classes, .*numbers \(tor",
        ),
        (
            lambda: Classification(MCLR([2], 3)),
            numbers(y=None),
            "but those of these data are missing: give labels, or",
        ),
        (
            regression,
            numbers(y=np.arange(12) % 3),
            "Regression takes labels that are numbers, .*are classes: give numb",
        ),
        (
            regression,
            numbers(y=None),
            "Regression takes labels that are numbers, but those of these data are missing",
        ),
    ],
)
def test_a_task_that_does_not_take_such_labels_says_so(task: Any, module: ArrayData, message: str):
    with pytest.raises(InputError, match=message):
        require_trainable(engine(task), module.federated(0))


@pytest.mark.parametrize("own", [3, ["cat", "dog"], ()])
def test_an_attribute_labels_of_another_meaning_is_named(own: object):
    kind = type("Own", (Classification,), {"labels": own})
    with pytest.raises(InputError, match=re.escape(f"Own.labels is {own!r}, but this attribute names the kinds of")):
        require_trainable(engine(lambda: kind(MCLR([2], 3))), numbers(y=np.arange(12) % 3).federated(0))


@pytest.mark.parametrize("y", [X.sum(1), None])
@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"partition": Dirichlet(3, test=0.2)}, "Dirichlet"),
        ({"skew": LabelShifts([0, 1])}, "LabelShifts"),
        ({"shift": LabelDrift(1)}, "LabelDrift"),
        ({"shift": SwapPart(0.5)}, "SwapPart"),
    ],
)
def test_what_goes_by_label_is_refused_with_the_reason(y: Any, changes: dict[str, Any], rule: str):
    reason = "are missing" if y is None else "are numbers"
    with pytest.raises(InputError, match=f"{rule} needs classes, but the labels of these data {reason}"):
        numbers(y=y, **changes).federated(0)


@pytest.mark.parametrize("y", [X.sum(1), None])
def test_what_does_not_look_at_labels_still_works(y: Any):
    data = numbers(y=y, client=None, partition=IID(3, test=0.25), validation=0.25, newcomers=0.34).federated(0)
    assert data.num_clients == 3
    assert data.label_counts.shape == (3, 0)
    assert (data.examples.label_kind, data.examples.num_outputs) == (("none", 0) if y is None else ("numbers", 1))


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        (FlexCFL(2, pretrain_scale=1), "migrate compares the class counts"),
        (IFCA(2, migrate=True), "migrate compares the class counts"),
        (FeSEM(2, migrate=True), "migrate compares the class counts"),
    ],
)
def test_an_algorithm_that_needs_classes_is_refused_before_it_starts(algorithm: Algorithm, reason: str):
    work = engine(regression).at(0, numbers().federated(0))
    with pytest.raises(InputError, match=f"{reason}.*, but these data have no classes"):
        algorithm.check(work)
    replace(algorithm, shift_metric="loss").check(work)


def test_numbers_that_are_not_finite_or_have_a_label_space_are_refused():
    with pytest.raises(InputError, match="y holds nan in row 3"):
        numbers(y=np.array([0.5] * 3 + [np.nan] * 9)).load()
    examples = numbers().load()
    with pytest.raises(InputError, match=r"num_labels is 4; give classes as int64 \[N\], or num_labels=0"):
        type(examples)(examples.inputs, examples.labels, 4)
