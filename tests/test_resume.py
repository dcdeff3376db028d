"""A run that was killed and resumed is, bit for bit, the run that was never killed.

The processes are real ones: children that begin as copies of this one (so that they need not load PyTorch again)
and are ended by real signals.
"""

import contextlib
import fcntl
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from lit_cfl import checkpoint
from lit_cfl.algorithms import Algorithm, Assignment, Info
from lit_cfl.checkpoint import Checkpoint
from lit_cfl.cli import main
from lit_cfl.tables import read_table

ROUNDS = 8
OPTIONS = [
    "--config", "quickstart", "--data.num_clients", "12", "--cohort_size", "5", "--algorithm.pretrain_scale", "2",
    "--tracking.snapshots_every", "3",
]  # fmt: skip


def start(path: Path, *more: str, rounds: int = ROUNDS) -> list[str]:
    return ["run", *OPTIONS, "--rounds", str(rounds), "--run_dir", str(path), *more]


def resume(path: Path, *more: str) -> list[str]:
    return ["run", "--resume", str(path), *more]


def in_child(arguments: list[str], prepare: Callable[[], None] = lambda: None) -> int:
    """Starts the command in a child; returns its process id. Its output goes to a file beside the run."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        target = os.environ["CHILD_OUTPUT"]
        with open(target, "w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            prepare()
            code = main(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(child: int) -> int:
    """The exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(autouse=True)
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHILD_OUTPUT", str(tmp_path / "output.txt"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "output.txt"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run"
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(start(path)) == 0
    return path


def contents(path: Path) -> dict[str, object]:
    """All that must be equal: every file but clocks, locks and identities."""
    found: dict[str, object] = {}
    for run in (path, path / "baseline"):
        name = run.name
        found[f"{name} metrics"] = [without_clocks(row) for row in read_table(run / "metrics.csv")]
        found[f"{name} summary"] = without_clocks(json.loads((run / "summary.json").read_text()))
        found[f"{name} config"] = yaml.safe_load((run / "config.yaml").read_text())
        for table in ("clusters.csv", "clients.csv"):
            found[f"{name} {table}"] = (run / table).read_text()
        for arrays in ("memberships.npz", *[f"snapshots/{p.name}" for p in run.glob("snapshots/*")]):
            with np.load(run / arrays) as members:
                found[f"{name} {arrays}"] = {key: value.tolist() for key, value in members.items()}
        saved = Checkpoint(run).load()
        assert saved is not None
        found[f"{name} state"] = {key: bits(value) for key, value in saved["state"].items()}
    return {key.replace(path.name, "run", 1) if not key.startswith("baseline") else key: v for key, v in found.items()}


def bits(value: object) -> object:
    return value.numpy().tobytes() if isinstance(value, Tensor) else value


def without_clocks(row: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in row.items() if not key.startswith("time/")}


def wait_for(path: Path, text: str = "") -> None:
    deadline = time.monotonic() + 60
    while not (path.exists() and text in path.read_text(errors="replace")):
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.002)


@pytest.mark.slow
def test_run_killed_at_ten_random_moments_ends_as_if_never_killed(whole: Path, tmp_path: Path):
    path, moments = tmp_path / "run", random.Random(5)
    begun = time.monotonic()
    assert wait(in_child(start(tmp_path / "timed"))) == 0
    length = time.monotonic() - begun
    killed = 0
    child = in_child(start(path, "--checkpoint.every_seconds", "0"))
    while killed < 10:
        time.sleep(moments.uniform(0.02, 0.35) * length)
        os.kill(child, signal.SIGKILL)
        if wait(child) != -signal.SIGKILL:
            shutil.rmtree(path)  # it was faster; begin again, and go on counting
            child = in_child(start(path, "--checkpoint.every_seconds", "0"))
            continue
        killed += 1
        again = resume(path) if (path / "config.yaml").exists() else start(path, "--checkpoint.every_seconds", "0")
        child = in_child(again)
    assert wait(child) == 0
    assert same_but_saves(contents(path), contents(whole))


