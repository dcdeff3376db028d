"""Tests StoCFL on quadratic clients (docs/ground_truth.md, checks 20 to 22)."""

from dataclasses import replace
from math import cos, radians, sin

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratic import ids, quadratic_clients, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms.ditto import Ditto
from lit_cfl.algorithms.fedavg import FedAvg
from lit_cfl.algorithms.stocfl import StoCFL
from lit_cfl.algorithms.stocfl_clusters import StoCFLState, cosine_histogram, objective
from lit_cfl.clustering import agglomerate, cosine_similarity
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget
from lit_cfl.testing import QuadraticWork

GRADIENT = StoCFL(psi="gradient", lambda_=0.5)
HALF = 0.5  # learning rate of the clients in this file


class AtZero(QuadraticWork):
    """Quadratic clients with omega_0 = 0, so that the Psi of client i has the direction of -c_i."""

    def initial(self, number: int) -> Tensor:
        return torch.zeros(self.centers.shape[1], dtype=torch.float64)


def at_zero(*centers: tuple[float, ...], sizes: Tensor | None = None, rate: float = HALF, **options) -> AtZero:
    sizes = torch.arange(1, len(centers) + 1) if sizes is None else sizes
    return AtZero(torch.tensor(centers, dtype=torch.float64), sizes, rate, **options)


def at_degrees(*degrees: float, **options) -> AtZero:
    """Makes one client per angle; its Psi points in that direction."""
    return at_zero(*[(-cos(radians(a)), -sin(radians(a))) for a in degrees], **options)


def ran(algorithm: StoCFL, work: QuadraticWork, *cohorts: Tensor) -> StoCFLState:
    state, _ = algorithm.init(work, rng())
    for number, cohort in enumerate(cohorts):
        state, _ = algorithm.round(state, cohort, work.at(number), rng(number))
    return state


def partition(state: StoCFLState) -> set[frozenset[int]]:
    """Returns the clusters as sets of observed clients, regardless of the clusters' numbers."""
    used = state.index[state.index >= 0].unique().tolist()
    return {frozenset((state.index == number).nonzero().flatten().tolist()) for number in used}


def test_three_rounds_of_a_few_clients_by_hand():
    """With rate 1/2 and lambda 1/2, a step leads to theta - (theta - c)/2 - (theta - omega)/4."""
    work = at_zero((4, 0), (0, 4), (4, 1), (0, -4), (8, 2))
    first, info = GRADIENT.round(GRADIENT.init(work, rng())[0], ids(1, 0), work, rng())
    # 0 and 1 are orthogonal: two clusters, both started from omega_0 = 0
    assert first.index.tolist() == [0, 1, -1, -1, -1]
    assert first.models.tolist() == [[2, 0], [0, 2]]  # c / 2
    assert first.omega.tolist() == [1, 1]  # the mean of both
    assert (info.down, info.up) == (6, 6)
    second, info = GRADIENT.round(first, ids(2, 0, 3), work, rng())
    # client 2 joins client 0 (cosine .97) and its theta; client 3 is alone and starts from omega_1; 1 is unchanged
    assert second.index.tolist() == [0, 1, 0, 2, -1]
    zero = torch.tensor([2 + 1 - 0.25, 0.25])  # (2, 0) - ((2, 0) - (4, 0))/2 - ((2, 0) - (1, 1))/4
    two = torch.tensor([2 + 1 - 0.25, 0.5 + 0.25])  # the same for the centre (4, 1)
    assert_close(second.models[0].float(), (zero + two) / 2)
    assert second.models[1].tolist() == [0, 2]
    # half of the way from (1, 1), which is also the proximal centre, to (0, -4)
    assert second.models[2].tolist() == [0.5, 1 - 2.5]
    assert_close(second.omega, torch.tensor([(2.5 + 2.5 + 0.5) / 3, (0.5 + 1 - 1.5) / 3]).double())
    assert second.counts.tolist() == [2, 1, 1]
    assert second.sums.tolist() == [[-8, -1], [0, -4], [0, 4]]
    assert (info.down, info.up) == (2 + 6, 2 + 6)
    third, info = GRADIENT.round(second, ids(4, 1), work, rng())
    # client 4 is similar to cluster 0, which has no client in this cohort: it stays alone, next to 1 (cosine .24)
    assert third.index.tolist() == [0, 1, 0, 2, 3]
    assert torch.equal(third.models[ids(0, 2)], second.models[ids(0, 2)])  # these models are unchanged
    last, info = GRADIENT.round(third, ids(0, 4), work, rng())
    assert last.index.tolist() == [0, 1, 0, 2, 0]  # both clusters merge, and number 3 becomes free
    assert last.counts.tolist() == [3, 1, 1, 0]
    assert last.sums[0].tolist() == [-16, -3]
    assert (info.down, info.up) == (4, 4)
    start, omega = third.models[0], third.omega  # theta of the larger cluster
    step = start - (start - work.centers[[0, 4]]) / 2 - (start - omega) / 4
    assert_close(last.models[0], step.mean(0))


