"""The page of a study, from records as the search writes them, without Ray."""

import json
from pathlib import Path

import pytest
from studies import STUDY
from test_sources import page_of

from lit_cfl.report.blocks import Table
from lit_cfl.report.page import as_html
from lit_cfl.report.study import read_study
from lit_cfl.tune.record import TrialRecord, write_record
from lit_cfl.tune.study import Study

METRIC = "val/weighted_accuracy"


def made_study(path: Path) -> Path:
    """Ten trials: eta_g decides; one was stopped, one failed, one repeats the first."""
    path.mkdir(parents=True)
    Study(**(STUDY | {"limits": {}})).write(path / "study.yaml", "89abcdef")
    told = {"rounds": 4, "seconds": 1.0, "finished": True}
    for number in range(10):
        values = {"algorithm.eta_g": 0.03 * number, "algorithm.num_clusters": 2 + number % 2}
        figures = told | {METRIC: 0.9 - 0.02 * number, "traffic/mib": 3.0 - number / 4}
        write_record(path / "trials", TrialRecord(number, "search", values, None, "finished", figures), "89abcdef")
    values = {"algorithm.eta_g": 0.3, "algorithm.num_clusters": 2}
    stopped = TrialRecord(10, "search", values, None, "stopped", told | {METRIC: 0.1, "rounds": 1, "traffic/mib": 0.25})
    failed = TrialRecord(11, "search", values, None, "failed", {"error": "<script>hacked = 1</script>"})
    again = TrialRecord(12, "search", {}, 0, "finished", {})
    for record in (stopped, failed, again):
        write_record(path / "trials", record, "89abcdef")
    return path


def test_history_importance_and_front_of_a_study(tmp_path: Path):
    page = page_of(made_study(tmp_path / "study"))
    figures = {figure.name.removeprefix("study-1-"): figure for figure in page.figures}
    assert set(figures) == {"history", "importance", "pareto", "slice-0", "slice-1"}
    history = figures["history"].drawing
    assert {points.name: len(points.x) for points in history.points} == {"finished": 10, "stopped": 1}
    assert set(history.curves[0].y) == {0.9}
    shares = [float(row[1]) for row in figures["importance"].table.rows]
    assert figures["importance"].table.rows[0][0] == "algorithm.eta_g"
    assert sum(shares) == pytest.approx(1.0, abs=0.002)
    front = figures["pareto"].table.rows
    assert [row[0] for row in front] == [f"{number:04d}" for number in range(9, -1, -1)]  # each costs less
    assert page.lines[0].startswith(f"12 trials, 10 of them finished. The best, 0000, has {METRIC} 0.9000: ")


def test_trials_are_listed_with_their_errors_escaped(tmp_path: Path):
    page = page_of(made_study(tmp_path / "study"))
    (trials,) = [b for s in page.sections for b in s.blocks if isinstance(b, Table) and b.title == "Trials"]
    assert len(trials.rows) == 12
    assert trials.rows[-1][-1] == "<script>hacked = 1</script>"
    assert "<script>hacked" not in as_html(page).decode()


def test_a_damaged_trial_is_named_and_the_others_are_shown(tmp_path: Path):
    path = made_study(tmp_path / "study")
    file = path / "trials" / "0003" / "trial.json"
    content = json.loads(file.read_text())
    content["told"][METRIC] = 0.99
    file.write_text(json.dumps(content))
    found = read_study(path)
    assert len(found.rows) == 12
    assert [problem.partition(" cannot")[0] for problem in found.problems] == [str(file)]


def test_a_study_without_a_trial_says_so(tmp_path: Path):
    path = tmp_path / "study"
    path.mkdir()
    Study(**(STUDY | {"limits": {}})).write(path / "study.yaml", "89abcdef")
    page = page_of(path)
    assert page.problems == [f"{path} has no trial yet."]
    assert not page.figures


def test_the_best_on_new_seeds_stands_beside_the_default(tmp_path: Path):
    path = made_study(tmp_path / "study")
    (path / "repeats").mkdir()
    summaries = {
        name: {str(seed): {METRIC: value, "test/weighted_accuracy": value + seed / 100} for seed in (1, 2)}
        for name, value in (("best", 0.75), ("default", 0.5))
    }
    (path / "repeats" / "repeats.json").write_text(json.dumps(summaries))
    tables = [b for s in page_of(path).sections for b in s.blocks if isinstance(b, Table)]
    assert [list(row)[:2] for row in tables[0].rows] == [["best", 2], ["default", 2]]
    assert "seed by seed: 0.2500 ± 0.0000" in tables[0].note
