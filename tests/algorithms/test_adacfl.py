"""Tests AdaCFL on quadratic clients, with our rule for cutting the dendrogram."""

from dataclasses import replace

import pytest
import torch
from few_rounds import SPLITS, run
from quadratic import Clients, clients_at, f64, ids, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms import AdaCFL, Info, LayerCFL
from lit_cfl.algorithms.splits import SplitState
from lit_cfl.clustering import distances

ALWAYS = AdaCFL(**SPLITS)
THREE = f64([0.0, 9], [8, 0], [0.4, 9], [-8, 0], [8.5, 0], [-8, 0.3], [8, 0.6])
KINDS = [0, 1, 0, 2, 1, 2, 1]


def work_in_fc(centers: Tensor, in_conv: Tensor | None = None, layers: dict[str, int] | None = None) -> Clients:
    """Makes clients of unequal sizes whose optimal FC weights are `centers` `[n, 2]`; their start is 0."""
    conv = torch.zeros(len(centers), 2).double() if in_conv is None else in_conv
    rows = torch.cat([conv, centers], 1).tolist()
    return clients_at(*rows, start=0.0, layers=layers or {"conv1": 2, "fc1": 2})


def split(algorithm: AdaCFL | LayerCFL, work: Clients) -> tuple[SplitState, Info]:
    ((state, info),) = run(algorithm, work, [work.population])
    return state, info


def test_three_clusters_are_found_at_once():
    state, info = split(ALWAYS, work_in_fc(THREE))
    assert state.index.tolist() == KINDS
    assert state.parent.tolist() == [-1, 0, 0]
    assert len(state.starts) == 1
    assert torch.equal(state.models, state.models[:1].expand(3, -1))
    assert (info.down, info.up) == (7, 7)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([0, 1, 40, 41, 99, 100], [0, 0, 0, 0, 1, 1]),  # merged at distances 1, 1, 1, 41, 100
        ([0, 1, 60 + 80j, 61 + 80j, 110, 112], [0, 0, 1, 1, 2, 2]),  # merged at distances 1, 1, 2, 95, 112
        ([0, 1, 80, 81], [0, 0, 1, 1]),
        ([0, 6, 7, 15], [0, 0, 0, 1]),  # complete linkage merges at 1, 7 and 15; average linkage would give three
        ([1, 1, 1, 1], [0, 0, 0, 0]),
        ([0, 5], [0, 0]),  # two clients are not split
    ],
)
def test_number_of_clusters_is_where_merges_jump_most(points: list[complex], expected: list[int]):
    work = work_in_fc(f64(*([complex(p).real, complex(p).imag] for p in points)))
    assert split(ALWAYS, work)[0].index.tolist() == expected


def test_clients_that_are_all_as_far_from_each_other_are_not_split():
    work = clients_at(*(6.0 * torch.eye(5)).tolist(), start=0.0, layers={"conv1": 1, "fc1": 4})
    state, info = split(replace(ALWAYS, layers=["*"]), work)
    assert len(state.models) == 1
    assert info.similarity is not None  # the clients were compared


def test_what_is_compared_are_l2_distances_of_fc_weights():
    conv = 30 * torch.randn(7, 2, generator=rng(1), dtype=torch.float64)
    state, info = split(ALWAYS, work_in_fc(THREE, conv))
    assert state.index.tolist() == KINDS  # the convolution does not matter
    apart = distances(THREE, "l2")
    assert_close(info.similarity.matrix, 1 - 2 * apart / apart.max())
    named, _ = split(replace(ALWAYS, layers=["conv1"]), work_in_fc(torch.zeros(7, 2).double(), THREE))
    assert named.index.tolist() == KINDS


@pytest.mark.parametrize("options", [{"eps1": 0.01}, {"eps2": 90.0}, {"warmup_rounds": 1}])
def test_it_splits_when_cfl_would(options: dict[str, float]):
    assert len(split(replace(ALWAYS, **options), work_in_fc(THREE))[0].models) == 1


def test_newcomers_join_the_part_whose_mean_weights_are_nearest():
    state, _ = split(ALWAYS, work_in_fc(THREE))
    more, conv = f64([-7.0, 1], [0, 7], [9, 1]), torch.zeros(10, 2).double()
    conv[7:] = 40
    placed, info = ALWAYS.place(state, ids(7, 8, 9), work_in_fc(torch.cat([THREE, more]), conv), rng())
    assert placed.index[7:].tolist() == [2, 0, 1]
    assert (info.down, info.up) == (3, 3)