def test_merging_is_transitive_and_meets_tau_exactly():
    tau = cos(radians(40)) - 1e-9
    assert partition(ran(StoCFL(tau=tau, psi="gradient"), at_degrees(0, 40, 80, 180), torch.arange(4))) == {
        frozenset({0, 1, 2}),
        frozenset({3}),
    }
    exactly = at_zero((3, 4), (5, 0))  # cosine 15 / 25
    assert partition(ran(StoCFL(tau=0.6, psi="gradient"), exactly, ids(0, 1))) == {frozenset({0, 1})}
    assert len(partition(ran(StoCFL(tau=0.6 + 1e-9, psi="gradient"), exactly, ids(0, 1)))) == 2


@given(st.lists(st.floats(0, 360), min_size=2, max_size=9), st.floats(-0.95, 0.95), st.randoms())
@settings(max_examples=40, deadline=None)
def test_first_round_of_everyone_is_single_linkage_whatever_the_order_and_scale(degrees, tau, random):
    work = at_degrees(*degrees)
    distances = 1 - cosine_similarity(work.centers)
    if ((1 - distances - tau).abs() < 1e-9).any():
        return  # a tie that rounding decides
    expected = agglomerate(distances, linkage="single", threshold=1 - tau)
    wanted = {frozenset((expected == label).nonzero().flatten().tolist()) for label in expected.unique()}
    algorithm, everyone = StoCFL(tau=tau, psi="gradient"), torch.arange(len(degrees))
    assert partition(ran(algorithm, work, everyone)) == wanted
    mixed = everyone.tolist()
    random.shuffle(mixed)
    scaled = at_zero(*(17 * work.centers).tolist())
    assert partition(ran(algorithm, scaled, ids(*mixed))) == wanted


def test_number_of_clusters_never_rises():
    work = quadratic_clients(12)
    state, _ = GRADIENT.init(work, rng())
    before = 12
    for number in range(13):
        cohort = torch.randperm(12, generator=rng(number))[: 3 if number < 12 else 12]
        state, _ = GRADIENT.round(state, cohort, work.at(number), rng())
        now = len(partition(state)) + int((state.index < 0).sum())  # unobserved clients count as clusters of one
        assert now <= before
        before = now
    assert before == 2


def test_psi_is_the_gradient_at_omega_0_or_the_way_of_the_budget():
    work = quadratic_clients(4)
    w0 = work.initial(0)
    state = ran(replace(GRADIENT, tau=1.0), work, ids(1, 2), ids(1, 3))
    # client 3's Psi is taken at w_0, too, though omega has moved
    assert_close(state.sums, w0 - work.centers[[1, 2, 3]])
    update = StoCFL(tau=1.0, psi_budget=Budget(2, "steps", "full"))
    assert_close(ran(update, work, ids(1, 2)).sums, (1 - 0.75**2) * (w0 - work.centers[[1, 2]]))


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("weights", ["equal", "examples"])
def test_full_participation_without_merges_is_the_class_ditto(lambda_: float, weights: str):  # check 20
    work = quadratic_clients(5, steps=2)
    stocfl, ditto = StoCFL(tau=1.0, lambda_=lambda_, weights=weights), Ditto(lambda_, weights=weights)
    a, b = stocfl.init(work, rng())[0], ditto.init(work, rng())[0]
    for number in range(4):
        a, _ = stocfl.round(a, torch.arange(5), work.at(number), rng())
        b, _ = ditto.round(b, torch.arange(5), work.at(number), rng())
        personal = torch.stack([b.personal[client] for client in range(5)])
        assert_close(a.models[a.index], personal, rtol=0, atol=1e-14)
        assert_close(a.omega, b.models[0], rtol=0, atol=1e-14)


