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


def test_rows_and_columns_of_an_algorithm_are_in_their_files_once_also_after_a_resume(tmp_path: Path):
    run(digits(algorithm=Tells(), rounds=2), tmp_path / "whole")
    rows = read_table(tmp_path / "whole" / "cohorts.csv")
    assert list(rows[0]) == ["round", "client", "examples"]
    assert [row["round"] for row in rows] == [1] * 6 + [2] * 5
    assert rows[0]["client"] == -1  # the row that `init` returned
    assert all(row["examples"] > 0 for row in rows[1:])
    row = read_table(tmp_path / "whole" / "clusters.csv")[0]
    assert (row["u"], row["v"], row["parent"]) == (0.5, None, None)
    run(digits(algorithm=Tells(), rounds=1), tmp_path / "parts")
    run(digits(algorithm=Tells(), rounds=2), tmp_path / "parts", mode="resume")
    for name in ("cohorts.csv", "clusters.csv"):
        assert (tmp_path / "parts" / name).read_text() == (tmp_path / "whole" / name).read_text()


@pytest.mark.parametrize(
    ("tables", "now"),
    [
        (
            {"cohorts": ("client", "examples", "seconds")},
            r"cohorts\.csv with the columns round,client,examples,seconds",
        ),
        ({"members": ("client", "examples")}, r"members\.csv with the columns round,client,examples"),
        ({}, "no such table"),
    ],
)
def test_a_run_is_not_resumed_with_other_tables(
    tables: dict[str, tuple[str, ...]], now: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run(digits(algorithm=Tells(), rounds=1), tmp_path / "run")
    monkeypatch.setattr(Tells, "tables", tables)  # as if the algorithm's file had been edited
    with pytest.raises(InputError, match=rf"cohorts\.csv with the columns round,client,examples, but .*{now}"):
        run(digits(algorithm=Tells(), rounds=2), tmp_path / "run", mode="resume")


def test_contract_refuses_a_table_without_a_name(monkeypatch: pytest.MonkeyPatch):
    check_algorithm(Tells())
    monkeypatch.setattr(Tells, "tables", {})
    with pytest.raises(AssertionError, match="cohorts"):
        check_algorithm(Tells())
