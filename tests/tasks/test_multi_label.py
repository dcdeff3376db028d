"""Tests MultiLabel: losses and scores against hand-worked values, equality in every engine, and a whole run."""

from functools import partial
from math import exp, isnan, log1p, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lit_cfl import Experiment, run
from lit_cfl.algorithms import IFCA, FedAvg, FlexCFL
from lit_cfl.cli.main import main
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.datamodules import ArrayData
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.task_protocol import outcomes_of
from lit_cfl.errors import InputError
from lit_cfl.evaluation import EvaluationPlan
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR
from lit_cfl.scores import Score
from lit_cfl.storage import read_table
from lit_cfl.tasks import Classification, MultiLabel, Regression

NAMES = ["label_accuracy", "exact_match", "auroc", "f1", "auroc_1", "f1_2"]
OUTPUTS = torch.tensor([[2.0, -1.0, 0.5], [-1.0, 3.0, -0.5], [1.0, 2.0, -2.0], [0.5, -3.0, -1.0]], dtype=torch.float64)
LABELS = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)


def of(name: str, outputs: Tensor = OUTPUTS, labels: Tensor = LABELS) -> float:
    (score,) = MultiLabel(nn.Identity(), scores=[name]).scores
    return score.of_set(outputs, labels)  # type: ignore[attr-defined]


def test_losses_are_mean_binary_cross_entropies():
    batch = OUTPUTS[:1], torch.tensor([[1.0, 0.25, 0.0]], dtype=torch.float64)
    options = (log1p(exp(-2)) + 0.25 * log1p(exp(1)) + 0.75 * log1p(exp(-1)) + log1p(exp(0.5))) / 3
    assert float(MultiLabel(nn.Identity()).losses(batch)) == pytest.approx(options, rel=1e-12)


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
    assert of("auroc_1") == pytest.approx(1.0)
    assert of("auroc_1", OUTPUTS, LABELS[[2, 0, 1, 3]]) == pytest.approx(2 / 3)  # output 2 against -1, 3 and -3
    assert isnan(of("auroc_2"))  # no example has this label
    assert of("auroc") == pytest.approx((1 + 1) / 2)
    assert of("f1_0") == pytest.approx(2 * 2 / (2 + 3))
    assert of("f1_1") == pytest.approx(2 * 1 / (1 + 2))
    assert of("f1_2") == 0.0  # the label was predicted once, but no example has it
    assert of("f1") == pytest.approx((4 / 5 + 2 / 3 + 0) / 3)
    assert isnan(of("f1_2", -OUTPUTS.abs(), LABELS))
    assert of("f1", -OUTPUTS.abs(), LABELS) == 0.0
    assert isnan(of("auroc", OUTPUTS, LABELS & False))
    assert of("auroc_0", OUTPUTS, LABELS * 0.4 + 0.2) == of("auroc_0")  # soft labels above 0.5 count as 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["accuracy"], r"'accuracy', which is not a score \(did you mean label_accuracy\?\). Known: label_acc.*, "
                       "exact_match, auroc, f1, auroc_<number of a label>, f1_<number of a label>, and your own"),
        (["balanced_accuracy"], "is not a score"),
        ([Score("accuracy")], "'accuracy', which is not a SetScore but a mean over examples; give a SetScore, or"),
        ([], r"give a list of scores, such as \[label_accuracy, f1\]"),
    ],
)  # fmt: skip
def test_wrong_names_are_refused_with_the_known_ones(names: list[Any], message: str):
    with pytest.raises(InputError, match=message):
        MultiLabel(nn.Identity(), scores=names)


@pytest.mark.parametrize("name", ["auroc_3", "f1_3"])
def test_a_label_that_does_not_exist_is_refused(name: str):
    with pytest.raises(InputError, match=f"the score '{name}' is of label 3, but labels are 0 to 2"):
        of(name)


# Whole runs


class Tagged(ArrayData):
    """Data module with twelve clients in two clusters, in which labels have opposite effects on the inputs."""

    def __init__(self, **options: Any) -> None:
        rng = np.random.default_rng(0)
        owner = np.arange(12).repeat(40)
        labels = rng.random((len(owner), 3)) < [0.2, 0.5, 0.35]
        x = rng.normal(size=(len(owner), 3)) + np.where(owner[:, None] % 2, -4, 4) * (labels - 0.5)
        super().__init__(x, labels, owner, np.arange(12) % 2, **({"validation": 0.2} | options))


