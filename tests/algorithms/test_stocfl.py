"""Tests StoCFL on quadratic clients (docs/ground_truth.md, checks 20 to 22)."""

from dataclasses import replace
from math import cos, radians, sin

import pytest
import torch
from few_rounds import begin, last
from quadratic import Clients, clients_at, f64, ids, quadratic_clients, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms.stocfl import StoCFL
from lit_cfl.algorithms.stocfl_clusters import StoCFLState, cosine_histogram, objective
from lit_cfl.clustering import cosine_similarity
from lit_cfl.local_work import Budget
from lit_cfl.testing import QuadraticWork

GRADIENT = StoCFL(psi="gradient", lambda_=0.5)


def at_degrees(*degrees: float) -> Clients:
    """Makes one client per angle; its Psi points in that direction, since w_0 = 0."""
    return clients_at(*[(-cos(radians(a)), -sin(radians(a))) for a in degrees], start=0.0)


def ran(algorithm: StoCFL, work: QuadraticWork, *cohorts: Tensor) -> StoCFLState:
    return last(algorithm, work, [*cohorts])


def partition(state: StoCFLState) -> set[frozenset[int]]:
    """Returns the clusters as sets of observed clients, regardless of the clusters' numbers."""
    used = state.index[state.index >= 0].unique().tolist()
    return {frozenset((state.index == number).nonzero().flatten().tolist()) for number in used}


def test_rounds_of_a_few_clients_by_hand():
    """With rate 1/2 and lambda 1/2, a step leads to theta - (theta - c)/2 - (theta - omega)/4."""
    work = clients_at((4.0, 0.0), (0.0, 4.0), (4.0, 1.0), (0.0, -4.0), (8.0, 2.0), start=0.0)
    first, info = GRADIENT.round(begin(GRADIENT, work), ids(1, 0), work, rng())
    # 0 and 1 are orthogonal: two clusters, both started from omega_0 = 0
    assert first.index.tolist() == [0, 1, -1, -1, -1]
    assert first.models.tolist() == [[2, 0], [0, 2]]  # c / 2
    assert first.omega.tolist() == [1, 1]  # the mean of both
    assert (info.down, info.up) == (6, 6)
    second, info = GRADIENT.round(first, ids(2, 0, 3), work, rng())
    # client 2 joins client 0 (cosine .97) and its theta; client 3 is alone and starts from omega_1; 1 is unchanged
    assert second.index.tolist() == [0, 1, 0, 2, -1]
    zero = f64(2 + 1 - 0.25, 0.25)  # (2, 0) - ((2, 0) - (4, 0))/2 - ((2, 0) - (1, 1))/4
    two = f64(2 + 1 - 0.25, 0.5 + 0.25)  # the same for the centre (4, 1)
    assert_close(second.models[0], (zero + two) / 2)
    assert second.models[1].tolist() == [0, 2]
    # half of the way from (1, 1), which is also the proximal centre, to (0, -4)
    assert second.models[2].tolist() == [0.5, 1 - 2.5]
    assert_close(second.omega, f64((2.5 + 2.5 + 0.5) / 3, (0.5 + 1 - 1.5) / 3))
    assert second.counts.tolist() == [2, 1, 1]
    assert second.sums.tolist() == [[-8, -1], [0, -4], [0, 4]]
    assert (info.down, info.up) == (2 + 6, 2 + 6)
    third, info = GRADIENT.round(second, ids(4, 1), work, rng())
    # client 4 is similar to cluster 0, which has no client in this cohort: it stays alone, next to 1 (cosine .24)
    assert third.index.tolist() == [0, 1, 0, 2, 3]
    assert torch.equal(third.models[ids(0, 2)], second.models[ids(0, 2)])  # these models are unchanged
    after, info = GRADIENT.round(third, ids(0, 4), work, rng())
    assert after.index.tolist() == [0, 1, 0, 2, 0]  # both clusters merge, and number 3 becomes free
    assert after.counts.tolist() == [3, 1, 1, 0]
    assert after.sums[0].tolist() == [-16, -3]
    assert (info.down, info.up) == (4, 4)
    start, omega = third.models[0], third.omega  # theta of the larger cluster
    step = start - (start - work.centers[[0, 4]]) / 2 - (start - omega) / 4
    assert_close(after.models[0], step.mean(0))


