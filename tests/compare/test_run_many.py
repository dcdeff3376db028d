"""Tests parallel runs from Python: their directories, resumption, and failures."""

from pathlib import Path

import pytest
from processes import without_clocks

from lit_cfl import load_experiment, run_many
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
def test_runs_side_by_side_have_the_same_bits_and_are_told_apart(
    tmp_path: Path, cluster: None, capsys: pytest.CaptureFixture[str]
):
    experiment = load_experiment("quickstart", [*SMALL, "--seeds", "[3, 4]"])
    folders = [tmp_path / name for name in ("a/same", "b/same", "after")]
    assert run_many(dict.fromkeys(folders[:2], experiment), num_cpus=2) == {}
    shown = capsys.readouterr().out
    assert [f"{name}/same seed {seed}" in shown for name in "ab" for seed in (3, 4)] == [True] * 4
    assert run_many({folders[2]: experiment}, num_cpus=1) == {}
    for seed in (3, 4):
        one, two, after = (read_table(folder / f"seed-{seed}" / "metrics.csv") for folder in folders)
        assert list(map(without_clocks, one)) == list(map(without_clocks, after)) == list(map(without_clocks, two))
