"""Tests a run's rows and totals, and comparisons over shared clients, against hand-worked values."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from quadratic import ids

from lit_cfl.algorithms.base import Info, Similarity
from lit_cfl.client_scores import SplitScores
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.data.shift import ShiftLog
from lit_cfl.evaluation import Evaluation
from lit_cfl.local_work import LocalCosts
from lit_cfl.metric_names import SHIFTS
from lit_cfl.rounds import Round, Traffic
from lit_cfl.run_totals import RunTotals, costs_row, traffic_row
from lit_cfl.runs import rows as rows_of_runs
from lit_cfl.runs.rows import client_rows, cluster_rows, membership_arrays, shift_rows, snapshot
from lit_cfl.runs.shared_clients import ScoredClients, compare_shared, read_scored
from lit_cfl.scores import CLASSIFIER, Score

CLIENTS, INDEX = ids(1, 2, 4), ids(0, 0, 2)


def scored(clients: torch.Tensor = CLIENTS, index: torch.Tensor = INDEX) -> Evaluation:
    """Makes scores of clients with 1, 3 and 2 test examples: 1, 1 and 2 of them right, summed losses 4, 2 and 5."""
    count, right = ids(1, 3, 2)[: len(clients)], torch.tensor([[1.0, 1.0, 2.0]], dtype=torch.float64)[:, : len(clients)]
    loss = torch.tensor([4.0, 2.0, 5.0], dtype=torch.float64)[: len(clients)]
    test = SplitScores(CLASSIFIER, count, loss, right, count[None].double())
    return Evaluation(clients, index, {"test": test}, {}, full_coverage=True)


def test_score_and_loss_of_a_cluster_are_over_its_examples():
    known = {"parent": ids(-1, 0, 0), "u": torch.tensor([0.5, 0.25, 0.125])}
    assert list(cluster_rows(7, scored(), known)) == [
        # 2 of 4 right, mean loss 6 / 4
        {"round": 7, "cluster": 0, "size": 2, "n_test": 4, "accuracy": 0.5, "loss": 1.5, "u": 0.5},
        {"round": 7, "cluster": 2, "size": 1, "n_test": 2, "accuracy": 1.0, "loss": 2.5, "parent": 0, "u": 0.125},
    ]

    (first, second) = cluster_rows(1, scored(), {"u": torch.tensor([0.5])})  # cluster 2 has no model
    assert "u" in first
    assert "u" not in second


def test_traffic_and_local_work_of_a_round_and_of_all_rounds():
    third = Round(2, None, Info(down=3, up=2), None, Traffic(10, 7), (), costs=LocalCosts(5, 40, 7))
    assert traffic_row(third, 0.5) == {
        "traffic/models_down": 10,
        "traffic/models_up": 7,
        "traffic/mib": 8.5,
        "traffic/round_models_down": 3,
        "traffic/round_models_up": 2,
        "traffic/round_mib": 2.5,
    }
    assert costs_row(third) == {"local/steps": 5, "local/examples": 40, "local/scored_examples": 7}


@pytest.fixture
def data() -> FederatedData:
    """Makes six clients with different numbers of examples per split; client 5 is a newcomer."""
    sizes = {"train": (5, 1, 4, 2, 3, 6), "validation": (1, 2, 0, 3, 1, 0), "test": (0, 1, 3, 2, 2, 1)}
    lists = {name: ClientIndex.from_sizes(torch.arange(sum(of)) % 8, ids(*of)) for name, of in sizes.items()}
    pool = Examples(torch.zeros(8, 1), torch.arange(8) % 2, 2)
    newcomers = torch.tensor([False] * 5 + [True])
    return FederatedData(pool, **lists, true_clusters=ids(1, 1, 0, -1, 0, 1), newcomers=newcomers)


def test_each_client_has_a_row_with_its_own_numbers(data: FederatedData):
    late = scored(ids(5), ids(3))
    found = [[None if isinstance(cell, float) and math.isnan(cell) else cell for cell in row]
             for block in client_rows(data, [scored(), late]) for row in block]  # fmt: skip
    assert found == [  # client, found and true cluster, training, validation and test examples, score, loss, newcomer
        [0, None, 1, 5, 1, 0, None, None, 0],
        [1, 0, 1, 1, 2, 1, 1.0, 4.0, 0],
        [2, 0, 0, 4, 0, 3, pytest.approx(1 / 3), pytest.approx(2 / 3), 0],
        [3, None, None, 2, 3, 2, None, None, 0],
        [4, 2, 0, 3, 1, 2, 1.0, 2.5, 0],
        [5, 3, 1, 6, 0, 1, 1.0, 4.0, 1],
    ]


def test_members_are_the_clusters_of_the_clients_that_were_scored(data: FederatedData):
    totals = RunTotals()
    totals.take(replace(after(), data=data), scored(), every=1)
    kept = totals.memberships_with(1)[1]
    assert kept.tolist() == [-1, 0, 0, -1, 2, -1]
    arrays = membership_arrays({2: kept, 5: kept + 1}, data)
    assert (arrays["rounds"].tolist(), arrays["true_cluster"].tolist()) == ([2, 5], data.true_clusters.tolist())
    assert arrays["cluster"].tolist() == [kept.tolist(), (kept + 1).tolist()]


def test_a_client_that_a_shift_changed_has_a_row_in_which_the_unknown_is_empty():
    moved = ShiftLog("SwapAll", ids(4, 2), ids(0, -1), ids(7, 3), ids(-1, 0), ids(2, -1))
    rows = [list(row.values()) for row in shift_rows(5, [moved])]
    assert rows == [[5, "SwapAll", 4, 0, 7, None, 2], [5, "SwapAll", 2, None, 3, 0, None]]
    assert list(next(shift_rows(5, [moved]))) == list(SHIFTS)


def of_clients(n: int) -> Any:
    return SimpleNamespace(data=SimpleNamespace(true_clusters=torch.arange(n) % 2))


def test_snapshot_places_clients_by_their_similarity():
    angles = torch.tensor([0.0, 0.1, 1.5, 1.9])
    matrix = torch.cos(angles[:, None] - angles)
    found = snapshot(of_clients(5), Similarity(ids(4, 1, 0, 2), matrix), ids(3, 0, 1, 1))
    assert (found["clients"].tolist(), found["cluster"].tolist()) == ([4, 1, 0, 2], [3, 0, 1, 1])
    assert found["true_cluster"].tolist() == [0, 1, 0, 0]
    assert found["similarity"] == pytest.approx(matrix.numpy(), abs=0.001)
    plane = found["projection"].astype(float)
    # distances are exact, since the angles lie in a plane
    apart = np.linalg.norm(plane[:, None] - plane, axis=2)
    assert apart == pytest.approx(torch.sqrt(2 - 2 * matrix).numpy(), abs=0.01)
    assert all(axis[abs(axis).argmax()] > 0 for axis in plane.T)
    one = snapshot(of_clients(1), Similarity(torch.arange(1), torch.eye(1)), torch.zeros(1))
    assert one["projection"].shape == (1, 2)


def test_snapshot_of_many_clients_has_clients_of_each_true_cluster(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rows_of_runs, "_MAX_SNAPSHOT_CLIENTS", 20)
    found = torch.arange(40) // 20
    one = snapshot(of_clients(40), Similarity(torch.arange(40), torch.ones(40, 40)), found)
    assert (len(one["clients"]), int(one["compared"])) == (20, 40)
    assert np.bincount(one["true_cluster"]).min() > 4  # clients 0, 2, 4, ... are all in true cluster 0
    assert one["cluster"].tolist() == found[one["clients"]].tolist()
    assert (np.diff(one["clients"]) > 0).all()


def moves(*examples: int) -> ShiftLog:
    """Makes the log of a swap that changed these numbers of examples, one number per client."""
    nobody = torch.full((len(examples),), -1)
    return ShiftLog("swap", torch.arange(len(examples)), nobody, ids(*examples), nobody, nobody)


def after(*moved: ShiftLog, skipped: int = 0) -> Round:
    return Round(0, None, Info(skipped=skipped), None, Traffic(), moved)  # state and data are not used


def test_shifts_and_skipped_clients_are_counted_between_evaluations():
    totals = RunTotals()
    totals.count(after(moves(3, 4), moves(5), skipped=2))
    totals.count(after(moves(10), skipped=1))
    assert totals.row(shifting=True) == {
        "clients/skipped": 3,
        "clusters/silhouette": None,
        "shift/clients": 4,
        "shift/examples": 22,
    }
    assert totals.row(shifting=False) == {"clients/skipped": 0, "clusters/silhouette": None}


def test_a_checkpoint_holds_what_was_carried_then():
    kept = {"members": ids(0, 1), "memberships": {0: ids(0, 1)}, "best": {"mae": 0.5}}
    totals = RunTotals(**kept, silhouette=0.25, skipped=3, compared=7)
    content = totals.content()
    totals.memberships[10] = ids(1, 1)
    totals.best["mae"] = 0.25
    totals.count(after(moves(1)))
    restored = RunTotals.restore(content | {"round": 7})
    assert list(restored.memberships) == [0]
    assert (restored.best, restored.silhouette, restored.skipped, restored.compared) == ({"mae": 0.5}, 0.25, 3, 7)
    assert restored.shifted == [0, 0]


def clients(**values: float) -> ScoredClients:
    """Makes scored clients from keywords `k1`, `k2`, ...; client k has k examples and the given score."""
    numbers = [int(name[1:]) for name in values]
    return ScoredClients(dict(zip(numbers, numbers, strict=True)), dict(zip(numbers, values.values(), strict=True)))


NAMES = ("test/weighted_accuracy", "test/mean_accuracy", "test/worst10_accuracy")
MANY = {f"k{number}": number / 100 for number in range(1, 21)}


@pytest.mark.parametrize(
    ("pairs", "number", "mine", "others"),
    [
        (  # by clients 2 and 4
            [(clients(k1=0.5, k2=0.0, k4=1.0), clients(k2=1.0, k3=0.9, k4=0.25))],
            2,
            ((2 * 0.0 + 4 * 1.0) / 6, 0.5, 0.0),
            ((2 * 1.0 + 4 * 0.25) / 6, 0.625, 0.25),
        ),
        (  # a mean over seeds is of each seed's own shared clients
            [(clients(k1=0.5), clients(k1=1.0, k2=0.0)), (clients(k3=0.0, k4=1.0), clients(k3=0.5, k4=0.25))],
            1.5,
            ((0.5 + 4 / 7) / 2, 0.5, 0.25),
            ((1.0 + 2.5 / 7) / 2, (1.0 + 0.375) / 2, (1.0 + 0.25) / 2),
        ),
        ([(clients(k1=0.5), clients(k2=0.5))], 0, (None,) * 3, (None,) * 3),
    ],
)
def test_figures_are_over_the_clients_of_both(pairs: list[Any], number: float, mine: Any, others: Any):
    found = compare_shared(pairs)
    assert found.clients == number
    for figures, expected in ((found.mine, mine), (found.others, others)):
        assert figures == pytest.approx(dict(zip(NAMES, expected, strict=True)))


def test_same_clients_need_no_figures_of_their_own():
    assert compare_shared([(clients(k1=0.5, k2=0.0), clients(k1=0.1, k2=0.2))]) is None


def test_the_worst_tenth_of_twenty_clients_is_two_and_of_an_error_the_largest():
    fewer = {name: value for name, value in MANY.items() if name != "k20"}
    for these, worst in ((MANY, 0.015), (fewer, 0.01)):
        found = compare_shared([(clients(**these), clients(**these, k30=0.0))])
        assert found.mine["test/worst10_accuracy"] == pytest.approx(worst)
    mine = replace(clients(k1=0.5, k2=3.0), by_size=False)  # weights other than sizes are not guessed
    found = compare_shared([(mine, clients(k1=1.0, k2=2.0, k3=9.0))], Score("mae", higher_is_better=False))
    assert found.mine == {"test/weighted_mae": None, "test/mean_mae": 1.75, "test/worst10_mae": 3.0}
    assert found.others == {"test/weighted_mae": 5 / 3, "test/mean_mae": 1.5, "test/worst10_mae": 2.0}


def test_newcomers_and_clients_without_a_score_do_not_count(tmp_path: Path):
    rows = ["0,1,5,0.5,0", "1,,5,,0", "2,1,5,0.5,1", "3,1,0,,0", "4,1,15,0.1,0"]
    (tmp_path / "clients.csv").write_text("\n".join(["client,cluster,n_test,accuracy,newcomer", *rows]) + "\n")
    expected = ScoredClients({0: 5, 4: 15}, {0: 0.5, 4: 0.1})
    assert read_scored(tmp_path, {"test/weighted_accuracy": (5 * 0.5 + 15 * 0.1) / 20}) == expected
    for other in (0.3, None):  # the mean is weighted by tokens, or the score is infinite
        assert read_scored(tmp_path, {"test/weighted_accuracy": other}) == replace(expected, by_size=False)