def test_psi_is_the_gradient_at_omega_0_or_the_way_of_the_budget():
    work = quadratic_clients(4)
    w0 = work.initial(0)
    state = ran(replace(GRADIENT, tau=1.0), work, ids(1, 2), ids(1, 3))
    # client 3's Psi is taken at w_0, too, though omega has moved
    assert_close(state.sums, w0 - work.centers[[1, 2, 3]])
    update = StoCFL(tau=1.0, psi_budget=Budget(2, "steps", "full"))
    assert_close(ran(update, work, ids(1, 2)).sums, (1 - 0.75**2) * (w0 - work.centers[[1, 2]]))


def grown_apart() -> tuple[Clients, StoCFLState]:
    """Makes two clusters: clients at 0 and 10 degrees, and clients at 60, 50 and 55 degrees."""
    work = at_degrees(0, 10, 60, 50, 55)
    strict = StoCFL(tau=cos(radians(30)), psi="gradient", lambda_=0.0)
    state = ran(strict, work, ids(0, 1), ids(2, 3, 4))
    assert state.index.tolist() == [0, 0, 1, 1, 1]
    return work, state


def test_merged_clusters_continue_from_the_larger_and_their_number_is_given_to_the_next_new_one():  # C24
    work, state = grown_apart()
    lenient = StoCFL(tau=0.5, psi="gradient", lambda_=0.0)
    after, _ = lenient.round(state, ids(0, 2), work, rng())
    assert after.index.tolist() == [0] * 5
    assert after.counts.tolist() == [5, 0]
    assert_close(after.models[0], (state.models[1] + work.centers[[0, 2]].mean(0)) / 2)
    away = at_degrees(0, 10, 60, 50, 55, 210)  # every cosine is negative, so a missing cluster must not count as 0
    placed, info = lenient.place(after, ids(5), away, rng())
    assert info.closeness[0, 1] == -torch.inf
    assert torch.equal(placed.models[placed.index[5]], after.models[0])
    more = at_degrees(0, 10, 60, 50, 55, 200, 290)
    new, _ = lenient.round(after, ids(5, 6), more, rng())
    assert new.index.tolist() == [0] * 5 + [1, 2]
    assert_close(new.sums[1], -more.centers[5])


def test_equal_clusters_keep_the_theta_of_the_lower_number():
    work = at_degrees(0, 60)
    state = ran(StoCFL(tau=0.9, psi="gradient", lambda_=0.0), work, ids(1), ids(0))
    assert state.index.tolist() == [1, 0]
    after, _ = StoCFL(tau=0.4, psi="gradient", lambda_=0.0).round(state, ids(0, 1), work, rng())
    assert_close(after.models[0], (state.models[0] + work.centers.mean(0)) / 2)


def test_cluster_is_represented_by_all_its_members():  # C21
    work = at_degrees(0, 40, 80, 115)
    algorithm = StoCFL(tau=0.76, psi="gradient")  # tau as an angle: 40.5 degrees
    state = ran(algorithm, work, ids(0, 1, 2), ids(2, 3))  # 75 degrees from the mean at 40, but 35 degrees from 80
    assert partition(state) == {frozenset({0, 1, 2}), frozenset({3})}


def test_omega_is_the_mean_of_models_that_trained_from_omega(two_sides: QuadraticWork):  # check 22, C2
    w0, c = two_sides.initial(0), two_sides.centers[[2, 5]]
    local = c + 0.75**3 * (w0 - c)
    assert_close(ran(GRADIENT, two_sides, ids(2, 5)).omega, local.mean(0))
    weighted = ran(replace(GRADIENT, weights="examples"), two_sides, ids(5, 2)).omega
    assert_close(weighted, (3 * local[0] + 6 * local[1]) / 9)


