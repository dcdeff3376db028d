"""Tests small studies that share one Ray: those in configs/tune/, the notebook's, and how studies end."""

import csv
import json
import re
import shlex
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import yaml
from notebooks import NOTEBOOKS, require_same_output
from ray import tune as ray_tune
from studies import SLOW, base, study_file
from wandb_runs import entries

from lit_cfl.cli.main import main
from lit_cfl.config import catalogue
from lit_cfl.config.variants import build
from lit_cfl.tune.check import prepare
from lit_cfl.tune.options import parse_study
from lit_cfl.tune.record import NUMBER
from lit_cfl.tune.searchers import make_searcher
from lit_cfl.tune.study_result import StudyFiles
from lit_cfl.tune.trial import run_trial, share
from lit_cfl.tune.trials import Trials

pytestmark = pytest.mark.usefixtures("no_figures")

METRIC = "val/weighted_accuracy"
READY = {name: path for name, path in catalogue.configs().items() if name.startswith("tune/")}
DRAWN = ("tune/quickstart", "tune/stocfl")  # only their pictures are drawn, which takes a second or two per study
OPEN = {  # options that the papers leave open
    "tune/stocfl": {"tau", "lambda_"},
    "tune/flexcfl": {"num_clusters", "pretrain_scale", "eta_g", "pretrain"},
    "tune/layercfl": {"layers", "distance", "eps1", "eps2"},
    "tune/cfl": {"eps1", "eps2"},
    "tune/ifca": {"num_clusters"},
    "tune/fedprox": {"mu"},
    "tune/ditto": {"lambda_"},
    "tune/fesem": {"num_clusters"},
    "tune/flhc": {"linkage", "threshold"},
    "tune/flexcfl_shift": {"shift_threshold", "shift_metric", "eta_g"},
    "tune/cfl_layers": {"layers"},
    "tune/adacfl": {"eps1", "eps2", "layers"},
    "tune/fedgrouprox": {"mu", "num_clusters"},
}


def rows_of(path: Path) -> list[dict[str, str]]:
    with (path / "trials.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", OPEN)
def test_a_ready_study_searches_what_its_paper_leaves_open(name: str):
    space = yaml.safe_load(READY[name].read_text())["space"]
    assert set(space) == {f"algorithm.{option}" for option in OPEN[name]}


def test_the_quickstart_searches_several_clustered_algorithms():
    content = yaml.safe_load(READY["tune/quickstart"].read_text())
    assert [choice["class_path"] for choice in content["space"]["algorithm"]["choice"]] == [
        "FedGroup",
        "IFCA",
        "StoCFL",
    ]
    assert content["base"]["data"]["init_args"]["validation"] == 0.25


def shortened(name: str, first_clustering_round: int, folder: Path) -> Path:
    """Writes a packaged study, shortened to a few trials that end soon after the first clustering."""
    content = yaml.safe_load(READY[name].read_text())
    content["base"]["rounds"] = first_clustering_round + 2
    content["base"]["tracking"] = {"wandb": "disabled"}
    content["base"]["local"] = {"epochs": 1, "batch_size": 20}
    for what in content["space"].values():
        if "grid" in what:
            del what["grid"][2:]
    grid = any("grid" in what for what in content["space"].values())
    limits = {"concurrent": 1} | ({} if grid else {"trials": 2})  # one process, which starts only once
    content |= {"limits": limits, "num_repeats": 0}
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    return folder / "study.yaml"


