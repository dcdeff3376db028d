"""Tests parallel runs from Python: their directories, resumption, and failures."""

from pathlib import Path

import pytest
from processes import without_clocks

from lit_cfl import load_experiment, run_many
from lit_cfl.errors import InputError
from lit_cfl.storage import read_table

SMALL = ["--data.num_clients", "8", "--cohort_size", "2", "--rounds", "2", "--local.epochs", "1"]
SMALL += ["--pictures.formats", "[]", "--algorithm", "FedAvg"]


def test_every_seed_runs_once_in_its_folder_and_failures_are_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    good = load_experiment("quickstart", [*SMALL, "--seed", "3"])
    two = load_experiment(good.to_dict(), ["--seeds", "[3, 4]", "--task.optimizer.lr", "0.2"])
    bad = load_experiment("quickstart", [*SMALL, "--seed", "3", "--cohort_size", "99"])
    runs = {tmp_path / "slow": good, tmp_path / "fast": two, tmp_path / "wild": bad}
    ended: list[Path] = []

    def note(directory: Path) -> str:
        ended.append(directory)
        return f"is number {len(ended)}"

    failed = run_many(runs, num_cpus=1, ended=note)
    assert ended == [tmp_path / "slow" / "seed-3", tmp_path / "fast" / "seed-3", tmp_path / "fast" / "seed-4"]
    assert list(failed) == [tmp_path / "wild" / "seed-3"]
    assert "99" in failed[tmp_path / "wild" / "seed-3"]
    assert "fast seed 4  is number 3" in capsys.readouterr().out
    assert two.rounds == 2  # run_many ran its seeds separately, but did not change the given experiment
    losses = [read_table(directory / "metrics.csv")[-1]["train/loss"] for directory in ended]
    assert len(set(losses)) == 3
    assert load_experiment(str(tmp_path / "slow" / "config.yaml")).to_dict()["plan"]["threads"] == 1

    written = {directory: (directory / "summary.json").stat().st_mtime_ns for directory in ended}
    del runs[tmp_path / "wild"]
    assert run_many(runs, num_cpus=1) == {}
    assert {directory: (directory / "summary.json").stat().st_mtime_ns for directory in ended} == written


@pytest.mark.ray
def test_runs_side_by_side_have_the_same_bits(tmp_path: Path, cluster: None):
    experiment = load_experiment("quickstart", [*SMALL, "--seeds", "[3, 4]"])
    assert run_many({tmp_path / "beside": experiment}, num_cpus=2) == {}
    assert run_many({tmp_path / "after": experiment}, num_cpus=1) == {}
    for seed in (3, 4):
        one, other = (read_table(tmp_path / name / f"seed-{seed}" / "metrics.csv") for name in ("beside", "after"))
        assert list(map(without_clocks, one)) == list(map(without_clocks, other))


@pytest.mark.ray
def test_folders_of_one_name_are_told_apart_side_by_side(
    tmp_path: Path, cluster: None, capsys: pytest.CaptureFixture[str]
):
    experiment = load_experiment("quickstart", [*SMALL, "--rounds", "1"])
    assert run_many({tmp_path / "a" / "same": experiment, tmp_path / "b" / "same": experiment}, num_cpus=2) == {}
    shown = capsys.readouterr().out
    assert "a/same seed 0" in shown
    assert "b/same seed 0" in shown


@pytest.mark.parametrize("experiments", ["quickstart", {"runs/a": "quickstart"}, [None]])
def test_experiments_other_than_a_mapping_of_folders_are_refused(experiments):
    with pytest.raises(
        InputError, match=r"experiments is .*; give a mapping of folders to experiments, such as \{'runs/a"
    ):
        run_many(experiments)
