"""Tests FedGroup and FedGrouProx on quadratic clients (docs/ground_truth.md, checks 12 to 15)."""

from dataclasses import replace

import pytest
import torch
from quadratic import ids, quadratic_clients, rng
from sklearn.metrics import adjusted_rand_score
from torch.testing import assert_close

from lit_cfl.aggregation import Mix, mix_clusters
from lit_cfl.algorithms import FedAvg, FedGroup, FedGrouProx
from lit_cfl.algorithms.fedgroup import FedGroupState
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget
from lit_cfl.testing import QuadraticWork

TWO = FedGroup(num_clusters=2, pretrain_scale=2)  # four of the eight clients take part in the cold start


@pytest.mark.parametrize("measure", ["edc", "madc"])
def test_both_sides_become_the_clusters(two_sides: QuadraticWork, measure: str):
    state, _ = replace(TWO, measure=measure, pretrain_scale=4).init(two_sides, rng(3))
    assert adjusted_rand_score(torch.arange(8) % 2, state.index) == 1


def test_only_founders_are_warm_after_the_group_cold_start(two_sides: QuadraticWork):
    state, info = TWO.init(two_sides, rng(3))
    assert (state.index >= 0).nonzero().flatten().tolist() == state.founders.tolist()
    assert len(state.founders) == 4
    assert (info.down, info.up) == (4, 4)


def test_cluster_starts_from_the_simple_mean_of_its_members_pretrained_models(two_sides: QuadraticWork):  # C6, C7
    algorithm = replace(TWO, pretrain=Budget(2, "steps"))
    state, _ = algorithm.init(two_sides, rng(3))
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
    whole, _ = TWO.place(state, cold, two_sides, rng())
    assert adjusted_rand_score(torch.arange(8) % 2, whole.index) == 1


def test_cold_start_depends_on_w0_and_the_frozen_directions_alone(two_sides: QuadraticWork):  # check 13
    state, _ = TWO.init(two_sides, rng(3))
    moved = replace(state, models=torch.randn_like(state.models) * 100)
    cold = (state.index < 0).nonzero().flatten()
    assert torch.equal(
        TWO.place(moved, cold, two_sides, rng())[0].index, TWO.place(state, cold, two_sides, rng())[0].index
    )
    after, _ = TWO.round(state, torch.arange(8), two_sides, rng())
    assert torch.equal(after.directions, state.directions)


def test_cluster_trains_on_its_members_alone(two_sides: QuadraticWork):
    state, _ = replace(TWO, pretrain_scale=4).init(two_sides, rng(3))
    cohort = ids(1, 2, 6)  # sizes 2, 3, 7; on the sides -, +, +
    after, _ = TWO.round(state, cohort, two_sides, rng())
    minus, plus = state.index[1], state.index[2]
    local = [two_sides.centers[i] + 0.75**3 * (state.models[state.index[i]] - two_sides.centers[i]) for i in range(8)]
    assert_close(after.models[minus], local[1])
    assert_close(after.models[plus], (3 * local[2] + 7 * local[6]) / 10)


def test_cluster_without_selected_members_keeps_its_model(two_sides: QuadraticWork):
    state, _ = replace(TWO, pretrain_scale=4).init(two_sides, rng(3))
    after, _ = TWO.round(state, ids(0, 2), two_sides, rng())
    other = state.index[1]
    assert torch.equal(after.models[other], state.models[other])


def test_one_cluster_from_w0_is_fedavg(two_sides: QuadraticWork):  # check 14
    one, average = FedGroup(num_clusters=1), FedAvg()
    a, b = one.init(two_sides, rng())[0], average.init(two_sides, rng())[0]
    a = replace(a, models=a.initial[None])
    for number, cohort in enumerate([ids(0, 3, 5), ids(1, 2), ids(4, 6, 7)]):
        a, _ = one.round(a, cohort, two_sides, rng(number))
        b, _ = average.round(b, cohort, two_sides, rng(number))
        assert torch.equal(a.models, b.models)


