"""Tests FedGroup and FedGrouProx on quadratic clients (docs/ground_truth.md, checks 12 to 15)."""

from dataclasses import replace

import pytest
import torch
from few_rounds import begin
from quadratic import clients_at, ids, quadratic_clients, rng
from sklearn.metrics import adjusted_rand_score
from torch.testing import assert_close

from lit_cfl.aggregation import Mix, mix_clusters
from lit_cfl.algorithms import FedGroup, FedGrouProx
from lit_cfl.algorithms.fedgroup import FedGroupState
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget
from lit_cfl.testing import QuadraticWork

TWO = FedGroup(num_clusters=2, pretrain_scale=2)  # four of the eight clients take part in the cold start
WHOLE = replace(TWO, pretrain_scale=4)


def test_cluster_starts_from_the_simple_mean_of_its_members_pretrained_models(two_sides: QuadraticWork):  # C6, C7
    algorithm = replace(TWO, pretrain=Budget(2, "steps"))
    state, info = algorithm.init(two_sides, rng(3))
    assert (state.index >= 0).nonzero().flatten().tolist() == state.founders.tolist()
    assert (len(state.founders), info.down, info.up) == (4, 4, 4)
    w0 = two_sides.initial(0)
    local = two_sides.centers + 0.75**2 * (w0 - two_sides.centers)
    for cluster in (0, 1):
        members = state.founders[state.index[state.founders] == cluster]
        assert_close(state.models[cluster], local[members].mean(0))  # an unweighted mean, although client sizes differ
        assert_close(state.directions[cluster], local[members].mean(0) - w0)


def test_cold_client_joins_its_side_when_it_is_selected(two_sides: QuadraticWork):
    state, _ = TWO.init(two_sides, rng(3))
    cold = (state.index < 0).nonzero().flatten()
    after, info = TWO.round(state, cold[:2], two_sides, rng())
    assert (after.index[cold[:2]] >= 0).all()
    assert (after.index[cold[2:]] < 0).all()
    assert (info.down, info.up) == (2, 4)  # a client that joins also sends up its pre-training update
    grown = quadratic_clients(8)  # and three newcomers, which are like clients 2, 0 and 1
    grown.centers, grown.num_examples = torch.cat([grown.centers, grown.centers[ids(2, 0, 1)]]), torch.arange(1, 12)
    placed, _ = TWO.place(state, torch.cat([cold, ids(10, 8, 9)]), grown, rng())
    assert adjusted_rand_score(torch.arange(8) % 2, placed.index[:8]) == 1
    assert TWO.serve(placed, ids(8, 9, 10)).index.tolist() == placed.index[ids(2, 0, 1)].tolist()


def test_cold_start_depends_on_w0_and_the_frozen_directions_alone(two_sides: QuadraticWork):  # check 13
    state, _ = TWO.init(two_sides, rng(3))
    moved = replace(state, models=torch.randn_like(state.models) * 100)
    cold = (state.index < 0).nonzero().flatten()
    placed, expected = (TWO.place(one, cold, two_sides, rng())[0].index for one in (moved, state))
    assert torch.equal(placed, expected)
    after, _ = TWO.round(state, torch.arange(8), two_sides, rng())
    assert torch.equal(after.directions, state.directions)


def test_fedgrouprox_pulls_to_the_own_cluster(two_sides: QuadraticWork):
    algorithm = FedGrouProx(num_clusters=2, pretrain_scale=4, mu=2.0)
    state, _ = algorithm.init(two_sides, rng(3))
    after, _ = algorithm.round(state, ids(1, 2), quadratic_clients(8, steps=400), rng())
    for client in (1, 2):
        cluster = state.index[client]
        assert_close(after.models[cluster], (two_sides.centers[client] + 2 * state.models[cluster]) / 3)


def test_first_update_of_a_cold_client_of_fedgrouprox_is_pulled_too(two_sides: QuadraticWork):
    """With eta .25 and mu 7, the second step undoes the first, so the update of a pulled client is zero."""
    algorithm = FedGrouProx(num_clusters=2, pretrain_scale=2, pretrain=Budget(2, "steps"), mu=7.0)
    state, _ = replace(algorithm, mu=0.0).init(two_sides, rng(3))
    cold = (state.index < 0).nonzero().flatten()
    _, pulled = algorithm.place(state, cold, two_sides, rng())
    _, free = replace(algorithm, mu=0.0).place(state, cold, two_sides, rng())
    assert pulled.closeness.tolist() == [[0.0, 0.0]] * 4  # a zero update has similarity 0 to all directions
    assert free.closeness.abs().min() > 0.5