@pytest.mark.nightly
@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize("name", READY)
def test_a_ready_study_can_be_run_and_runs_with_two_tiny_trials(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Runs the trials one after another in this process instead of in Ray."""
    if name not in DRAWN:
        monkeypatch.setattr("lit_cfl.tune.pictures._write", lambda *_: None)
    as_it_is = prepare(parse_study(["--config", name]).study, tmp_path / "as-it-is")
    assert as_it_is.first_clustering_round < as_it_is.default.rounds / 2
    config = shortened(name, as_it_is.first_clustering_round, tmp_path)
    study = parse_study(["--config", str(config)]).study
    prepared = prepare(study, tmp_path)
    objective = prepared.job.objective
    trials = Trials(prepared.job.folder, prepared.first, make_searcher(study, objective), prepared.limit)
    last_result: dict[str, Any] = {}
    monkeypatch.setenv("TUNE_FUNCTION_THREAD_TIMEOUT_S", "60")  # a trial sets it, usually in a separate process
    monkeypatch.setattr(ray_tune, "report", lambda metrics, **_: last_result.update(metrics))
    while (record := trials.next()) is not None:
        last_result.clear()
        run_trial({NUMBER: record.number, **record.values}, prepared.job)
        trials.end(record.number, last_result)
    result = StudyFiles(prepared, trials, tmp_path).write()
    trained = [row for row in result.rows if not row["repeats"]]
    assert [row["status"] for row in trained] in (["finished"] * 2, ["finished"] * 3)  # a grid also has the default
    assert trained[0]["origin"] == "default"
    assert result.best is not None
    assert result.best[METRIC] >= trained[0][METRIC]
    assert (tmp_path / "best.yaml").exists()
    assert (tmp_path / "pictures" / "history.png").exists() == (name in DRAWN)


def slow_study(folder: Path, pause: float, rounds: int = 4, **changes: Any) -> Path:
    (folder / "own_slow.py").write_bytes(Path(__file__).parents[1].joinpath("helpers", "own_slow.py").read_bytes())
    algorithm = SLOW | {"init_args": {"rate": 0.0, "pause": pause}}
    own = {"scheduler": "FIFOScheduler", "space": {"algorithm.rate": {"uniform": [0.7, 0.9]}}}
    return study_file(folder, base=base(algorithm=algorithm, rounds=rounds), **(own | changes))


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_trials_that_run_when_the_time_is_up_are_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    limits = {"trials": 4, "minutes": 0.25, "concurrent": 1}
    config = slow_study(tmp_path, 0.5, limits=limits, rounds=100)
    path = tmp_path / "study"
    assert main(["tune", "--config", str(config), "--study_dir", str(path)]) == 0
    rows = rows_of(path)
    assert rows
    assert {row["status"] for row in rows} == {"stopped"}
    assert all(int(row["rounds"]) < 100 for row in rows)
    text = capsys.readouterr().out
    assert "limits.minutes (0.25) have passed, which ends the study" in text
    assert "raise limits.minutes" in text
    assert not (path / "best.yaml").exists()


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_study_ends_and_says_so_when_a_finished_trial_reaches_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    limits = {"trials": 6, "target": 0.05, "concurrent": 1}
    path = tmp_path / "study"
    assert main(["tune", "--config", str(slow_study(tmp_path, 0.0, limits=limits)), "--study_dir", str(path)]) == 0
    begun = [(row["status"], row["rounds"]) for row in rows_of(path) if row["rounds"] != "0"]
    assert begun == [("finished", "4")]  # the study ended before the other trials started
    lines = capsys.readouterr().out.splitlines()
    ended = next(k for k, line in enumerate(lines) if line.startswith(f"1/6 0000 finished: {METRIC} 0."))
    assert lines[ended + 1] == "trial 0000 has reached limits.target (0.05), which ends the study"


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_metric_that_is_never_reported_ends_each_trial_in_its_first_round_and_the_command_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = study_file(
        tmp_path,
        base=base(algorithm={"class_path": "IFCA"}),
        metric="val/global_accuracy",
        space={"algorithm.num_clusters": {"grid": [2, 3]}},
        limits={"concurrent": 1},  # the default is a point of the grid
    )
    path = tmp_path / "study"
    assert main(["tune", "--config", str(config), "--study_dir", str(path)]) == 1
    text = capsys.readouterr().out
    assert "0 finished, 0 stopped early, 2 failed" in text
    assert text.count("failed after 0 rounds: val/global_accuracy was never reported") == 2
    assert text.count("val/global_accuracy was never reported") == 4  # twice more in the list at the end
    assert "No trial finished" in text
    assert not (path / "best.yaml").exists()
    assert [
        len((path / "trials" / row["trial_id"] / "metrics.csv").read_text().splitlines())
        for row in rows_of(path)
        if not row["repeats"]
    ] == [2, 2]


def kept(wandb: Path) -> dict[str, Any]:
    """Reads a run's options, configuration, rows and artifact files from W&B's offline folders."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, Any] = {"rows": [], "files": []}
    files = [file for file in sorted(wandb.glob("offline-run-*/*.wandb")) if not Path(f"{file}.synced").exists()]
    assert files
    for _, data in (entry for file in files for entry in entries(file.read_bytes())):
        record = Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            found |= {"name": record.run.display_name, "group": record.run.run_group, "config": config}
        elif kind == "history":
            found["rows"].append({item.key or item.nested_key[0] for item in record.history.item})
        elif kind == "artifact" or (kind == "request" and record.request.WhichOneof("request_type") == "log_artifact"):
            artifact = record.artifact if kind == "artifact" else record.request.log_artifact.artifact
            found["files"] += [entry.path for entry in artifact.manifest.contents]
    return found


@pytest.mark.ray
@pytest.mark.usefixtures("cluster", "figures")
def test_a_bad_trial_is_stopped_early_and_wandb_keeps_each_trial_and_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Trials, "seal", lambda trials: None)  # as if the driver had been killed after the last trial
    config = study_file(
        tmp_path,
        base=base(rounds=6, tracking={"wandb": "offline"}),
        limits={"concurrent": 1},
        space={"task.optimizer.lr": {"grid": [0.2, 1e-6]}},
        scheduler={"class_path": "ASHAScheduler", "init_args": {"grace_period": 1}},
    )
    path = tmp_path / "study"
    assert main(["tune", "--config", str(config), "--study_dir", str(path)]) == 0
    default, good, bad = rows_of(path)
    assert {(row["status"], row["rounds"]) for row in (default, good)} == {("finished", "6")}
    assert (bad["status"], bad["rounds"]) == ("stopped", "1")
    assert bad["trial_id"] not in (path / "best.yaml").read_text().splitlines()[0]
    said = capsys.readouterr().out
    assert f"2/3 {good['trial_id']} finished: val/weighted_accuracy {float(good[METRIC]):.4f}" in said
    assert f"3/3 {bad['trial_id']} stopped after 1 round: val/weighted_accuracy {float(bad[METRIC]):.4f}" in said
    assert said.count("wandb sync") == 1
    tracked = {row["trial_id"]: kept(path / "trials" / row["trial_id"] / "wandb") for row in (good, bad)}
    assert [run["name"] for run in tracked.values()] == [f"tiny-study-{row['trial_id']}" for row in (good, bad)]
    assert {run["group"] for run in tracked.values()} == {"tiny-study"}
    whole = kept(path / "wandb")
    assert (whole["name"], whole["group"]) == ("tiny-study-study", "tiny-study")
    assert {"best.yaml", "trials.csv", "history.png", "slices.png"} <= set(whole["files"])
    assert any("pictures/history" in key for row in whole["rows"] for key in row)
    assert [sum("round" in row for row in run["rows"]) for run in tracked.values()] == [6, 1]
    assert tracked[bad["trial_id"]]["config"]["task"]["init_args"]["optimizer"]["init_args"]["lr"] == 1e-6
    record = json.loads((path / "trials" / bad["trial_id"] / "trial.json").read_text())
    # recorded although it was the last trial, and was stopped
    assert set(record["digests"]) == {"config.yaml", "metrics.csv"}


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.usefixtures("cluster", "figures")
def test_each_experiment_of_the_front_of_two_objectives_can_be_run_again(tmp_path: Path):
    config = study_file(
        tmp_path,
        base=base(algorithm={"class_path": "IFCA"}),
        second_metric="traffic/mib",
        space={"algorithm.num_clusters": {"randint": [2, 9]}, "task.optimizer.lr": {"choice": [0.1, 1e-6]}},
        limits={"trials": 4, "concurrent": 1},
    )
    path = tmp_path / "study"
    assert main(["tune", "--config", str(config), "--study_dir", str(path)]) == 0
    rows = {row["trial_id"]: row for row in rows_of(path)}
    assert {row["status"] for row in rows.values()} == {"finished"}
    front = sorted((path / "front").glob("*.yaml"))
    assert [file.stem for file in front] == sorted(name for name, row in rows.items() if row["front"])
    assert (path / "pictures" / "pareto.png").exists()
    for file in front:
        run_dir = tmp_path / file.stem
        assert main(["run", "--config", str(file), "--run_dir", str(run_dir)]) == 0
        summary = json.loads((run_dir / "summary.json").read_text())
        assert [summary[name] for name in (METRIC, "traffic/mib")] == [
            float(rows[file.stem][name]) for name in (METRIC, "traffic/mib")
        ]


