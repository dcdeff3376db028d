"""Tests MultiLabel: losses and scores against hand-worked values, and what is refused."""

from math import exp, isnan, log1p, nan
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lit_cfl.engines.task_protocol import outcomes_of
from lit_cfl.errors import InputError
from lit_cfl.scores import Score
from lit_cfl.tasks import MultiLabel

OUTPUTS = torch.tensor([[2.0, -1.0, 0.5], [-1.0, 3.0, -0.5], [1.0, 2.0, -2.0], [0.5, -3.0, -1.0]], dtype=torch.float64)
LABELS = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)


def of(name: str, outputs: Tensor = OUTPUTS, labels: Tensor = LABELS) -> float:
    (score,) = MultiLabel(nn.Identity(), scores=[name]).scores
    return score.of_set(outputs, labels)  # type: ignore[attr-defined]


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


@pytest.mark.parametrize(
    ("make", "quoted"),
    [
        (lambda: of("accuracy"), "'accuracy' | label_accuracy | exact_match | auroc_<number of a label>"),
        (lambda: of("auroc_3"), "auroc_3 | 0 to 2"),
        (lambda: MultiLabel(nn.Identity(), scores=[Score("accuracy")]), "'accuracy' | SetScore"),
        (lambda: MultiLabel(nn.Identity(), scores=[]), "[label_accuracy, f1]"),
    ],
)
def test_wrong_scores_are_refused(make: Any, quoted: str):
    with pytest.raises(InputError) as refusal:
        make()
    assert all(part in str(refusal.value) for part in quoted.split(" | "))
