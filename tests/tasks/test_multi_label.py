"""Tests MultiLabel: losses and scores against hand-worked values, and a whole run with its report."""

from math import exp, isnan, log1p, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lit_cfl.cli.main import main
from lit_cfl.datamodules import ArrayData
from lit_cfl.engines.task_protocol import outcomes_of
from lit_cfl.errors import InputError
from lit_cfl.scores import Score
from lit_cfl.storage import read_table
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
        (lambda: of("balanced_accuracy"), "'balanced_accuracy'"),
        (lambda: of("auroc_3"), "auroc_3 | 0 to 2"),
        (lambda: of("f1_3"), "f1_3 | 0 to 2"),
        (lambda: MultiLabel(nn.Identity(), scores=[Score("accuracy")]), "'accuracy' | SetScore"),
        (lambda: MultiLabel(nn.Identity(), scores=[]), "[label_accuracy, f1]"),
    ],
)
def test_wrong_scores_are_refused(make: Any, quoted: str):
    with pytest.raises(InputError) as refusal:
        make()
    assert all(part in str(refusal.value) for part in quoted.split(" | "))


class Tagged(ArrayData):
    """Data module with twelve clients in two clusters, in which labels have opposite effects on the inputs."""

    def __init__(self, **options: Any) -> None:
        rng = np.random.default_rng(0)
        owner = np.arange(12).repeat(40)
        labels = rng.random((len(owner), 3)) < [0.2, 0.5, 0.35]
        x = rng.normal(size=(len(owner), 3)) + np.where(owner[:, None] % 2, -4, 4) * (labels - 0.5)
        super().__init__(x, labels, owner, np.arange(12) % 2, **({"validation": 0.2} | options))


def test_a_configuration_runs_and_a_report_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    content = f"""
rounds: 3
cohort_size: 12
local: {{epochs: 2, batch_size: 10}}
data: {{class_path: {__name__}.Tagged}}
task:
  class_path: MultiLabel
  init_args:
    net: MCLR
    optimizer: {{class_path: torch.optim.SGD, init_args: {{lr: 0.5}}}}
    scores: [exact_match, label_accuracy, auroc, f1_2]
algorithm: {{class_path: IFCA, init_args: {{num_clusters: 2}}}}
evaluation: {{fine_tune: {{length: 1, unit: epochs}}}}
"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tagged.yaml").write_text(content)
    assert main(["run", "--config", str(tmp_path / "tagged.yaml"), "--run_dir", str(tmp_path / "run"), "--quiet"]) == 0
    last = read_table(tmp_path / "run" / "metrics.csv")[-1]
    assert last["test/weighted_label_accuracy"] > 0.8
    assert last["test/weighted_auroc"] > 0.8
    assert {"test/weighted_exact_match", "test/weighted_f1_2", "test/tuned_exact_match"} <= set(last)
    assert {"label_accuracy", "exact_match", "f1_2"} <= set(read_table(tmp_path / "run" / "clients.csv")[0])
    assert main(["report", str(tmp_path / "run")]) == 0
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert "exact match" in (tmp_path / "report.html").read_text()
