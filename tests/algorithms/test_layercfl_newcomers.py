"""Tests that LayerCFL and AdaCFL place newcomers by the layers that the splits used, and by no others."""

import pytest
import torch
from quadratic import ids, rng
from test_cfl import begun

from lit_cfl.algorithms import CFL, AdaCFL, LayerCFL
from lit_cfl.testing import QuadraticWork

ALWAYS = {"eps1": 100.0, "eps2": 0.0, "warmup_rounds": 0}  # splits whenever a cluster has three clients
MEMBERS = [[1.0, 4.0], [1.0, 4.5], [-1.0, -4.0], [-1.0, -4.5]]  # columns: conv1, fc1
CONTRADICTING = [[-100.0, 4.0], [100.0, -4.0]]  # conv1 is nearer to the other part, and its updates are larger


def work_of(*centers: list[float]) -> QuadraticWork:
    rows = torch.tensor(centers, dtype=torch.float64)
    return QuadraticWork(rows, torch.arange(1, len(rows) + 1), 0.5, layers={"conv1": 1, "fc1": 1})


@pytest.mark.parametrize(
    "algorithm",
    [
        AdaCFL(**ALWAYS),
        *[LayerCFL(**ALWAYS, layers=["fc1"], distance=each) for each in ("l2", "delta_l2", "cos", "delta_cos")],
    ],
    ids=lambda one: getattr(one, "distance", "AdaCFL"),
)
def test_newcomer_is_placed_by_the_layers_of_the_split_whatever_the_others_say(algorithm: CFL):
    work = work_of(*MEMBERS)
    state, _ = algorithm.round(begun(algorithm, work, 0.0, 0.0), work.population, work, rng())
    assert state.index.tolist() == [0, 0, 1, 1]
    placed, _ = algorithm.place(state, ids(5, 4), work_of(*MEMBERS, *CONTRADICTING), rng())
    assert placed.index.tolist() == [0, 0, 1, 1, 0, 1]
    whole = CFL(**ALWAYS)  # comparing all layers gives the opposite result
    state, _ = whole.round(begun(whole, work, 0.0, 0.0), work.population, work, rng())
    placed, _ = whole.place(state, ids(5, 4), work_of(*MEMBERS, *CONTRADICTING), rng())
    assert placed.index.tolist() == [0, 0, 1, 1, 1, 0]


@pytest.mark.parametrize(
    "algorithm",
    [AdaCFL(**ALWAYS), *[LayerCFL(**ALWAYS, layers=["fc1"], distance=each) for each in ("l2", "delta_l2")]],
    ids=lambda one: getattr(one, "distance", "AdaCFL"),
)
def test_newcomer_is_placed_by_distance_where_the_directions_are_the_same(algorithm: CFL):
    members = [[0.0, 1.0], [0.0, 1.5], [0.0, 10.0], [0.0, 10.5]]
    work = work_of(*members)
    state, _ = algorithm.round(begun(algorithm, work, 0.0, 0.0), work.population, work, rng())
    assert state.index.tolist() == [0, 0, 1, 1]
    placed, _ = algorithm.place(state, ids(4, 5), work_of(*members, [0.0, 9.0], [0.0, 2.0]), rng())
    assert placed.index[4:].tolist() == [1, 0]