def test_fedgrouprox_without_pull_is_fedgroup(two_sides: QuadraticWork):
    with_pull = FedGrouProx(num_clusters=2, pretrain_scale=2, mu=0.0)
    a, b = TWO.init(two_sides, rng(3))[0], with_pull.init(two_sides, rng(3))[0]
    for cohort in (ids(0, 3, 5), ids(1, 2, 7)):
        a, b = TWO.round(a, cohort, two_sides, rng())[0], with_pull.round(b, cohort, two_sides, rng())[0]
    assert torch.equal(a.models, b.models)


def test_fedgrouprox_pulls_to_the_own_cluster(two_sides: QuadraticWork):
    algorithm = FedGrouProx(num_clusters=2, pretrain_scale=4, mu=2.0)
    state, _ = algorithm.init(two_sides, rng(3))
    long = quadratic_clients(8, steps=400)
    after, _ = algorithm.round(state, ids(1, 2), long, rng())
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


def test_mix_is_made_from_the_new_models_of_clusters_with_members(two_sides: QuadraticWork):  # check 15
    plain = replace(TWO, pretrain_scale=4)
    state, _ = plain.init(two_sides, rng(3))
    before, _ = plain.round(state, ids(0, 1, 2), two_sides, rng())
    mixed, _ = replace(plain, eta_g=0.5, mix="sum").round(state, ids(0, 1, 2), two_sides, rng())
    other = before.models.flip(0)
    assert_close(mixed.models, before.models + 0.5 * other / other.norm(dim=1, keepdim=True))


def test_cluster_without_selected_members_is_mixed_too_and_discrepancy_is_taken_after_the_mix(
    two_sides: QuadraticWork,
):
    plain, cohort = replace(TWO, pretrain_scale=4), ids(4, 0)  # both clients are on one side
    state, _ = plain.init(two_sides, rng(3))
    before, _ = plain.round(state, cohort, two_sides, rng())
    mixed, info = replace(plain, eta_g=0.5).round(state, cohort, two_sides, rng())
    other = before.models.flip(0)
    pull = 0.5 / other.norm(dim=1, keepdim=True)
    assert_close(mixed.models, (before.models + pull * other) / (1 + pull))
    cluster, centers = state.index[0], two_sides.centers[cohort]
    local = centers + 0.75**3 * (state.models[cluster] - centers)
    assert_close(info.scores["train/discrepancy"], float((local - mixed.models[cluster]).norm(dim=1).mean()))


def test_the_number_of_clusters_follows_from_their_spread():  # the spread helps to choose m
    rows = torch.tensor([1.0, 2.0, 1.5, 3.0, -1.0, -2.0], dtype=torch.float64)[:, None]
    work = QuadraticWork(rows * 1e6, ids(1, 2, 3, 1, 1, 1), 0.5, layers={"fc1": 1})
    found = []
    for m in (1, 2):
        state, _ = FedGroup(num_clusters=m).init(work, rng(3))
        _, info = FedGroup(num_clusters=m).round(state, ids(0, 5), work, rng())
        found.append(info.scores["clusters/inertia"])
    assert_close(found, [4 * (1 - 1 / 3) ** 2 + 2 * (1 + 1 / 3) ** 2, 0.0])  # cosines 1, 1, 1, 1, -1, -1


