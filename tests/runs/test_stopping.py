"""Tests early stopping of runs."""

import pytest

from lit_cfl.early_stopping import StopRule
from lit_cfl.errors import InputError
from lit_cfl.metric_names import choosable_columns
from lit_cfl.scores import CLASSIFIER, Score, SetScore
from lit_cfl.tasks.named_scores import named_scores

ACCURACY = "val/weighted_accuracy"


def history(*values: float | None, metric: str = ACCURACY) -> list[dict[str, float | None]]:
    return [{"round": number, metric: value} for number, value in enumerate(values)]


def stops_at(rule: StopRule, rows: list[dict[str, float | None]], *scores: Score) -> int | None:
    """Returns the number of rows after which the rule first stops."""
    scores = scores or CLASSIFIER
    return next((n for n in range(len(rows) + 1) if rule.reason(rows[:n], 0, scores)), None)


LOSS, TRAINING = "val/loss", "train/loss"


@pytest.mark.parametrize(
    ("rule", "values", "rows"),
    [
        pytest.param(StopRule(), (0.9, 0.1, 0.1, 0.1), None, id="no condition"),
        pytest.param(StopRule(patience=2), (0.5, 0.6, 0.55, 0.59, 0.7), 4, id="evaluations since the best"),
        pytest.param(StopRule(patience=2), (0.5, 0.4, 0.6, 0.5, 0.7, 0.6, 0.6), 7, id="a better one starts again"),
        pytest.param(StopRule(patience=2), (0.6, 0.6, 0.6), 3, id="an equal one is not better"),
        pytest.param(StopRule(patience=1), (0.5, 0.6, 0.5), 3, id="the first step back"),
        pytest.param(StopRule(patience=2), (0.6, None, None, 0.5, None, 0.5), 6, id="rounds without it do not count"),
        pytest.param(StopRule(LOSS, patience=2), (3.0, 2.0, 1.0), None, id="a loss that falls"),
        pytest.param(StopRule(LOSS, patience=2), (1.0, 2.0, 3.0), 3, id="a loss that rises"),
        pytest.param(StopRule(TRAINING, patience=1), (1.0, 2.0), 2, id="the training loss"),
        pytest.param(StopRule(target=0.8), (0.7, 0.79, 0.8), 3, id="a target"),
        pytest.param(StopRule(LOSS, target=0.5), (0.9, 0.6, 0.4), 3, id="a loss's target, from above"),
        pytest.param(StopRule(TRAINING, target=0.0), (0.1, 0.0), 2, id="a target of 0"),
    ],
)
def test_rule_stops_after_as_many_rows(rule: StopRule, values: tuple[float | None, ...], rows: int | None):
    assert stops_at(rule, history(*values, metric=rule.metric or ACCURACY)) == rows


def test_rounds_that_scored_far_fewer_clients_do_not_count():
    def scored(*clients: int) -> list[dict[str, float | None]]:
        return [row | {"clients/evaluated": n} for row, n in zip(history(0.9, 0.5, 0.5, 0.5), clients, strict=True)]

    rule = StopRule(patience=2)
    assert stops_at(rule, scored(3, 30, 33, 33)) == 4  # 0.9 of three clients does not count as better than 0.5 of 30
    assert stops_at(rule, scored(30, 30, 33, 33)) == 3
    assert stops_at(rule, scored(3, 6, 9, 12)) is None
    assert stops_at(rule, scored(30, 3, 3, 3)) == 3
    losses = [{"train/loss": value, "clients/evaluated": n} for value, n in ((1.0, 3), (2.0, 30), (2.0, 60))]
    # a training loss does not depend on the number of scored clients
    assert stops_at(StopRule(TRAINING, patience=2), losses) == 3


def test_a_score_is_followed_in_its_own_direction():
    error, gain = Score("mae", higher_is_better=False), Score("mae")
    rows = history(3.0, 2.0, 2.5, 2.0, metric="val/weighted_mae")
    rule = StopRule(patience=2)  # follows the task's first score
    assert (stops_at(rule, rows, error), stops_at(rule, rows, gain)) == (4, 3)
    rule = StopRule(target=2.0)
    assert (stops_at(rule, rows, error), stops_at(rule, rows, gain)) == (2, 1)


def test_rounds_in_which_a_score_of_sets_is_undefined_are_waited_for():
    score = SetScore("r2", function=lambda outputs, labels: 0.5)
    blank = {"val/loss": 0.5, "val/weighted_r2": None, "val/undefined_r2": 1}
    rows = [blank, blank, *[{"val/loss": 0.4, "val/weighted_r2": 0.3, "val/undefined_r2": 0}] * 2]
    rule = StopRule("val/weighted_r2", patience=1)
    assert stops_at(rule, rows, score) == 4
    with pytest.raises(InputError, match="do not report"):
        rule.reason([blank | {"val/undefined_r2": 0}], 0, (score,))  # nothing but the score itself is blank


NAMED = (*named_scores(["f1", "auroc"]), Score("within", is_share=True))
OWN = (SetScore("f1", function=lambda outputs, labels: 90.0),)  # a user's, under a name of ours


@pytest.mark.parametrize(
    ("metric", "target", "scores", "followed"),
    [
        (None, 90.0, CLASSIFIER, None),
        ("val/global_accuracy", 0.0, CLASSIFIER, None),
        ("val/worst10_auroc", 90.0, NAMED, None),
        ("val/mean_within", 0.0, NAMED, None),
        ("val/std_accuracy", 0.0, CLASSIFIER, "val/std_accuracy"),
        ("val/loss", 90.0, CLASSIFIER, "val/loss"),
        (None, 90.0, (Score("mae", higher_is_better=False),), "val/weighted_mae"),
        (None, 90.0, OWN, "val/weighted_f1"),
    ],
)
def test_a_target_that_no_share_reaches_is_refused(
    metric: str | None, target: float, scores: tuple[Score, ...], followed: str | None
):
    rule = StopRule(metric, target=target)
    if followed is not None:
        assert rule.metric_of(scores) == followed
        return
    with pytest.raises(InputError, match=rf"stop\.target is {target:g}, but val/\w+ is a share"):
        rule.metric_of(scores)


def test_time_is_up_after_the_minutes():
    rule = StopRule(max_minutes=1.5)
    assert rule.reason(history(0.5), seconds=89.9) is None
    assert rule.reason(history(0.5), seconds=90.0) == "1.5 minutes have passed"
    assert StopRule().reason(history(0.5), seconds=1e9) is None


def test_the_metrics_that_can_choose_are_those_of_the_task_and_none_of_test_data():
    assert {"val/weighted_accuracy", "val/loss", "train/loss"} <= set(choosable_columns(CLASSIFIER))
    assert not [metric for metric in choosable_columns(CLASSIFIER) if "test" in metric]
    with pytest.raises(InputError, match=r"'val/weighted_accuracy' .*val/weighted_mae, .*val/global_mae, train"):
        StopRule("val/weighted_accuracy").metric_of((Score("mae", higher_is_better=False),))
