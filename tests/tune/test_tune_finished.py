"""Tests, without starting Ray, resuming a finished study and the reasons given for a study's end."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune as ray_tune
from studies import STUDY, base
from tune_trials import METRIC, last_result, new_trials

import lit_cfl
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.partition import Pool
from lit_cfl.errors import InputError
from lit_cfl.report.assemble import make_page
from lit_cfl.report.blocks import Text
from lit_cfl.tune import search
from lit_cfl.tune.check import prepare
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.options import parse_study
from lit_cfl.tune.record import CLIENTS, NUMBER, REPEATS, read_records, write_record
from lit_cfl.tune.record import STUDY as STUDY_FILE
from lit_cfl.tune.repeats import _settings, _summary
from lit_cfl.tune.searchers import make_searcher
from lit_cfl.tune.study import Limits
from lit_cfl.tune.study_result import StudyFiles
from lit_cfl.tune.trial import run_trial
from lit_cfl.tune.trials import Trials
from lit_cfl.tune.tuner import _figures

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a finished study of two trials and one new seed, in which the default is not the best."""
    path = tmp_path_factory.mktemp("finished") / "study"
    path.mkdir()
    quiet = base(rounds=2, tracking={"wandb": "disabled"})
    space = {"task.optimizer.lr": {"uniform": [0.2, 0.3]}}
    content = STUDY | {"base": quiet, "space": space, "limits": {"trials": 2}, "num_repeats": 1}
    prepared = prepare(parse_study([], content).study, path)
    prepared.study.write(path / STUDY_FILE, "0123abcd")
    objective = prepared.job.objective
    trials = Trials(
        prepared.job.folder, prepared.first, make_searcher(prepared.study, objective), 2, study_id="0123abcd"
    )
    with pytest.MonkeyPatch.context() as patch:
        found: dict[str, Any] = {}
        patch.setenv("TUNE_FUNCTION_THREAD_TIMEOUT_S", "60")
        patch.setattr(ray_tune, "report", lambda metrics, **_: found.update(metrics))
        while (record := trials.next()) is not None:
            found.clear()
            run_trial({NUMBER: record.number, **record.values}, prepared.job)
            trials.end(record.number, found)
    result = StudyFiles(prepared, trials, path).write()
    assert result.best is not None
    for setting, config in _settings(prepared.job, result.best, path).items():
        _summary(config, setting, 1, path / REPEATS, prepared.job)
    return path


@pytest.fixture
def study(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "study"))


class NothingToTrainError(AssertionError):
    """Raised when Ray is used although nothing is left to train."""


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> Any:
        raise NothingToTrainError

    monkeypatch.setattr(search, "connect_to_ray", refuse)


def test_a_finished_study_is_read_without_its_data_and_without_ray(study: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lit_cfl.datamodules.digits.Digits.pool", lambda self: pytest.fail("the data were loaded"))
    before = (study / "trials.csv").read_bytes()
    lines: list[str] = []
    found = lit_cfl.tune(resume=study, say=lines.append)
    assert [row["status"] for row in found.rows] == ["finished"] * 2
    assert (study / "trials.csv").read_bytes() == before
    assert found.repeated is not None
    assert found.repeated.seeds == [1]
    assert found.repeated.figures["best"][METRIC].count == 1
    assert (study / REPEATS / "repeats.json").exists()
    assert lines == ["all trials have finished; --limits.trials with a larger number adds trials"]


def test_a_study_with_something_left_to_train_needs_ray(study: Path):
    with pytest.raises(NothingToTrainError):
        lit_cfl.tune(words=["--limits.trials", "3"], resume=study, say=lambda line: None)
    (summary,) = study.glob(f"{REPEATS}/default/seed-1/summary.json")
    summary.unlink()
    with pytest.raises(NothingToTrainError):
        lit_cfl.tune(resume=study, say=lambda line: None)


def test_trials_scored_on_different_numbers_of_clients_are_named(study: Path):
    lines: list[str] = []
    lit_cfl.tune(resume=study, say=lines.append)
    assert len(lines) == 1  # both trials were scored on all 12 clients
    default, other = read_records(study / "trials", "0123abcd")
    assert default.last_result[CLIENTS] == other.last_result[CLIENTS] == _figures(other.last_result)[CLIENTS] == 12
    write_record(study / "trials", replace(other, last_result=other.last_result | {CLIENTS: 7.5}), "0123abcd")
    lit_cfl.tune(resume=study, say=lines.append)
    expected = "trials were scored on different numbers of clients (0001 on 7.5, 0000 on 12), since clients without a"
    assert lines[1].startswith(f"Note: {expected}")
    page = make_page([study], ["lit-cfl", "report"])
    texts = [block.text for section in page.sections for block in section.blocks if isinstance(block, Text)]
    assert [text for text in texts if text.startswith(f"Note: {expected}")] != []


def test_further_trials_need_the_data_of_finished_ones(study: Path, monkeypatch: pytest.MonkeyPatch):
    pool = Digits.pool

    def changed(self: Digits) -> Pool:
        whole = pool(self)
        return replace(whole, examples=replace(whole.examples, labels=whole.labels.flip(0)))

    monkeypatch.setattr(Digits, "pool", changed)
    with pytest.raises(
        InputError, match=r"further trials .* finished ones: .*0000 was made with different data, or another division"
    ):
        lit_cfl.tune(words=["--limits.trials", "3"], resume=study, say=lambda line: None)


def why_over(trials: Trials, **limits: Any) -> str | None:
    prepared: Any = SimpleNamespace(
        study=SimpleNamespace(limits=Limits(**limits)), job=SimpleNamespace(objective=Objective(METRIC))
    )
    return search._why_over(prepared, trials)


def test_the_end_of_the_time_is_named_also_if_all_trials_had_started(tmp_path: Path):
    trials = new_trials(tmp_path, [{"x": 1}, {"x": 2}], limit=3)
    for _ in range(3):
        assert trials.next() is not None
    assert trials.next() is None
    trials.report(1, last_result(0.5, 2, finished=False))
    trials.end(0, last_result(0.5))
    assert trials.close() == []
    assert (
        why_over(trials, minutes=0.5)
        == "limits.minutes (0.5) have passed, which ends the study; 1 of 3 trials have finished"
    )
    assert why_over(trials) is None


def test_a_study_whose_trials_all_finished_in_time_has_no_reason_to_name(tmp_path: Path):
    trials = new_trials(tmp_path, [], limit=1)
    assert trials.next() is not None
    trials.report(0, last_result(0.5))
    assert [record.status for record in trials.close()] == ["finished"]
    assert why_over(trials, minutes=0.5) is None
    assert why_over(trials, target=0.4) == "trial 0000 has reached limits.target (0.4), which ends the study"
