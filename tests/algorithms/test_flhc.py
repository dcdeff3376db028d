"""Tests FL+HC on quadratic clients (docs/ground_truth.md, checks 12 and 24)."""

from dataclasses import replace

import pytest
import torch
from quadratic import ids, quadratic_clients, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms.fedavg import FedAvg
from lit_cfl.algorithms.flhc import FLHC, FLHCState
from lit_cfl.errors import InputError
from lit_cfl.testing import QuadraticWork

# clients are clustered in round 2
COHORTS = [ids(0, 3, 4), ids(1, 2), torch.arange(6), ids(0, 1, 4), ids(2, 3, 5), ids(1, 5)]
TWO = FLHC(warmup_rounds=2, num_clusters=2)


def states(algorithm: FLHC, work: QuadraticWork, cohorts: list[Tensor] = COHORTS) -> list[FLHCState]:
    found = [algorithm.init(work, rng())[0]]
    for number, cohort in enumerate(cohorts):
        found.append(algorithm.round(found[-1], cohort, work.at(number), rng(number))[0])
    return found


@pytest.mark.parametrize("distance", ["l1", "l2", "cosine"])
@pytest.mark.parametrize("linkage", ["single", "complete", "average"])
def test_two_bundles_of_updates_become_two_clusters(distance: str, linkage: str):
    state = states(replace(TWO, distance=distance, linkage=linkage), quadratic_clients(6))[3]
    assert state.index.tolist() == [0, 1, 0, 1, 0, 1]


def test_it_is_fedavg_before_the_clustering_and_every_cluster_starts_from_the_joint_model():
    work = quadratic_clients(6)
    fedavg, _ = FedAvg().init(work, rng())
    for number, cohort in enumerate(COHORTS[:2]):
        fedavg, _ = FedAvg().round(fedavg, cohort, work.at(number), rng(number))
    _, _, before, after, *_ = states(TWO, work)
    assert torch.equal(before.models, fedavg.models)
    assert torch.equal(after.models, fedavg.models.repeat(2, 1))


def test_each_cluster_then_trains_alone():
    work = quadratic_clients(6)
    # the last cohort has clients 1 and 5 with 2 and 6 examples, both in cluster 1
    *_, before, after = states(TWO, work)
    local = work.centers + 0.75**3 * (before.models[1] - work.centers)
    assert torch.equal(after.models[0], before.models[0])
    assert_close(after.models[1], (2 * local[1] + 6 * local[5]) / 8)


def test_one_cluster_is_fedavg_without_the_round_that_clusters():  # check 24
    work = quadratic_clients(6)
    found = states(FLHC(warmup_rounds=2, num_clusters=None, threshold=float("inf")), work)[-1]
    state, _ = FedAvg().init(work, rng())
    for cohort in (*COHORTS[:2], *COHORTS[3:]):
        state, _ = FedAvg().round(state, cohort, work, rng())
    assert torch.equal(found.models, state.models)


def test_threshold_zero_is_local_training_from_the_joint_model():  # check 24
    work = quadratic_clients(6)
    found = states(FLHC(warmup_rounds=2, num_clusters=None, threshold=0.0), work)
    assert found[-1].index.tolist() == [0, 1, 2, 3, 4, 5]
    assert_close(found[-1].models[4], work.centers[4] + 0.75**3 * (found[-1].joint - work.centers[4]))


def test_newcomer_joins_the_nearest_mean_update():
    work = quadratic_clients(8)
    state = states(TWO, replace_population(work, 6))[-1]
    placed, info = TWO.place(state, ids(7, 6), work.at(6), rng())
    assert TWO.serve(placed, ids(6, 7)).index.tolist() == [0, 1]
    assert (info.down, info.up) == (2, 2)
    work.num_examples = work.num_examples * (torch.arange(8) != 6)
    placed, info = TWO.place(state, ids(7, 6), work, rng())
    assert TWO.serve(placed, ids(6, 7)).index.tolist() == [-1, 1]
    assert info.closeness.isnan().all(1).tolist() == [False, True]
    assert (info.down, info.up, info.skipped) == (2, 1, 1)


def test_newcomer_trains_from_the_joint_model_whatever_the_clusters_have_learnt():
    work = QuadraticWork(torch.tensor([[4.0], [-4.0]]).double(), ids(1, 2), 0.5)
    models, centroids = torch.tensor([[[10.0], [-10.0]], [[2.0], [-2.0]]]).double()
    state = FLHCState(models, ids(), torch.zeros(1).double(), centroids)
    placed, info = TWO.place(state, ids(0, 1), work.at(5), rng())
    assert placed.index.tolist() == [0, 1]
    assert info.closeness.tolist() == [[0, -4], [-4, 0]]


def test_mean_update_of_a_cluster_counts_its_clients_alike():
    work = QuadraticWork(torch.tensor([[0.0], [20.0], [4.0], [30.0]]).double(), ids(1, 5, 3, 2), 0.5)
    state, _ = TWO.init(work, rng())
    state = replace(state, models=torch.zeros(1, 1).double())
    state, _ = TWO.round(state, torch.arange(4), work.at(2), rng())
    assert state.index.tolist() == [0, 1, 0, 1]
    assert state.centroids.tolist() == [[1.0], [12.5]]


def replace_population(work: QuadraticWork, clients: int) -> QuadraticWork:
    return QuadraticWork(work.centers[:clients], work.num_examples[:clients], work.learning_rate, steps=work.steps)


def test_client_without_data_is_clustered_once_it_has_some():
    work, later = quadratic_clients(6), quadratic_clients(6)
    work.num_examples = work.num_examples.clone()
    work.num_examples[2] = 0
    state = states(TWO, work)[-1]
    assert TWO.serve(state, ids(2)).index.tolist() == [-1]
    state, _ = TWO.round(state, ids(2), later.at(6), rng())
    assert TWO.serve(state, ids(2)).index.tolist() == [0]


def test_only_the_round_that_clusters_needs_everybody():
    assert [FLHC(warmup_rounds=2).needs_all(round) for round in range(4)] == [False, False, True, False]
    assert FLHC(warmup_rounds=7).first_clustering_round() == 7


def test_traffic_is_fedavgs_with_everybody_in_the_round_that_clusters():
    work = quadratic_clients(6)
    state, _ = TWO.init(work, rng())
    sent = []
    for number, cohort in enumerate(COHORTS[:4]):
        state, info = TWO.round(state, cohort, work.at(number), rng(number))
        sent.append((info.down, info.up))
    assert sent == [(3, 3), (2, 2), (6, 6), (3, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clusters": None}, "give one of them"),
        ({"threshold": 1.0}, "give one of them"),
        ({"num_clusters": 0}, "num_clusters is 0"),
        ({"num_clusters": None, "threshold": -1.0}, r"threshold is -1\.0"),
        ({"linkage": "ward", "distance": "cosine"}, "ward needs distance l2"),
        ({"warmup_rounds": -1}, "warmup_rounds is -1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        FLHC(**options)


def test_more_clusters_than_clients_are_refused():
    with pytest.raises(InputError, match="num_clusters is 5, but only 4 clients can be clustered; lower it to 4"):
        FLHC(num_clusters=5).check(quadratic_clients(4))