def same_but_saves(mine: dict[str, object], other: dict[str, object]) -> bool:
    """Equal, but for how often the runs saved themselves."""
    for found in (mine, other):
        for name in ("run config", "baseline config"):
            found[name] = {**found[name], "checkpoint": None}  # type: ignore[dict-item]
    for key in other:
        assert mine[key] == other[key], key
    return mine.keys() == other.keys()


def test_run_killed_before_its_first_checkpoint_starts_again(whole: Path, tmp_path: Path):
    path = tmp_path / "run"
    child = in_child(start(path, "--checkpoint.every_seconds", "1000"))
    wait_for(path / "metrics.csv", "\n2,")  # three rounds are done, none is saved
    os.kill(child, signal.SIGKILL)
    assert wait(child) == -signal.SIGKILL
    assert not (path / "checkpoint.pt").exists()
    assert main(resume(path)) == 0
    assert same_but_saves(contents(path), contents(whole))


def test_run_killed_during_a_save_goes_on_from_the_save_before(whole: Path, tmp_path: Path):
    path = tmp_path / "run"

    def stall_in_the_fourth_save() -> None:
        saves, write = [], checkpoint.torch.save

        def stalling(content: object, file: object) -> None:
            write(content, file)
            saves.append(1)
            if len(saves) == 4:
                file.flush()
                (path / "stalled").write_text("now")
                time.sleep(60)

        checkpoint.torch.save = stalling

    child = in_child(start(path, "--checkpoint.every_seconds", "0"), stall_in_the_fourth_save)
    wait_for(path / "stalled", "now")
    os.kill(child, signal.SIGKILL)
    assert wait(child) == -signal.SIGKILL
    (path / "stalled").unlink()
    saved = Checkpoint(path).load()
    assert saved is not None
    assert saved["round"] == 2
    assert len(read_table(path / "metrics.csv")) == 4  # a row more than is saved: it is cut and made again
    assert main(resume(path)) == 0
    assert same_but_saves(contents(path), contents(whole))


def test_run_killed_after_its_last_round_only_writes_its_end(whole: Path, tmp_path: Path):
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "clients.csv").unlink()
    assert main(resume(tmp_path / "run")) == 0
    assert same_but_saves(contents(tmp_path / "run"), contents(whole))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_and_prints_how_to_go_on(signum: signal.Signals, whole: Path, tmp_path: Path, output: Path):
    path = tmp_path / "run"
    child = in_child(start(path, "--checkpoint.every_seconds", "1000"))
    wait_for(path / "metrics.csv", "\n1,")
    os.kill(child, signum)
    assert wait(child) == 128 + signum
    assert f"Go on with: lit-cfl run --resume {path}" in output.read_text()
    assert "Traceback" not in output.read_text()
    saved = Checkpoint(path).load()
    assert saved is not None
    assert saved["round"] == len(read_table(path / "metrics.csv")) - 1 >= 1
    assert main(resume(path)) == 0
    assert same_but_saves(contents(path), contents(whole))


def test_write_over_the_limit_leaves_the_last_checkpoint_intact(whole: Path, tmp_path: Path, output: Path):
    path = tmp_path / "run"
    child = in_child(start(path, "--checkpoint.every_seconds", "0"))
    wait_for(path / "metrics.csv", "\n1,")
    os.kill(child, signal.SIGTERM)
    wait(child)
    before = (path / "checkpoint.pt").read_bytes()

    def allow_little() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))  # the state alone is larger

    assert wait(in_child(resume(path), allow_little)) == 2
    message = output.read_text()
    assert "could not be written (File too large)" in message
    assert f"make room, then go on with: lit-cfl run --resume {path}" in message
    assert "Traceback" not in message
    assert (path / "checkpoint.pt").read_bytes() == before
    assert not list(path.glob(".*.tmp"))
    assert main(resume(path)) == 0
    assert same_but_saves(contents(path), contents(whole))


