"""Tests the agreement of found with true clusters, churn and silhouette (docs/ground_truth.md, check 25)."""

from math import isnan, nan

import pytest
import torch
from quadratic import ids
from torch import Tensor

from lit_cfl.clustering.cluster_scores import agreement, churn, silhouette


@pytest.mark.parametrize(
    ("found", "true", "expected"),
    [
        (ids(7, 7, 2, 0, 2, 7), ids(0, 0, 1, 2, 1, 0), (1, 1, 1, 1)),  # only renamed
        (ids(0, 0, 0, 0, 0), ids(0, 0, 0, 1, 1), (0, 0, 3 / 5, 3 / 5)),  # as by chance
        (ids(0, 1, 2, 3, 4), ids(0, 0, 0, 1, 1), (0, 0, 1, 2 / 5)),  # pure, but not matched
    ],
)
def test_agreement_of_special_clusters(found: Tensor, true: Tensor, expected: tuple[float, ...]):
    names = ("clusters/ari", "clusters/ami", "clusters/purity", "clusters/matched_accuracy")
    assert agreement(found, true) == pytest.approx(dict(zip(names, expected, strict=True)), abs=1e-12)


def test_agreement_by_hand():
    found = agreement(ids(0, 0, 0, 1, 1, 2), ids(0, 0, 1, 1, 1, 1))  # table: 2 1 / 0 2 / 0 1
    assert agreement(ids(), ids()) == {}
    assert found["clusters/purity"] == 5 / 6
    assert found["clusters/matched_accuracy"] == 4 / 6
    # pairs in one cluster: found and true 1 + 1, found 3 + 1, true 1 + 6, of 15 in total
    assert found["clusters/ari"] == pytest.approx((2 - 4 * 7 / 15) / ((4 + 7) / 2 - 4 * 7 / 15))


def test_mutual_information_is_what_is_beyond_chance():
    """Of the 6 ways to halve 4 clients, 2 agree (ln 2) and 4 share nothing (0), so ln 2 / 3 is expected by chance."""
    assert agreement(ids(0, 0, 1, 1), ids(0, 1, 0, 1))["clusters/ami"] == pytest.approx((0 - 1 / 3) / (1 - 1 / 3))


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
    for labels in (ids(0, 0, 0), ids(0, 1, 2)):  # it needs two clusters and a pair
        assert isnan(silhouette(similarity, labels))


def test_rounding_above_one_does_not_matter():
    similarity = cosines(0, 0, 90, 90) * (1 + 1e-7)
    assert silhouette(similarity.float(), ids(0, 0, 1, 1)) == pytest.approx(1, abs=1e-6)
