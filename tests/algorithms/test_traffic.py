"""Tests the papers' traffic formulas on whole runs (docs/ground_truth.md, check 27).

T rounds, K clients a round, N clients, m clusters, alpha the scale of the pre-training; the unit is a model.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from test_rounds import empty_data

from lit_cfl.algorithms import (
    CFL,
    FLHC,
    IFCA,
    PACFL,
    AdaCFL,
    Algorithm,
    Ditto,
    FedAvg,
    FedGroup,
    FedGrouProx,
    FedProx,
    FeSEM,
    FlexCFL,
    LayerCFL,
    StoCFL,
)
from lit_cfl.rounds import Cohorts, rounds
from lit_cfl.testing import QuadraticWork

K, N, M, ALPHA = 20, 200, 5, 20  # sizes of the paper's FEMNIST
T = 300


def corners(clients: int = N) -> QuadraticWork:
    """Makes clients at each corner of a simplex in turn, with the label of their corner."""
    which = torch.arange(clients) % M
    labels = 5 * torch.eye(M, dtype=torch.int64)[which]
    return QuadraticWork(9 * torch.eye(M).double()[which], labels.sum(1), 0.5, label_counts=labels)


class Rotating(QuadraticWork):
    """Clients whose data rotate: from round 5 on, five more clients per round get their predecessor's data."""

    def at(self, round: int, data: object = None) -> "QuadraticWork":
        view, source = super().at(round), torch.arange(len(self.centers))
        moved = 5 * max(0, round - 4)
        source[:moved] = (source[:moved] - 1) % len(self.centers)
        view.centers, view.label_counts = self.centers[source], self.label_counts[source]
        return view


def sent(algorithm: Algorithm, work: QuadraticWork, num_rounds: int = T, cohort_size: int = K) -> int:
    data = empty_data(len(work.centers))
    cohorts = Cohorts(cohort_size, "round_robin_first")
    last = list(rounds(algorithm, work, data, cohorts, seed=0, num_rounds=num_rounds))[-1]
    return last.traffic.down + last.traffic.up


@pytest.mark.parametrize(
    "algorithm", [FedAvg(), FedProx(), Ditto(), FeSEM(M), IFCA(1), PACFL()], ids=lambda one: type(one).__name__
)
def test_one_model_each_way(algorithm: Algorithm):
    assert sent(algorithm, corners(), 30) == 2 * K * 30


def test_ifca_sends_all_models_down():
    assert sent(IFCA(M), corners(), 30) == K * 30 * (M + 1)


@pytest.mark.parametrize("kind", [FedGroup, FedGrouProx])
def test_fedgroup_is_fedavg_after_its_cold_starts(kind: Callable[..., FedGroup]):
    algorithm = kind(num_clusters=M, pretrain_scale=ALPHA)
    cold_starts = N - ALPHA * M  # one update each, only up: sending w_0 is not counted
    assert sent(algorithm, corners(), 30) == 2 * K * 30 + 2 * ALPHA * M + cold_starts


def test_flexcfl_adds_directions_and_pretraining_and_the_mix_a_tenth_of_that():  # 1,500 / 13,200 = 11.36 %
    plain = sent(FlexCFL(num_clusters=M, pretrain_scale=ALPHA), corners())
    assert plain == 2 * K * T + N * M + 2 * ALPHA * M == 13_200
    assert sent(FlexCFL(num_clusters=M, pretrain_scale=ALPHA, eta_g=0.1), corners()) - plain == M * T == 1_500


def test_migration_costs_ifca_its_models_for_each_shifted_client():
    start = corners()
    work = Rotating(start.centers, start.num_examples, 0.5, label_counts=start.label_counts)
    algorithm = IFCA(M, migrate=True)
    found = list(rounds(algorithm, work, empty_data(N), Cohorts(K, "round_robin_first"), seed=0, num_rounds=30))
    shifted = sum(int(r.info.scores["shift/detected"]) for r in found)
    assert 0 < shifted <= 5 * 25
    total = found[-1].traffic.down + found[-1].traffic.up
    assert total == K * 30 * (M + 1) + M * shifted
    assert sent(replace(algorithm, migrate=False), work, 30) == K * 30 * (M + 1)


def test_stocfl_sends_two_models_each_way_and_psi_once():
    assert sent(StoCFL(psi="gradient"), corners(), 30) == 4 * K * 30 + 2 * N


@pytest.mark.parametrize("kind", [CFL, LayerCFL, AdaCFL])
def test_splitting_needs_everyone_in_every_round(kind: Callable[..., CFL]):
    splits = kind(eps1=100.0, eps2=0.0, warmup_rounds=2)
    assert sent(splits, corners(), 6) == 2 * N * 6


def test_flhc_needs_everyone_once():
    assert sent(FLHC(warmup_rounds=4), corners(), 10) == 2 * (K * 9 + N)
