"""Tests that a killed and resumed run equals an uninterrupted run bit for bit.

The processes are real ones: children that begin as copies of this one (so that they need not load PyTorch again)
and are ended by real signals.
"""

import json
import os
import random
import resource
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from digits_experiment import digits
from processes import OPTIONS, ROUNDS, contents, in_child, resume, same_but_saves, start, wait, wait_for, without_clocks
from torch import nn

from lit_cfl import Experiment, load_run, run
from lit_cfl.algorithms import FedAvg
from lit_cfl.cli.main import main
from lit_cfl.datamodules import ArrayData, Digits
from lit_cfl.datamodules.shift import SwapAll
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError, Notice
from lit_cfl.nets import MCLR
from lit_cfl.runs import environment as module
from lit_cfl.runs.resume import require_agreement
from lit_cfl.storage import checkpoint
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tasks import Classification

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("output")]


@pytest.mark.nightly
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
            shutil.rmtree(path)  # the run finished before the kill: start it again, with the same count
            child = in_child(start(path, "--checkpoint.every_seconds", "0"))
            continue
        killed += 1
        again = resume(path) if (path / "config.yaml").exists() else start(path, "--checkpoint.every_seconds", "0")
        child = in_child(again)
    assert wait(child) == 0
    assert same_but_saves(contents(path), contents(whole))


def test_run_killed_before_its_first_checkpoint_starts_again(whole: Path, tmp_path: Path):
    path = tmp_path / "run"
    child = in_child(start(path, "--checkpoint.every_seconds", "1000"))
    wait_for(path / "metrics.csv", "\n3,")  # three rounds are completed, but not saved
    os.kill(child, signal.SIGKILL)
    assert wait(child) == -signal.SIGKILL
    assert not (path / "checkpoint.pt").exists()
    assert main(resume(path)) == 0
    assert same_but_saves(contents(path), contents(whole))


def test_run_killed_during_a_save_resumes_from_the_previous_save(whole: Path, tmp_path: Path):
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
    assert saved["round"] == 3
    # one row more than the checkpoint has: it is removed, and the round is repeated
    assert len(read_table(path / "metrics.csv")) == 4
    assert main(resume(path)) == 0
    assert same_but_saves(contents(path), contents(whole))


def test_run_killed_after_its_last_round_only_writes_its_end(whole: Path, tmp_path: Path):
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "clients.csv").unlink()
    assert main(resume(tmp_path / "run")) == 0
    assert same_but_saves(contents(tmp_path / "run"), contents(whole))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_and_prints_the_command_to_resume(
    signum: signal.Signals, whole: Path, tmp_path: Path, output: Path
):
    path = tmp_path / "run"
    child = in_child(start(path, "--checkpoint.every_seconds", "1000"))
    wait_for(path / "metrics.csv", "\n1,")
    os.kill(child, signum)
    assert wait(child) == 128 + signum
    assert f"Resume with: lit-cfl run --resume {path}" in output.read_text()
    assert "Traceback" not in output.read_text()
    saved = Checkpoint(path).load()
    assert saved is not None
    assert saved["round"] == len(read_table(path / "metrics.csv")) >= 1
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
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))  # less than the size of the state

    assert wait(in_child(resume(path), allow_little)) == 2
    message = output.read_text()
    assert "could not be written (File too large)" in message
    assert f"free some disk space, then resume with: lit-cfl run --resume {path}" in message
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

    monkeypatch.setattr(os, "fsync", full_at_the_third)
    assert main(start(path, "--checkpoint.every_seconds", "0")) == 2
    message = capsys.readouterr().err
    assert "checkpoint.pt could not be written (No space left on device). The last checkpoint is intact" in message
    saved = Checkpoint(path).load()
    assert saved is not None
    assert saved["round"] == 2


def test_resume_goes_together_with_the_same_configuration_only(ended: Path, capsys):
    same = ["run", *OPTIONS, "--rounds", str(ROUNDS), "--resume", str(ended)]
    assert main(same) == 0
    assert "FedAvg" in capsys.readouterr().out
    assert main([*same, "--local.epochs", "7", "--algorithm.eta_g", "0.5"]) == 2
    message = capsys.readouterr().err
    assert "local.epochs: 3 -> 7" in message
    assert "algorithm.init_args.eta_g: 0.0 -> 0.5" in message
    assert main([*same, "--rounds", "2"]) == 2
    assert f"started with {ROUNDS} rounds, but rounds is 2" in capsys.readouterr().err


