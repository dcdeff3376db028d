"""Tests that errors about a client give its original name next to its number."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lit_cfl import Experiment, load_run, run
from lit_cfl.algorithms import FedAvg, FedGroup
from lit_cfl.datamodules import ArrayData
from lit_cfl.errors import DivergedError, InputError, name_clients
from lit_cfl.local_work import Budget
from lit_cfl.tasks import Classification

WARDS = ("East", "North", "South", "West")  # in the order of their numbers


def wards(names: tuple[str, ...] = WARDS, size: int = 10, huge: str = "") -> ArrayData:
    """Makes data with one client per ward; the inputs of the ward `huge` make losses infinite."""
    ward = np.repeat(names, size)
    inputs = np.random.default_rng(0).normal(size=(len(ward), 2)).astype(np.float32)
    inputs[ward == huge] = 3e38
    return ArrayData(inputs, (inputs[:, 0] > 0).astype(int), ward)


def experiment(data: ArrayData, first: Callable[[], nn.Module] = nn.Identity) -> Experiment:
    def task() -> Classification:
        return Classification(nn.Sequential(first(), nn.Linear(2, 2)), partial(torch.optim.SGD, lr=0.1))

    algorithm = FedGroup(num_clusters=2, pretrain_scale=2, pretrain=Budget(1))
    return Experiment(data, task, algorithm, rounds=2, cohort_size=4)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("client 2 cannot be trained", "client 2 ('South') cannot be trained"),
        ("one of the clients 0, 3, ... fails", "one of the clients 0 ('East'), 3 ('West'), ... fails"),
        ("there is no client 4; ids are 0 to 3", "there is no client 4; ids are 0 to 3"),
        ("client 2 ('South') is named", "client 2 ('South') is named"),
    ],
)
def test_numbers_of_clients_are_followed_by_their_names(said: str, expected: str):
    with pytest.raises(DivergedError) as caught, name_clients(WARDS), name_clients(WARDS):
        raise DivergedError(said)
    assert str(caught.value) == expected


@pytest.mark.parametrize("names", [("0", "1"), ()])
def test_a_name_that_is_the_number_is_not_repeated(names: tuple[str, ...]):
    with pytest.raises(InputError, match=r"^client 1 fails$"), name_clients(names):
        raise InputError("client 1 fails")


def test_a_run_names_the_client_that_fails():
    with pytest.raises(DivergedError, match=r"^client 2 \('South'\) .*round 1"):
        list(experiment(wards(huge="South")))
    with pytest.raises(InputError, match=r"^client 0 \('East'\) .*batch size 10"):
        experiment(wards(size=1), partial(nn.BatchNorm1d, 2)).prepare(0)


class Refuses(FedAvg):
    def place(self, state, clients, work, rng):
        raise InputError(f"client {int(clients[1])} cannot be placed")


def test_a_run_keeps_the_names_of_its_clients_and_names_newcomers(tmp_path: Path):
    names = [" 7", "007", "7.0", "7e0", "NA", "North", "Saint-Étienne"]
    trained = replace(experiment(wards(tuple(names))), algorithm=Refuses())
    assert len(repr(run(trained, tmp_path / "run"))) < 200 + len(str(tmp_path))  # short enough for a notebook
    found = load_run(tmp_path / "run", trained)
    assert found.clients["name"].tolist() == names
    with pytest.raises(InputError, match=r"^client 8 \('Port'\) cannot be placed"):
        found.assign(wards(("Hill", "Port")).federated(0))


def test_a_second_table_has_the_columns_of_the_first(tmp_path: Path):
    heads = {"first": "age,crp", "second": "crp,age", "fewer": "crp", "more": "sex,age,crp"}
    for name, head in heads.items():
        columns = head.split(",")
        rows = [",".join([*(f"{0.1 * k + len(one):.1f}" for one in columns), f"{k % 2},{k % 4}"]) for k in range(40)]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"{head},y,client", *rows]) + "\n")
    trained = experiment(ArrayData(source=tmp_path / "first.csv"))
    run(trained, tmp_path / "run")
    found = load_run(tmp_path / "run", trained)
    assert found.data.examples.input_names == ("age", "crp")
    found.assign(found.data)
    for name, problem in {"second": "another order", "fewer": "'age'", "more": "'sex'"}.items():
        with pytest.raises(InputError, match=f"^these data .*{problem}.* columns"):
            found.assign(ArrayData(source=tmp_path / f"{name}.csv").federated(0))
