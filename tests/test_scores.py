import json
from functools import partial
from math import isnan, nan

import pytest
import torch
from lightning import LightningModule
from own_arrays import assert_refused
from quadratic import ids
from torch import nn

from lit_cfl.client_scores import SplitScores, score_clients
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.task_protocol import TaskFactory, outcomes_of
from lit_cfl.errors import InputError, Notice
from lit_cfl.evaluation import Evaluation
from lit_cfl.metric_names import METRICS, higher_is_better
from lit_cfl.rounds import Round, Traffic
from lit_cfl.run_totals import RunTotals
from lit_cfl.scores import ACCURACY, CLASSIFIER, Score, describe_scores, read_scores, scores_of
from lit_cfl.tasks import Classification, MultiLabel, NextToken, Regression
from lit_cfl.tasks.named_scores import OF_CLASSES

ERROR = Score("mae", higher_is_better=False)


def found(score: Score, sums: list[float], weights: list[float]) -> SplitScores:
    """Makes the scores of clients with at most one example each."""
    count = torch.tensor([int(weight > 0) for weight in weights])
    parts = (torch.tensor([part], dtype=torch.float64) for part in (sums, weights))
    return SplitScores((score,), count, torch.zeros(len(sums)).double(), *parts)


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_the_worst_tenth_follows_the_direction_and_a_diverged_model_is_the_worst(higher_is_better: bool):
    values = [5.0, -3.0, 8.0, *[1.0] * 22]
    worst = found(Score("gain", higher_is_better), values, [1.0] * 25).metrics("test")["test/worst10_gain"]
    assert worst == ((-3 + 1) / 2 if higher_is_better else (8 + 5) / 2)
    metrics = found(Score("gain", higher_is_better), [5.0, nan, -3.0], [1.0] * 3).metrics("test")
    assert isnan(metrics["test/worst10_gain"])
    assert isnan(metrics["test/weighted_gain"])


def test_a_score_without_any_weight_is_left_blank():
    parts = torch.ones(2).double(), torch.zeros(1, 2).double(), torch.zeros(1, 2).double()
    metrics = SplitScores((ERROR,), ids(2, 1), *parts).metrics("test")
    assert isnan(metrics.pop("test/weighted_mae"))
    assert metrics == {"test/loss": 2 / 3}


def test_directions_of_columns():
    scores = (ERROR, Score("mean_mae"), Score("r"))  # names that end alike are told apart
    lower = {"val/weighted_mae", "val/worst10_mae", "val/global_mae", "test/newcomers_mae", "mae", "train/loss"}
    lower |= {"test/min_weighted_mae", "val/std_mae", "val/std_mean_mae", "val/std_r", "train/discrepancy"}
    higher = {"val/weighted_mean_mae", "val/worst10_mean_mae", "val/weighted_r", "clusters/ari", "test/max_weighted_r"}
    for column in lower | higher:
        assert higher_is_better(column, scores) == (column in higher), column
    expected = ["val/std_accuracy", "val/loss", "test/std_accuracy", "test/loss", "train/loss", "train/discrepancy"]
    assert [name for name in METRICS if not higher_is_better(name, CLASSIFIER)] == expected


def test_the_best_round_follows_the_direction_and_needs_all_clients():
    errors = [(3.0, True), (2.0, True), (1.0, False), (nan, True), (4.0, True)]
    gains = [(-3.0, True), (-1.0, True), (-2.0, True)]
    for score, history, best in ((ERROR, errors, {"mae": 2.0}), (Score("gain"), gains, {"gain": -1.0})):
        totals = RunTotals()
        for number, (value, full) in enumerate(history):
            evaluation = Evaluation(ids(0), ids(0), {"test": found(score, [value], [1.0])}, {}, full_coverage=full)
            totals.take(Round(number, None, None, data(), Traffic()), evaluation, every=10)
        assert totals.best == best
    assert (ERROR.best_column, ACCURACY.best_column) == ("test/min_weighted_mae", "test/max_weighted_accuracy")


