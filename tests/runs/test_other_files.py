"""Tests runs that depend on other files, such as a frozen base, a partition or data, and are resumed without them."""

import re
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from digits_experiment import digits, timeless_rows
from hub import fresh_caches, write_images
from torch import Tensor, nn

from lit_cfl import load_run, run
from lit_cfl.cli.main import main
from lit_cfl.config.files import valid_anywhere, with_absolute_paths
from lit_cfl.data.partition_file import partition_hash
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.fingerprint import digest_of_constants
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.ray import worker
from lit_cfl.errors import InputError, Notice
from lit_cfl.nets import MCLR
from lit_cfl.storage.checkpoint import read_fingerprint
from lit_cfl.tasks import Classification


class OnBase(nn.Module):
    """Net with a trained layer on a frozen layer that is read from a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(64, 16), nn.Linear(16, 10)
        self.base.load_state_dict(torch.load(file, weights_only=True))
        self.base.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.base(inputs.flatten(1)).relu())


def make_base(file: Path, seed: int) -> None:
    torch.manual_seed(seed)
    torch.save(nn.Linear(64, 16).state_dict(), file)


@pytest.fixture
def task(tmp_path: Path) -> Callable[[], Classification]:
    make_base(tmp_path / "base.pt", 0)
    return lambda: Classification(OnBase(tmp_path / "base.pt"))


def test_frozen_base_that_changed_is_refused_with_both_digests(task: Callable[[], Classification], tmp_path: Path):
    experiment = digits(task=task, rounds=2)
    run(experiment, tmp_path / "run")
    recorded = read_fingerprint(tmp_path / "run")["frozen part of the module"]
    make_base(tmp_path / "base.pt", 5)
    now = experiment.prepare(3).fingerprint["frozen part of the module"]
    said = re.escape(f"different frozen part of the module (SHA-256 {recorded[:12]}, now {now[:12]})")
    with pytest.raises(InputError, match=said):
        load_run(tmp_path / "run", experiment)
    with pytest.raises(InputError, match=said):
        run(digits(task=task, rounds=4), tmp_path / "run", mode="resume")
    make_base(tmp_path / "base.pt", 0)
    assert run(digits(task=task, rounds=4), tmp_path / "run", mode="resume").summary["round"] == 4


def test_a_worker_that_would_train_otherwise_does_no_work(
    task: Callable[[], Classification], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It has another frozen base, or its steps round differently."""
    monkeypatch.setattr(worker.ray, "get", lambda reference: reference)
    monkeypatch.setattr(worker, "describe_steps", lambda: "without compiled steps")
    engine = build_engine(task, Plan(), 0, LocalTraining())
    constants = digest_of_constants(engine.template, engine.layout)
    spec = worker.EngineSpec(task, Plan(), 0, LocalTraining(), constants=constants)
    for steps in ("", "without compiled steps"):  # "" = any steps
        assert worker.Worker([])._get_engine(replace(spec, steps=steps)).layout == engine.layout
    with pytest.raises(InputError, match=r"\(without compiled steps\) .* \(compiled for AVX2\)"):
        worker.Worker([])._get_engine(replace(spec, steps="compiled for AVX2"))
    make_base(tmp_path / "base.pt", 5)
    with pytest.raises(InputError, match=f"frozen part .*{constants[:12]}"):
        worker.Worker([])._get_engine(spec)


def fixed() -> Classification:
    torch.manual_seed(0)  # gives the same initial weights under every seed
    return Classification(MCLR([1, 8, 8], 10))


