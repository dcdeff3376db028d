"""Tests Oracle against FedAvg on the clients of each true cluster alone."""

from dataclasses import replace

import pytest
import torch
from quadratic import ids, quadratic_clients, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms import FedAvg, Oracle
from lit_cfl.algorithms.oracle import OracleState
from lit_cfl.errors import InputError
from lit_cfl.testing import QuadraticWork

TRUTH = torch.tensor([7, 2, 7, 2, 2, 7])  # numbers of true clusters need not start at 0 or be consecutive


def trained(work: QuadraticWork, cohorts: list[Tensor], algorithm: Oracle = Oracle()) -> OracleState:
    state, _ = algorithm.init(work, rng())
    for number, cohort in enumerate(cohorts):
        state, _ = algorithm.round(state, cohort, work.at(number), rng(number))
    return state


def served(state: OracleState, client: int) -> Tensor:
    found = Oracle().serve(state, ids(client))
    return found.models[found.index[0]]


@pytest.mark.parametrize("weights", ["examples", "equal"])
def test_each_true_cluster_trains_as_fedavg_on_its_clients_alone(weights):
    work = quadratic_clients(6, true_clusters=TRUTH)
    cohorts = [ids(0, 1, 3), ids(5, 2), ids(4, 0, 2, 1)]
    state = trained(work, cohorts, Oracle(weights))
    for cluster in (7, 2):
        alone, _ = FedAvg(weights).init(work, rng())
        for number, cohort in enumerate(cohorts):
            alone, _ = FedAvg(weights).round(alone, cohort[TRUTH[cohort] == cluster], work.at(number), rng(number))
        for client in (cluster == TRUTH).nonzero().flatten().tolist():
            assert torch.equal(served(state, client), alone.models[0])


def test_one_true_cluster_is_fedavg_to_the_bit_with_its_traffic():
    work = quadratic_clients(6, true_clusters=torch.full((6,), 3))
    state, other = Oracle().init(work, rng())[0], FedAvg().init(work, rng())[0]
    for number, cohort in enumerate([ids(0, 1, 3), ids(5, 2), ids(4, 0, 2, 1)]):
        state, info = Oracle().round(state, cohort, work.at(number), rng(number))
        other, expected = FedAvg().round(other, cohort, work.at(number), rng(number))
        assert torch.equal(state.models, other.models)
        assert (info.loss, info.down, info.up, info.scores) == (
            expected.loss,
            expected.down,
            expected.up,
            expected.scores,
        )


def test_clusters_converge_to_the_weighted_means_of_their_centres():
    work = quadratic_clients(6, true_clusters=TRUTH)
    state = trained(work, [torch.arange(6)] * 60)
    for cluster in (7, 2):
        mine = cluster == TRUTH
        weights = work.num_examples[mine].double() / work.num_examples[mine].sum()
        assert_close(served(state, int(mine.nonzero()[0])), weights @ work.centers[mine])


def test_client_whose_truth_changes_has_the_other_model_from_then_on_and_everyone_has_one_from_the_start():
    work = quadratic_clients(6, true_clusters=TRUTH)
    state, _ = Oracle().init(work, rng())
    assert (Oracle().serve(state, torch.arange(6)).index >= 0).all()
    state = trained(work, [torch.arange(6)])
    moved = quadratic_clients(6, true_clusters=TRUTH.index_fill(0, ids(0), 2))
    after, _ = Oracle().round(state, ids(1), moved.at(1), rng(1))
    assert torch.equal(served(after, 0), served(after, 3))
    assert torch.equal(served(after, 2), served(state, 2))


def test_newcomer_of_a_cluster_that_nobody_trains_has_the_initial_model():
    work = quadratic_clients(6, true_clusters=TRUTH.index_fill(0, ids(5), 4))
    work.population = torch.arange(5)
    state = trained(work, [ids(0, 1)])
    placed, info = Oracle().place(state, ids(5), work, rng())
    assert torch.equal(served(placed, 5), work.initial(0))
    assert torch.equal(served(placed, 0), served(state, 0))
    assert info.down == 1


def test_data_without_truth_are_refused_before_the_start():
    work = quadratic_clients(6, true_clusters=TRUTH.index_fill(0, ids(4), -1))
    with pytest.raises(
        InputError,
        match=r"1 of 6 clients have no known true cluster \(such as client 4\); give data with true",
    ):
        Oracle().check(work)
    work.population = torch.arange(4)
    Oracle().check(work)
    with pytest.raises(InputError, match="such as client 4"):
        Oracle().place(trained(work, []), ids(4), work, rng())
    assert replace(Oracle(), weights="equal").sees_truth
