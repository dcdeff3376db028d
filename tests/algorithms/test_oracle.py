"""Tests Oracle, whose clusters are the true ones; that each trains as FedAvg alone is in test_limits."""

import torch
from few_rounds import begin, last
from quadratic import ids, quadratic_clients, rng
from torch import Tensor

from lit_cfl.algorithms import Oracle
from lit_cfl.algorithms.oracle import OracleState

TRUTH = torch.tensor([7, 2, 7, 2, 2, 7])  # numbers of true clusters need not start at 0 or be consecutive


def served(state: OracleState, client: int) -> Tensor:
    found = Oracle().serve(state, ids(client))
    return found.models[found.index[0]]


def test_client_whose_truth_changes_has_the_other_model_from_then_on_and_everyone_has_one_from_the_start():
    work = quadratic_clients(6, true_clusters=TRUTH)
    assert (Oracle().serve(begin(Oracle(), work), torch.arange(6)).index >= 0).all()
    state = last(Oracle(), work, [torch.arange(6)])
    moved = quadratic_clients(6, true_clusters=TRUTH.index_fill(0, ids(0), 2))
    after, _ = Oracle().round(state, ids(1), moved.at(1), rng(1))
    assert torch.equal(served(after, 0), served(after, 3))
    assert torch.equal(served(after, 2), served(state, 2))
    assert not torch.equal(served(after, 0), served(after, 2))


def test_newcomer_of_a_cluster_that_nobody_trains_has_the_initial_model():
    work = quadratic_clients(6, true_clusters=TRUTH.index_fill(0, ids(5), 4))
    work.population = torch.arange(5)
    state = last(Oracle(), work, [ids(0, 1)])
    placed, info = Oracle().place(state, ids(5), work, rng())
    assert torch.equal(served(placed, 5), work.initial(0))
    assert torch.equal(served(placed, 0), served(state, 0))
    assert info.down == 1