def test_seeds_that_start_from_one_model_are_noted_once(tmp_path: Path):
    with pytest.warns(Notice, match="all seeds started from one initial model") as said:
        run(digits(task=fixed, rounds=1, seeds=[1, 2, 3]), tmp_path / "run")
    assert len([note for note in said if "all seeds" in str(note.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        run(digits(rounds=1, seeds=[1, 2]), tmp_path / "apart")
        run(digits(task=fixed, rounds=1, seeds=[1]), tmp_path / "alone")


DIGITS = ("--data.num_clients", "6")
MNIST = ["--data", "MNIST", "--data.source", "pictures", "--data.partition", "IID", "--data.partition.num_clients", "3"]


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_caches(tmp_path, monkeypatch)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def lit_cfl(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


def averaged(path: str | Path, *options: object, data: Sequence[str] = DIGITS) -> Path:
    """Runs FedAvg with these options, in a folder relative to the current one."""
    small = ["--config", "fedavg/digits", "--rounds", "2", "--cohort_size", "3", "--local.epochs", "1"]
    lit_cfl("run", *small, *data, "--run_dir", path, *options)
    return Path(path).absolute()


def used(path: Path) -> str:
    return partition_hash(load_run(path).data)


def test_partition_is_taken_from_the_directory_of_one_run_or_its_file(capsys: pytest.CaptureFixture[str]):
    averaged("first", "--seeds", "[0, 1]", "--rounds", "1")
    for number, given in enumerate(("first/seed-1", "first/seed-1/partition.npz")):
        again = averaged(f"again-{number}", "--data.partition_file", given, "--data.num_clients", "2")
        assert used(again) == used(Path("first/seed-1"))
        assert load_run(again).data.num_clients == 6
    # other clients are scored whatever partition the run had
    for words, clients in ((["--data.num_clients", "9"], 9), (["--data.partition_file", "first/seed-0"], 6)):
        capsys.readouterr()
        lit_cfl("evaluate", again, *words)
        assert f"test, newcomers        {clients} " in capsys.readouterr().out
    assert main(["run", "--config", "fedavg/digits", "--data.partition_file", "first"]) == 2  # holds several runs
    assert "first/partition.npz" in capsys.readouterr().err


def test_run_whose_partition_file_is_gone_resumes_and_is_scored(capsys: pytest.CaptureFixture[str]):
    first = averaged("first", "--data.num_clients", "5", "--data.newcomers", "0.2")
    whole = averaged("whole", "--data.partition_file", "first")
    half = averaged("half", "--data.partition_file", "first", "--rounds", "1", "--baseline", "FedAvg")
    shutil.rmtree(half / "baseline")  # as if the run had been killed before its baseline started
    (half / "SHA256SUMS").unlink()
    shutil.rmtree(first)
    lit_cfl("run", "--resume", half, "--rounds", "2")
    assert timeless_rows(half / "metrics.csv") == timeless_rows(whole / "metrics.csv")
    assert (half / "partition.npz").read_bytes() == (whole / "partition.npz").read_bytes()
    assert used(half / "baseline") == used(half)
    lit_cfl("evaluate", half)
    assert "test" in capsys.readouterr().out
    assert load_run(half).data.num_clients == 5  # the configuration says six


@pytest.mark.nightly
def test_run_is_resumed_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_images(Path("pictures"), 60, 30)
    whole, half = averaged("whole", data=MNIST), averaged("half", "--rounds", "1", data=MNIST)
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    fresh_caches(tmp_path / "there", monkeypatch)  # the cache of `datasets` would find the folder by its name alone
    lit_cfl("run", "--resume", "../here/half", "--rounds", "2")
    assert timeless_rows(half / "metrics.csv") == timeless_rows(whole / "metrics.csv")
    assert used(half) == used(whole)
    lit_cfl("run", "--config", half / "config.yaml", "--run_dir", "again")
    assert timeless_rows(Path("again/metrics.csv")) == timeless_rows(whole / "metrics.csv")


def test_paths_of_files_that_exist_become_absolute(tmp_path: Path):
    Path("pictures").mkdir()
    here, unchanged = tmp_path / "here", {"source": "ylecun/mnist", "embeddings": "~/x", "partition_file": None}
    part = {"source": "pictures", "labels": "pictures"}
    found = with_absolute_paths(unchanged | {"parts": [{"init_args": part}]})
    assert found == unchanged | {"parts": [{"init_args": part | {"source": f"{here}/pictures"}}]}
    loggers = [{"init_args": {"save_dir": "logs", "name": "logs"}}, {"init_args": {"save_dir": "s3://bucket/logs"}}]
    config = {"name": "a", "data": {"source": "ylecun/mnist"}, "tracking": {"wandb": None, "loggers": loggers}}
    of_workers = [{"init_args": {"save_dir": f"{here}/logs", "name": "logs"}}, loggers[1]]
    assert valid_anywhere(config) == config | {"tracking": {"wandb": None, "loggers": of_workers}}