def test_inertia_is_the_sum_of_squares_around_the_mean():
    rows = torch.tensor([[0.0, 1.0], [3.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    work = QuadraticWork(rows, ids(1, 2, 3), 0.5)
    work.centers = rows + work.initial(0)  # updates are half of the rows; the main direction is the first axis
    state, _ = FedGroup(num_clusters=1).init(work, rng(3))
    assert_close(state.inertia, 2 * (1 / 3) ** 2 + (2 / 3) ** 2)  # cosines 0, 1, 1


def test_founders_are_drawn_among_all_clients(two_sides: QuadraticWork):
    drawn = torch.cat([TWO.init(two_sides, rng(seed))[0].founders for seed in range(40)])
    times = torch.bincount(drawn, minlength=8)  # each client is drawn in 4 of 8 cases, so 20 times on average
    assert 10 < times.min() <= times.max() < 30


def test_newcomers_found_no_cluster(two_sides: QuadraticWork):
    two_sides.population = ids(0, 1, 3, 4, 6)
    algorithm = replace(TWO, pretrain_scale=4)
    state, info = algorithm.init(two_sides, rng(3))
    assert state.founders.tolist() == [0, 1, 3, 4, 6]
    assert state.index[[2, 5, 7]].tolist() == [-1] * 3
    assert info.down == 5
    with pytest.raises(InputError, match="num_clusters is 6, but only 5 clients can be clustered"):
        replace(algorithm, num_clusters=6).check(two_sides)


def test_client_without_data_never_founds_and_stays_cold():
    work = QuadraticWork(quadratic_clients(6).centers, ids(4, 0, 2, 3, 0, 1), 0.25)
    algorithm = FedGroup(num_clusters=2, pretrain_scale=9)
    state, _ = algorithm.init(work, rng())
    assert state.founders.tolist() == [0, 2, 3, 5]
    state, _ = algorithm.round(state, ids(1, 2), work, rng())
    assert algorithm.serve(state, ids(1, 4)).index.tolist() == [-1, -1]


def test_newcomer_with_an_unknown_id_is_placed_and_served(two_sides: QuadraticWork):
    state, _ = replace(TWO, pretrain_scale=4).init(two_sides, rng(3))
    grown = quadratic_clients(8)
    grown.centers = torch.cat([grown.centers, grown.centers[:3]])
    grown.num_examples = torch.cat([grown.num_examples, ids(1, 1, 1)])
    placed, _ = TWO.place(state, ids(8, 9, 10), grown, rng())
    served = TWO.serve(placed, torch.arange(11)).index
    assert served[8:].tolist() == served[:3].tolist()


def test_more_clusters_than_clients_are_refused(two_sides: QuadraticWork):
    with pytest.raises(InputError, match="num_clusters is 9, but only 8 clients"):
        FedGroup(num_clusters=9).init(two_sides, rng())


def test_madc_needs_three_founders(two_sides: QuadraticWork):
    algorithm = FedGroup(num_clusters=2, pretrain_scale=1, measure="madc")
    with pytest.raises(InputError, match=r"there are 2 .num_clusters 2 times pretrain_scale 1, 8 at most"):
        algorithm.check(two_sides)
    replace(algorithm, pretrain_scale=2).check(two_sides)


def test_global_model_is_the_mean_of_clusters_with_members(two_sides: QuadraticWork):
    state, _ = TWO.init(two_sides, rng(3))
    assert_close(TWO.serve(state, ids(0)).extra["global"], state.models.mean(0))


def test_founders_are_the_same_whatever_else_there_is_to_draw(two_sides: QuadraticWork):
    a, _ = TWO.init(two_sides, rng(3))
    b, _ = replace(TWO, measure="madc").init(two_sides, rng(3))
    assert torch.equal(a.founders, b.founders)


THREE = FedGroup(num_clusters=3, pretrain_scale=3)


def deserted(work: QuadraticWork) -> FedGroupState:
    """Makes a state in which cluster 1 has no clients."""
    state, _ = THREE.init(work, rng())
    index = torch.where(torch.arange(9) % 2 == 0, 0, 2)
    assert sorted(state.index.unique().tolist()) == [0, 1, 2]
    return replace(state, index=index)


@pytest.mark.parametrize("mix", ["normalised", "sum"])
def test_cluster_without_members_neither_mixes_nor_is_mixed(mix: Mix):
    work = quadratic_clients(9)
    state = deserted(work)
    plain, info = THREE.round(state, ids(0, 3, 4), work, rng())
    mixed, more = replace(THREE, eta_g=0.5, mix=mix).round(state, ids(0, 3, 4), work, rng())
    assert torch.equal(mixed.models[1], state.models[1])
    assert_close(mixed.models[ids(0, 2)], mix_clusters(plain.models[ids(0, 2)], 0.5, mix))
    assert more.up - info.up == 2  # m T counts only the clusters that take part


def test_global_model_leaves_out_clusters_without_members():
    state = deserted(quadratic_clients(9))
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
