"""Tests the scores per client and round: they agree with other files, and are the same after a resume."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from digits_experiment import digits

from lit_cfl import Experiment, load_run, run
from lit_cfl.datamodules import Digits
from lit_cfl.errors import InputError, Interrupted
from lit_cfl.evaluation import EvaluationPlan
from lit_cfl.experiment import CheckpointPlan
from lit_cfl.runs.run import RunCallbacks
from lit_cfl.scores import Score
from lit_cfl.storage import read_table

ALWAYS = CheckpointPlan(every_seconds=0)


def experiment(**changes: object) -> Experiment:
    settings: dict[str, object] = {"rounds": 4, "evaluation": EvaluationPlan(every=2, per_client=True)}
    return digits(checkpoint=ALWAYS, **(settings | changes))


def test_pandas_reads_the_folder_as_a_table_with_the_figures_of_the_other_files(tmp_path: Path):
    path = run(experiment(), tmp_path / "run").path
    table = pd.read_parquet(path / "client_rounds.parquet")
    assert list(table) == ["round", "client", "cluster", "n", "loss", "accuracy"]
    rows = {row["round"]: row for row in read_table(path / "metrics.csv")}
    assert sorted(table["round"].unique()) == sorted(rows) == [2, 4]
    for number, part in table.groupby("round"):
        assert len(part) == rows[number]["clients/evaluated"]
        assert part["accuracy"].mean() == pytest.approx(rows[number]["test/mean_accuracy"])
        assert (part["loss"] * part["n"]).sum() / part["n"].sum() == pytest.approx(rows[number]["test/loss"])
    last = {row["client"]: row for row in read_table(path / "clients.csv")}
    for row in table[table["round"] == 4].itertuples():
        known = last[row.client]
        assert (row.cluster, row.n, row.accuracy) == (known["cluster"], known["n_test"], known["accuracy"])
    assert load_run(path, experiment()).client_rounds.equals(table)


def test_a_run_that_was_ended_and_resumed_has_the_same_files(tmp_path: Path):
    plan = {"evaluation": EvaluationPlan(per_client=True)}
    whole = run(experiment(**plan), tmp_path / "whole").path
    path, rows = tmp_path / "run", []

    def two(row: dict[str, object]) -> None:
        rows.append(row)
        if len(rows) == 2:
            raise Interrupted("enough")

    with pytest.raises(Interrupted):
        run(experiment(**plan), path, RunCallbacks(row=two))
    (path / "client_rounds.parquet" / "00000009.parquet").write_bytes(b"of a round that was not saved")
    run(experiment(**plan), path, mode="resume")
    files = [sorted((one / "client_rounds.parquet").iterdir()) for one in (whole, path)]
    assert [file.name for file in files[1]] == [f"{number:08d}.parquet" for number in (1, 2, 3, 4)]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]


def test_a_run_without_the_option_has_no_such_file_and_says_so(tmp_path: Path):
    path = run(experiment(evaluation=EvaluationPlan(), rounds=1), tmp_path / "run").path
    assert not (path / "client_rounds.parquet").exists()
    with pytest.raises(InputError, match=r"has no client_rounds\.parquet; run it with evaluation\.per_client: true"):
        _ = load_run(path, experiment(evaluation=EvaluationPlan(), rounds=1)).client_rounds


def test_a_part_that_was_changed_is_noticed(tmp_path: Path):
    path = run(experiment(rounds=2), tmp_path / "run").path
    (path / "client_rounds.parquet" / "00000002.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"00000002\.parquet was changed, damaged or lost"):
        run(experiment(rounds=3), path, mode="resume")


def test_counts_of_classes_add_up_to_the_accuracy_and_to_the_labels_of_each_client(tmp_path: Path):
    plan = EvaluationPlan(per_client=True, class_counts=True)
    made = experiment(evaluation=plan, rounds=2)
    table = pd.read_parquet(run(made, tmp_path / "run").path / "client_rounds.parquet")
    counts, right = (table[[f"{name}_{k}" for k in range(10)]] for name in ("n", "right"))
    assert (counts.sum(axis=1) == table["n"]).all()
    assert (right.to_numpy() <= counts.to_numpy()).all()
    assert (right.sum(axis=1) / table["n"]).tolist() == pytest.approx(table["accuracy"].tolist())
    data = made.prepare(3).data
    for client, row in zip(table["client"], counts.to_numpy(), strict=True):
        labels = data.examples.targets(data.test[client])
        assert row.tolist() == torch.bincount(labels, minlength=10).tolist()


def test_counts_of_classes_need_the_file_and_the_accuracy():
    with pytest.raises(InputError, match=r"class_counts is true, but evaluation\.per_client is false"):
        EvaluationPlan(class_counts=True)
    plan, data = EvaluationPlan(per_client=True, class_counts=True), Digits(4).federated(0)
    with pytest.raises(
        InputError, match=r"the data are not scored by accuracy; add it to task\.scores, or leave class"
    ):
        plan.require_possible([], (Score("mae"),), data)
    with pytest.raises(InputError, match="the data have no classes; leave class_counts out"):
        plan.require_possible([], (Score("mae"),), replace(data, examples=data.examples.without_labels()))
