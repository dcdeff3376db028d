"""Tests runs with a partition or data from other files: resumed in another folder, and without these files."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from digits_experiment import timeless_rows
from hub import fresh_caches, write_images

from lit_cfl import load_run
from lit_cfl.cli.main import main
from lit_cfl.config.files import valid_anywhere, with_absolute_paths
from lit_cfl.data.partition_file import partition_hash

DIGITS = ("--data.num_clients", "6")
MNIST = ["--data", "MNIST", "--data.source", "pictures", "--data.partition", "IID", "--data.partition.num_clients", "3"]


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_caches(tmp_path, monkeypatch)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def lit_cfl(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


def run(path: str | Path, *options: object, data: Sequence[str] = DIGITS) -> Path:
    """Runs FedAvg with these options, in a folder relative to the current one."""
    small = ["--config", "fedavg/digits", "--rounds", "2", "--cohort_size", "3", "--local.epochs", "1"]
    lit_cfl("run", *small, *data, "--run_dir", path, *options)
    return Path(path).absolute()


def used(path: Path) -> str:
    return partition_hash(load_run(path).data)


def test_partition_is_taken_from_the_directory_of_one_run_or_its_file(capsys: pytest.CaptureFixture[str]):
    run("first", "--seeds", "[0, 1]", "--rounds", "1")
    for number, given in enumerate(("first/seed-1", "first/seed-1/partition.npz")):
        again = run(f"again-{number}", "--data.partition_file", given, "--data.num_clients", "2")
        assert used(again) == used(Path("first/seed-1"))
        assert load_run(again).data.num_clients == 6
    assert main(["run", "--config", "fedavg/digits", "--data.partition_file", "first"]) == 2  # holds several runs
    assert "first/partition.npz" in capsys.readouterr().err


def test_run_whose_partition_file_is_gone_resumes_and_is_scored(capsys: pytest.CaptureFixture[str]):
    first = run("first", "--data.num_clients", "5", "--data.newcomers", "0.2")
    whole = run("whole", "--data.partition_file", "first")
    half = run("half", "--data.partition_file", "first", "--rounds", "1", "--baseline", "FedAvg")
    shutil.rmtree(half / "baseline")  # as if the run had been killed before its baseline started
    (half / "SHA256SUMS").unlink()
    shutil.rmtree(first)
    lit_cfl("run", "--resume", half, "--rounds", "2")
    assert timeless_rows(half) == timeless_rows(whole)
    assert (half / "partition.npz").read_bytes() == (whole / "partition.npz").read_bytes()
    assert used(half / "baseline") == used(half)
    lit_cfl("evaluate", half)
    assert "test" in capsys.readouterr().out
    assert load_run(half).data.num_clients == 5  # the configuration says six


def test_other_clients_are_scored_whatever_partition_the_run_had(capsys: pytest.CaptureFixture[str]):
    run("first")
    again = run("again", "--data.partition_file", "first")
    for words, clients in ((["--data.num_clients", "9"], 9), (["--data.partition_file", "first"], 6)):
        lit_cfl("evaluate", again, *words)
        assert f"test, newcomers        {clients} " in capsys.readouterr().out


@pytest.mark.nightly
def test_run_is_resumed_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_images(Path("pictures"), 60, 30)
    whole, half = run("whole", data=MNIST), run("half", "--rounds", "1", data=MNIST)
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    fresh_caches(tmp_path / "there", monkeypatch)  # the cache of `datasets` would find the folder by its name alone
    lit_cfl("run", "--resume", "../here/half", "--rounds", "2")
    assert timeless_rows(half) == timeless_rows(whole)
    assert used(half) == used(whole)
    lit_cfl("run", "--config", half / "config.yaml", "--run_dir", "again")
    assert timeless_rows(Path("again")) == timeless_rows(whole)


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
