"""Tests the ready-made tasks: hand-worked values, the penalty on kernels, and wrong labels.

That the penalty is in training but not in reported losses (C11), in every way, is stated by `test_ways.py`.
"""

from dataclasses import replace
from math import exp, isnan, log, log1p, nan, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from own_arrays import assert_refused
from quadratic import ids
from ragged import SGD
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close

from lit_cfl.algorithms import FlexCFL
from lit_cfl.client_scores import score_clients
from lit_cfl.data import FederatedData
from lit_cfl.datamodules.arrays import ArrayData
from lit_cfl.datamodules.partition import IID, Dirichlet
from lit_cfl.datamodules.shift import SwapPart
from lit_cfl.datamodules.skew import LabelShifts
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.task_protocol import outcomes_of
from lit_cfl.errors import InputError
from lit_cfl.nets import MCLR, MLP, MNISTCNN, Sent140GRU
from lit_cfl.scores import Score, SetScore
from lit_cfl.tasks import Classification, MultiLabel, NextToken, Regression

X = np.arange(24, dtype=np.float32).reshape(12, 2) / 10
OWNERS = [0] * 5 + [1] * 7
SENTENCES = np.array([[1, 2, 3, 0], [1, 3, 0, 0], [2, 2, 2, 2], [3, 0, 0, 0]] * 3)


def numbers(**changes: Any) -> ArrayData:
    return ArrayData(**{"x": X, "y": X.sum(1) - 1, "client": OWNERS, "test": 0.25} | changes)


def sentences(**changes: Any) -> ArrayData:
    return ArrayData(**{"x": SENTENCES, "client": OWNERS, "test": 0.25, "vocabulary": 4} | changes)


class Bigram(nn.Module):
    """Net with a table of the next token's logits, given the last token."""

    def __init__(self, vocabulary: int = 4):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocabulary, vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]


def regression() -> Regression:
    return Regression(nn.Linear(2, 1))


def engine(task: Any) -> Engine:
    return build_engine(task, Plan("trainer"), 0, LocalTraining(2, 4))


def evaluated_on_all(module: ArrayData) -> FederatedData:
    """Returns the data with each client's training examples as its validation and test examples, too."""
    data = module.federated(0)
    return FederatedData(data.examples, data.train, data.train, data.train, data.true_clusters)


# Regression


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
    assert [score.higher_is_better for score in (mae, mse, r2, rmse)] == [False, False, True, False]
    assert [score.title for score in (mae, mse, r2, rmse)] == ["MAE", "MSE", "R2", "RMSE"]
    assert Regression(nn.Identity()).scores == (mae,)
    # R2 is undefined if all labels are equal, although their mean may round
    predicted, constant = torch.tensor([[0.1], [0.2], [2.1]], dtype=torch.float64), torch.full((3,), 0.1)
    assert isnan(r2.of_set(predicted, constant))
    assert isnan(r2.of_set(predicted[:1], constant[:1] + 1))
    assert rmse.of_set(predicted, constant) == pytest.approx(sqrt((0 + 0.1**2 + 2**2) / 3))
    assert isnan(rmse.of_set(predicted[:0], constant[:0]))


def largest_error(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs[:, 0] - labels).abs().max()


def test_scores_of_regression_are_over_each_client_and_over_all_examples():
    x, y = np.array([[0.0], [1], [2], [5], [7]]), np.array([1.0, 1, 4, 5, 5])
    scored = engine(lambda: Regression(nn.Linear(1, 1), scores=["rmse", "mse", f"{__name__}.largest_error", "r2"]))
    data = evaluated_on_all(ArrayData(x, y, client=[0, 0, 0, 1, 1], test=0.0))
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


# Next token


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
    task = NextToken(Bigram(), padding=None)
    assert task.outcomes((torch.tensor([[0, 0, 0, 0]]), torch.zeros(1)))[1][1].tolist() == [3]


def test_perplexity_and_token_accuracy_are_over_all_tokens_of_all_clients():
    scored = engine(lambda: certain(0.7))
    data = evaluated_on_all(sentences(test=0.0))
    found = score_clients(scored, scored.initial(0)[None], ids(0, 0), ids(0, 1), data, "test")
    # 1 2 3: 2 of 2 right; 1 3: 0 of 1; 2 2 2 2: 0 of 3. Client 0 has 1 2 3 twice, client 1 has it once
    right, wrong = [4, 2], [4, 8]
    assert found.weights.tolist() == [[8, 10], [8, 10]]
    assert found.sums[1].tolist() == right
    mean = [(-r * log(0.7) - w * log(0.1)) / (r + w) for r, w in zip(right, wrong, strict=True)]
    assert_close(found.of_clients(0), torch.tensor(mean, dtype=torch.float64).exp(), rtol=1e-6, atol=0)
    metrics = found.metrics("test")
    assert metrics["test/weighted_token_accuracy"] == pytest.approx(6 / 18)
    assert metrics["test/weighted_perplexity"] == pytest.approx(exp((-6 * log(0.7) - 12 * log(0.1)) / 18))
    assert metrics["test/mean_perplexity"] == pytest.approx(sum(map(exp, mean)) / 2)
    assert metrics["test/worst10_perplexity"] == pytest.approx(max(map(exp, mean)))


