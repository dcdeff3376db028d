"""Tests scores over clients, and agreement of found with true clusters (docs/ground_truth.md, check 25)."""

from math import isnan, nan

import pytest
import torch
from quadratic import ids
from torch import Tensor

from lit_cfl.client_scores import SplitScores, score_clients
from lit_cfl.clustering.cluster_scores import agreement, churn, silhouette
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.scorer import ModelName, Outcomes
from lit_cfl.errors import InputError, Notice
from lit_cfl.evaluation import EvaluationPlan
from lit_cfl.scores import CLASSIFIER, Score


def scores(correct: list[int], count: list[int], loss: list[float] | None = None) -> SplitScores:
    sums, weights = (torch.tensor([part]).double() for part in (correct, count))
    losses = torch.tensor(loss or [0.0] * len(count)).double()
    return SplitScores(CLASSIFIER, torch.tensor(count), losses, sums, weights)


# Accuracy


@pytest.mark.parametrize(
    ("correct", "count", "expected"),
    [
        ([90, 10], [100, 10], 100 / 110),  # computed in float64, without rounding
        ([7], [9], 7 / 9),
        ([3, 4, 1], [5, 4, 10], 8 / 19),  # the grouping does not matter
        ([7, 1], [9, 10], 8 / 19),
        ([0], [0], nan),
    ],
)
def test_weighted_accuracy_is_right_answers_over_examples(correct: list[int], count: list[int], expected: float):
    assert scores(correct, count).weighted_means()["accuracy"] == pytest.approx(expected, abs=0, rel=0, nan_ok=True)


def test_accuracy_of_a_client_without_examples_is_nan():
    accuracy = scores([1, 0, 2], [3, 0, 2]).of_clients()
    assert accuracy[[0, 2]].tolist() == [1 / 3, 1]
    assert accuracy[1].isnan()


def test_metrics_by_hand():
    metrics = scores([1, 6, 4], [2, 8, 4], [1.0, 2.5, 7.0]).metrics("val")  # accuracies .5, .75, 1
    assert metrics == {
        "val/weighted_accuracy": 11 / 14,
        "val/mean_accuracy": 0.75,
        "val/std_accuracy": pytest.approx((0.125 / 3) ** 0.5),  # population standard deviation
        "val/worst10_accuracy": 0.5,
        "val/loss": 0.75,
    }


def test_clients_without_examples_are_not_counted():
    without, with_idle = scores([1, 6], [2, 8], [1.0, 2.5]), scores([0, 1, 6, 0], [0, 2, 8, 0], [0.0, 1.0, 2.5, 0.0])
    assert with_idle.metrics("test") == without.metrics("test")


def test_no_examples_give_no_metrics():
    assert scores([0, 0], [0, 0]).metrics("test") == {}
    assert scores([], []).metrics("test") == {}


def test_single_client_has_no_spread():
    assert scores([3], [4]).metrics("test")["test/std_accuracy"] == 0


@pytest.mark.parametrize(
    ("correct", "count", "expected"),
    [
        ([4, 1, 3, 2, 5], [5] * 5, 1 / 5),  # at least one client
        ([9, 8, 7, 6, 5, 2, 10, 10, 10, 10], [10] * 10, 2 / 10),
        ([20] * 12 + [4] + [20] * 11 + [7], [20] * 25, 11 / 40),  # two of 25 clients
        ([2, 0, 1] + [4] * 18, [4, 0, 4] + [4] * 18, 3 / 8),  # two of the 20 clients that have examples
    ],
)
def test_worst_tenth_is_the_mean_of_the_worst_with_examples(correct: list[int], count: list[int], expected: float):
    assert scores(correct, count).metrics("test")["test/worst10_accuracy"] == pytest.approx(expected)


# Scoring clients


class ParityEngine:
    """Engine in which model m predicts m mod 2; example e has label e mod 2 and loss m + e / 10."""

    scores = CLASSIFIER
    noted_not_finite = False

    def __init__(self) -> None:
        self.calls: list[tuple[list[float], list[int]]] = []

    def outcomes_of_each(
        self, models: Tensor, which: Tensor, index: Tensor, data: FederatedData, named: ModelName
    ) -> Outcomes:
        model = models[which, 0]
        self.calls.append((model.tolist(), index.tolist()))
        right = (index % 2 == model % 2)[None].double()
        return Outcomes((model + index / 10).double(), right, torch.ones_like(right))