def test_full_disk_while_saving_is_a_clear_error(tmp_path: Path, monkeypatch, capsys):
    path, saves, sync = tmp_path / "run", [], os.fsync

    def full_at_the_third(descriptor: int) -> None:
        if "checkpoint" in os.readlink(f"/proc/self/fd/{descriptor}"):
            saves.append(1)
            if len(saves) >= 3:
                raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(checkpoint.os, "fsync", full_at_the_third)
    assert main(start(path, "--checkpoint.every_seconds", "0")) == 2
    message = capsys.readouterr().err
    assert "checkpoint.pt could not be written (No space left on device); its last version is intact" in message
    saved = Checkpoint(path).load()
    assert saved is not None
    assert saved["round"] == 1


def test_resume_goes_together_with_the_same_configuration_only(whole: Path, tmp_path: Path, capsys):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    same = ["run", *OPTIONS, "--rounds", str(ROUNDS), "--resume", str(path)]
    assert main(same) == 0
    assert "FedAvg" in capsys.readouterr().out
    assert main([*same, "--local.epochs", "7", "--algorithm.eta_g", "0.5"]) == 2
    message = capsys.readouterr().err
    assert "local.epochs: 3 -> 7" in message
    assert "algorithm.init_args.eta_g: 0.0 -> 0.5" in message
    assert main([*same, "--rounds", "2"]) == 2
    assert f"begun with {ROUNDS} rounds, 2 are fewer" in capsys.readouterr().err


def test_finished_run_prints_its_table_and_changes_nothing(whole: Path, tmp_path: Path, capsys):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    assert main(resume(path)) == 0
    assert "weighted accuracy" in capsys.readouterr().out
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


def test_finished_run_goes_on_with_more_rounds(whole: Path, tmp_path: Path):
    assert main(start(tmp_path / "run", rounds=5)) == 0
    assert main(resume(tmp_path / "run", "--rounds", str(ROUNDS))) == 0
    mine, other = contents(tmp_path / "run"), contents(whole)
    for key in ("run metrics", "run state", "run clients.csv", "run memberships.npz", "baseline metrics", "run config"):
        assert mine[key] == other[key], key


def test_directory_without_a_run_is_started_only_with_a_configuration(whole: Path, tmp_path: Path, capsys):
    assert main(resume(tmp_path / "none")) == 2
    assert "holds no run to resume; give its directory, or --config to start one there" in capsys.readouterr().err
    path = tmp_path / "run"
    assert main(["run", *OPTIONS, "--rounds", str(ROUNDS), "--resume", str(path)]) == 0
    assert same_but_saves(contents(path), contents(whole))


def test_all_seeds_and_baselines_are_resumed(tmp_path: Path):
    options = ["--seeds", "[0, 1]", "--checkpoint.every_seconds", "1000"]
    assert main(start(tmp_path / "whole", *options, rounds=3)) == 0
    path = tmp_path / "run"
    child = in_child(start(path, *options, rounds=3))
    wait_for(path / "seed-1" / "metrics.csv", "\n1,")
    os.kill(child, signal.SIGKILL)
    wait(child)
    first = (path / "seed-0" / "checkpoint.pt").stat().st_mtime_ns
    assert main(resume(path)) == 0
    assert (path / "seed-0" / "checkpoint.pt").stat().st_mtime_ns == first
    for seed in ("seed-0", "seed-1"):
        assert same_but_saves(contents(path / seed), contents(tmp_path / "whole" / seed)), seed
    summaries = [json.loads((run / "summary.json").read_text()) for run in (path, tmp_path / "whole")]
    baselines = [without_clocks(summary.pop("baseline")) for summary in summaries]
    assert baselines[0] == baselines[1]
    assert without_clocks(summaries[0]) == without_clocks(summaries[1])