# Tasks, data and algorithms that do not fit

CLASSES, SEVERAL = np.arange(12) % 3, np.arange(36).reshape(12, 3) % 2 == 0


def trained(task: Any, **changes: Any) -> None:
    require_trainable(engine(task), numbers(**changes).federated(0))


def in_a_column() -> FederatedData:
    data = numbers().federated(0)
    return replace(data, examples=replace(data.examples, labels=data.examples.labels[:, None].sigmoid()))


class Named(Classification):
    labels = ("cat", "dog")


def classification() -> Classification:
    return Classification(MCLR([2], 3))


@pytest.mark.parametrize(
    ("make", "quoted"),
    [
        (lambda: trained(classification), "Classification | classes | numbers"),
        (lambda: trained(classification, y=SEVERAL), "Classification | 3 for each example | MultiLabel"),
        (lambda: trained(lambda: MultiLabel(MCLR([2], 3)), y=CLASSES), "MultiLabel | several | classes"),
        (lambda: trained(lambda: MultiLabel(MCLR([2], 4)), y=SEVERAL), "net | 3 labels for each"),
        (lambda: require_trainable(engine(regression), in_a_column()), "1 for each example | [N]"),
        (lambda: trained(lambda: Regression(nn.Linear(2, 3))), "3) for | one number per label"),
        (lambda: trained(lambda: Named(MCLR([2], 3)), y=CLASSES), "Named.labels | ('cat', 'dog')"),
        (lambda: Regression(nn.Linear(1, 1), scores=["mae", "rsme"]), "'rsme' | rmse | mae, mse, r2, rmse"),
        (lambda: of("accuracy"), "'accuracy' | label_accuracy | exact_match | auroc_<number of a label>"),
        (lambda: of("auroc_3"), "auroc_3 | 0 to 2"),
        (lambda: MultiLabel(nn.Identity(), scores=[Score("accuracy")]), "'accuracy' | SetScore"),
        (lambda: MultiLabel(nn.Identity(), scores=[]), "[label_accuracy, f1]"),
        (lambda: Classification(MLP(12, [2], 3), SGD, -0.1), "kernel_l2 is -0.1"),
        (lambda: Classification(MLP(12, [2], 3), SGD, 0.1, "conv*"), "'conv*' | fc1"),
        (lambda: Classification(nn.BatchNorm1d(4), SGD, 0.1), "no fully connected or convolutional layer"),
        (lambda: numbers(partition=Dirichlet(3, test=0.2)).federated(0), "Dirichlet | numbers"),
        (lambda: numbers(y=None, skew=LabelShifts([0, 1])).federated(0), "LabelShifts | missing"),
        (lambda: numbers(y=None, shift=SwapPart(0.5)).federated(0), "SwapPart | missing"),
        (lambda: numbers(y=np.array([0.5] * 3 + [np.nan] * 9)).load(), "y | nan | row 3"),
    ],
)
def test_labels_and_scores_that_do_not_fit_are_refused(make: Any, quoted: str):
    assert_refused(make, quoted)


@pytest.mark.parametrize("y", [X.sum(1), None])
def test_what_does_not_look_at_labels_still_works(y: Any):
    data = numbers(y=y, client=None, partition=IID(3, test=0.25), validation=0.25, newcomers=0.34).federated(0)
    assert data.num_clients == 3
    assert data.label_counts.shape == (3, 0)
    assert (data.examples.label_kind, data.examples.num_outputs) == (("none", 0) if y is None else ("numbers", 1))


def test_an_algorithm_that_needs_classes_is_refused_before_it_starts():
    work, algorithm = engine(regression).at(0, numbers().federated(0)), FlexCFL(2, pretrain_scale=1)
    with pytest.raises(InputError, match=r"migrate .* classes"):
        algorithm.check(work)
    replace(algorithm, shift_metric="loss").check(work)


# Several labels


OUTPUTS = torch.tensor([[2.0, -1.0, 0.5], [-1.0, 3.0, -0.5], [1.0, 2.0, -2.0], [0.5, -3.0, -1.0]], dtype=torch.float64)
LABELS = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)


