"""Tests scores over clients, and which models an evaluation scores (docs/ground_truth.md, check 25)."""

from dataclasses import replace
from math import isnan, nan

import pytest
import torch
from quadratic import ids
from torch import Tensor

from lit_cfl.algorithms import Assignment, FedAvg, Info
from lit_cfl.client_scores import SplitScores, score_clients
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.scorer import Outcomes
from lit_cfl.errors import Notice
from lit_cfl.evaluation import Evaluation, EvaluationPlan, evaluate
from lit_cfl.parameters import ParameterLayout
from lit_cfl.scores import CLASSIFIER


def scores(correct: list[int], count: list[int], loss: list[float] | None = None) -> SplitScores:
    sums, weights = (torch.tensor([part]).double() for part in (correct, count))
    losses = torch.tensor(loss or [0.0] * len(count)).double()
    return SplitScores(CLASSIFIER, torch.tensor(count), losses, sums, weights)


def test_weighted_accuracy_is_right_answers_over_examples():
    assert scores([90, 10], [100, 10]).weighted_means() == {"accuracy": 100 / 110}  # in float64, without rounding
    assert isnan(scores([0], [0]).weighted_means()["accuracy"])


def test_metrics_by_hand():
    metrics = scores([1, 6, 4], [2, 8, 4], [1.0, 2.5, 7.0]).metrics("val")  # accuracies .5, .75, 1
    assert scores([0, 1, 6, 0, 4], [0, 2, 8, 0, 4], [0.0, 1.0, 2.5, 0.0, 7.0]).metrics("val") == metrics  # two idle
    assert metrics == {
        "val/weighted_accuracy": 11 / 14,
        "val/mean_accuracy": 0.75,
        "val/std_accuracy": pytest.approx((0.125 / 3) ** 0.5),  # population standard deviation
        "val/worst10_accuracy": 0.5,
        "val/loss": 0.75,
    }


def test_no_examples_give_no_metrics_and_a_single_client_no_spread():
    assert scores([0, 0], [0, 0]).metrics("test") == scores([], []).metrics("test") == {}
    assert scores([3], [4]).metrics("test")["test/std_accuracy"] == 0
    dead = scores([0, 0], [2, 2], [nan, 1.0]).metrics("val")  # predicts nothing: its spread must not win
    assert (isnan(dead["val/std_accuracy"]), dead["val/weighted_accuracy"]) == (True, 0)


@pytest.mark.parametrize(
    ("correct", "count", "expected"),
    [
        ([4, 1, 3, 2, 5], [5] * 5, 1 / 5),  # at least one client
        ([20] * 12 + [4] + [20] * 11 + [7], [20] * 25, 11 / 40),  # two of 25 clients
        ([2, 0, 1] + [4] * 18, [4, 0, 4] + [4] * 18, 3 / 8),  # two of the 20 clients that have examples
        ([1] + [4] * 14 + [0] * 5, [4] * 15 + [0] * 5, 1 / 4),  # one of the 15
    ],
)
def test_worst_tenth_is_the_mean_of_the_worst_with_examples(correct: list[int], count: list[int], expected: float):
    assert scores(correct, count).metrics("test")["test/worst10_accuracy"] == pytest.approx(expected)


class ParityEngine:
    """Engine in which model m predicts m mod 2; example e has label e mod 2 and loss m + e / 10."""

    scores, seed, layout = CLASSIFIER, 3, ParameterLayout.of_layers({"fc1": 1})
    noted_not_finite = False

    def __init__(self) -> None:
        self.calls: list[tuple[list[float], list[int]]] = []

    def at(self, round: int, data: FederatedData) -> None: ...

    def outcomes_of_each(self, models: Tensor, which: Tensor, index: Tensor, data: FederatedData, named: object):
        model = models[which, 0]
        self.calls.append((model.tolist(), index.tolist()))
        right = (index % 2 == model % 2)[None].double()
        return Outcomes((model + index / 10).double(), right, torch.ones_like(right))


def shared_examples() -> FederatedData:
    held = ClientIndex.from_lists([ids(0, 1, 2), ids(), ids(2, 5), ids(3, 3, 4)])
    none = ClientIndex.from_lists([ids()] * 4)
    return FederatedData(Examples(torch.zeros(6, 1), torch.arange(6) % 2, 2), none, none, held, torch.zeros(4))


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
    assert "example 3 of client 3's test data is nan under its model (2 of 6 examples" in str(note.message)


def test_example_that_clients_of_a_model_share_is_run_once():
    engine = ParityEngine()
    score_clients(engine, torch.tensor([[0.0], [1.0]]), ids(0, 0, 1), ids(0, 2, 3), shared_examples(), "test")
    assert engine.calls == [([0.0] * 4 + [1.0] * 2, [0, 1, 2, 5, 3, 4])]


def test_number_gives_a_fixed_sample_of_the_population():
    population = torch.arange(3, 103, 2)
    drawn = EvaluationPlan(clients=12).candidates(population, seed=5)
    assert len(drawn.unique()) == 12
    assert torch.isin(drawn, population).all()
    assert drawn.tolist() == sorted(drawn.tolist())
    assert torch.equal(drawn, EvaluationPlan(clients=12).candidates(population, seed=5))
    assert not torch.equal(drawn, EvaluationPlan(clients=12).candidates(population, seed=6))
    for clients in ("assigned", "all", 4, 9):  # all, since the sample is not smaller
        assert EvaluationPlan(clients=clients).candidates(ids(2, 5, 6, 9), seed=0).tolist() == [2, 5, 6, 9]