def experiment(**changes: Any) -> Experiment:
    settings: dict[str, Any] = {
        "data": Tagged(),
        "task": lambda: MultiLabel(MCLR([3], 3), partial(torch.optim.SGD, lr=0.5), NAMES),
        "algorithm": IFCA(2),
        "rounds": 3,
        "cohort_size": 12,
        "local": LocalTraining(2, 10),
    }
    return Experiment(**(settings | changes))


def test_a_run_has_the_scores_in_its_tables_in_every_engine(tmp_path: Path):
    last = {}
    for engine in ("chain", "loop", "trainer"):
        result = run(experiment(engine=engine, evaluation=EvaluationPlan(fine_tune=Budget(1))), tmp_path / engine)
        row = read_table(result.path / "metrics.csv")[-1]
        last[engine] = {k: v for k, v in row.items() if not k.startswith("time/") and v is not None}
    assert {f"test/weighted_{name}" for name in NAMES} <= set(last["loop"])
    assert last["loop"]["test/weighted_label_accuracy"] > 0.8
    assert last["loop"]["test/weighted_auroc"] > 0.8
    assert "test/tuned_label_accuracy" in last["loop"]
    for engine in ("loop", "trainer"):
        assert last[engine] == pytest.approx(last["chain"], rel=1e-4)
    (first, *_) = read_table(tmp_path / "loop" / "clients.csv")
    assert {"label_accuracy", "exact_match", "auroc_1"} <= set(first)


def test_migration_sees_labels_that_drift(tmp_path: Path):
    algorithm = FlexCFL(2, migrate=True, pretrain_scale=2)
    row = read_table(run(experiment(algorithm=algorithm, rounds=1), tmp_path).path / "metrics.csv")[-1]
    assert row["shift/detected"] == 0


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (lambda: Classification(MCLR([3], 3)), "Classification takes labels that are classes, but those of these data "
         "are 3 for each example: take the task MultiLabel, or give one class for each example, such as y.argmax"),
        (lambda: Regression(MCLR([3], 1)), "Regression takes labels that are numbers, but .* take the task MultiLabel"),
        (lambda: MultiLabel(MCLR([3], 4)), "the net cannot take the data: inputs of shape .3,., 3 labels for each"),
    ],
)  # fmt: skip
def test_tasks_that_do_not_fit_are_refused(task: Any, message: str):
    with pytest.raises(InputError, match=message):
        experiment(task=task).prepare(0)


def test_classes_are_refused_as_labels_of_this_task():
    data = ArrayData(np.zeros((20, 3)), np.arange(20) % 3, partition=None)
    with pytest.raises(
        InputError, match=r"MultiLabel takes labels that are several for each example, but .* classes: give numbers as"
    ):
        experiment(data=data, algorithm=FedAvg(), cohort_size=2).prepare(0)


def test_a_configuration_runs_and_a_report_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    content = f"""
rounds: 2
cohort_size: 4
data: {{class_path: {__name__}.Tagged}}
task: {{class_path: MultiLabel, init_args: {{net: {{class_path: MCLR}}, scores: [exact_match, f1_0]}}}}
algorithm: {{class_path: FedGroup, init_args: {{num_clusters: 2}}}}
"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tagged.yaml").write_text(content)
    assert main(["run", "--config", str(tmp_path / "tagged.yaml"), "--run_dir", str(tmp_path / "run"), "--quiet"]) == 0
    assert main(["report", str(tmp_path / "run")]) == 0
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert "exact match" in (tmp_path / "report.html").read_text()


def test_a_column_of_numbers_is_to_be_given_without_its_second_axis():
    rng, rows = torch.Generator().manual_seed(0), ClientIndex.from_sizes(torch.arange(20), torch.full((4,), 5))
    examples = Examples(torch.randn(20, 3, generator=rng), torch.rand(20, 1, generator=rng), 0)
    data = FederatedData(examples, rows, ClientIndex.empty(4), ClientIndex.empty(4), torch.full((4,), -1))
    engine = Engine(lambda: Regression(MCLR([3], 1)), Plan("trainer"), 0, LocalTraining())
    with pytest.raises(InputError, match=r"are 1 for each example: give one number for each example, \[N\] in place"):
        require_trainable(engine, data)
