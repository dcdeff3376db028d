"""Tests local training against closed forms on quadratic clients, and how models of clients are kept."""

import pytest
import torch
from few_rounds import last
from quadratic import ids, quadratic_clients, rng
from torch.testing import assert_close

from lit_cfl import memmap_rows
from lit_cfl.algorithms import IFCA, Ditto, FeSEM, Local
from lit_cfl.algorithms.base import Algorithm
from lit_cfl.algorithms.personal_layers import with_personal_layers

COHORTS = [ids(0, 3), ids(3, 2, 1), ids(3), ids(1, 0)]
KEEPING = with_personal_layers(IFCA(2), ["conv1"])


def test_each_client_takes_its_own_steps_from_the_common_start_and_no_others():
    work = quadratic_clients(5)  # eta .25, E 3
    personal = last(Local(), work, COHORTS).personal
    start = work.initial(0)
    for client, rounds in {0: 2, 1: 2, 2: 1, 3: 3}.items():
        assert_close(personal[client], work.centers[client] + 0.75 ** (3 * rounds) * (start - work.centers[client]))
    assert set(personal) == {0, 1, 2, 3}  # client 4 was never selected


@pytest.mark.parametrize("algorithm", [Local(), Ditto()])
def test_the_number_of_a_clients_model_stays_when_others_train_later(algorithm: Algorithm):
    work = quadratic_clients(5)
    state = last(algorithm, work, [ids(0, 3)])
    assert algorithm.serve(state, torch.arange(5)).index.tolist() == [0, -1, -1, 1, -1]
    state, _ = algorithm.place(state, ids(1), work.at(1), rng(1))
    served = algorithm.serve(state, torch.arange(5))
    assert served.index.tolist() == [0, 2, -1, 1, -1]
    assert torch.equal(served.models[2], state.personal[1])


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [(Local(), "personal"), (Ditto(0.5), "personal"), (FeSEM(2), "last"), (KEEPING, "own_layers")],
    ids=["Local", "Ditto", "FeSEM", "personal layers"],
)
def test_rows_of_clients_that_take_most_of_the_memory_are_the_same_in_files(algorithm, name: str, monkeypatch):
    work = quadratic_clients(5)
    expected = getattr(last(algorithm, work, COHORTS), name)
    monkeypatch.setattr(memmap_rows, "_IN_MEMORY", 0)
    monkeypatch.setattr(memmap_rows, "machine_memory", lambda: 0)
    found = getattr(last(algorithm, work, COHORTS), name)
    assert found.keys() == expected.keys() == {0, 1, 2, 3}
    for client, row in found.items():
        assert row.untyped_storage().filename is not None
        assert torch.equal(row, expected[client])
