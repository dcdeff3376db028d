"""Tests PACFL on clients whose subspaces have known angles."""

import math
from dataclasses import replace

import pytest
import torch
from quadratic import ids, quadratic_clients, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms import PACFL, FedAvg
from lit_cfl.algorithms.pacfl import PACFLState
from lit_cfl.clustering import agglomerate
from lit_cfl.clustering.subspaces import left_singular_vectors, pad_bases, subspace_angles
from lit_cfl.errors import InputError, Notice
from lit_cfl.testing import QuadraticWork

COHORTS = [ids(0, 3, 4), ids(1, 2), torch.arange(6), ids(2, 5)]


def rows(*vectors: list[float]) -> Tensor:
    return torch.tensor(vectors, dtype=torch.float64)


def at_angle(degrees: float) -> list[float]:
    return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees)), 0.0]


def directions(*degrees: float, sizes: list[int] | None = None, **options: object) -> QuadraticWork:
    """Makes one client per angle; all its examples lie along one direction in a plane, at this angle."""
    scales = torch.arange(1, len(degrees) + 1, dtype=torch.float64)[:, None]
    numbers = torch.tensor(sizes) if sizes else torch.arange(2, 2 + len(degrees))
    return QuadraticWork(scales * rows(*map(at_angle, degrees)), numbers, 0.25, steps=3, **options)


def clustered(algorithm: PACFL, work: QuadraticWork) -> PACFLState:
    return algorithm.init(work, rng())[0]


def test_planes_that_share_a_line_and_are_turned_around_it_by_30_degrees():
    flat = rows([1, 0, 0], [0, 1, 0])[None]
    turned = rows([1, 0, 0], [0, math.cos(math.pi / 6), math.sin(math.pi / 6)])[None]
    assert_close(subspace_angles(flat, turned, "smallest"), rows([0]), atol=1e-6, rtol=0)
    assert_close(subspace_angles(flat, turned, "sum"), rows([30]), atol=1e-6, rtol=0)


def test_principal_angles_depend_on_the_subspaces_alone():
    flat = rows([1, 0, 0], [0, 1, 0])
    slanted = rows(at_angle(20), at_angle(65))  # another, not orthonormal basis of the same plane
    for which in ("smallest", "sum"):
        assert_close(subspace_angles(flat[None], slanted[None], which), rows([0]), atol=2e-6, rtol=0)


def test_a_smaller_subspace_has_as_many_angles_as_it_has_dimensions_and_one_without_any_is_at_90():
    line, plane, nothing = rows(at_angle(40)), rows([1, 0, 0], [0, 0, 1]), torch.zeros(1, 3, dtype=torch.float64)
    bases = pad_bases([line, plane, nothing])
    expected = rows([0, 40, 90], [40, 0, 90], [90, 90, 90])
    for which in ("smallest", "sum"):
        assert_close(subspace_angles(bases, bases, which), expected, atol=2e-6, rtol=0)


def test_many_subspaces_are_compared_some_at_a_time(monkeypatch: pytest.MonkeyPatch):
    bases = torch.randn(7, 2, 5, generator=rng(), dtype=torch.float64)
    whole = subspace_angles(bases, bases[:4], "sum")
    monkeypatch.setattr("lit_cfl.clustering.subspaces._PAIRS_AT_ONCE", 17)
    assert_close(subspace_angles(bases, bases[:4], "sum"), whole)


def test_first_singular_vectors_are_those_of_the_largest_values_and_no_more_than_the_rank():
    examples = rows([0, 3, 0], [0, -5, 0], [2, 0, 0], [0, 0, 0])
    assert_close(left_singular_vectors(examples, 1).abs(), rows([0, 1, 0]))
    assert_close(left_singular_vectors(examples, 3).abs(), rows([0, 1, 0], [1, 0, 0]))
    assert left_singular_vectors(0 * examples, 3).shape == (0, 3)
    assert left_singular_vectors(torch.ones(4, 1, 2, 2), 2).shape == (1, 4)


def test_average_linkage_of_the_published_code_is_weighted():
    distances = rows([0, 1, 5, 10], [1, 0, 5, 10], [5, 5, 0, 7], [10, 10, 7, 0])
    assert agglomerate(distances, linkage="average", threshold=8.75).tolist() == [0, 0, 0, 1]  # (10 + 10 + 7) / 3 = 9
    assert agglomerate(distances, linkage="weighted", threshold=8.75).tolist() == [0, 0, 0, 0]  # (10 + 7) / 2 = 8.5


def test_clients_at_known_angles_become_the_clusters_of_the_threshold():
    work = directions(0, 50, 6, 58, 180, 90)  # 180 degrees is the same line as 0
    for threshold, expected in ((5, [0, 1, 2, 3, 0, 4]), (10, [0, 1, 0, 1, 0, 2])):
        assert clustered(PACFL(threshold=threshold), work).index.tolist() == expected
    with pytest.warns(
        Notice,
        match="PACFL has 1 cluster of 6 clients: angles between clients are .* at most, and threshold is 91; lower",
    ):
        assert clustered(PACFL(threshold=91), work).index.tolist() == [0, 0, 0, 0, 0, 0]
    with pytest.warns(
        Notice, match="PACFL has 5 clusters of 6 clients: angles .* in the median, and threshold is 1; rai"
    ):
        assert clustered(PACFL(threshold=1), work).index.tolist() == [0, 1, 2, 3, 0, 4]


