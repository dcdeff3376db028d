"""Tests that a full disk ends a study with a one-line error, fails no trial, and loses nothing."""

import csv
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import tune as ray_tune
from studies import SLOW, base, study_file
from tune_trials import METRIC, last_result, new_trials

from lit_cfl.cli.main import main
from lit_cfl.errors import SaveError
from lit_cfl.storage.lock import wait_until_free
from lit_cfl.tune import repeats, trial
from lit_cfl.tune.callbacks import EndOfStudy, stop_if_requested, stoppable
from lit_cfl.tune.check import prepare
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.options import parse_study
from lit_cfl.tune.record import NUMBER
from lit_cfl.tune.tuner import TrialSource

pytestmark = pytest.mark.usefixtures("no_figures")

ERRORS = [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "rows.bin"),
    OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "rows.bin"),
    SaveError("rows.bin could not be written"),
]


def ended_by(step: Callable[[], object], path: Path) -> str:
    """Runs `step` as Ray would, which catches any Exception; returns the message of the error that ends the study."""

    def as_ray() -> None:
        try:
            step()
        except Exception as error:  # Ray catches these
            pytest.fail(f"swallowed: {error!r}")

    with pytest.raises(SaveError) as raised, stoppable(path):
        as_ray()
    return str(raised.value)


def test_a_full_disk_ends_the_study_and_names_the_command_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with stoppable(tmp_path):
        stop_if_requested()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**20))
    said = ended_by(stop_if_requested, tmp_path)
    assert said == f"the disk of {tmp_path} is full; free some disk space, then give the command again"
    (tmp_path / "study.yaml").touch()
    said = ended_by(stop_if_requested, tmp_path)
    assert (
        said
        == f"the disk of {tmp_path} is full; free some disk space, then resume with: lit-cfl tune --resume {tmp_path}"
    )
    stop_if_requested()


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_what_the_command_cannot_write_ends_the_study(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "study.yaml").touch()
    trials = new_trials(tmp_path / "trials", [{"x": 1}, {"x": 2}], 3)
    source = TrialSource(trials, METRIC, print)
    assert source.suggest("of Ray") == {NUMBER: 0, "x": 0}

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("lit_cfl.tune.trials.write_record", fail)
    for step in (lambda: source.suggest("another"), lambda: source.on_trial_complete("of Ray", last_result(0.5))):
        said = ended_by(step, tmp_path)
        assert "rows.bin" in said
        assert f"resume with: lit-cfl tune --resume {tmp_path}" in said


@pytest.mark.parametrize("error", ERRORS, ids=map(repr, ERRORS))
def test_a_trial_that_cannot_write_ends_the_study_and_has_not_failed(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object, **__: object) -> None:
        raise error

    prepared = prepare(parse_study(["--config", str(study_file(tmp_path))]).study, tmp_path)
    sent: list[dict[str, Any]] = []
    monkeypatch.setenv("TUNE_FUNCTION_THREAD_TIMEOUT_S", "60")  # a trial sets it, usually in a separate process
    monkeypatch.setattr(trial, "run", fail)
    monkeypatch.setattr(ray_tune, "report", sent.append)
    trial.run_trial({NUMBER: 0}, prepared.job)
    (result,) = sent
    assert "rows.bin" in ended_by(lambda: EndOfStudy(Objective(), None, [])("0000", result), tmp_path)
    assert "error" not in result
    assert not (tmp_path / "trials" / "0000" / "error.txt").exists()


def test_a_repeat_that_cannot_write_ends_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    prepared = prepare(parse_study(["--config", str(study_file(tmp_path))]).study, tmp_path)
    cause = SaveError("rows.bin could not be written")

    def get(_: object) -> None:
        raise ray.exceptions.RayTaskError("_summary", "a traceback", cause).as_instanceof_cause()

    task = SimpleNamespace(remote=lambda *_: object())
    monkeypatch.setattr(ray, "remote", lambda **_: lambda function: task)
    monkeypatch.setattr(ray, "wait", lambda references, timeout: (references, []))
    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(SaveError, match=r"^rows.bin could not be written$"):
        repeats._train_settings(prepared, {"default": {}}, [1, 2], tmp_path)


def test_a_lock_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / ".lock").touch()
    monkeypatch.setattr("os.open", fail)
    with pytest.raises(SaveError, match=r"/\.lock could not be written"):
        wait_until_free(tmp_path)


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_study_whose_disk_was_full_resumes_with_the_trial_that_noticed_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    log, path = tmp_path / "log.txt", tmp_path / "study"
    log.symlink_to("/dev/full")
    (tmp_path / "own_slow.py").write_bytes(Path(__file__).parents[1].joinpath("helpers", "own_slow.py").read_bytes())
    config = study_file(
        tmp_path,
        base=base(algorithm=SLOW | {"init_args": {"log": str(log)}}),
        space={"algorithm.rate": {"uniform": [0.7, 0.9]}},
        limits={"trials": 2, "concurrent": 1},
    )
    assert main(["tune", "--config", str(config), "--study_dir", str(path)]) == 2
    said = capsys.readouterr()
    assert (
        f"No space left on device; free some disk space, then resume with: lit-cfl tune --resume {path}"
        in said.err.replace("[Errno 28] ", "")
    )
    assert "failed" not in said.out
    assert json.loads((path / "trials" / "0000" / "trial.json").read_text())["status"] == "running"
    log.unlink()
    assert main(["tune", "--resume", str(path)]) == 0
    with (path / "trials.csv").open() as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["finished", "finished"]
    assert not list(path.glob("trials/*/error.txt"))