def test_newcomer_joins_at_tau_and_else_founds_a_cluster_with_the_nearest_theta():  # check 21
    work = clients_at((3.0, 4.0), (-1.0, -2.0), (5.0, 0.0), (0.0, -5.0), (-4.0, -3.0), start=0.0)
    state = ran(StoCFL(tau=0.6, psi="gradient"), work, ids(0, 1))
    placed, info = StoCFL(tau=0.6, psi="gradient").place(state, ids(2), work, rng())
    assert placed.index[2] == state.index[0]  # cosine .6
    assert placed.counts.tolist() == [2, 1]
    assert (info.down, info.up) == (1, 1)
    assert_close(info.closeness, f64([0.6, -1 / 5**0.5]))
    placed, _ = StoCFL(tau=0.6 + 1e-9, psi="gradient").place(state, ids(2), work, rng())
    assert placed.index[2] == 2
    assert torch.equal(placed.models[2], state.models[0])
    both, _ = StoCFL(tau=0.95, psi="gradient").place(state, ids(4, 3), work, rng())
    assert both.index.tolist() == [0, 1, -1, 2, 3]  # cosine .89 with cluster 1, below tau
    assert torch.equal(both.models[2:], state.models[[1, 1]])
    assert torch.equal(both.omega, state.omega)


def test_newcomers_alike_found_one_cluster_together():
    work = at_degrees(0, 90, 180, 185, 190)
    state = ran(StoCFL(tau=0.9, psi="gradient"), work, ids(0, 1))
    placed, _ = StoCFL(tau=0.9, psi="gradient").place(state, ids(4, 2, 3), work, rng())
    assert placed.index.tolist() == [0, 1, 2, 2, 2]
    assert torch.equal(placed.models[2], state.models[1])  # nearest in angle: 95 degrees, against 175
    assert placed.counts.tolist() == [1, 1, 3]
    ditto, _ = StoCFL(tau=1.0, psi="gradient").place(state, ids(0, 2), work, rng())
    assert ditto.index.tolist() == [2, 1, 3, -1, -1]  # with tau 1, no client joins a cluster, not even its own


def test_objective_and_histogram_are_over_pairs(two_sides: QuadraticWork):
    cohort = ids(0, 1, 2, 5)
    algorithm = replace(GRADIENT, tau=1.0)
    _, info = algorithm.round(begin(algorithm, two_sides), cohort, two_sides, rng())
    expected = cosine_similarity(two_sides.initial(0) - two_sides.centers[cohort]).triu(1).sum()
    assert info.scores["clusters/objective"] == pytest.approx(float(expected))
    assert objective(ran(StoCFL(psi="gradient", tau=0.6), at_degrees(0, 60), ids(0, 1))) == pytest.approx(0.5)
    work = at_degrees(0, 10, 180)
    _, info = StoCFL(psi="gradient").round(begin(StoCFL(), work), ids(0, 1, 2), work, rng())
    assert info.tables["cosines"] == [{"low": -1.0, "high": -0.95, "pairs": 2}, {"low": 0.95, "high": 1.0, "pairs": 1}]
    assert cosine_histogram(torch.ones(1, 1)) == []


def test_clusters_of_small_cohorts_are_those_of_everyone_at_once():
    """With 3 of 30 clients per round, clusters merge until they equal those of one round with all clients."""
    work, algorithm = quadratic_clients(30), StoCFL(psi="gradient", tau=0.5)
    everyone = ran(algorithm, work, torch.arange(30))
    state, clusters = begin(algorithm, work), [30]
    for number in range(100):
        cohort = torch.randperm(30, generator=rng(number))[:3]
        observed, before = state.index >= 0, state.index
        state, _ = algorithm.round(state, cohort, work.at(number), rng(number))
        # clients that were not yet observed count as clusters of one
        clusters.append(int((state.counts > 0).sum()) + int((state.index < 0).sum()))
        assert clusters[-1] <= clusters[-2]
        together = before[observed][:, None] == before[observed]
        now = state.index[observed][:, None] == state.index[observed]
        assert now[together].all()  # clients of one cluster stay together, even those that are not in the cohort
        held = state.index[state.index >= 0].bincount(minlength=len(state.counts))
        assert torch.equal(held, state.counts)  # the counts agree with the clients' assignment
    assert clusters[-1] == 2
    assert torch.equal(state.index[:, None] == state.index, everyone.index[:, None] == everyone.index)