def test_full_participation_without_merges_is_ditto_in_closed_form():  # check 20
    work, lambda_ = quadratic_clients(5, steps=2), 0.7
    state = ran(StoCFL(tau=1.0, lambda_=lambda_), work, *[torch.arange(5)] * 4)
    omega = work.initial(0)
    personal = omega.repeat(5, 1)
    for _ in range(4):
        for _ in range(2):
            personal = personal - 0.25 * (personal - work.centers + lambda_ * (personal - omega))
        omega = (work.centers + 0.75**2 * (omega - work.centers)).mean(0)
    assert len(partition(state)) == 5
    assert_close(state.models[state.index], personal)
    assert_close(state.omega, omega)


@pytest.mark.parametrize("weights", ["equal", "examples"])
def test_one_cluster_without_pull_is_fedavg(weights: str):  # check 20
    work = quadratic_clients(5)
    one, average = StoCFL(tau=-1.0, lambda_=0.0, weights=weights), FedAvg(weights=weights)
    a, b = one.init(work, rng())[0], average.init(work, rng())[0]
    for number in range(4):
        a, _ = one.round(a, torch.arange(5), work.at(number), rng())
        b, _ = average.round(b, torch.arange(5), work.at(number), rng())
        assert_close(a.models, b.models)
        assert_close(a.omega, b.models[0])


def test_clusters_without_pull_do_not_depend_on_omega(two_sides: QuadraticWork):
    free = replace(GRADIENT, lambda_=0.0)
    state = ran(free, two_sides, torch.arange(8))
    moved = replace(state, omega=state.omega + 100)
    a, b = (free.round(one, ids(0, 3), two_sides, rng())[0] for one in (state, moved))
    assert torch.equal(a.models, b.models)


def test_pull_of_one_over_eta_sets_theta_back_to_omega():  # check 20: eta * lambda = 1
    work = quadratic_clients(4, steps=1)
    strong = StoCFL(tau=1.0, lambda_=4.0)
    state = ran(strong, work, torch.arange(4))
    omega, theta = state.omega, state.models[state.index[2]]
    after, _ = strong.round(state, ids(2), work, rng())
    assert_close(after.models[after.index[2]], omega - 0.25 * (theta - work.centers[2]))


def test_fixed_point_lies_between_the_cluster_and_everyone():  # check 20
    work = quadratic_clients(6)
    state = ran(replace(GRADIENT, lambda_=2.0), work, *[torch.arange(6)] * 60)
    everyone = work.centers.mean(0)
    assert_close(state.omega, everyone)
    for side in (ids(0, 2, 4), ids(1, 3, 5)):
        expected = (work.centers[side].mean(0) + 2 * everyone) / 3
        assert_close(state.models[state.index[side[0]]], expected)


def grown_apart() -> tuple[AtZero, StoCFLState]:
    """Makes two clusters: clients at 0 and 10 degrees, and clients at 60, 50 and 55 degrees."""
    work = at_degrees(0, 10, 60, 50, 55)
    strict = StoCFL(tau=cos(radians(30)), psi="gradient", lambda_=0.0)
    state = ran(strict, work, ids(0, 1), ids(2, 3, 4))
    assert partition(state) == {frozenset({0, 1}), frozenset({2, 3, 4})}
    return work, state


def test_merged_clusters_continue_from_the_larger():  # C24
    work, state = grown_apart()
    lenient = StoCFL(tau=0.5, psi="gradient", lambda_=0.0)
    after, _ = lenient.round(state, ids(0, 2), work, rng())
    assert after.index.tolist() == [0] * 5
    assert_close(after.models[0], (state.models[1] + work.centers[[0, 2]].mean(0)) / 2)


def test_equal_clusters_keep_the_theta_of_the_lower_number():
    work = at_degrees(0, 60)
    state = ran(StoCFL(tau=0.9, psi="gradient", lambda_=0.0), work, ids(1), ids(0))
    assert state.index.tolist() == [1, 0]
    after, _ = StoCFL(tau=0.4, psi="gradient", lambda_=0.0).round(state, ids(0, 1), work, rng())
    assert_close(after.models[0], (state.models[0] + work.centers.mean(0)) / 2)