def lies_in_shared_memory(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        ends, kind = line.split()[:2]
        first, _, behind = ends.partition("-")
        if int(first, 16) <= address < int(behind, 16):
            return kind.endswith("s")
    raise AssertionError("no such memory")


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_trials_read_the_data_from_shared_memory_without_loading_them():
    experiment = build(base())
    prepared = experiment.prepare(0)
    shared = share(experiment)
    assert shared is not None
    given = build(base())
    given.data.pool = pytest.fail  # no data are loaded again, not even for the task
    shared.give_to(given)
    given_prepared = given.prepare(0)
    inputs = given.data.examples.inputs
    assert lies_in_shared_memory(inputs.data_ptr())
    assert not lies_in_shared_memory(prepared.data.examples.inputs.data_ptr())
    assert given_prepared.fingerprint == prepared.fingerprint
    other = build(base(), ["--data.num_clients", "6"])
    shared.give_to(other)
    assert "examples" not in vars(other.data)  # a trial that searches data options loads its own data


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_data_that_cannot_travel_are_loaded_by_each_trial():
    experiment = build(base())
    experiment.data.lock = Lock()  # a user's own data module may hold such an object
    with pytest.warns(UserWarning, match="the data cannot be shared, so each trial loads them itself"):
        assert share(experiment) is None


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_the_notebook_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    page = NOTEBOOKS / "search_and_launch.md"
    require_same_output(page, tmp_path)
    monkeypatch.chdir(tmp_path)  # commands for a cluster name files that the notebook has made
    (commands,) = re.findall(r"```console\n(.*?)```", page.read_text(), flags=re.DOTALL)
    for line in commands.splitlines():  # runs until the connection to the cluster, which does not exist
        assert main(shlex.split(line.replace("HOST:8265", "127.0.0.1:9"))[1:]) == 2
        assert "no Ray cluster answers at http://127.0.0.1:9" in capsys.readouterr().err
