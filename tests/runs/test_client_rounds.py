"""Tests the scores per client and round against the other files of a run."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from digits_experiment import digits

from lit_cfl import Experiment, load_run, run
from lit_cfl.datamodules import Digits
from lit_cfl.errors import InputError
from lit_cfl.evaluation import EvaluationPlan
from lit_cfl.experiment import CheckpointPlan
from lit_cfl.scores import Score
from lit_cfl.storage import read_table


def experiment(**changes: object) -> Experiment:
    settings: dict[str, object] = {"rounds": 4, "evaluation": EvaluationPlan(every=2, per_client=True)}
    return digits(checkpoint=CheckpointPlan(every_seconds=0), **(settings | changes))


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


def test_a_resume_removes_rounds_that_were_not_saved(tmp_path: Path):
    parts = run(experiment(rounds=2), tmp_path / "run").path / "client_rounds.parquet"
    (parts / "00000009.parquet").write_bytes(b"of a round that was not saved")
    run(experiment(), tmp_path / "run", mode="resume")
    assert sorted(file.name for file in parts.iterdir()) == ["00000002.parquet", "00000004.parquet"]


def test_counts_of_classes_add_up_to_the_accuracy_and_to_the_labels_of_each_client(tmp_path: Path):
    made = experiment(evaluation=EvaluationPlan(per_client=True, class_counts=True), rounds=2)
    table = pd.read_parquet(run(made, tmp_path / "run").path / "client_rounds.parquet")
    counts, right = (table[[f"{name}_{k}" for k in range(10)]] for name in ("n", "right"))
    assert (counts.sum(axis=1) == table["n"]).all()
    assert (right.to_numpy() <= counts.to_numpy()).all()
    assert (right.sum(axis=1) / table["n"]).tolist() == pytest.approx(table["accuracy"].tolist())
    data = made.prepare(3).data
    for client, row in zip(table["client"], counts.to_numpy(), strict=True):
        labels = data.examples.targets(data.test[client])
        assert row.tolist() == torch.bincount(labels, minlength=10).tolist()


def test_counts_of_classes_need_classes_and_their_accuracy():
    plan, data = EvaluationPlan(per_client=True, class_counts=True), Digits(4).federated(0)
    unlabelled = replace(data, examples=data.examples.without_labels())
    for of, remedy in ((data, r"task\.scores"), (unlabelled, "class_counts")):
        with pytest.raises(InputError, match=remedy):
            plan.require_possible([], (Score("mae"),), of)


def test_a_run_without_the_option_has_no_such_file(tmp_path: Path):
    made = experiment(evaluation=EvaluationPlan(), rounds=1)
    path = run(made, tmp_path / "run").path
    assert not (path / "client_rounds.parquet").exists()
    with pytest.raises(InputError, match=r"evaluation\.per_client"):
        _ = load_run(path, made).client_rounds
