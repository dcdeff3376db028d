"""Tests how results show themselves: short lines, tables and pictures in a notebook, scores inside a loop of rounds."""

import re
from base64 import b64decode
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from digits_experiment import digits, timeless_rows

from lit_cfl import load_run, run
from lit_cfl.algorithms import FedAvg, FedGroup, FlexCFL
from lit_cfl.compare.from_python import ComparisonTables
from lit_cfl.data import ClientIndex
from lit_cfl.datamodules import Digits, SwapAll
from lit_cfl.errors import InputError
from lit_cfl.evaluation import EvaluationPlan
from lit_cfl.local_work import Budget
from lit_cfl.metric_names import Row
from lit_cfl.notebook import shorten
from lit_cfl.tracking.options import Tracking
from lit_cfl.tune.result import StudyResult

PLAIN: dict[str, Any] = {"pictures": {"formats": []}}


def known(row: Row) -> dict[str, Any]:
    return {name: one for name, one in row.items() if one is not None and not (isinstance(one, float) and isnan(one))}


@pytest.mark.parametrize(
    ("every", "changes"),
    [
        (1, {}),
        (2, {"data": Digits(num_clients=12, shift=SwapAll(probability=0.3)), "dropout": 0.3, "rounds": 5}),
        (3, {"algorithm": FlexCFL(num_clusters=3, pretrain_scale=2, pretrain=Budget(5)), "rounds": 7}),
        (
            1,
            {"evaluation": EvaluationPlan(clients="all", fine_tune=Budget(2)), "tracking": Tracking(snapshots_every=2)},
        ),
    ],
)
def test_the_row_of_a_round_in_a_loop_is_that_of_metrics_csv(every: int, changes: dict[str, Any], tmp_path: Path):
    experiment = digits(**changes).with_options(evaluation={"every": every}, **PLAIN)
    number = experiment.rounds
    rows = [experiment.evaluate(r) for r in experiment if r.number % every == 0 or r.number == number]
    run(experiment, tmp_path / "run")
    written = timeless_rows(tmp_path / "run/metrics.csv")
    assert len(rows) == len(written) == -(-number // every)
    assert [known(row) for row in rows] == [known(row) for row in written]
    assert rows == [experiment.evaluate(r) for r in experiment if r.number % every == 0 or r.number == number]


def test_rounds_that_are_stepped_through_by_hand_count_from_the_start_or_go_on():
    experiment = digits(algorithm=FedAvg())
    with pytest.raises(InputError, match="for r in experiment"):
        experiment.evaluate(next(iter(digits())))
    prepared = experiment.prepare(3)
    whole = [prepared.evaluate(r) for r in prepared.rounds()]
    (first, *_) = prepared.rounds()
    prepared = experiment.prepare(3)
    assert [whole[0], *[prepared.evaluate(r) for r in prepared.rounds(after=first)]][1]["round"] == 2
    assert whole == [experiment.evaluate(r) for r in experiment]


@pytest.mark.usefixtures("pictures")
def test_runs_show_a_table_and_their_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    experiment = digits(algorithm=FedGroup(num_clusters=2, pretrain_scale=2, pretrain=Budget(5)), baseline=FedAvg())
    finished = run(experiment, "<b>run")
    saved = load_run("<b>run", experiment)
    assert finished.runs["algorithm"].tolist() == ["FedGroup", "FedAvg"]
    assert finished.runs["test/weighted_accuracy"].tolist() == [
        finished.summary["test/weighted_accuracy"],
        finished.baseline.summary["test/weighted_accuracy"],
    ]
    pictures = sorted(file.read_bytes() for file in (tmp_path / "<b>run/pictures").glob("*.png"))
    for one, rows in ((finished, 2), (saved, 3)):
        page = one._repr_html_()
        assert page.count("<tr") == 1 + rows
        assert "<b>" not in page
        assert "&lt;b&gt;run" in page
        assert "<th>test/weighted_accuracy</th>" in page
        assert sorted(b64decode(found) for found in re.findall(r"base64,([^\"]*)", page)) == pictures
        assert len(pictures) > 1
    assert re.fullmatch(r"<FinishedRun <b>run: FedGroup, test/weighted_accuracy 0\.\d{3}>", repr(finished))
    assert finished.runs.shape[0] == 2
    assert saved._repr_html_().count(f">{saved.metrics['test/weighted_accuracy'].iloc[-1]:.4g}</td>") >= 1


def test_comparisons_and_searches_show_their_tables_with_names_escaped(tmp_path: Path):
    table = {"algorithm": ["a<i>b", "FedAvg"], "test_mean": [0.51234567, 0.4], "test_sd": [None, None], "pairs": [3, 3]}
    pd.DataFrame(table).to_csv(tmp_path / "results.csv", index=False)
    (tmp_path / "results.md").write_text("# c\n\n- a\\<i\\>b is better than FedAvg.\n- Other.\n")
    pd.DataFrame({"algorithm": ["FedAvg"], "setting": ["lr = 0.3"]}).to_csv(tmp_path / "search.csv", index=False)
    page = ComparisonTables(tmp_path)._repr_html_()
    assert "<p>a&lt;i&gt;b is better than FedAvg.</p>" in page
    assert "<td>lr = 0.3</td>" in page
    assert "<td>0.5123</td>" in page
    assert "<i>" not in page
    assert "test_sd" not in page  # nothing is known
    assert "pairs" not in page
    trials = {"trial_id": ["0000", "0001"], "repeats": "", "algorithm.tau": [0.2, 0.4], "val/weighted_accuracy": [1, 0]}
    pd.DataFrame(trials).to_csv(tmp_path / "trials.csv", index=False)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "history.png").write_bytes(b"content")
    study = StudyResult(tmp_path, [{"repeats": ""}] * 2, {"trial_id": "0001"}, {}, None)
    page = study._repr_html_()
    assert "<td>0001</td>" in page
    assert b64decode(re.findall(r"base64,([^\"]*)", page)[0]) == b"content"
    assert repr(study).endswith("2 trials, best 0001>")
    assert "best none" in repr(replace(study, best=None))


def test_public_objects_show_themselves_in_a_short_line(tmp_path: Path):
    experiment = digits(name="n" * 90, algorithm=FedAvg(), rounds=1).with_options(**PLAIN)
    prepared = experiment.prepare(3)
    (last,) = prepared.rounds()
    data = replace(prepared.data, names=tuple(f"client\n{k}" for k in range(100_000)))
    folder = tmp_path / ("long" * 40)
    finished = run(experiment, folder)
    saved = load_run(folder, experiment)
    placed = saved.assign(prepared.data)
    shown: list[object] = [experiment, prepared, last, data, data.examples, data.test, finished, saved, placed]
    shown += [ComparisonTables(folder), StudyResult(folder, [], None, {}, None)]
    for one in shown:
        assert type(one).__name__ in repr(one)
        assert len(repr(one)) <= 120
        assert "\n" not in repr(one)
    assert repr(experiment).startswith("Experiment(data=Digits, task=function, algorithm=FedAvg, name=nnn")
    index = ClientIndex.from_sizes(torch.arange(3), torch.tensor([1, 2]))
    assert repr(index) == "ClientIndex(values=[3], starts=[2], sizes=[2])"
    assert shorten("x" * 120) == "x" * 120
    assert shorten("ab" * 61) == f"{'ab' * 48}a...{'ab' * 10}"
