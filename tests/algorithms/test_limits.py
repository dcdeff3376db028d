"""Limits in which two algorithms train the same models (docs/ground_truth.md, checks 4 to 7, 14, 20, 23 and 24)."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from few_rounds import SPLITS, Rotating, begin, last, run, states
from quadratic import clients_at, ids, quadratic_clients, rng
from torch import Tensor
from torch.optim import SGD
from torch.testing import assert_close

from lit_cfl.algorithms import (
    CFL,
    FLHC,
    FLUX,
    IFCA,
    PACFL,
    Algorithm,
    Ditto,
    FedAvg,
    FedDrift,
    FedEM,
    FedGroup,
    FedGrouProx,
    FedProx,
    FeSEM,
    FlexCFL,
    LayerCFL,
    Local,
    Oracle,
    StoCFL,
)
from lit_cfl.algorithms.fedavg import FedAvgState
from lit_cfl.algorithms.server_optimizer import with_server
from lit_cfl.local_work import Budget
from lit_cfl.testing import QuadraticWork

COHORTS = [ids(0, 3, 5), ids(1, 2), ids(), ids(4, 6, 7, 2)]
EVERYONE = [torch.arange(8)] * 4
MOMENTUM = partial(SGD, lr=1.0, momentum=0.9)
PAIR: dict[str, Any] = {"num_clusters": 2, "pretrain_scale": 2, "pretrain": Budget(2, "steps")}
RULES = ("examples", "equal")

PARTIAL: list[tuple[Algorithm, Algorithm]] = [  # with a few clients in each round
    (FedProx(mu=0.0), FedAvg()),
    *((IFCA(1, weights=rule, averaging=what), FedAvg(rule)) for rule in RULES for what in ("models", "gradients")),
    *((FeSEM(1, weights=rule), FedAvg(rule)) for rule in RULES),
    (FedGroup(num_clusters=1), FedAvg()),
    (FlexCFL(num_clusters=1), FedAvg()),
    (FedEM(1), FedAvg()),
    (with_server(FedEM(1), MOMENTUM), with_server(FedAvg(), MOMENTUM)),
    (FedDrift(start="one"), FedAvg()),
    (FedGrouProx(**PAIR, mu=0.0), FedGroup(**PAIR)),
    *((FlexCFL(**PAIR | more), FedGroup(**PAIR | more)) for more in ({}, {"eta_g": 0.5}, {"measure": "madc"})),
    (Ditto(lambda_=0), Local()),
]
WHOLE: list[tuple[Algorithm, Algorithm]] = [  # with all clients in each round
    *((StoCFL(tau=-1.0, lambda_=0.0, weights=rule), FedAvg(rule)) for rule in RULES),
    *((StoCFL(tau=1.0, lambda_=mu, weights=rule), Ditto(mu, weights=rule)) for mu in (0.0, 3.0) for rule in RULES),
    (CFL(eps2=100.0, warmup_rounds=0), FedAvg()),
    (LayerCFL(**SPLITS, layers=["*"], distance="delta_cos"), CFL(**SPLITS)),
]


def start(algorithm: Algorithm, work: QuadraticWork) -> Any:
    """Returns the state before round 0, in which a single cluster has w_0."""
    state = begin(algorithm, work)
    return replace(state, models=work.initial(0)[None]) if getattr(algorithm, "num_clusters", 0) == 1 else state


def compare(algorithm: Algorithm, other: Algorithm, work: QuadraticWork, cohorts: list[Tensor]) -> None:
    """Compares the models of all clients that have one, and the losses of the rounds."""
    found = run(algorithm, work, cohorts, start(algorithm, work))
    expected = run(other, work, cohorts, start(other, work))
    for cohort, (mine, info), (theirs, same) in zip(cohorts, found, expected, strict=True):
        served = [algorithm.serve(mine, torch.arange(8)), other.serve(theirs, torch.arange(8))]
        known = (served[0].index >= 0) & (served[1].index >= 0)
        assert known[cohort].all()
        a, b = (one.models[one.index[known]] for one in served)
        assert_close(a, b, rtol=0, atol=1e-14)
        assert info.loss == pytest.approx(same.loss, nan_ok=True)


@pytest.mark.parametrize(("algorithm", "other"), PARTIAL, ids=repr)
def test_algorithms_agree_with_a_few_clients_in_each_round(algorithm: Algorithm, other: Algorithm):
    compare(algorithm, other, quadratic_clients(8), COHORTS)


@pytest.mark.parametrize(("algorithm", "other"), WHOLE, ids=repr)
def test_algorithms_agree_with_all_clients_in_each_round(algorithm: Algorithm, other: Algorithm):
    compare(algorithm, other, quadratic_clients(8), EVERYONE)


@pytest.mark.parametrize(
    ("algorithm", "other"), [(FlexCFL(num_clusters=1), FedAvg()), (FeSEM(2, migrate=True), FeSEM(2))], ids=repr
)
def test_algorithms_agree_also_when_data_drift(algorithm: Algorithm, other: Algorithm):
    plain = quadratic_clients(8)
    labels = torch.stack([plain.num_examples, 3 * plain.num_examples.flip(0)], 1)
    work = Rotating(plain.centers, plain.num_examples, 0.25, label_counts=labels, steps=3)
    compare(algorithm, other, work, COHORTS)
    infos = [info for _, info in run(algorithm, work, COHORTS)]
    assert sum(info.scores["shift/detected"] for info in infos) > 0


def test_one_true_cluster_is_fedavg():
    compare(Oracle(), FedAvg(), quadratic_clients(8, true_clusters=torch.full((8,), 3)), COHORTS)


@pytest.mark.parametrize("pull", [0.0, 0.5, 3.0])
def test_the_global_model_of_ditto_is_fedavgs(pull: float):
    work = quadratic_clients(8)
    for mine, theirs in zip(states(Ditto(pull), work, COHORTS), states(FedAvg(), work, COHORTS), strict=True):
        assert torch.equal(mine.models, theirs.models)


def test_one_cluster_of_flhc_is_fedavg_without_the_round_that_clusters():
    work = quadratic_clients(8)
    joint = last(FLHC(warmup_rounds=2, num_clusters=None, threshold=float("inf")), work, COHORTS)
    assert torch.equal(joint.models, last(FedAvg(), work, [*COHORTS[:2], COHORTS[3]]).models)


ALONE: list[Algorithm] = [Oracle("examples"), Oracle("equal"), PACFL(), FedGroup(2, pretrain_scale=4)]
ALONE += [FLHC(1, num_clusters=2), FLUX(1, num_clusters=2)]


@pytest.mark.parametrize("algorithm", ALONE, ids=repr)
def test_each_cluster_trains_as_fedavg_on_its_clients_alone(algorithm: Algorithm):
    """Five clients are near one axis, three near the other; true clusters have the numbers 7 and 2."""
    side = torch.tensor([0, 1, 0, 0, 1, 0, 0, 1])
    centers = 6 * torch.eye(2).double()[side] + 0.1 * torch.randn(8, 2, generator=rng(2)).double()
    truth = {"true_clusters": torch.tensor([7, 2])[side]} if algorithm.sees_truth else {}
    work = clients_at(*centers.tolist(), rate=0.25, steps=2, **truth)
    clustered = last(algorithm, work, [torch.arange(8)] * 2)
    labels = algorithm.serve(clustered, torch.arange(8)).index
    assert torch.equal(labels == labels[0], side == 0)
    for cluster in (0, 1):
        parts = [cohort[labels[cohort] == cluster] for cohort in COHORTS]
        alone = last(FedAvg(algorithm.weights), work, parts, FedAvgState(clustered.models[cluster : cluster + 1]))
        later = clustered
        for number, cohort in enumerate(COHORTS):
            later, _ = algorithm.round(later, cohort, work.at(2 + number), rng())
        assert_close(later.models[cluster], alone.models[0], rtol=0, atol=1e-14)
