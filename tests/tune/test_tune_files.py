"""Tests the files of a study while its trials run, without Ray."""

import csv
from pathlib import Path

import pytest
import yaml
from studies import base, study_file
from tune_trials import METRIC, last_result, new_trials

from lit_cfl.tune import study_result as module
from lit_cfl.tune.callbacks import StudyCallback
from lit_cfl.tune.check import prepare
from lit_cfl.tune.options import parse_study
from lit_cfl.tune.study_result import StudyFiles

pytestmark = pytest.mark.usefixtures("no_figures")

SETTINGS = [{"algorithm.eta_g": 0.1 * k, "algorithm.num_clusters": 2} for k in (1, 2)]


@pytest.fixture
def files(tmp_path: Path) -> StudyFiles:
    """Makes the files of a study with three running trials."""
    prepared = prepare(parse_study(["--config", str(study_file(tmp_path))]).study, tmp_path)
    trials = new_trials(prepared.job.folder, SETTINGS, prepared.limit, first=prepared.first)
    while (record := trials.next()) is not None:
        (prepared.job.folder / record.trial_id / "config.yaml").write_text(yaml.safe_dump(base()))
    return StudyFiles(prepared, trials, tmp_path)


def rows_of(path: Path) -> list[tuple[str, str]]:
    with (path / "trials.csv").open() as file:
        return [(row["status"], row[METRIC]) for row in csv.DictReader(file)]


@pytest.mark.usefixtures("figures")
def test_table_best_and_pictures_are_there_from_the_first_finished_trial_on(files: StudyFiles, tmp_path: Path):
    step = StudyCallback(print, files.refresh)
    files.trials.report(0, last_result(0.5, finished=False))
    step.on_step_end(0, [])
    assert not {"trials.csv", "best.yaml", "pictures"} & {path.name for path in tmp_path.iterdir()}
    files.trials.end(0, last_result(0.5))
    step.on_step_end(1, [])
    assert rows_of(tmp_path) == [("finished", "0.5"), ("stopped", ""), ("stopped", "")]
    assert (tmp_path / "best.yaml").read_text().startswith("# The best trial of tiny-study, 0000; expect the same ")
    assert (tmp_path / "pictures" / "history.png").exists()
    files.trials.end(2, last_result(0.7))
    step.on_step_end(2, [])
    assert rows_of(tmp_path) == [("finished", "0.5"), ("stopped", ""), ("finished", "0.7")]
    assert (tmp_path / "best.yaml").read_text().startswith("# The best trial of tiny-study, 0002; expect the same ")


def test_drawing_takes_a_twentieth_of_the_time_while_trials_run(files: StudyFiles, monkeypatch: pytest.MonkeyPatch):
    clock, drawn = [100.0], []

    def draws(*_: object) -> None:
        drawn.append(clock[0])
        clock[0] += 2.0

    monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    monkeypatch.setattr(module, "draw", draws)
    for number, clock[0] in enumerate([100.0, 140.0, 142.5]):  # 38 and 40.5 seconds after the last drawing
        files.trials.end(number, last_result(0.5))
        files.refresh()
        files.refresh()  # no trial has ended since
    assert drawn == [100.0, 142.5]
    files.write()
    assert len(drawn) == 3  # drawn at the end in any case


def test_a_trial_that_was_stopped_early_is_not_the_best_whatever_its_figure(files: StudyFiles, tmp_path: Path):
    files.trials.end(0, last_result(0.5))
    files.trials.end(1, last_result(0.9, rounds=1, finished=False))
    files.trials.end(2, last_result(0.7))
    result = files.write()
    assert rows_of(tmp_path) == [("finished", "0.5"), ("stopped", "0.9"), ("finished", "0.7")]
    assert result.best is not None
    assert (result.best["trial_id"], result.best[METRIC]) == ("0002", 0.7)
    text = (tmp_path / "best.yaml").read_text()
    assert text.startswith(f"# The best trial of tiny-study, 0002; expect the same {METRIC}, 0.7000")