def shared_examples() -> FederatedData:
    held = ClientIndex.from_lists([ids(0, 1, 2), ids(), ids(2, 5), ids(3, 3, 4)])
    none = ClientIndex.from_lists([ids()] * 4)
    return FederatedData(Examples(torch.zeros(6, 1), torch.arange(6) % 2, 2), none, none, held, torch.zeros(4))


def test_models_that_predict_nothing_have_no_spread_that_could_win():
    dead, alike = (scores([0, 0], [2, 2], losses).metrics("val") for losses in ([nan, 1.0], [1.0, 1.0]))
    assert isnan(dead["val/std_accuracy"])
    assert dead["val/weighted_accuracy"] == 0
    assert alike["val/std_accuracy"] == 0


def test_clients_are_scored_with_their_models():
    models, engine = torch.tensor([[0.0], [1.0], [2.0]]), ParityEngine()
    found = score_clients(engine, models, ids(1, 0, 1), ids(3, 2, 1), shared_examples(), "test")
    assert found.sums.tolist() == [[2, 1, 0]]  # labels of 3, 3 are odd, of 2 even; the last client has no examples
    assert found.count.tolist() == [3, 2, 0]
    assert found.loss.tolist() == pytest.approx([3 + 1.0, 0.7, 0])


def test_example_with_a_nan_loss_is_wrong_and_noted_once_with_its_client():
    # model 1 has no loss on example 3, but a fast scorer may still count its answer as right
    class Broken(ParityEngine):
        def outcomes_of_each(self, models, which, index, data, named):
            found = super().outcomes_of_each(models, which, index, data, named)
            found.losses[(models[which, 0] == 1) & (index == 3)] = torch.nan
            return found

    engine, models = Broken(), torch.tensor([[0.0], [1.0]])
    with pytest.warns(Notice) as said:
        found, _ = (score_clients(engine, models, ids(0, 1), ids(0, 3), shared_examples(), "test") for _ in range(2))
    assert found.sums.tolist() == [[2, 0]]  # client 3 has example 3 twice, and example 4: no answer is right
    assert found.weights.tolist() == [[3, 3]]
    (note,) = said
    assert str(note.message) == (
        "the loss of example 3 of client 3's test data is nan under its model (2 of 6 examples have a loss "
        "that is not finite); each of them counts as a wrong prediction"
    )
    errors = Broken()
    errors.scores = (Score("mae", higher_is_better=False),)
    with pytest.warns(Notice, match="not finite\\); scores of their clients may be blank"):
        score_clients(errors, models, ids(0, 1), ids(0, 3), shared_examples(), "test")


def test_example_that_clients_of_a_model_share_is_run_once():
    engine = ParityEngine()
    score_clients(engine, torch.tensor([[0.0], [1.0]]), ids(0, 0, 1), ids(0, 2, 3), shared_examples(), "test")
    assert engine.calls == [([0.0] * 4 + [1.0] * 2, [0, 1, 2, 5, 3, 4])]


# Agreement with the truth


def test_clusters_that_are_only_renamed_agree_perfectly():
    assert agreement(ids(7, 7, 2, 0, 2, 7), ids(0, 0, 1, 2, 1, 0)) == {
        "clusters/ari": 1,
        "clusters/ami": pytest.approx(1),
        "clusters/purity": 1,
        "clusters/matched_accuracy": 1,
    }


def test_one_cluster_for_all_agrees_as_chance_does():
    found = agreement(ids(0, 0, 0, 0, 0), ids(0, 0, 0, 1, 1))
    assert found["clusters/ari"] == 0
    assert found["clusters/ami"] == pytest.approx(0, abs=1e-12)
    assert (found["clusters/purity"], found["clusters/matched_accuracy"]) == (3 / 5, 3 / 5)


def test_agreement_by_hand():
    found = agreement(ids(0, 0, 0, 1, 1, 2), ids(0, 0, 1, 1, 1, 1))  # table: 2 1 / 0 2 / 0 1
    assert found["clusters/purity"] == 5 / 6
    assert found["clusters/matched_accuracy"] == 4 / 6
    # pairs in one cluster: found and true 1 + 1, found 3 + 1, true 1 + 6, of 15 in total
    assert found["clusters/ari"] == pytest.approx((2 - 4 * 7 / 15) / ((4 + 7) / 2 - 4 * 7 / 15))


