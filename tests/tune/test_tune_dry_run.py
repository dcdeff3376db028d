"""Tests the output of `lit-cfl tune --dry-run`, and that it starts and writes nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
from studies import ALGORITHMS, study_file

from lit_cfl.cli.main import main
from lit_cfl.progress import dry_run
from lit_cfl.tune import cluster
from lit_cfl.tune.check import PreparedStudy, prepare
from lit_cfl.tune.options import parse_study
from lit_cfl.tune.study import Study

STUDY = {"seeds": [3, 4], "num_repeats": 5}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Simulates a machine with four cores and two GPUs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "_this_machine", lambda: {"CPU": 4, "GPU": 2})
    monkeypatch.setattr(cluster.ray_cluster, "is_there", lambda: False)  # other tests in this process connect to Ray


@pytest.fixture
def half_a_minute(monkeypatch: pytest.MonkeyPatch):
    """Makes each run appear to take half a minute."""
    monkeypatch.setattr(dry_run, "show", lambda console, experiment: 30.0 * len(experiment.seeds))


def said(capsys: pytest.CaptureFixture[str], *words: str, **changes: object) -> dict[str, str]:
    """Returns the lines of the dry run of a study with these changes, by their first column."""
    assert main(["tune", "--config", str(study_file(Path(), **STUDY | changes)), "--dry-run", *words]) == 0
    return {line[:18].strip(): line[19:] for line in capsys.readouterr().out.splitlines()}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedStudy:
    path = tmp_path_factory.mktemp("prepared")
    return prepare(parse_study(["--config", str(study_file(path, **STUDY))]).study, path)


@pytest.mark.usefixtures("half_a_minute")
@pytest.mark.parametrize(
    ("words", "at_a_time", "time"),
    [
        # 6 trials of a minute, then 10 repeats of half a minute
        ("--limits.trials 6 --limits.concurrent 1", "1 at most, each with 1 core", "11 min 0 s"),
        # four at a time: twice a minute for the trials, three times half a minute for the repeats
        ("--limits.trials 6", "4 at most, each with 1 core", "3 min 30 s"),
        ("--limits.trials 6 --resources.cpus 1.5", "2 at most, each with 1.5 cores", "5 min 30 s"),
        ("--limits.trials 3 --num_repeats 0", "4 at most, each with 1 core", "1 min 0 s"),
        ("--limits.trials 2", "4 at most, each with 1 core", "2 min 30 s"),  # repeats run four at a time
        ("--limits.trials 90 --limits.minutes 5", "4 at most, each with 1 core", "6 min 30 s"),
        ("--limits.trials 6 --resources.gpus 0.6", "2 at most, each with 1 core and 0.6 GPUs", "5 min 30 s"),
        ("--limits.trials 6 --resources.gpus 2", "1 at most, each with 1 core and 2 GPUs", "11 min 0 s"),
    ],
)
def test_time_is_that_of_all_trials_and_repeats_divided_by_those_at_a_time(
    prepared: PreparedStudy,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    at_a_time: str,
    time: str,
):
    """All cases share one checked study, to save time."""

    def with_study(study: Study, path: Path) -> PreparedStudy:
        job = replace(prepared.job, study=replace(study, seeds=prepared.study.seeds))
        return replace(prepared, job=job, limit=study.num_trials)

    monkeypatch.setattr("lit_cfl.tune.dry_run.prepare", with_study)
    monkeypatch.setattr("lit_cfl.tune.options.base_config", lambda base, folder: prepared.study.base)
    lines = said(capsys, *words.split())
    assert lines["at a time"] == at_a_time
    assert lines["whole study"].startswith(f"about {time} of local training")
    assert ("at the end" in lines) == ("--num_repeats" not in words)


def test_it_says_what_is_tried_and_how_large_a_trial_is_and_writes_nothing(capsys: pytest.CaptureFixture[str]):
    points = [{"algorithm": "IFCA", "IFCA.num_clusters": 3}]
    lines = said(capsys, space={"algorithm": ALGORITHMS}, points=points)
    assert lines["study"] == "3 trials of 4 rounds under the seeds 3, 4 each"
    assert lines["searched"] == "algorithm, IFCA.num_clusters, FedGroup.eta_g, FedGroup.num_clusters"
    assert lines["tried first"] == "the base's setting, then 1 point of the study"
    assert lines["at the end"] == "the best and the default setting on 5 new seeds"
    assert lines["rounds"] == "4 with 5 clients, 2 runs"
    assert "of local training" in lines["whole study"]
    assert [file.name for file in Path().iterdir()] == ["study-to-run.yaml"]


@pytest.mark.usefixtures("half_a_minute")
def test_trials_on_a_cluster_are_as_many_as_it_has_room_for(capsys: pytest.CaptureFixture[str]):
    lines = said(capsys, "--ray.address", "no-such-host:6379")  # the address is not contacted
    assert lines["at a time"].startswith("as many as the cluster has room for")
    assert lines["whole study"].startswith("about 8 min 0 s of local training, divided among the cluster")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--resources.cpus", "64"), "resources.cpus is 64, but no node of this machine has more than 4"),
        (("--limits.trials", "0"), "limits.trials is 0"),
        (("--study_dir", "used"), "used already holds a study"),
    ],
)
def test_what_the_study_would_refuse_is_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
):
    Path("used").mkdir()
    Path("used/study.yaml").touch()
    assert main(["tune", "--config", str(study_file(Path())), "--dry-run", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_study_that_is_resumed_has_no_dry_run(capsys: pytest.CaptureFixture[str]):
    Path("s").mkdir()
    Path("s/study.yaml").touch()
    assert main(["tune", "--resume", "s", "--dry-run"]) == 2
    assert "leave out --dry-run" in capsys.readouterr().err