class Means(LightningModule):
    """Task that predicts the number `w`, with additional outcomes made from errors and labels."""

    def __init__(self, *returned, scores=(ERROR,)):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))
        self.returned, self.scores = returned, scores

    def losses(self, batch):
        return (self.w - batch[1]).square() + 0 * batch[0][:, 0]

    def outcomes(self, batch):
        errors = (self.w - batch[1]).abs()
        return self.losses(batch), *(give(errors, batch[1]) for give in self.returned)

    def training_step(self, batch, batch_idx):
        return self.losses(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data() -> FederatedData:
    """Makes three clients with the test labels 0 1 3, none, and 2."""
    none, held = ClientIndex.empty(3), ClientIndex.from_lists([ids(0, 1, 3), ids(), ids(2)])
    return FederatedData(Examples(torch.zeros(4, 1), torch.arange(4), 4), none, none, held, ids(0, 0, 1))


def engine(task: TaskFactory) -> Engine:
    return build_engine(task, Plan("trainer"), 0, LocalTraining(1, 10))


def scored(module: TaskFactory, w: float = 0.0) -> SplitScores:
    return score_clients(engine(module), torch.tensor([[w]]), ids(0, 0, 0), ids(0, 1, 2), data(), "test")


def test_values_count_by_their_weights():
    result = scored(lambda: Means(lambda errors, labels: (errors, labels + 1)))  # errors 0, 1, 3; 2; weights one more
    assert result.sums.tolist() == [[0 + 1 * 2 + 3 * 4, 0, 2 * 3]]
    assert result.weights.tolist() == [[1 + 2 + 4, 0, 3]]
    assert result.weighted_means() == {"mae": (14 + 6) / 10}
    undefined = scored(lambda: Means(lambda errors, labels: (errors / labels, labels)))  # 0 / 0 = nan at weight 0
    assert undefined.weighted_means() == {"mae": 1.0}


def test_several_scores_are_kept_apart():
    scores = (ERROR, Score("share"))
    result = scored(lambda: Means(lambda e, y: e, lambda e, y: (y > 1, y + 1), scores=scores))
    assert result.weighted_means() == {"mae": 6 / 4, "share": 7 / 10}
    assert result.of_clients(1)[[0, 2]].tolist() == [4 / 7, 1.0]


class Dead(Means):
    """Task whose loss is NaN for the example with label 1."""

    def outcomes(self, batch):
        losses, *others = super().outcomes(batch)
        return losses.where(batch[1] != 1, nan), *others


@pytest.mark.parametrize(
    ("claim", "score", "right"),
    [
        (lambda e, y: e >= 0, ACCURACY, 3 / 4),
        (lambda e, y: e >= 0, Score("within"), 3 / 4),  # bool: wrong
        (lambda e, y: 1 + 0 * e, Score("share", worst=0.0), 3 / 4),
        (lambda e, y: 1 + 0 * e, Score("bits", worst=-7.0), (3 - 7) / 4),
        (lambda e, y: 1 + 0 * e, Score("error", higher_is_better=False), nan),
    ],
)
def test_what_has_no_loss_has_no_prediction_whatever_outcomes_says(claim, score: Score, right: float):
    with pytest.warns(Notice, match=r"example 1 of client 0's test data is nan under its model \(1 of 4"):
        result = scored(lambda: Dead(claim, scores=(score,)))
    assert result.weighted_means()[score.name] == pytest.approx(right, nan_ok=True)


def test_nan_output_is_not_a_prediction():
    class Plain(LightningModule):
        def forward(self, inputs):
            return torch.tensor([[1.0, 0.0], [nan, 0.0], [0.0, nan], [1.0, 0.0]])

        def losses(self, batch):
            return self(batch[0]).nan_to_num().sum(1)  # finite

    batch = torch.zeros(4, 1), torch.tensor([0, 0, 1, 0])
    assert outcomes_of(Plain(), batch)[1].tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("returned", "scores", "message"),
    [
        ([lambda e, y: e], CLASSIFIER, r"values of .* torch.float32 for the score 'accuracy', .*\(bool\)"),
        ([lambda e, y: e[:, None]], (ERROR,), r"values of shape \(4, 1\)"),
        ([lambda e, y: 0.1], (ERROR,), "values of type float for the score 'mae'"),
        ([lambda e, y: (e, y[:1])], (ERROR,), r"weights of shape \(1,\) .*for the score 'mae'"),
        ([lambda e, y: (e, -y)], (ERROR,), r"value \S+ with the weight -1 for the score 'mae' of example 1"),
        ([lambda e, y: e / (y - 3)], (ERROR,), "value inf with the weight 1 for the score 'mae' of example 3"),
        ([], (ERROR,), "0 scores after the losses, but .*scores names 1"),
    ],
)
def test_scores_of_a_wrong_kind_are_refused_with_the_module_and_the_score(returned, scores, message: str):
    with pytest.raises(InputError, match=rf"Means\.outcomes returned (the )?{message}"):
        scored(lambda: Means(*returned, scores=scores))


def test_scores_that_cannot_be_reported_are_refused():
    for wrong in ([ERROR], ("mae",), (ERROR, Score("mae"))):
        assert_refused(partial(scores_of, Means(scores=wrong)), "Means.scores")
    assert_refused(lambda: Score("val/mae"), "'val/mae'")
    assert_refused(lambda: Score("loss"), "'loss'")
    assert_refused(lambda: Score("mae", transform="log"), "'mae' is 'log'")


def test_a_run_s_scores_are_read_as_they_were_described():
    for one, options in (
        (Classification, {"scores": [*OF_CLASSES.names[:-1], "f1_2"]}),
        (MultiLabel, {"scores": ["label_accuracy", "exact_match", "auroc", "f1", "auroc_0", "f1_12"]}),
        (Regression, {"scores": ["mae", "mse", "r2", "rmse"]}),
        (NextToken, {}),
    ):
        scores = one(nn.Linear(2, 2), **options).scores
        described = json.loads(json.dumps({"scores": describe_scores(scores)}))
        read = read_scores(described)
        for name in ("name", "higher_is_better", "is_share"):
            assert [getattr(score, name) for score in read] == [getattr(score, name) for score in scores]
    assert read_scores({"test/max_weighted_accuracy": 1}) == CLASSIFIER
