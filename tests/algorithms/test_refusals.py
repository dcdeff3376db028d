"""Tests what algorithms refuse: options that do not fit each other, and data or wrappers that they cannot use."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from digits_experiment import digits
from few_rounds import begin, last
from own_arrays import assert_refused
from quadratic import Clients, clients_at, f64, ids, quadratic_clients, rng
from torch.optim import LBFGS, SGD

import lit_cfl.algorithms
from lit_cfl.algorithms import (
    CFL,
    FLHC,
    FLUX,
    IFCA,
    PACFL,
    Ditto,
    FedAvg,
    FedDrift,
    FedGroup,
    Info,
    LayerCFL,
    Local,
    Oracle,
)
from lit_cfl.algorithms.server_optimizer import with_server
from lit_cfl.clustering.subspaces import left_singular_vectors
from lit_cfl.nets import MLP
from lit_cfl.tasks import Classification
from lit_cfl.testing import QuadraticWork


class Mixing(FedAvg):
    mixes_models = True


class Median(FedAvg):
    """Algorithm that does not average by `mean_by_cluster`, as server optimizers need."""

    def round(self, state, cohort, work, rng):
        rows = work.fit(state.models, cohort).rows
        return replace(state, models=rows.median(0, keepdim=True).values), Info(up=len(cohort))


def line(*centers: float, **changes: Any) -> Clients:
    """Makes clients on a line, some of whose attributes are changed."""
    work = clients_at(*centers)
    vars(work).update(changes)
    return work


def on_mlp(**options: Any) -> object:
    def task() -> Classification:
        return Classification(MLP(8, [1, 8, 8], 10), partial(SGD, lr=0.1))

    return digits(**({"task": task, "algorithm": FedAvg()} | options)).prepare(3)


def with_truth(population: int) -> QuadraticWork:
    """Makes six clients, of whom client 4 has no true cluster; the first ones are in training."""
    work = quadratic_clients(6, true_clusters=ids(7, 2, 7, 2, -1, 7))
    work.population = torch.arange(population)
    return work


DIVERGED = line(0.0, 1.0, torch.nan)
HALF = partial(SGD, lr=0.5)
MADC = FedGroup(num_clusters=2, pretrain_scale=1, measure="madc")
MIGRATING = {"num_clusters": 2, "migrate": True}
REFUSED: list[tuple[Callable[[], object], str]] = [
    # options
    (lambda: FedDrift(eager=True), "eager is true | start is clients"),
    (lambda: FedDrift(eager=True, start="one", merge_delta=1.0), "merge_delta is 1.0"),
    (lambda: FLHC(num_clusters=None), "num_clusters is None"),
    (lambda: FLHC(threshold=1.0), "threshold 1.0"),
    (lambda: FLHC(linkage="ward", distance="cosine"), "ward | cosine"),
    *((partial(on_mlp, algorithm=one, personal=["fc2"]), type(one).__name__) for one in (Local(), Ditto(), Mixing())),
    (lambda: on_mlp(personal=[]), "personal is []"),
    (lambda: on_mlp(personal=["fc2"], shared=["fc*"]), "net.fc2"),
    (lambda: on_mlp(personal=["fc2"], algorithm=LayerCFL(layers=["fc2"])), "'fc2' | (without net.fc2: personal)"),
    *((partial(digits, algorithm=one, shared=["fc1"]), f"shared | {type(one).__name__}") for one in (CFL(), Local())),
    *((partial(digits, algorithm=one, server=HALF), f"server | {type(one).__name__}") for one in (CFL(), Local())),
    (lambda: digits(algorithm=IFCA(averaging="gradients"), server=HALF), "server | IFCA"),
    (lambda: last(with_server(Median(), HALF), quadratic_clients(8)), "server | Median"),
    (lambda: with_server(FedAvg(), LBFGS), "server | closure"),
    (lambda: with_server(FedAvg(), partial(SGD, lr=-1.0)), "server | learning rate: -1"),
    # numbers of clients
    (lambda: IFCA(3).check(clients_at(0.0, 1.0, 2.0, sizes=(1, 0, 4))), "num_clusters is 3 | 2 clients"),
    (lambda: MADC.check(quadratic_clients(8)), "there are 2 (num_clusters 2 times pretrain_scale 1, 8 at most"),
    (lambda: PACFL().check(clients_at(0.0, 1.0, sizes=(0, 0))), "no client can be clustered"),
    # layers
    *(
        (lambda layers=layers: LayerCFL(layers=layers).check(quadratic_clients(3)), "conv1 (conv2d), fc1 (linear)")
        for layers in (["conv9"], [], ["fc1", ""])
    ),
    # data
    (lambda: Oracle().check(with_truth(6)), "1 of 6 clients | client 4"),
    (lambda: Oracle().place(begin(Oracle(), with_truth(4)), ids(4), with_truth(4), rng()), "client 4"),
    (lambda: left_singular_vectors(torch.ones(3, 4, dtype=torch.int64), 2), "token ids | PACFL"),
    (lambda: left_singular_vectors(f64([1, torch.nan]), 2), "not finite"),
    (lambda: FLUX(0).round(begin(FLUX(0), DIVERGED), ids(), DIVERGED, rng()), "client 2 are not finite"),
    (
        lambda: IFCA(**MIGRATING).init(line(0.0, label_counts=torch.empty(1, 0, dtype=torch.int64)), rng()),
        "classes; set shift_metric to loss or features",
    ),
    (
        lambda: IFCA(**MIGRATING, shift_metric="features").init(
            line(0.0, centers=torch.zeros(1, 1).long(), start=f64(2)), rng()
        ),
        "torch.int64 | set shift_metric to loss",
    ),
]


@pytest.mark.parametrize(("make", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_an_algorithm_cannot_use_is_refused(make: Callable[[], object], words: str):
    assert_refused(make, words)


LIMITS = """
FedProx      mu               0.0   -0.1
FedProx      stragglers       1.0   1.1
FedGrouProx  mu               0.0   -0.1
Ditto        lambda_          0.0   -0.1
IFCA         num_clusters     1     0
IFCA         max_clusters     1     0
IFCA         shift_threshold  0.0   -0.1
FeSEM        num_clusters     1     0
FedEM        num_clusters     1     0
FedEM        newcomer_steps   1     0
FedGroup     num_clusters     1     0
FedGroup     pretrain_scale   1     0
FedGroup     eta_g            0.0   -0.1
FlexCFL      shift_threshold  inf   nan
FLHC         num_clusters     1     0
FLHC         warmup_rounds    0     -1
FLUX         warmup_rounds    0     -1
FLUX         components       1     0
FLUX         radius_scale     0.1   0.0
FLUX         num_clusters     1     0
PACFL        num_vectors      1     0
PACFL        threshold        0.0   -0.1
StoCFL       tau              -1.0  -1.1
StoCFL       tau              1.0   1.1
StoCFL       lambda_          0.0   -0.1
StoCFL       sketch_dim       1     0
CFL          eps1             0.1   0.0
AdaCFL       eps2             0.0   -0.1
LayerCFL     warmup_rounds    0     -1
FedDrift     delta            0.0   -0.1
FedDrift     merge_delta      inf   -0.1
FedDrift     step_rounds      1     0
"""


@pytest.mark.parametrize("row", LIMITS.strip().splitlines())
def test_a_number_beyond_its_limit_is_refused(row: str):
    name, option, *numbers = row.split()
    last, beyond = (int(number) if number.lstrip("-").isdecimal() else float(number) for number in numbers)
    kind = getattr(lit_cfl.algorithms, name)
    assert getattr(kind(**{option: last}), option) == last
    assert_refused(lambda: kind(**{option: beyond}), f"{name}: {option} is {beyond}; give ")


def test_a_threshold_of_flhc_is_not_negative():  # it stands instead of a number of clusters
    FLHC(num_clusters=None, threshold=0.0)
    assert_refused(lambda: FLHC(num_clusters=None, threshold=-0.1), "FLHC: threshold is -0.1; give 0 or more")


def test_what_just_fits_is_accepted():
    IFCA(2).check(clients_at(0.0, 1.0, 2.0, sizes=(1, 0, 4)))
    FedGroup(num_clusters=3, pretrain_scale=1, measure="madc").check(quadratic_clients(8))
    LayerCFL(layers=["fc*", "conv[-1]"]).check(quadratic_clients(3))
    Oracle().check(with_truth(4))
    few = line(0.0, label_counts=torch.empty(1, 0, dtype=torch.int64))
    few.start = torch.zeros(1).double()
    state, _ = IFCA(**MIGRATING, shift_metric="loss").init(few, rng())
    assert state.reference.shape == (1, 1)