def test_options_that_differ_are_named_with_both_values(tmp_path: Path):
    stored = {"rounds": 5, "local": {"epochs": 2, "last_batch": "keep"}, "plan": vars(Plan("loop"))}
    require_agreement(tmp_path, stored, stored, new_plan=False)
    with pytest.raises(InputError, match="plan: 3 ->"):  # the plan of a damaged file
        require_agreement(tmp_path, stored | {"plan": 3}, stored, new_plan=False)
    joined = stored | {"local": {"epochs": 2, "last_batch": "join"}}
    with pytest.raises(InputError, match=r"local\.last_batch: keep -> join"):
        require_agreement(tmp_path, stored, joined, new_plan=False)
    with pytest.raises(InputError, match=r"local\.last_batch: \(not set\) -> keep"):
        require_agreement(tmp_path, stored | {"local": {"epochs": 2}}, stored, new_plan=False)


def test_finished_run_prints_its_table_and_changes_nothing(ended: Path, capsys):
    before = {p: p.read_bytes() for p in ended.rglob("*") if p.is_file()}
    assert main(resume(ended)) == 0
    assert "weighted accuracy" in capsys.readouterr().out
    assert {p: p.read_bytes() for p in ended.rglob("*") if p.is_file()} == before


def test_finished_run_is_extended_by_more_rounds(whole: Path, tmp_path: Path):
    assert main(start(tmp_path / "run", rounds=5)) == 0
    assert main(resume(tmp_path / "run", "--rounds", str(ROUNDS))) == 0
    mine, other = contents(tmp_path / "run"), contents(whole)
    for key in ("run metrics", "run state", "run clients.csv", "run memberships.npz", "baseline metrics", "run config"):
        assert mine[key] == other[key], key


def test_extension_that_is_killed_has_no_files_of_the_earlier_end(ended: Path):
    child = in_child(resume(ended, "--rounds", str(ROUNDS + 200)))
    wait_for(ended / "metrics.csv", f"\n{ROUNDS + 1},")
    os.kill(child, signal.SIGKILL)
    assert wait(child) == -signal.SIGKILL
    assert not {"summary.json", "clients.csv", "memberships.npz", "SHA256SUMS"} & {
        file.name for file in ended.iterdir()
    }
    with pytest.raises(InputError, match=r"has no clients\.csv yet"):
        _ = load_run(ended).clients


def test_run_killed_between_a_checkpoint_with_changed_options_and_its_config_is_resumed(whole: Path, tmp_path: Path):
    path = tmp_path / "run"
    assert main(start(path, "--baseline", "null", rounds=3)) == 0
    before = (path / "config.yaml").read_bytes()
    child = in_child(resume(path, "--rounds", str(ROUNDS)), die_before_the_config)
    assert wait(child) == -signal.SIGKILL
    assert (path / "config.yaml").read_bytes() == before
    assert main(resume(path)) == 2  # the checkpoint is of a run with more rounds
    assert main(resume(path, "--rounds", str(ROUNDS))) == 0
    assert Checkpoint(path).load()["state"]["models"].equal(Checkpoint(whole).load()["state"]["models"])


def die_before_the_config() -> None:
    """Kills this process before it replaces `config.yaml`."""
    replace = Path.replace

    def dying(self: Path, target: Path) -> Path:
        if Path(target).name == "config.yaml":
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, target)

    Path.replace = dying


def test_null_for_the_plan_and_a_forgotten_directory_are_refused_in_a_line(whole: Path, capsys):
    assert main(["run", "--resume", str(whole), "--plan", "null"]) == 2
    assert "--plan is null, but a resumed run keeps its plan; leave it out" in capsys.readouterr().err
    assert main(["run", "--resume"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message == "lit-cfl: error: --resume is ''; give a folder, or leave it out"


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


def changed_task(rate: float) -> Callable[[], Classification]:
    return lambda: Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=rate))


def hidden_rate(rate: float) -> Callable[[], Classification]:
    """Returns a factory of a task whose learning rate is visible only in its optimizer."""
    return lambda: Classification(MCLR([1, 8, 8], 10), lambda parameters: torch.optim.SGD(parameters, lr=rate))


def net(activation: type[nn.Module] = nn.ReLU, p: float = 0.5, last: Sequence[nn.Module] = ()) -> Callable[[], Any]:
    """Returns a factory of a task whose net has the same shapes and initial weights for all arguments."""

    def build() -> Classification:
        layers = (nn.Flatten(), nn.Dropout(p), nn.Linear(64, 8), activation(), nn.Linear(8, 10), *last)
        return Classification(nn.Sequential(*layers), partial(torch.optim.SGD, lr=0.1))

    return build


