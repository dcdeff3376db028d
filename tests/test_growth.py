"""Tests how work and memory of rounds and scores grow with the number of clients."""

from collections.abc import Callable
from math import isnan
from typing import Any

import pytest
import torch
from quadratic import ids, quadratic_clients
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lit_cfl.algorithms import FedAvg, stocfl_clusters
from lit_cfl.algorithms.stocfl_clusters import StoCFLState, nearest_cluster
from lit_cfl.client_scores import SplitScores
from lit_cfl.clustering import products
from lit_cfl.clustering.cluster_scores import agreement, churn
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.shift import SwapAll
from lit_cfl.errors import InputError
from lit_cfl.evaluation import Evaluation
from lit_cfl.rounds import Cohorts, rounds
from lit_cfl.runs.rows import cluster_rows
from lit_cfl.scores import CLASSIFIER


class Computed(TorchDispatchMode):
    """Dispatch mode that counts the numbers that operations compute, and finds the largest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = self.largest = 0

    def __torch_dispatch__(self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.numbers += sum(sizes)
        self.largest = max([self.largest, *sizes])
        return made


def test_clusters_are_matched_up_to_four_million_pairs():
    clients = torch.arange(2000)
    assert churn(clients, clients.roll(7)) == 0  # the same clusters under other numbers
    assert churn(clients, clients // 3) == pytest.approx(1 - 667 / 2000)
    more = torch.arange(2001)
    assert isnan(churn(more, more))
    found = agreement(more, more)
    assert isnan(found["clusters/matched_accuracy"])
    assert (found["clusters/ari"], found["clusters/purity"]) == (1, 1)
    assert churn(torch.zeros_like(more), more) == pytest.approx(2000 / 2001)
    ring = torch.arange(400)  # each cluster gets half of the clients of the next
    assert churn(ring // 2, (ring + 1) // 2 % 200) == 0.5


def test_rows_of_clusters_take_the_same_work_for_each_client_however_many_clusters_there_are():
    work = []
    for clients in (torch.arange(100), torch.arange(800)):
        right = (clients % 4).double()[None]
        test = SplitScores(CLASSIFIER, torch.full_like(clients, 4), clients / 2, right, torch.full_like(right, 4.0))
        with Computed() as computed:
            rows = list(cluster_rows(1, Evaluation(clients, clients, {"test": test}, {}, True), {"u": clients / 2}))
        assert [row["size"] for row in rows] == [1] * len(clients)
        assert [rows[5][name] for name in ("cluster", "accuracy", "loss", "n_test", "u")] == [5, 0.25, 0.625, 4, 2.5]
        work.append(computed.numbers)
    assert work[1] < 9 * work[0]


def test_more_pairs_than_the_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(products, "machine_memory", lambda: 8 * 20**2)
    assert products.gram(torch.eye(20)).shape == (20, 20)
    with pytest.raises(InputError, match=r"comparing 21 clients with each other takes .*; use fewer clients, or an"):
        products.gram(torch.eye(21))


def test_clients_are_compared_with_as_many_clusters_some_at_a_time(monkeypatch: pytest.MonkeyPatch):
    draws = torch.Generator().manual_seed(2)
    psi, sums = torch.randn(300, 3, generator=draws), torch.randn(200, 3, generator=draws)
    counts = torch.ones(200, dtype=torch.int64)
    counts[ids(0, 7)] = 0  # two numbers are free
    nothing = torch.empty(0)
    state = StoCFLState(nothing, nothing, nothing, sums, counts, nothing, 0)
    cosines = torch.nn.functional.normalize(psi) @ torch.nn.functional.normalize(sums).T
    cosines[:, ids(0, 7)] = -torch.inf
    monkeypatch.setattr(stocfl_clusters, "_AT_ONCE", 64 * 201)
    monkeypatch.setattr(stocfl_clusters, "_MOST_KEPT", 300 * 200 - 1)
    with Computed() as computed:
        best, nearest, closeness = nearest_cluster(state, psi, keep=True)
    assert computed.largest <= 64 * 201
    assert closeness is None  # such large matrices are not kept
    assert torch.equal(nearest, cosines.argmax(1))
    torch.testing.assert_close(best, cosines.max(1).values)
    monkeypatch.setattr(stocfl_clusters, "_MOST_KEPT", 300 * 200)
    torch.testing.assert_close(nearest_cluster(state, psi, keep=True)[2], cosines)


def test_rounds_look_up_all_clients_only_where_a_shift_asks_who_is_warm(monkeypatch: pytest.MonkeyPatch):
    class Clients:
        def at(self, round, data):
            return quadratic_clients(10).at(round)

    looked_up, serve, data = list[int](), FedAvg.serve, Digits(num_clients=10).federated(0)
    monkeypatch.setattr(FedAvg, "serve", lambda *given: looked_up.append(len(given[2])) or serve(*given))
    for participants, expected in (("all", []), ("warm", [10, 10, 10])):
        shift = SwapAll(probability=0.5, participants=participants)
        list(rounds(FedAvg(), Clients(), data, Cohorts(3), seed=0, num_rounds=3, shifts=[shift]))
        assert looked_up == expected
