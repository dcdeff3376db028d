"""Tests an algorithm's own tables and columns of `clusters.csv`, from `Info` to the files of a run."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from digits_experiment import digits

from lit_cfl.algorithms import FedAvg
from lit_cfl.errors import InputError
from lit_cfl.runs.run import run
from lit_cfl.storage.csv_log import read_table
from lit_cfl.testing import check_algorithm


@dataclass(frozen=True)
class Tells(FedAvg):
    """FedAvg that reports its cohorts in a table."""

    tables: ClassVar[dict[str, tuple[str, ...]]] = {"cohorts": ("client", "examples")}

    def init(self, work, rng):
        state, info = super().init(work, rng)
        return state, replace(info, tables={"cohorts": [{"client": -1, "examples": 0}]})

    def round(self, state, cohort, work, rng):
        state, info = super().round(state, cohort, work, rng)
        rows = [{"client": client, "examples": int(work.num_examples[client])} for client in cohort.tolist()]
        known = {"parent": torch.tensor([-1]), "u": torch.tensor([0.5]), "v": torch.tensor([float("nan")])}
        return state, replace(info, tables={"cohorts": rows}, clusters=known)


def test_rows_of_a_table_are_in_its_file_under_their_round(tmp_path: Path):
    run(digits(algorithm=Tells(), rounds=2), tmp_path / "run")
    rows = read_table(tmp_path / "run" / "cohorts.csv")
    assert list(rows[0]) == ["round", "client", "examples"]
    assert [row["round"] for row in rows] == [1] * 6 + [2] * 5
    assert rows[0]["client"] == -1  # the row that `init` returned
    assert all(row["examples"] > 0 for row in rows[1:])


def test_resumed_run_has_each_row_once(tmp_path: Path):
    run(digits(algorithm=Tells(), rounds=3), tmp_path / "whole")
    run(digits(algorithm=Tells(), rounds=1), tmp_path / "parts")
    run(digits(algorithm=Tells(), rounds=3), tmp_path / "parts", mode="resume")
    for name in ("cohorts.csv", "clusters.csv"):
        assert (tmp_path / "parts" / name).read_text() == (tmp_path / "whole" / name).read_text()


@dataclass(frozen=True)
class TellsMore(Tells):
    tables: ClassVar[dict[str, tuple[str, ...]]] = {"cohorts": ("client", "examples", "seconds")}


@dataclass(frozen=True)
class TellsElsewhere(Tells):
    tables: ClassVar[dict[str, tuple[str, ...]]] = {"members": ("client", "examples")}


@dataclass(frozen=True)
class NamesNoTable(Tells):
    tables: ClassVar[dict[str, tuple[str, ...]]] = {}


def test_run_is_not_resumed_with_other_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run(digits(algorithm=Tells(), rounds=1), tmp_path / "run")
    for changed, message in (
        (
            TellsMore,
            r"the table cohorts\.csv with the columns round,client,examples, but the experiment writes the table coh",
        ),
        (
            TellsElsewhere,
            r"has the table cohorts\.csv with the columns round,client,examples, but the experiment writes the table "
            r"members\.csv with the columns round,client,examples",
        ),
        (
            NamesNoTable,
            r"has the table cohorts\.csv with the columns round,client,examples, but the experiment writes no such "
            "table",
        ),
    ):
        monkeypatch.setattr(Tells, "tables", changed.tables)  # as if the algorithm's file had been edited
        with pytest.raises(
            InputError, match=message + ".*: the code of the algorithm or the task has changed since then; restore it"
        ):
            run(digits(algorithm=Tells(), rounds=2), tmp_path / "run", mode="resume")


def test_columns_of_an_algorithm_are_in_the_table_of_clusters(tmp_path: Path):
    run(digits(algorithm=Tells(), rounds=1), tmp_path / "run")
    row = read_table(tmp_path / "run" / "clusters.csv")[0]
    assert (row["u"], row["v"], row["parent"]) == (0.5, None, None)


def test_contract_refuses_a_table_without_a_name():
    check_algorithm(Tells())
    with pytest.raises(AssertionError, match="cohorts"):
        check_algorithm(NamesNoTable())