def of(name: str, outputs: Tensor = OUTPUTS, labels: Tensor = LABELS) -> float:
    (score,) = MultiLabel(nn.Identity(), scores=[name]).scores
    return score.of_set(outputs, labels)  # type: ignore[attr-defined]  # a score of a whole set, by its name


def test_losses_are_mean_binary_cross_entropies():
    batch = OUTPUTS[:1], torch.tensor([[1.0, 0.25, 0.0]], dtype=torch.float64)
    expected = (log1p(exp(-2)) + 0.25 * log1p(exp(1)) + 0.75 * log1p(exp(-1)) + log1p(exp(0.5))) / 3
    assert float(MultiLabel(nn.Identity()).losses(batch)) == pytest.approx(expected, rel=1e-12)


def test_scores_of_examples_by_hand():
    module = MultiLabel(nn.Identity())
    module.register_parameter("unused", nn.Parameter(torch.zeros(1)))
    found = outcomes_of(module, (OUTPUTS, LABELS.double()))
    assert found[1].tolist() == pytest.approx([2 / 3, 1, 2 / 3, 2 / 3])
    assert found[3].tolist() == [0, 1, 0, 0]
    broken = OUTPUTS.clone()
    broken[1, 0] = nan
    found = outcomes_of(module, (broken, LABELS.double()))
    assert (float(found[1, 1]), float(found[3, 1])) == (0, 0)
    assert module.predict_step(broken).tolist() == [[1, 0, 1], [-1, 1, 0], [1, 1, 0], [1, 0, 0]]


def test_scores_of_sets_by_hand():
    assert of("auroc_0") == pytest.approx(1.0)  # outputs 2 and 1 against -1 and 0.5
    mixed = LABELS[[2, 0, 1, 3]]
    assert of("auroc_0", OUTPUTS, mixed) == pytest.approx(2 / 4)  # outputs 2 and -1 against 1 and 0.5
    assert of("auroc_1", OUTPUTS, mixed) == pytest.approx(2 / 3)  # output 2 against -1, 3 and -3
    assert isnan(of("auroc_2"))  # no example has this label
    assert of("auroc", OUTPUTS, mixed) == pytest.approx((2 / 4 + 2 / 3) / 2)
    assert of("f1_0") == pytest.approx(2 * 2 / (2 + 3))
    assert of("f1_1") == pytest.approx(2 * 1 / (1 + 2))
    assert of("f1_2") == 0.0  # the label was predicted once, but no example has it
    assert of("f1") == pytest.approx((4 / 5 + 2 / 3 + 0) / 3)
    assert isnan(of("f1_2", -OUTPUTS.abs(), LABELS))
    assert of("f1", -OUTPUTS.abs(), LABELS) == 0.0
    assert isnan(of("auroc", OUTPUTS, LABELS & False))
    assert of("auroc_0", OUTPUTS, LABELS * 0.4 + 0.2) == of("auroc_0")  # soft labels above 0.5 count as 1


# Which weights the penalty on kernels has (C10)


@pytest.mark.parametrize(("layers", "expected"), [("*", "conv1 conv2 fc1"), (["conv[0]", "fc1.weight"], "conv1 fc1")])
def test_layers_are_chosen_by_patterns(layers: str | list[str], expected: str):
    module = Classification(MNISTCNN([1, 8, 8], 10), SGD, 1.0, layers)
    squares = [module.net.get_submodule(layer).weight.square().sum() for layer in expected.split()]
    assert_close(module.penalty(), torch.stack(squares).sum(), rtol=1e-6, atol=0)


def test_frozen_kernels_and_weights_of_other_layers_are_not_penalised():
    net = nn.Sequential(nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 10))
    net[0].weight.requires_grad_(False)
    assert torch.equal(Classification(net, SGD, 1.0).penalty(), net[2].weight.square().sum())
    text = Sent140GRU([4], 2, vocabulary=7, embedding_width=5)  # recurrent kernels and embeddings are not penalised
    expected = text.fc1.weight.square().sum() + text.fc2.weight.square().sum()
    assert torch.equal(Classification(text, SGD, 1.0).penalty(), expected)


def test_a_kernel_shared_with_an_embedding_or_computed_from_parameters_is_penalised_once():
    net = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10), nn.Linear(8, 10), weight_norm(nn.Linear(10, 4)))
    net[1].weight = net[0].weight
    net[2].weight = net[0].weight
    module = Classification(net, SGD, 1.0)
    assert module.penalised_layers == ["1", "3"]
    assert_close(module.penalty(), net[0].weight.square().sum() + net[3].weight.square().sum())
