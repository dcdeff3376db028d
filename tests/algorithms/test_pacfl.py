"""Tests PACFL on clients whose subspaces have known angles."""

import math

import pytest
import torch
from few_rounds import begin
from quadratic import Clients, clients_at, f64, ids, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms import PACFL
from lit_cfl.clustering import agglomerate
from lit_cfl.clustering.subspaces import left_singular_vectors, pad_bases, subspace_angles
from lit_cfl.errors import Notice


def at_angle(degrees: float, length: float = 1.0) -> list[float]:
    return [length * math.cos(math.radians(degrees)), length * math.sin(math.radians(degrees)), 0.0]


def directions(*degrees: float, sizes: list[int] | None = None) -> Clients:
    """Makes one client per angle; all its examples lie along one direction in a plane, at this angle."""
    rows = [at_angle(angle, 1.0 + k) for k, angle in enumerate(degrees)]
    return clients_at(*rows, sizes=sizes or range(2, 2 + len(degrees)), rate=0.25, steps=3)


def assert_angles(bases: Tensor, others: Tensor, which: str, expected: Tensor) -> None:
    assert_close(subspace_angles(bases, others, which), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize(("which", "expected"), [("smallest", 0.0), ("sum", 30.0)])
def test_planes_that_share_a_line_and_are_turned_around_it_by_30_degrees(which: str, expected: float):
    flat, turned = f64([1, 0, 0], [0, 1, 0]), f64([1, 0, 0], [0, math.cos(math.pi / 6), math.sin(math.pi / 6)])
    assert_angles(flat[None], turned[None], which, f64([expected]))
    slanted = f64(at_angle(20), at_angle(65))  # another, not orthonormal basis of the flat plane
    assert_angles(flat[None], slanted[None], which, f64([0.0]))


@pytest.mark.parametrize("which", ["smallest", "sum"])
def test_a_smaller_subspace_has_as_many_angles_as_it_has_dimensions_and_one_without_any_is_at_90(which: str):
    line, plane, nothing = f64(at_angle(40)), f64([1, 0, 0], [0, 0, 1]), torch.zeros(1, 3, dtype=torch.float64)
    bases = pad_bases([line, plane, nothing])
    assert_angles(bases, bases, which, f64([0, 40, 90], [40, 0, 90], [90, 90, 90]))


def test_many_subspaces_are_compared_some_at_a_time(monkeypatch: pytest.MonkeyPatch):
    bases = torch.randn(7, 2, 5, generator=rng(), dtype=torch.float64)
    whole = subspace_angles(bases, bases[:4], "sum")
    for most in (5, 40):  # less than the 16 products of one subspace, and those of two
        monkeypatch.setattr("lit_cfl.clustering.subspaces._PAIRS_AT_ONCE", most)
        assert_close(subspace_angles(bases, bases[:4], "sum"), whole)


def test_first_singular_vectors_are_those_of_the_largest_values_and_no_more_than_the_rank():
    examples = f64([0, 3, 0], [0, -5, 0], [2, 0, 0], [0, 0, 0])
    assert_close(left_singular_vectors(examples, 1).abs(), f64([0, 1, 0]))
    assert_close(left_singular_vectors(examples, 3).abs(), f64([0, 1, 0], [1, 0, 0]))
    assert left_singular_vectors(0 * examples, 3).shape == (0, 3)
    assert left_singular_vectors(torch.ones(4, 1, 2, 2), 2).shape == (1, 4)


def test_average_linkage_of_the_published_code_is_weighted():
    distances = f64([0, 1, 5, 10], [1, 0, 5, 10], [5, 5, 0, 7], [10, 10, 7, 0])
    assert agglomerate(distances, linkage="average", threshold=8.75).tolist() == [0, 0, 0, 1]  # (10 + 10 + 7) / 3 = 9
    assert agglomerate(distances, linkage="weighted", threshold=8.75).tolist() == [0, 0, 0, 0]  # (10 + 7) / 2 = 8.5


@pytest.mark.parametrize(
    ("threshold", "expected", "noted"),
    [
        (5, [0, 1, 2, 3, 0, 4], "PACFL has 5 clusters of 6 clients"),
        (10, [0, 1, 0, 1, 0, 2], None),
        (91, [0, 0, 0, 0, 0, 0], "PACFL has 1 cluster of 6 clients"),
        (1, [0, 1, 2, 3, 0, 4], "6 degrees to the nearest, in the median, and threshold is 1"),
    ],
)
def test_clients_at_known_angles_become_the_clusters_of_the_threshold(threshold, expected, noted, recwarn):
    work = directions(0, 50, 6, 58, 180, 90)  # 180 degrees is the same line as 0
    assert begin(PACFL(threshold=threshold), work).index.tolist() == expected
    notices = [str(one.message) for one in recwarn if one.category is Notice]
    assert notices == [] if noted is None else noted in notices[0]


@pytest.mark.parametrize(
    ("linkage", "degrees", "apart"),
    [
        ("single", (0, 44, 60, 32, 20), [[32, 12], [20, 24]]),
        ("complete", (0, 40, 75, 33, 37), [[33, 42], [37, 38]]),
        ("average", (0, 44, 60, 32, 20), [[32, 20], [20, 32]]),
        ("weighted", (0, 44, 60, 32, 20), [[32, 20], [20, 32]]),
    ],
)
def test_newcomers_join_the_cluster_at_the_smallest_distance_by_the_linkage(linkage: str, degrees, apart):
    work = directions(*degrees)
    work.population = ids(0, 1, 2)
    algorithm = PACFL(linkage=linkage, threshold=39)
    state = begin(algorithm, work)
    assert state.index.tolist() == [0, 1, 1, -1, -1]
    work.label_counts = work.label_counts.flip(1)  # other labels, which placing does not use
    for place in (algorithm.place, algorithm.place_unlabelled):
        placed, info = place(state, ids(4, 3), work, rng())
        assert_close(-info.closeness, f64(*apart[::-1]), atol=2e-6, rtol=0)
        assert placed.index[[4, 3]].tolist() == info.closeness.argmax(1).tolist()
        assert (info.down, info.up) == (0, 0)


def test_client_whose_examples_are_all_zero_is_alone():
    work = directions(0, 50, 6)
    work.centers[1] = 0
    state = begin(PACFL(threshold=60), work)
    assert state.index.tolist() == [0, 1, 0]
    # 90 degrees from both clusters: the first one wins
    assert PACFL().place(state, ids(1), work, rng())[0].index[1] == 0