def sums(scale: float) -> ArrayData:
    x = np.random.default_rng(0).random((80, 1, 8, 8), dtype=np.float32)
    return ArrayData(x=x, y=np.arange(80) % 10, client=np.arange(80) % 8, scale=scale)


@pytest.mark.parametrize("rounds", [2, 3])
@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            {"task": changed_task(0.1)},
            {"task": changed_task(0.2)},
            "was made with a different optimizer",
        ),
        ({"task": hidden_rate(0.1)}, {"task": hidden_rate(0.2)}, "was made with a different optimizer"),
        (
            {"task": net(p=0.1)},
            {"task": net(p=0.4)},
            "was made with a different net",
        ),
        ({"task": net()}, {"task": net(nn.Tanh)}, "was made with a different net"),
        ({"task": net()}, {"task": net(last=(nn.Identity(),))}, "was made with a different net"),
        ({"data": sums(1.0)}, {"data": sums(2.0)}, "was made with a different scale of the inputs"),
        (
            {"data": Digits(8, shift=SwapAll(0.1))},
            {"data": Digits(8, shift=SwapAll(0.2))},
            r"data\.shift: .*0\.1.* -> .*0\.2",
        ),
        (
            {"server": partial(torch.optim.SGD, lr=1.0)},
            {"server": partial(torch.optim.SGD, lr=0.5)},
            r"server\.made: .*SGD\(lr=1\.0\) -> .*SGD\(lr=0\.5\)",
        ),
    ],
)
def test_a_run_made_in_python_is_not_resumed_with_another_experiment(
    rounds: int, before: dict[str, Any], after: dict[str, Any], message: str, tmp_path: Path
):
    run(digits(algorithm=FedAvg(), rounds=2, **before), tmp_path / "run")
    same = run(digits(algorithm=FedAvg(), rounds=2, **before), tmp_path / "run", mode="resume").summary
    assert same["round"] == 2
    with pytest.raises(InputError, match=message):
        run(digits(algorithm=FedAvg(), rounds=rounds, **after), tmp_path / "run", mode="resume")


def test_values_that_change_at_each_construction_of_a_module_do_not_prevent_a_resume(tmp_path: Path):
    numbers = count()

    def experiment(rounds: int, **options: Any) -> Experiment:
        def task() -> Classification:
            module = net(**options)()
            module.started = next(numbers)
            return module

        return digits(algorithm=FedAvg(), rounds=rounds, task=task)

    run(experiment(1), tmp_path / "run")
    assert run(experiment(2), tmp_path / "run", mode="resume").summary["round"] == 2
    assert run(experiment(2), tmp_path / "run", mode="resume").summary["round"] == 2
    with pytest.raises(InputError, match="was made with a different net"):
        run(experiment(2, p=0.4), tmp_path / "run", mode="resume")


@pytest.mark.parametrize(
    ("name", "key", "now"),
    [("describe_steps", "chains", "compiled elsewhere"), ("processor_name", "processor", "another processor")],
)
def test_resumed_where_sums_round_differently(
    name: str, key: str, now: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "run"
    run(digits(rounds=2), path)
    before = json.loads((path / "environment.json").read_text())
    monkeypatch.setattr(module, name, lambda: now)
    with pytest.warns(Notice, match=f"run is resumed with .*{now}, not .*: sums may round differently from here on"):
        run(digits(rounds=3), path, mode="resume")
    after = json.loads((path / "environment.json").read_text())
    assert after.pop("earlier") == [
        f"after round 2: {'small nets' if key == 'chains' else key} {now}, not {before[key]}"
    ]
    assert after == before | {key: now}
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        run(digits(rounds=4), path, mode="resume")  # the notice is given only once
    assert len(json.loads((path / "environment.json").read_text())["earlier"]) == 1


def test_only_what_the_plan_uses_counts(monkeypatch: pytest.MonkeyPatch):
    now = module.environment()
    other = now | {"chains": "compiled elsewhere", "gpus": ["a GPU"]}
    assert module.resumed_environment(other, Plan("loop"), 2) == (other, "")
    assert module.resumed_environment(other, Plan("chain", "cuda:0"), 2)[1] == "GPUs none, not a GPU"
    elsewhere = now | {"packages": now["packages"] | {"torch": "1.0"}}
    assert module.resumed_environment(elsewhere, Plan("loop"), 2)[1] == f"torch {now['packages']['torch']}, not 1.0"
