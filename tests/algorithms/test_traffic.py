"""Tests the papers' traffic formulas on whole runs (docs/ground_truth.md, check 27).

T rounds, K clients a round, N clients, m clusters, alpha the scale of the pre-training; the unit is a model.
"""

from dataclasses import replace

import pytest
import torch
from few_rounds import Rotating, empty_data

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
    Local,
    StoCFL,
)
from lit_cfl.rounds import Cohorts, Round, rounds
from lit_cfl.testing import QuadraticWork

K, N, M, ALPHA = 20, 200, 5, 20  # sizes of the paper's FEMNIST
T = 300
FEMNIST = {"num_clusters": M, "pretrain_scale": ALPHA}
SPLITS = {"eps1": 100.0, "eps2": 0.0, "warmup_rounds": 2}


def corners(kind: type[QuadraticWork] = QuadraticWork) -> QuadraticWork:
    """Makes clients at each corner of a simplex in turn, with the label of their corner."""
    which = torch.arange(N) % M
    labels = 5 * torch.eye(M, dtype=torch.int64)[which]
    return kind(9 * torch.eye(M).double()[which], labels.sum(1), 0.5, label_counts=labels)


def run(algorithm: Algorithm, num_rounds: int, work: QuadraticWork | None = None) -> list[Round]:
    cohorts = Cohorts(K, "round_robin_first")
    return list(rounds(algorithm, work or corners(), empty_data(N), cohorts, seed=0, num_rounds=num_rounds))


def sent(done: list[Round]) -> int:
    return done[-1].traffic.down + done[-1].traffic.up


@pytest.mark.parametrize(
    ("algorithm", "num_rounds", "expected"),
    [
        *((algorithm, 30, 2 * K * 30) for algorithm in (FedAvg(), FedProx(), Ditto(), FeSEM(M), IFCA(1), PACFL())),
        (Local(), 30, 0),
        (IFCA(M), 30, K * 30 * (M + 1)),
        # one update of each cold start, only up: sending w_0 is not counted
        *((kind(**FEMNIST), 30, 2 * K * 30 + 2 * ALPHA * M + N - ALPHA * M) for kind in (FedGroup, FedGrouProx)),
        # directions and pre-training, and a tenth of that for the mix: 1,500 / 13,200 = 11.36 %
        (FlexCFL(**FEMNIST), T, 2 * K * T + N * M + 2 * ALPHA * M),
        (FlexCFL(**FEMNIST, eta_g=0.1), T, 13_200 + M * T),
        (StoCFL(psi="gradient"), 30, 4 * K * 30 + 2 * N),
        *((kind(**SPLITS), 6, 2 * N * 6) for kind in (CFL, LayerCFL, AdaCFL)),
        (FLHC(warmup_rounds=4), 10, 2 * (K * 9 + N)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else "",
)
def test_traffic_is_that_of_the_paper(algorithm: Algorithm, num_rounds: int, expected: int):
    assert sent(run(algorithm, num_rounds)) == expected


def test_clients_of_pacfl_send_their_singular_vectors_once_and_before_the_first_round():
    one_direction = M * 8  # all examples of a client are equal, so one vector of float64 spans them
    assert [r.traffic.bytes_up for r in run(PACFL(), 2)] == [N * one_direction] * 2


class FiveMore(Rotating):
    """Clients of which from round 5 on five more per round get their predecessor's data."""

    first, each = 5, 5


@pytest.mark.parametrize(("algorithm", "each"), [(IFCA(M, migrate=True), M), (FlexCFL(**FEMNIST), 0)])
def test_migration_costs_ifca_its_models_for_each_shifted_client_and_flexcfl_nothing(algorithm: Algorithm, each: int):
    done = run(algorithm, 30, corners(FiveMore))
    shifted = sum(int(r.info.scores["shift/detected"]) for r in done)
    assert 0 < shifted <= 5 * 26
    assert sent(done) == sent(run(replace(algorithm, migrate=False), 30, corners(FiveMore))) + each * shifted
