"""StoCFL's representation of a cluster, and a longer run in small cohorts (docs/ground_truth.md, check 21)."""

import torch
from quadratic import ids, quadratic_clients, rng
from torch.testing import assert_close

from lit_cfl.algorithms import StoCFL
from lit_cfl.testing import QuadraticWork


def test_clients_of_one_psi_are_represented_by_it():
    point = torch.tensor([[3.0, -1.0, 2.0]]).double()
    work = QuadraticWork(point.repeat(4, 1), ids(1, 2, 3, 9), 0.25)
    algorithm = StoCFL(psi="gradient")
    state, _ = algorithm.init(work, rng())
    for cohort in (ids(2, 0), ids(1, 2, 3)):  # 2 is asked once
        state, _ = algorithm.round(state, cohort, work, rng())
    assert state.index.tolist() == [0, 0, 0, 0]
    used = state.counts > 0
    assert state.counts[used].tolist() == [4]
    assert_close(state.sums[used] / 4, work.initial(0) - point)


def test_clusters_of_small_cohorts_are_those_of_everyone_at_once():
    """Two opposite sides, 3 of 30 clients a round: each client is one more chance for clusters of a side to meet."""
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
        assert now[together].all()  # who is in one cluster stays in one, also clients that are not in the cohort
        assert int(state.counts.sum()) == int((state.index >= 0).sum())
        held = state.index[state.index >= 0].bincount(minlength=len(state.counts))
        assert torch.equal(held, state.counts)  # the server's counts are those of the map
    assert (state.index >= 0).all()
    assert max(clusters) > clusters[-1] == 2
    assert torch.equal(state.index[:, None] == state.index, everyone.index[:, None] == everyone.index)
