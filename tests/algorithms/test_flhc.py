"""Tests FL+HC on quadratic clients (docs/ground_truth.md, checks 12 and 24)."""

from dataclasses import replace

import pytest
import torch
from few_rounds import begin, last, states
from quadratic import clients_at, f64, ids, quadratic_clients, rng
from torch.testing import assert_close

from lit_cfl.algorithms.fedavg import FedAvg
from lit_cfl.algorithms.flhc import FLHC, FLHCState

# clients are clustered in round 2
COHORTS = [ids(0, 3, 4), ids(1, 2), torch.arange(6), ids(0, 1, 4), ids(2, 3, 5), ids(1, 5)]
TWO = FLHC(warmup_rounds=2, num_clusters=2)


@pytest.mark.parametrize("distance", ["l1", "l2", "cosine"])
@pytest.mark.parametrize("linkage", ["single", "complete", "average"])
def test_two_bundles_of_updates_become_two_clusters(distance: str, linkage: str):
    state = last(replace(TWO, distance=distance, linkage=linkage), quadratic_clients(6), COHORTS[:3])
    assert state.index.tolist() == [0, 1, 0, 1, 0, 1]


def test_it_is_fedavg_before_the_clustering_and_every_cluster_starts_from_the_joint_model():
    work = quadratic_clients(6)
    fedavg = last(FedAvg(), work, COHORTS[:2])
    _, before, after, *_ = states(TWO, work, COHORTS)
    assert torch.equal(before.models, fedavg.models)
    assert torch.equal(after.models, fedavg.models.repeat(2, 1))


def test_threshold_zero_is_local_training_from_the_joint_model():  # check 24
    work = quadratic_clients(6)
    state = last(FLHC(warmup_rounds=2, num_clusters=None, threshold=0.0), work, COHORTS)
    assert state.index.tolist() == [0, 1, 2, 3, 4, 5]
    assert_close(state.models[4], work.centers[4] + 0.75**3 * (state.joint - work.centers[4]))


def test_newcomer_trains_from_the_joint_model_and_joins_the_nearest_mean_update():
    work = clients_at(4.0, -4.0, 9.0, sizes=(1, 2, 0))
    models, centroids = f64([10.0], [-10.0]), f64([2.0], [-2.5])
    placed, info = TWO.place(FLHCState(models, ids(), f64(0), centroids), ids(2, 0, 1), work.at(5), rng())
    assert TWO.serve(placed, ids(2, 0, 1)).index.tolist() == [-1, 0, 1]
    assert_close(info.closeness, f64([torch.nan] * 2, [0, -4.5], [-4, -0.5]), equal_nan=True)
    assert (info.down, info.up, info.skipped) == (3, 2, 1)


def test_mean_update_of_a_cluster_counts_its_clients_alike():
    work = clients_at(0.0, 20.0, 4.0, 30.0, sizes=(1, 5, 3, 2))
    state, _ = TWO.round(begin(TWO, work, 0.0), torch.arange(4), work.at(2), rng())
    assert state.index.tolist() == [0, 1, 0, 1]
    assert state.centroids.tolist() == [[1.0], [12.5]]