def test_mutual_information_is_what_is_beyond_chance():
    """Of the 6 ways to halve 4 clients, 2 agree (ln 2) and 4 share nothing (0), so ln 2 / 3 is expected by chance."""
    assert agreement(ids(0, 0, 1, 1), ids(0, 1, 0, 1))["clusters/ami"] == pytest.approx((0 - 1 / 3) / (1 - 1 / 3))


def test_own_cluster_for_everyone_is_pure_but_not_matched():
    found = agreement(ids(0, 1, 2, 3, 4), ids(0, 0, 0, 1, 1))
    assert (found["clusters/purity"], found["clusters/matched_accuracy"]) == (1, 2 / 5)


def test_no_clients_no_agreement():
    assert agreement(ids(), ids()) == {}


# Churn


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (ids(0, 0, 1, 2), ids(5, 5, 0, 1), 0),  # clusters were only renumbered
        (ids(0, 0, 1, 1), ids(1, 1, 0, 1), 0.25),  # one of four clients moved
        # clusters merged: the clients of the smaller one count as moved
        (ids(0, 0, 0, 1, 1), ids(4, 4, 4, 4, 4), 2 / 5),
        (ids(0, 0, -1, 1, 1, 0), ids(0, 0, 1, 1, 0, -1), 0.25),  # unassigned clients do not count
        (ids(-1, 0, 2), ids(0, -1, -1), nan),  # no client is assigned in both
        (ids(), ids(), nan),
    ],
)
def test_churn_is_the_share_of_clients_that_moved(before: Tensor, now: Tensor, expected: float):
    assert churn(before, now) == pytest.approx(expected, nan_ok=True)


# Silhouette


def cosines(*angles: float) -> Tensor:
    directions = torch.tensor([[angle] for angle in angles], dtype=torch.float64).deg2rad()
    return (directions - directions.T).cos()


def test_tight_bundles_stand_apart():
    similarity = cosines(0, 1, 2, 178, 180)
    assert silhouette(similarity, ids(0, 0, 0, 1, 1)) > 0.99
    assert silhouette(similarity, ids(0, 1, 0, 1, 0)) < 0


def test_silhouette_by_hand():
    similarity = torch.tensor([[1, 0.5, 0], [0.5, 1, -0.5], [0, -0.5, 1]])
    # client 0: own cluster .5, other 1; client 1: own .5, other 1.5; client 2 is alone: 0
    assert silhouette(similarity, ids(0, 0, 1)) == pytest.approx((1 / 2 + 2 / 3 + 0) / 3)


@pytest.mark.parametrize("labels", [ids(0, 0, 0), ids(0, 1, 2)])
def test_silhouette_needs_two_clusters_and_a_pair(labels: Tensor):
    assert isnan(silhouette(cosines(0, 1, 180), labels))


def test_rounding_above_one_does_not_matter():
    similarity = cosines(0, 0, 90, 90) * (1 + 1e-7)
    assert silhouette(similarity.float(), ids(0, 0, 1, 1)) == pytest.approx(1, abs=1e-6)


# Whom to evaluate


def test_number_gives_a_fixed_sample_of_the_population():
    population = torch.arange(3, 103, 2)
    drawn = EvaluationPlan(clients=12).candidates(population, seed=5)
    assert len(drawn.unique()) == 12
    assert torch.isin(drawn, population).all()
    assert drawn.tolist() == sorted(drawn.tolist())
    assert torch.equal(drawn, EvaluationPlan(clients=12).candidates(population, seed=5))
    assert not torch.equal(drawn, EvaluationPlan(clients=12).candidates(population, seed=6))


@pytest.mark.parametrize("clients", ["assigned", "all", 4, 9])
def test_all_clients_are_scored_if_the_sample_is_not_smaller(clients: str | int):
    assert EvaluationPlan(clients=clients).candidates(ids(2, 5, 6, 9), seed=0).tolist() == [2, 5, 6, 9]


@pytest.mark.parametrize(("arguments", "message"), [({"every": 0}, "every is 0"), ({"clients": 0}, "clients is 0")])
def test_evaluation_of_nothing_is_refused(arguments: dict[str, int], message: str):
    with pytest.raises(InputError, match=f"evaluation.{message}"):
        EvaluationPlan(**arguments)
