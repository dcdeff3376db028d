"""The rows that a run writes, by hand: clients of unequal size, later rounds, numbers that differ from one another."""

import math
from typing import Any

import pytest
import torch
from quadratic import ids

from lit_cfl.algorithms.base import Info, Similarity
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.evaluation import Evaluation, SplitScores
from lit_cfl.local_work import LocalCosts
from lit_cfl.rounds import Round, Traffic
from lit_cfl.runs.rows import client_rows, cluster_rows, costs_row, members, membership_arrays, snapshot, traffic_row
from lit_cfl.scores import CLASSIFIER

CLIENTS, INDEX = ids(1, 2, 4), ids(0, 0, 2)


def scored(clients: torch.Tensor = CLIENTS, index: torch.Tensor = INDEX) -> Evaluation:
    """Clients with 1, 3 and 2 test examples, of which 1, 1 and 2 are right; their losses add up to 4, 2 and 5."""
    count, right = ids(1, 3, 2)[: len(clients)], torch.tensor([[1.0, 1.0, 2.0]], dtype=torch.float64)[:, : len(clients)]
    loss = torch.tensor([4.0, 2.0, 5.0], dtype=torch.float64)[: len(clients)]
    test = SplitScores(CLASSIFIER, count, loss, right, count[None].double())
    return Evaluation(clients, index, {"test": test}, {}, full_coverage=True)


def test_score_and_loss_of_a_cluster_are_over_its_examples():
    known = {"parent": ids(-1, 0, 0), "u": torch.tensor([0.5, 0.25, 0.125])}
    assert list(cluster_rows(7, scored(), known)) == [
        {"round": 7, "cluster": 0, "size": 2, "n_test": 4, "accuracy": 0.5, "loss": 1.5, "u": 0.5},  # 2 of 4, 6 / 4
        {"round": 7, "cluster": 2, "size": 1, "n_test": 2, "accuracy": 1.0, "loss": 2.5, "parent": 0, "u": 0.125},
    ]


def test_a_cluster_that_is_no_model_of_the_algorithms_has_no_columns_of_its_own():
    (first, second) = cluster_rows(1, scored(), {"u": torch.tensor([0.5])})
    assert "u" in first
    assert "u" not in second


def test_traffic_of_a_round_stands_beside_that_of_all_rounds():
    nothing: Any = None
    third = Round(2, nothing, Info(down=3, up=2), nothing, Traffic(10, 7), ())
    assert traffic_row(third, 0.5) == {
        "traffic/models_down": 10,
        "traffic/models_up": 7,
        "traffic/mib": 8.5,
        "traffic/round_models_down": 3,
        "traffic/round_models_up": 2,
        "traffic/round_mib": 2.5,
    }


def test_local_work_is_that_of_all_rounds():
    nothing: Any = None
    third = Round(2, nothing, Info(), nothing, Traffic(), costs=LocalCosts(5, 40, 7))
    assert costs_row(third) == {"local/steps": 5, "local/examples": 40, "local/scored_examples": 7}


@pytest.fixture
def data() -> FederatedData:
    """Six clients with other numbers of training, validation and test examples; client 5 is a newcomer."""
    sizes = {"train": (5, 1, 4, 2, 3, 6), "validation": (1, 2, 0, 3, 1, 0), "test": (0, 1, 3, 2, 2, 1)}
    lists = {name: ClientIndex.from_sizes(torch.arange(sum(of)) % 8, ids(*of)) for name, of in sizes.items()}
    pool = Examples(torch.zeros(8, 1), torch.arange(8) % 2, 2)
    newcomers = torch.tensor([False] * 5 + [True])
    return FederatedData(pool, **lists, true_clusters=ids(1, 1, 0, -1, 0, 1), newcomers=newcomers)


def test_each_client_has_a_row_with_its_own_numbers(data: FederatedData):
    late = scored(ids(5), ids(3))
    found = [[None if isinstance(cell, float) and math.isnan(cell) else cell for cell in row]
             for row in client_rows(data, [scored(), late])]  # fmt: skip
    assert found == [  # client, found and true cluster, training, validation and test examples, score, loss, newcomer
        [0, None, 1, 5, 1, 0, None, None, 0],
        [1, 0, 1, 1, 2, 1, 1.0, 4.0, 0],
        [2, 0, 0, 4, 0, 3, pytest.approx(1 / 3), pytest.approx(2 / 3), 0],
        [3, None, None, 2, 3, 2, None, None, 0],
        [4, 2, 0, 3, 1, 2, 1.0, 2.5, 0],
        [5, 3, 1, 6, 0, 1, 1.0, 4.0, 1],
    ]


def test_members_are_the_clusters_of_the_clients_that_were_scored(data: FederatedData):
    kept = members(scored(), 6)
    assert kept.tolist() == [-1, 0, 0, -1, 2, -1]
    arrays = membership_arrays({2: kept, 5: kept + 1}, data)
    assert (arrays["rounds"].tolist(), arrays["true_cluster"].tolist()) == ([2, 5], data.true_clusters.tolist())
    assert arrays["cluster"].tolist() == [kept.tolist(), (kept + 1).tolist()]


def test_a_snapshot_has_found_and_true_clusters_of_the_clients_that_were_compared(data: FederatedData):
    nothing: Any = None
    compared = Similarity(ids(4, 1, 0), torch.tensor([[1.0, 0.5, -0.5], [0.5, 1.0, 0.0], [-0.5, 0.0, 1.0]]))
    found = snapshot(Round(0, nothing, Info(), data, Traffic(), ()), compared, ids(3, 0, 0))
    assert (found["clients"].tolist(), found["cluster"].tolist()) == ([4, 1, 0], [3, 0, 0])
    assert found["true_cluster"].tolist() == [0, 1, 1]
    assert found["similarity"].tolist() == compared.matrix.tolist()