@pytest.mark.parametrize("cohort", [ids(0, 1, 2), ids(4, 0)])  # clients of both sides, and of one side
def test_models_are_mixed_after_the_round_also_if_no_member_was_selected(two_sides: QuadraticWork, cohort):  # check 15
    state, _ = WHOLE.init(two_sides, rng(3))
    before, _ = WHOLE.round(state, cohort, two_sides, rng())
    labels, centers = state.index[cohort], two_sides.centers[cohort]
    local = centers + 0.75**3 * (state.models[labels] - centers)
    for mix in ("sum", "normalised"):
        mixed, info = replace(WHOLE, eta_g=0.5, mix=mix).round(state, cohort, two_sides, rng())
        other = before.models.flip(0)
        pull = 0.5 / other.norm(dim=1, keepdim=True)
        expected = (before.models + pull * other) / (1 if mix == "sum" else 1 + pull)
        assert_close(mixed.models, expected)
        discrepancy = (local - mixed.models[labels]).norm(dim=1).mean()  # from the models after the mix
        assert_close(info.scores["train/discrepancy"], float(discrepancy))


def test_inertia_is_the_sum_of_squares_around_the_mean():
    work = clients_at((0.0, 1.0), (3.0, 0.0), (2.0, 0.0), start=0.0)  # the main direction is the first axis
    assert_close(begin(FedGroup(num_clusters=1), work).inertia, 2 * (1 / 3) ** 2 + (2 / 3) ** 2)  # cosines 0, 1, 1


def test_founders_are_drawn_among_all_clients_in_training_with_data(two_sides: QuadraticWork):
    drawn = torch.cat([TWO.init(two_sides, rng(seed))[0].founders for seed in range(40)])
    times = torch.bincount(drawn, minlength=8)  # each client is drawn in 4 of 8 cases, so 20 times on average
    assert 10 < times.min() <= times.max() < 30
    two_sides.population = ids(0, 1, 3, 4, 6)
    two_sides.num_examples = two_sides.num_examples.index_fill(0, ids(1), 0)
    state, info = WHOLE.init(two_sides, rng(3))
    assert state.founders.tolist() == [0, 3, 4, 6]
    assert state.index[[1, 2, 5, 7]].tolist() == [-1] * 4
    assert info.down == 4
    state, _ = WHOLE.round(state, ids(1, 3), two_sides, rng())
    assert WHOLE.serve(state, ids(1)).index.tolist() == [-1]
    with pytest.raises(InputError, match=r"num_clusters is 5, .* 4 clients"):
        replace(WHOLE, num_clusters=5).check(two_sides)


THREE = FedGroup(num_clusters=3, pretrain_scale=3)


def deserted(work: QuadraticWork) -> FedGroupState:
    """Makes a state in which cluster 1 has no clients."""
    state = begin(THREE, work)
    assert sorted(state.index.unique().tolist()) == [0, 1, 2]
    return replace(state, index=torch.where(torch.arange(9) % 2 == 0, 0, 2))


@pytest.mark.parametrize("mix", ["normalised", "sum"])
def test_cluster_without_members_neither_mixes_nor_is_mixed_nor_is_part_of_the_global_model(mix: Mix):
    work = quadratic_clients(9)
    state = deserted(work)
    plain, info = THREE.round(state, ids(0, 3, 4), work, rng())
    mixed, more = replace(THREE, eta_g=0.5, mix=mix).round(state, ids(0, 3, 4), work, rng())
    assert torch.equal(mixed.models[1], state.models[1])
    assert_close(mixed.models[ids(0, 2)], mix_clusters(plain.models[ids(0, 2)], 0.5, mix))
    assert more.up - info.up == 2  # m T counts only the clusters that take part
    assert_close(THREE.serve(state, ids(4)).extra["global"], (state.models[0] + state.models[2]) / 2)


def test_cold_client_may_still_join_a_cluster_that_everybody_left():
    work = quadratic_clients(9)
    state = deserted(work)
    back = replace(state, directions=torch.zeros_like(state.directions).index_fill(0, ids(1), 1.0))
    clients = ids(2, 6)
    # otherwise the similarity 0 with the zero directions is larger
    expected = ((work.centers[clients] - state.initial).sum(1) > 0).long().tolist()
    placed, _ = THREE.place(back, clients, work, rng())
    assert placed.index[clients].tolist() == expected
    assert 1 in expected
