"""Tests runs on new seeds without Ray: how many run in parallel, where their files are, and what is recorded."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from studies import base, study_file

from lit_cfl.engines.ray import tasks
from lit_cfl.tune import repeats, search
from lit_cfl.tune.check import PreparedStudy, prepare
from lit_cfl.tune.options import parse_study
from lit_cfl.tune.progress_lines import ProgressLines
from lit_cfl.tune.record import DEFAULT
from lit_cfl.tune.study import Limits

pytestmark = pytest.mark.usefixtures("no_figures")


class Runs:
    """Stand-in for Ray whose runs end one by one, the last started first; the default fails under seed 2."""

    exceptions = ray.exceptions

    def __init__(self) -> None:
        self.most, self.folders = 0, set[Path]()

    def remote(self, **options: Any) -> Any:
        return lambda run: SimpleNamespace(remote=self.begin)

    def begin(self, config: Any, setting: str, seed: int, path: Path, job: Any) -> tuple[str, int]:
        self.folders.add(path)
        return setting, seed

    def wait(self, running: Sequence[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(running))
        return [running[-1]], list(running[:-1])

    def get(self, run: tuple[str, int]) -> dict[str, Any]:
        if run == (DEFAULT, 2):
            raise ray.exceptions.RayError("it broke\nValueError: at last")
        better = 0.1 if run[0] != DEFAULT else 0.0
        return {"val/weighted_accuracy": 0.5 + better, "test/weighted_accuracy": 0.1 * run[1] + better}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedStudy:
    path = tmp_path_factory.mktemp("prepared")
    return prepare(parse_study(["--config", str(study_file(path, num_repeats=3))]).study, path)


@pytest.mark.parametrize(("concurrent", "most"), [(None, 6), (2, 2), (9, 6)])
def test_as_many_runs_as_trials_run_at_once_and_their_files_are_in_the_study(
    prepared: PreparedStudy, concurrent: int | None, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    study = replace(prepared.study, limits=Limits(9, concurrent=concurrent))
    runs = Runs()
    monkeypatch.setattr(tasks, "ray", runs)
    Path("mine").mkdir()
    Path("mine/best.yaml").write_text(str(base()))
    best = {"origin": "search", "trial_id": "0004"}
    found = repeats.repeat(
        replace(prepared, job=replace(prepared.job, study=study)), best, Path("mine"), say=lambda line: None
    )
    assert runs.most == most
    # an absolute path, since a worker has another current folder
    assert runs.folders == {tmp_path / "mine" / "repeats"}
    assert found is not None
    assert found.failed == ["default, seed 2: ValueError: at last"]
    assert found.seeds == [1, 2, 3]
    assert found.figures["best"]["test/weighted_accuracy"].mean == pytest.approx(0.3)
    assert found.figures["default"]["test/weighted_accuracy"].mean == pytest.approx(0.2)
    assert [figures["val/weighted_accuracy"].mean for figures in found.figures.values()] == pytest.approx([0.6, 0.5])
    assert [figures["val/weighted_accuracy"].count for figures in found.figures.values()] == [3, 2]
    assert found.figures["best"]["test/weighted_accuracy"].margin == pytest.approx(4.302653 * 0.1 / 3**0.5)
    assert found.gain is not None
    assert (found.gain.count, found.gain.mean) == (2, pytest.approx(0.1))


def test_results_of_an_earlier_best_are_removed_when_its_study_resumes(
    prepared: PreparedStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    (tmp_path / "repeats").mkdir()
    (tmp_path / "repeats" / "repeats.json").write_text("{}")
    monkeypatch.setattr(search, "require_shared_folder", lambda folder: None)
    monkeypatch.setattr(search, "share", lambda run: None)
    monkeypatch.setattr(search, "_search", interrupt)
    with pytest.raises(KeyboardInterrupt):
        search._run(prepared, search._trials(prepared, tmp_path, "89abcdef"), tmp_path, ProgressLines(print))
    assert (tmp_path / "study.yaml").exists()
    assert not (tmp_path / "repeats" / "repeats.json").exists()