def test_number_of_a_merged_cluster_is_given_to_the_next_new_one():
    work, state = grown_apart()
    after, _ = StoCFL(tau=0.5, psi="gradient").round(state, ids(0, 2), work, rng())
    assert after.counts.tolist() == [5, 0]
    more = at_degrees(0, 10, 60, 50, 55, 200, 290)
    new, _ = StoCFL(tau=0.5, psi="gradient").round(after, ids(5, 6), more, rng())
    assert new.index.tolist() == [0] * 5 + [1, 2]
    assert_close(new.sums[1], -more.centers[5])


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
    work = at_zero((3, 4), (-1, -2), (5, 0), (0, -5), (-4, -3))
    state = ran(StoCFL(tau=0.6, psi="gradient"), work, ids(0, 1))
    placed, info = StoCFL(tau=0.6, psi="gradient").place(state, ids(2), work, rng())
    assert placed.index[2] == state.index[0]  # cosine .6
    assert placed.counts.tolist() == [2, 1]
    assert (info.down, info.up) == (1, 1)
    assert_close(info.closeness, torch.tensor([[0.6, -1 / 5**0.5]], dtype=torch.float64))
    shy = StoCFL(tau=0.6 + 1e-9, psi="gradient")
    placed, _ = shy.place(state, ids(2), work, rng())
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


def test_free_number_is_nobodys_nearest():
    work, state = grown_apart()
    algorithm = StoCFL(tau=0.5, psi="gradient")
    after, _ = algorithm.round(state, ids(0, 2), work, rng())
    away = at_degrees(0, 10, 60, 50, 55, 210)  # every cosine is negative, so a missing cluster must not count as 0
    placed, info = algorithm.place(after, ids(5), away, rng())
    assert info.closeness[0, 1] == -torch.inf
    assert torch.equal(placed.models[placed.index[5]], after.models[0])


def test_everyone_can_be_placed_before_the_first_round():
    work = quadratic_clients(6)
    placed, _ = GRADIENT.place(GRADIENT.init(work, rng())[0], torch.arange(6), work, rng())
    assert placed.index.tolist() == [0, 1] * 3
    assert torch.equal(placed.models, work.initial(0).repeat(2, 1))


def test_client_without_data_is_never_observed():
    work = at_zero((1, 0), (0, 1), (1, 1), sizes=ids(3, 0, 2))
    for algorithm in (GRADIENT, StoCFL()):
        state, info = algorithm.round(algorithm.init(work, rng())[0], ids(0, 1, 2), work, rng())
        assert state.index.tolist() == [0, -1, 0]
        assert info.skipped == 1
        assert (info.down, info.up) == (3 + 4, 2 + 4)
        placed, info = algorithm.place(state, ids(2, 1), work, rng())
        assert placed.index[1] == -1
        assert info.closeness[1].isnan().all()
        assert info.closeness[0, 0] > 0.9


def test_zero_update_merges_with_nobody_above_zero():
    work = at_zero((0, 0), (0, 0), (1, 0))
    assert len(partition(ran(StoCFL(tau=0.1), work, ids(0, 1, 2)))) == 3
    assert len(partition(ran(StoCFL(tau=-1.0), work, ids(0, 1, 2)))) == 1


def test_traffic_is_four_models_a_client_and_round_and_two_a_client():  # section 5: 4KT + 2N
    work = quadratic_clients(12)
    state, info = GRADIENT.init(work, rng())
    sent = info.down + info.up
    for number in range(9):
        state, info = GRADIENT.round(state, (torch.arange(4) + 4 * number) % 12, work.at(number), rng())
        sent += info.down + info.up
    assert sent == 4 * 4 * 9 + 2 * 12


def test_projection_finds_the_same_clusters():
    rows = torch.randn(8, 600, generator=rng(), dtype=torch.float64)
    sides = torch.tensor([1.0, -1.0]).repeat(4)[:, None]
    work = QuadraticWork(8 * sides + rows, torch.arange(1, 9), 0.1)
    exact, projected = StoCFL(psi="gradient"), StoCFL(psi="gradient", sketch_dim=100)
    states = [ran(one, work, ids(0, 3, 5), ids(1, 2, 4, 6, 7)) for one in (exact, projected)]
    assert states[1].sums.shape[1] == 100
    assert partition(states[0]) == partition(states[1])