def test_second_process_on_a_run_is_refused(tmp_path: Path, capsys):
    path = tmp_path / "run"
    path.mkdir()
    with (path / ".lock").open("w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(start(path)) == 2
    assert f"{path} is in use by process 4711" in capsys.readouterr().err


def test_second_real_process_is_refused_and_the_first_goes_on(tmp_path: Path, capsys):
    path = tmp_path / "run"
    child = in_child(start(path))
    wait_for(path / "metrics.csv", "\n0,")
    assert main(resume(path)) == 2
    assert f"{path} is in use by process {child}" in capsys.readouterr().err
    assert wait(child) == 0


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda p: (p / "checkpoint.pt").write_bytes((p / "checkpoint.pt").read_bytes()[:900]), "truncated"),
        (lambda p: (p / "checkpoint.pt").write_bytes(b""), "truncated"),
        (lambda p: torch.save({"weights": torch.ones(3)}, p / "checkpoint.pt"), "is no checkpoint of Lit-CFL"),
        (lambda p: edit_checkpoint(p, format=99, version="7.0"), "format 99 (Lit-CFL 7.0), this version reads format"),
        (lambda p: edit_config_in_checkpoint(p), "local.epochs: 9 -> 3"),
        (lambda p: replace_text(p / "metrics.csv", "\n1,0.", "\n1,1."), "metrics.csv was changed since its checkpoint"),
        (lambda p: (p / "metrics.csv").unlink(), "metrics.csv was changed since its checkpoint"),
        (lambda p: replace_text(p / "config.yaml", "epochs: 3", "epochs: 4"), "local.epochs: 3 -> 4"),
        (lambda p: (p / "config.yaml").write_text("a: [1"), "config.yaml"),
        (lambda p: replace_text(p / "config.yaml", "device: cpu", "device: cuda:31"), "which this machine cannot run"),
    ],
    ids=["truncated", "empty", "foreign", "format", "other run's", "metrics", "no metrics", "config", "yaml", "plan"],
)
def test_damage_is_named_and_nothing_is_lost(damage, expected: str, whole: Path, tmp_path: Path, capsys):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    (path / "summary.json").unlink()  # as if it had been killed just before the end
    damage(path)
    before = {p.name: p.read_bytes() for p in path.iterdir() if p.is_file() and p.name != ".lock"}
    assert main(resume(path)) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert message.count("\n") == 1
    assert {p.name: p.read_bytes() for p in path.iterdir() if p.is_file() and p.name != ".lock"} == before


def edit_checkpoint(path: Path, **changes: object) -> None:
    torch.save(torch.load(path / "checkpoint.pt", weights_only=True) | changes, path / "checkpoint.pt")


def edit_config_in_checkpoint(path: Path) -> None:
    config = json.loads(torch.load(path / "checkpoint.pt", weights_only=True)["config"])
    config["local"]["epochs"] = 9
    edit_checkpoint(path, config=json.dumps(config))


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_plan_for_another_machine_is_taken_only_if_asked_for(whole: Path, tmp_path: Path, capsys):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    (path / "summary.json").unlink()
    replace_text(path / "config.yaml", "device: cpu", "device: cuda:31")
    assert main(resume(path)) == 2
    assert "device cuda:31" in capsys.readouterr().err
    assert main(resume(path, "--new_plan")) == 0
    assert yaml.safe_load((path / "config.yaml").read_text())["plan"]["device"] == "cpu"
    assert same_but_saves(contents(path), contents(whole))


def test_half_written_directory_starts_again(whole: Path, tmp_path: Path):
    path = tmp_path / "run"
    path.mkdir()
    shutil.copy(whole / "config.yaml", path)  # killed right after the first file
    assert main(resume(path)) == 0
    assert same_but_saves(contents(path), contents(whole))


# Models of single clients


