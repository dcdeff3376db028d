"""Tests the ready-made tasks other than Classification: hand-worked values, every engine, and wrong labels."""

from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from quadratic import ids
from small_tasks import Bigram, X, language, numbers, regression, sentences
from torch import nn
from torch.testing import assert_close

from lit_cfl.algorithms import FlexCFL
from lit_cfl.data import FederatedData
from lit_cfl.datamodules.arrays import ArrayData
from lit_cfl.datamodules.partition import IID, Dirichlet
from lit_cfl.datamodules.shift import LabelDrift, SwapPart
from lit_cfl.datamodules.skew import LabelShifts
from lit_cfl.engines.base import Engine
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.factory import build_engine
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.errors import InputError
from lit_cfl.evaluation import score_clients
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification, NextToken, Regression


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


@pytest.mark.parametrize(
    ("tokens", "padding", "place"),
    [
        ([[1, 2, 3, 0], [0, 0, 1, 2]], 0, None),  # padding on both sides
        ([[1, 2, 3, 0], [1, 0, 2, 3]], 0, r"sequence 1, token 1"),
        ([[1, 2, 3, 0], [1, 0, 2, 3]], None, None),
    ],
)
def test_a_token_that_is_taken_for_padding_is_noted(
    tokens: list[list[int]], padding: int | None, place: str | None, recwarn: pytest.WarningsRecorder
):
    data = sentences(x=np.array(tokens * 6)).federated(0)
    require_trainable(engine(lambda: NextToken(Bigram(), padding=padding)), data)
    said = [str(one.message) for one in recwarn if "stands between other tokens" in str(one.message)]
    assert len(said) == (place is not None)
    if place is not None:
        assert said[0].startswith(
            f"token 0 stands between other tokens ({place}), but task.padding is 0: it is neither"
        )


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


@pytest.mark.parametrize(("task", "module"), [(regression, numbers), (language, sentences)])
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


def test_migration_by_labels_is_refused():
    data = numbers().federated(0)
    with pytest.raises(
        InputError, match="migrate compares the class counts of a client's data, but these data have no classes"
    ):
        FlexCFL(2, pretrain_scale=1).init(engine(regression).at(0, data), torch.Generator())


def test_numbers_that_are_not_finite_or_have_a_label_space_are_refused():
    with pytest.raises(InputError, match="y holds nan in row 3"):
        numbers(y=np.array([0.5] * 3 + [np.nan] * 9)).load()
    examples = numbers().load()
    with pytest.raises(InputError, match="num_labels is 4; give classes as int64, or num_labels=0"):
        type(examples)(examples.inputs, examples.labels, 4)
