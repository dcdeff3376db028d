"""Tests `num_clusters: auto`: the chosen numbers, the reported reasons, and the costs."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from digits_experiment import digits
from quadratic import ids, rng
from torch import Tensor

from lit_cfl import run
from lit_cfl.algorithms import FLHC, FLUX, IFCA, Algorithm, FedEM, FedGroup, FedGrouProx, FeSEM, FlexCFL
from lit_cfl.datamodules import Digits
from lit_cfl.errors import Notice
from lit_cfl.storage.csv_log import read_table
from lit_cfl.testing import QuadraticWork, check_algorithm

ALL = [kind(num_clusters="auto") for kind in (FedGroup, FedGrouProx, FlexCFL, IFCA, FeSEM, partial(FLHC, 0))]


def corners(number: int, clients: int = 36) -> QuadraticWork:
    """Makes clients near each corner of a simplex in turn, so far from the origin that w_0 does not matter."""
    which = torch.arange(clients) % number
    noise = torch.randn(clients, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    labels = 5 * torch.eye(6, dtype=torch.int64)[which]
    return QuadraticWork(90 * torch.eye(6).double()[which] + noise, labels.sum(1), 0.2, label_counts=labels, steps=3)


def after(algorithm: Algorithm, work: QuadraticWork) -> tuple[Tensor, object]:
    state, _ = algorithm.init(work.at(0), rng())
    state, _ = algorithm.round(state, work.population, work.at(0), rng(1))
    return algorithm.serve(state, work.population).models, state


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", [*ALL, FedEM("auto")], ids=repr)
def test_contract_is_kept_and_there_are_as_many_models_as_clients_have_centres(algorithm: Algorithm):
    check_algorithm(algorithm)
    for number in (1, 3) if algorithm in ALL else ():  # FedEM counts mixture components, as tested below
        assert len(after(algorithm, corners(number))[0]) == number


# FedEM trains on both halves of a client's data, for which client 6 has too few examples
@pytest.mark.parametrize(("kind", "down", "up"), [(FedGroup, 35, 35), (IFCA, 35, 35), (FeSEM, 35, 35), (FedEM, 34, 68)])
def test_deciding_costs_models_for_each_client_with_data_and_its_steps(kind: type[Algorithm], down: int, up: int):
    work = corners(2)
    work.num_examples = work.num_examples.index_copy(0, ids(5, 6), ids(0, 1))
    fixed, auto = work.at(0), work.at(0)
    _, expected = kind(num_clusters=2).init(fixed, rng())
    _, info = kind(num_clusters="auto").init(auto, rng())
    assert (info.down - expected.down, info.up - expected.up) == (down, up)
    assert auto.costs.steps - fixed.costs.steps == up * 3


def test_flhc_decides_from_the_updates_that_it_clusters_and_so_costs_nothing():
    work = corners(3)
    auto, fixed = FLHC(0, num_clusters="auto"), FLHC(0, num_clusters=3)
    assert torch.equal(after(auto, work)[1].index, after(fixed, work)[1].index)
    view = work.at(0)
    assert auto.init(view, rng())[1].down == 0
    assert view.costs.steps == 0


@pytest.mark.parametrize(
    ("algorithm", "work", "number", "reason"),
    [
        (IFCA("auto"), corners(2), "2 clusters", r"up to 9 \(a quarter of the clients\)"),
        (IFCA("auto", max_clusters=2), corners(2), "2 clusters", r"up to 2 \(max_clusters\) .* there may be more"),
        (IFCA("auto", max_clusters=1), corners(2), "1 cluster", "max_clusters is 1"),
        (FLHC(0, num_clusters="auto"), corners(1), "1 cluster", "with 2 to 9 clusters"),
        (FedGroup("auto"), corners(2, clients=7), "1 cluster", "needs 8 clients, and there are 7"),
        (FedEM("auto"), corners(1), "6 models", "6 mixture components and 1 cluster"),
    ],
)
def test_the_chosen_number_and_its_reason_are_reported_once(algorithm: Algorithm, work, number: str, reason: str):
    with pytest.warns(Notice) as notices:
        models, _ = after(algorithm, work)
    found = [str(notice.message) for notice in notices if "auto" in str(notice.message)]
    assert len(found) == 1
    assert re.match(f"num_clusters: auto of {type(algorithm).__name__} chose {number}: .*{reason}", found[0]), found
    assert len(models) == int(number.split()[0])


@pytest.mark.parametrize("algorithm", [IFCA(num_clusters="auto"), FLHC(1, num_clusters="auto"), FLUX(1), IFCA(2)])
def test_a_run_records_the_number_that_was_chosen(algorithm: Algorithm, tmp_path: Path, recwarn):
    run(digits(algorithm=algorithm, data=Digits(num_clients=24, validation=0.1), rounds=2), tmp_path / "run")
    chosen = [int(n) for w in recwarn for n in re.findall(r"num_clusters: auto of \w+ chose (\d+)", str(w.message))]
    found = [row.get("clusters/chosen", "no column") for row in read_table(tmp_path / "run" / "metrics.csv")]
    if algorithm.num_clusters != "auto":
        assert (chosen, found) == ([], ["no column"] * 2)
    else:  # FL+HC and FLUX have one model before they cluster
        assert found == [1 if algorithm.first_clustering_round() else chosen[0], chosen[0]]
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["clusters/chosen"] == chosen[0]