# Which models are scored: the current one of each client, and the global model

LISTS = [ids(0, 1, 2), ids(1, 3), ids(4), ids(3, 5)]  # the label of an example is its number mod 2


class Served(FedAvg):
    """Algorithm whose state is the `Assignment` that it serves; clients without a model get model 0."""

    def place(self, state, clients, work, rng):
        return replace(state, index=state.index.index_fill(0, clients, 0)), Info()

    def serve(self, state, clients):
        return replace(state, index=state.index[clients])


def evaluation(index, *, before=None, validation=ClientIndex.empty(4), truth=ids(0, 0, 1, 1), **options) -> Evaluation:
    """Evaluates clients of the models 0 and 1, with model 1 as the global model."""
    models, none = torch.tensor([[0.0], [1.0]]), ClientIndex.empty(4)
    pool = Examples(torch.zeros(6, 1), torch.arange(6) % 2, 2)
    data = FederatedData(pool, none, validation, ClientIndex.from_lists(LISTS), truth)
    state = Assignment(models, index, {"global": torch.tensor([1.0])})
    return evaluate(Served(), state, ParityEngine(), data, EvaluationPlan(**options), round=0, before=before)


def test_client_is_scored_with_the_model_it_has_now_not_with_the_one_of_the_evaluation_before():  # C12
    found = evaluation(ids(1, 1, 0, 0), before=ids(0, 0, 0, 1))
    assert found.index.tolist() == [1, 1, 0, 0]
    assert found.scores["test"].sums.tolist() == [[1, 2, 1, 0]]
    assert found.metrics["test/weighted_accuracy"] == 4 / 8
    assert found.metrics["clusters/churn"] == pytest.approx(1 / 4)  # clients 0 and 1 moved together, and 3 came to 2


def test_global_accuracy_is_that_of_the_global_model_on_the_clients_scored():
    found = evaluation(ids(-1, 1, 0, 0))
    assert found.clients.tolist() == [1, 2, 3]
    assert found.scores["test"].sums.tolist() == [[2, 1, 0]]  # correct answers of the clusters' models
    assert found.metrics["test/weighted_accuracy"] == 3 / 5
    # all are right except example 4; under model 0, only example 4 would be right
    assert found.metrics["test/global_accuracy"] == 4 / 5


def test_clients_without_a_model_are_counted_and_scored_only_where_all_are_asked_for():
    found = evaluation(ids(1, -1, 0, -1))
    assert (found.metrics["clusters/assigned"], found.metrics["clusters/unobserved"]) == (2, 2)
    assert (found.metrics["clients/evaluated"], found.full_coverage) == (2, False)
    placed = evaluation(ids(1, -1, 0, -1), clients="all")
    assert placed.index.tolist() == [1, 0, 0, 0]
    assert placed.scores["test"].sums.tolist() == [[1, 0, 1, 0]]
    assert (placed.metrics["clusters/assigned"], placed.metrics["clusters/unobserved"]) == (2, 2)
    assert (placed.metrics["clients/evaluated"], placed.full_coverage) == (4, True)


def test_models_are_collected_once_and_counted_in_the_whole_population_though_a_sample_is_scored(monkeypatch):
    asked, serve = [], Served.serve
    monkeypatch.setattr(Served, "serve", lambda *given: asked.append(given) or serve(*given))
    found = evaluation(ids(1, -1, 0, 0), clients=2)
    assert len(asked) == 1  # Ditto copies a model for each client, which takes gigabytes
    assert (found.metrics["clusters/assigned"], found.metrics["clusters/unobserved"]) == (3, 1)
    assert found.metrics["clients/evaluated"] == len(found.clients) <= 2


def test_agreement_churn_and_number_of_clusters_are_of_the_clients_that_were_scored():
    found = evaluation(ids(1, 1, 0, -1), before=ids(0, -1, 1, 0))
    assert found.metrics["clusters/purity"] == 1
    assert found.metrics["clusters/ari"] == 1
    assert found.metrics["clusters/churn"] == 0  # 0 and 2 were in different clusters and still are
    assert isnan(evaluation(ids(1, 1, 0, -1), before=ids(-1, -1, -1, 0)).metrics["clusters/churn"])
    unknown = ids(0, 0, -1, 1)  # the true cluster of client 2: no agreement if it is scored
    assert "clusters/purity" not in evaluation(ids(1, 1, 0, 0), truth=unknown).metrics
    assert evaluation(ids(1, 1, -1, 0), truth=unknown).metrics["clusters/purity"] == 1
    assert [evaluation(index).metrics["clusters/count"] for index in (ids(1, 1, 1, 1), ids(0, 1, -1, 0))] == [1, 2]


def test_each_split_is_scored_on_its_own_examples():
    held = ClientIndex.from_lists([ids(0), ids(3, 5, 1), ids(), ids(4, 2)])
    found = evaluation(ids(1, 1, 0, 0), validation=held)
    assert found.scores["validation"].sums.tolist() == [[0, 3, 0, 2]]
    assert found.scores["validation"].count.tolist() == [1, 3, 0, 2]
    assert found.scores["test"].sums.tolist() == [[1, 2, 1, 0]]
    assert found.metrics["val/weighted_accuracy"] == 5 / 6
    assert found.metrics["val/global_accuracy"] == 3 / 6
    assert found.metrics["test/weighted_accuracy"] == 4 / 8