@dataclass(frozen=True, eq=False)
class PersonalState:
    models: dict[int, Tensor]


@dataclass(frozen=True)
class Personal(Algorithm):
    """Every client keeps a model of its own."""

    state_type = PersonalState

    def init(self, work, rng):
        return PersonalState({}), Info()

    def round(self, state, cohort, work, rng):
        w0, models = work.initial(0), dict(state.models)
        for client in cohort.tolist():
            models[client] = work.fit(models.get(client, w0)[None], torch.tensor([client])).rows[0]
        return PersonalState(models), Info(loss=1.0, down=0, up=0)

    def place(self, state, clients, work, rng):
        models = state.models | {client: work.initial(0) for client in clients.tolist()}
        return replace(state, models=models), Info()

    def serve(self, state, clients):
        known = list(state.models)
        index = torch.tensor([known.index(client) if client in state.models else -1 for client in clients.tolist()])
        return Assignment(torch.stack(list(state.models.values())) if known else torch.empty(0, 1), index)


def test_only_changed_models_are_written_and_old_files_go(tmp_path: Path):
    rows = {client: torch.full((100,), float(client)) for client in range(5)}
    writer = Checkpoint(tmp_path)
    writer.save({"round": 0}, {"models": rows, "count": 3})
    first = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "rows").iterdir()}
    changed = rows | {1: torch.ones(100), 4: torch.zeros(100)}
    writer.save({"round": 1}, {"models": changed, "count": 4})
    second = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "rows").iterdir()}
    assert len(second) == 5
    assert second.keys() - first.keys() == {"models-1-1.pt", "models-4-1.pt"}
    assert all(second[name] == first[name] for name in second.keys() & first.keys())
    loaded = Checkpoint(tmp_path).load()
    assert loaded is not None
    assert loaded["state"]["count"] == 4
    assert all(torch.equal(loaded["state"]["models"][client], changed[client]) for client in changed)


def test_failed_save_leaves_the_models_of_the_save_before(tmp_path: Path, monkeypatch):
    rows = {client: torch.full((100,), float(client)) for client in range(4)}
    Checkpoint(tmp_path).save({"round": 0}, {"models": rows})
    writer = Checkpoint(tmp_path)
    loaded = writer.load()
    assert loaded is not None
    sync = os.fsync

    def full(descriptor: int) -> None:
        if "models-3" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    changed = loaded["state"]["models"] | {2: torch.ones(100), 3: torch.ones(100)}
    with pytest.raises(checkpoint.SaveError, match=r"models-3-1\.pt could not be written"):
        writer.save({"round": 1}, {"models": changed})
    again = Checkpoint(tmp_path).load()
    assert again is not None
    assert again["round"] == 0
    assert all(torch.equal(again["state"]["models"][client], rows[client]) for client in rows)


def test_run_with_a_model_for_each_client_is_resumed_exactly(tmp_path: Path):
    from functools import partial

    from datamodules import Digits
    from lit_cfl.experiment import CheckpointPlan, Experiment
    from lit_cfl.nets import MCLR
    from lit_cfl.run import run
    from lit_cfl.tasks import Classification

    experiment = Experiment(
        Digits(10),
        lambda: Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1)),
        Personal(),
        rounds=6,
        cohort_size=3,
        checkpoint=CheckpointPlan(0),
    )
    run(experiment, tmp_path / "whole")
    run(replace(experiment, rounds=3), tmp_path / "run")
    run(experiment, tmp_path / "run", going="resume")
    saved = [Checkpoint(tmp_path / name).load() for name in ("whole", "run")]
    assert saved[0] is not None
    assert saved[1] is not None
    mine, other = saved[1]["state"]["models"], saved[0]["state"]["models"]
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[client], other[client]) for client in other)
    assert (tmp_path / "run" / "clients.csv").read_text() == (tmp_path / "whole" / "clients.csv").read_text()
