"""Tests which models an evaluation scores: each client's current model, and the global model."""

from dataclasses import replace
from math import isnan

import pytest
import torch
from quadratic import ids
from test_evaluation import ParityEngine

from lit_cfl.algorithms.base import Algorithm, Assignment, Info
from lit_cfl.client_scores import SplitScores
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.evaluation import Evaluation, EvaluationPlan, evaluate
from lit_cfl.parameters import ParameterLayout
from lit_cfl.scores import CLASSIFIER

LISTS = [ids(0, 1, 2), ids(1, 3), ids(4), ids(3, 5)]  # the label of an example is its number mod 2


class Served(Algorithm):
    """Algorithm whose state is the `Assignment` that it serves; clients without a model get model 0."""

    def init(self, work, rng):
        raise NotImplementedError

    def round(self, state, cohort, work, rng):
        raise NotImplementedError

    def place(self, state, clients, work, rng):
        return replace(state, index=state.index.index_fill(0, clients, 0)), Info()

    def serve(self, state, clients):
        return replace(state, index=state.index[clients])


class Engine(ParityEngine):
    """Engine in which model m predicts m mod 2 for every example."""

    seed, layout = 3, ParameterLayout.of_layers({"fc1": 1})

    def at(self, round: int, data: FederatedData) -> None:
        return None


def evaluation(
    index: torch.Tensor,
    *,
    before: torch.Tensor | None = None,
    validation: ClientIndex = ClientIndex.empty(4),
    truth: torch.Tensor = ids(0, 0, 1, 1),
    **options: object,
) -> Evaluation:
    """Evaluates clients of the models 0 and 1, with model 1 as the global model."""
    models, none = torch.tensor([[0.0], [1.0]]), ClientIndex.empty(4)
    pool = Examples(torch.zeros(6, 1), torch.arange(6) % 2, 2)
    data = FederatedData(pool, none, validation, ClientIndex.from_lists(LISTS), truth)
    state = Assignment(models, index, {"global": torch.tensor([1.0])})
    return evaluate(Served(), state, Engine(), data, EvaluationPlan(**options), round=0, before=before)


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


# Ditto copies a model for each client, which takes gigabytes
def test_models_are_collected_once_for_an_evaluation(monkeypatch):
    asked, serve = [], Served.serve
    monkeypatch.setattr(Served, "serve", lambda *given: asked.append(given) or serve(*given))
    found = evaluation(ids(1, -1, 0, 0), clients=2)
    assert len(asked) == 1
    assert (found.metrics["clusters/assigned"], len(found.clients)) == (3, 2)


def test_agreement_and_churn_are_of_the_clients_that_were_scored():
    found = evaluation(ids(1, 1, 0, -1), before=ids(0, -1, 1, 0))
    assert found.metrics["clusters/purity"] == 1
    assert found.metrics["clusters/ari"] == 1
    assert found.metrics["clusters/churn"] == 0  # 0 and 2 were in different clusters and still are
    assert isnan(evaluation(ids(1, 1, 0, -1), before=ids(-1, -1, -1, 0)).metrics["clusters/churn"])


def test_worst_tenth_is_a_tenth_of_the_clients_that_have_examples():
    # 15 of 20 clients have examples: a tenth is one client, not two
    correct, count = ids(*[0, 4], *[4] * 13, *[0] * 5), ids(*[4] * 15, *[0] * 5)
    found = SplitScores(CLASSIFIER, count, torch.zeros(20), correct[None].double(), count[None].double()).metrics(
        "test"
    )
    assert found["test/worst10_accuracy"] == 0
    assert found["test/mean_accuracy"] == pytest.approx(14 / 15)


def test_each_split_is_scored_on_its_own_examples():
    held = ClientIndex.from_lists([ids(0), ids(3, 5, 1), ids(), ids(4, 2)])
    found = evaluation(ids(1, 1, 0, 0), validation=held)
    assert found.scores["validation"].sums.tolist() == [[0, 3, 0, 2]]
    assert found.scores["validation"].count.tolist() == [1, 3, 0, 2]
    assert found.scores["test"].sums.tolist() == [[1, 2, 1, 0]]
    assert found.metrics["val/weighted_accuracy"] == 5 / 6
    assert found.metrics["val/global_accuracy"] == 3 / 6
    assert found.metrics["test/weighted_accuracy"] == 4 / 8


def test_agreement_is_reported_only_if_the_true_cluster_of_every_scored_client_is_known():
    unknown = ids(0, 0, -1, 1)
    assert "clusters/purity" not in evaluation(ids(1, 1, 0, 0), truth=unknown).metrics
    assert evaluation(ids(1, 1, -1, 0), truth=unknown).metrics["clusters/purity"] == 1


def test_assigned_clients_are_counted_in_the_whole_population_though_a_sample_is_scored():
    found = evaluation(ids(1, -1, 0, 1), clients=2)
    assert (found.metrics["clusters/assigned"], found.metrics["clusters/unobserved"]) == (3, 1)
    assert found.metrics["clients/evaluated"] <= 2


def test_clusters_that_nobody_uses_are_not_counted():
    assert [evaluation(index).metrics["clusters/count"] for index in (ids(1, 1, 1, 1), ids(0, 1, -1, 0))] == [1, 2]