def test_objective_is_the_sum_over_pairs(two_sides: QuadraticWork):
    _, info = replace(GRADIENT, tau=1.0).round(GRADIENT.init(two_sides, rng())[0], ids(0, 1, 2, 5), two_sides, rng())
    psi = two_sides.initial(0) - two_sides.centers[[0, 1, 2, 5]]
    expected = cosine_similarity(psi).triu(1).sum()
    assert info.scores["clusters/objective"] == pytest.approx(float(expected))
    state = ran(StoCFL(psi="gradient", tau=0.5), at_degrees(0, 60), ids(0, 1))
    assert objective(state) == pytest.approx(0 if len(partition(state)) == 1 else 0.5)


def test_histogram_counts_the_pairs_that_were_compared():
    work = at_degrees(0, 10, 180)
    _, info = StoCFL(psi="gradient").round(StoCFL().init(work, rng())[0], ids(0, 1, 2), work, rng())
    assert info.tables["cosines"] == [
        {"low": -1.0, "high": -0.95, "pairs": 2},
        {"low": 0.95, "high": 1.0, "pairs": 1},
    ]
    assert cosine_histogram(torch.ones(1, 1)) == []


def test_similarity_is_given_where_psi_of_the_whole_cohort_is_at_hand(two_sides: QuadraticWork):
    state, info = GRADIENT.round(GRADIENT.init(two_sides, rng())[0], ids(5, 0, 3), two_sides, rng())
    assert info.similarity.clients.tolist() == [0, 3, 5]
    psi = two_sides.initial(0) - two_sides.centers[[0, 3, 5]]
    assert_close(info.similarity.matrix, cosine_similarity(psi))
    _, info = GRADIENT.round(state, ids(4, 0), two_sides, rng())
    assert info.similarity is None


@pytest.mark.parametrize("tau", [1.01, -1.5, float("nan")])
def test_tau_outside_the_cosines_range_is_refused(tau: float):
    with pytest.raises(InputError, match=f"tau is {tau}; it is a cosine"):
        StoCFL(tau=tau)


def test_negative_pull_and_wrong_projection_are_refused(two_sides: QuadraticWork):
    with pytest.raises(InputError, match=r"lambda_ is -0\.1"):
        StoCFL(lambda_=-0.1)
    with pytest.raises(InputError, match="sketch_dim is 0"):
        StoCFL(sketch_dim=0)
    with pytest.raises(InputError, match="sketch_dim is 5, but there are 4 columns to project"):
        StoCFL(sketch_dim=5).check(two_sides)
    StoCFL().check(two_sides)


def test_clients_of_one_psi_are_represented_by_it():
    point = torch.tensor([[3.0, -1.0, 2.0]]).double()
    work = QuadraticWork(point.repeat(4, 1), ids(1, 2, 3, 9), 0.25)
    algorithm = StoCFL(psi="gradient")
    state, _ = algorithm.init(work, rng())
    for cohort in (ids(2, 0), ids(1, 2, 3)):  # client 2 is in both cohorts, but computes its Psi only once
        state, _ = algorithm.round(state, cohort, work, rng())
    assert state.index.tolist() == [0, 0, 0, 0]
    used = state.counts > 0
    assert state.counts[used].tolist() == [4]
    assert_close(state.sums[used] / 4, work.initial(0) - point)


def test_clusters_of_small_cohorts_are_those_of_everyone_at_once():
    """With 3 of 30 clients per round, clusters merge until they equal those of one round with all clients."""
    work = quadratic_clients(30)
    algorithm = StoCFL(psi="gradient", tau=0.5)
    everyone, _ = algorithm.round(algorithm.init(work, rng())[0], torch.arange(30), work, rng())
    state, _ = algorithm.init(work, rng())
    clusters = []
    for number in range(100):
        cohort = torch.randperm(30, generator=rng(number))[:3]
        observed = state.index >= 0
        before = state.index.clone()
        state, _ = algorithm.round(state, cohort, work.at(number), rng(number))
        clusters.append(int((state.counts > 0).sum()))
        together = before[observed][:, None] == before[observed]
        now = state.index[observed][:, None] == state.index[observed]
        assert now[together].all()  # clients of one cluster stay together, even those that are not in the cohort
        assert int(state.counts.sum()) == int((state.index >= 0).sum())
        held = state.index[state.index >= 0].bincount(minlength=len(state.counts))
        assert torch.equal(held, state.counts)  # the counts agree with the clients' assignment
    assert (state.index >= 0).all()
    assert max(clusters) > clusters[-1] == 2
    assert torch.equal(state.index[:, None] == state.index, everyone.index[:, None] == everyone.index)