def test_clients_whose_examples_lie_on_different_axes_are_at_90_degrees():
    work = QuadraticWork(torch.eye(3, dtype=torch.float64)[[0, 1, 0, 2]], ids(1, 2, 3, 4), 0.5)
    state, info = PACFL(threshold=89).init(work, rng())
    assert state.index.tolist() == [0, 1, 0, 2]
    assert_close(info.similarity.matrix, (state.index[:, None] == state.index).double(), atol=1e-6, rtol=0)


def test_each_cluster_trains_as_fedavg_on_its_clients_alone():
    work = directions(0, 50, 6, 58, 3, 52)
    state = clustered(PACFL(), work)
    for number, cohort in enumerate(COHORTS):
        state, _ = PACFL().round(state, cohort, work.at(number), rng(number))
    for cluster in (0, 1):
        alone, _ = FedAvg().init(work, rng())
        for number, cohort in enumerate(COHORTS):
            members = cohort[state.index[cohort] == cluster]
            alone, _ = FedAvg().round(alone, members, work.at(number), rng(number))
        assert torch.equal(state.models[cluster], alone.models[0])


def test_vectors_are_sent_once_and_each_round_costs_a_model_each_way():
    work = directions(0, 50, 6, 58, 3, 52)
    state, info = PACFL().init(work, rng())
    assert work.bytes_up == 6 * 3 * 8  # each client sends a direction of three float64 numbers
    assert (info.down, info.up) == (0, 0)
    view = work.at(0)
    _, info = PACFL().round(state, ids(0, 1), view, rng())
    assert (view.bytes_up, info.down, info.up) == (0, 2, 2)


@pytest.mark.parametrize(("linkage", "expected"), [("single", 1), ("complete", 0), ("average", 1), ("weighted", 1)])
def test_newcomer_joins_the_cluster_at_the_smallest_distance_by_the_linkage(linkage: str, expected: int):
    # newcomer 3 is 32 degrees from cluster 0, and 12 and 28 degrees from the clients of cluster 1
    work = directions(0, 44, 60, 32)
    work = directions(0, 40, 75, 33) if linkage == "complete" else work  # here 33, and 7 and 42 degrees
    work.population = ids(0, 1, 2)
    algorithm = PACFL(linkage=linkage, threshold=39)
    state = clustered(algorithm, work)
    assert state.index.tolist() == [0, 1, 1, -1]
    placed, info = algorithm.place(state, ids(3), work, rng())
    assert placed.index.tolist() == [0, 1, 1, expected]
    assert (info.down, info.up) == (0, 0)
    assert int(info.closeness.argmax()) == expected


def test_newcomers_are_placed_without_labels():
    work = directions(0, 50, 6, 48)
    work.population = ids(0, 1)
    state = clustered(PACFL(), work)
    work.label_counts = work.label_counts.flip(1)  # other labels, which placing does not use
    assert PACFL().place_unlabelled(state, ids(3, 2), work, rng())[0].index.tolist() == [0, 1, 0, 1]


def test_client_without_data_is_clustered_once_it_has_some():
    work = directions(0, 50, 6, 58, sizes=[2, 3, 4, 0])
    state = clustered(PACFL(), work)
    assert state.index.tolist() == [0, 1, 0, -1]
    after, info = PACFL().round(state, ids(0, 3), work, rng())
    assert after.index.tolist() == [0, 1, 0, -1]
    assert info.skipped == 1
    work.num_examples = work.num_examples.index_fill(0, ids(3), 2)
    work.label_counts = work.num_examples[:, None]
    assert PACFL().round(after, ids(3), work, rng())[0].index.tolist() == [0, 1, 0, 1]


def test_client_whose_examples_are_all_zero_is_alone():
    work = directions(0, 50, 6)
    work.centers[1] = 0
    state = clustered(PACFL(threshold=60), work)
    assert state.index.tolist() == [0, 1, 0]
    # 90 degrees from both clusters: the first one wins
    assert PACFL().place(state, ids(1), work, rng())[0].index[1] == 0


def test_what_spans_no_subspace_is_refused():
    with pytest.raises(InputError, match="token ids do not span a subspace; PACFL needs numeric inputs"):
        left_singular_vectors(torch.ones(3, 4, dtype=torch.int64), 2)
    with pytest.raises(InputError, match="an example has a value that is not finite; remove the example"):
        left_singular_vectors(rows([1, math.nan]), 2)
    with pytest.raises(InputError, match=r"angles is 'least' \(did you mean smallest\?\); give one of smallest, sum"):
        subspace_angles(torch.ones(1, 1, 1), torch.ones(1, 1, 1), "least")
    with pytest.raises(InputError, match="threshold is -1; it must be 0 or more"):
        PACFL(threshold=-1)
    with pytest.raises(InputError, match="num_vectors is 0"):
        replace(PACFL(), num_vectors=0)
    work = quadratic_clients(3)
    work.num_examples = 0 * work.num_examples
    with pytest.raises(InputError, match="no client can be clustered"):
        PACFL().check(work)
