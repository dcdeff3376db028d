"""FedGroup with a cluster that lost all its members: it rests, counts for nobody (docs/ground_truth.md, edge cases)."""

from dataclasses import replace

import pytest
import torch
from quadratic import ids, quadratic_clients, rng
from torch.testing import assert_close

from lit_cfl.aggregation import Mix, mix_clusters
from lit_cfl.algorithms import FedGroup
from lit_cfl.algorithms.fedgroup import FedGroupState
from lit_cfl.testing import QuadraticWork

THREE = FedGroup(num_clusters=3, pretrain_scale=3)


def deserted(work: QuadraticWork) -> FedGroupState:
    """Nobody is in cluster 1 any more."""
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
    assert more.up - info.up == 2  # m T counts the clusters that take part


def test_global_model_leaves_out_clusters_without_members():
    state = deserted(quadratic_clients(9))
    assert_close(THREE.serve(state, ids(4)).extra["global"], (state.models[0] + state.models[2]) / 2)


def test_cold_client_may_still_join_a_cluster_that_everybody_left():
    work = quadratic_clients(9)
    state = deserted(work)
    back = replace(state, directions=torch.zeros_like(state.directions).index_fill(0, ids(1), 1.0))
    clients = ids(2, 6)
    expected = ((work.centers[clients] - state.initial).sum(1) > 0).long().tolist()  # else all are alike at 0 or more
    placed, _ = THREE.place(back, clients, work, rng())
    assert placed.index[clients].tolist() == expected
    assert 1 in expected
