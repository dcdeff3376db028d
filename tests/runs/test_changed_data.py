"""Tests that runs are not averaged or compared with finished ones if the data have changed in between."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from lit_cfl import Experiment, compare, load_experiment, run, run_many
from lit_cfl.errors import InputError

TABLE = {
    "name": "table",
    "seeds": [0, 1],
    "rounds": 1,
    "cohort_size": 2,
    "data": {"class_path": "ArrayData", "init_args": {"source": "visits.csv", "test": 0.2}},
    "task": {
        "class_path": "Classification",
        "init_args": {
            "net": {"class_path": "MCLR"},
            "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
        },
    },
    "algorithm": "FedAvg",
    "pictures": {"formats": []},
    "tracking": {"wandb": "disabled"},
}
CHANGED = "seed-0 was made with different data, or another division"

pytestmark = pytest.mark.usefixtures("no_figures")


def write_table(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines = [f"{k % 4},{rng.normal():.3f},{rng.normal():.3f},{k // 4 % 2}" for k in range(80)]
    Path("visits.csv").write_text("\n".join(["client,a,b,y", *lines]) + "\n")


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(0)


def test_further_seeds_need_the_data_of_finished_ones():
    experiment = load_experiment(TABLE)
    run(experiment, "runs")
    shutil.rmtree("runs/seed-1")
    write_table(1)
    with pytest.raises(InputError, match=CHANGED):
        run(load_experiment(TABLE), "runs", mode="resume")
    with pytest.raises(InputError, match=CHANGED):
        run_many({Path("runs"): load_experiment(TABLE)}, num_cpus=1)
    assert not Path("runs/seed-1").exists()
    write_table(0)
    run(load_experiment(TABLE), "runs", mode="resume")
    write_table(1)
    run(load_experiment(TABLE), "runs", mode="resume")  # all runs have finished, so their data are not loaded


@pytest.mark.parametrize(("old", "new"), [("client,a,b,y", "client,weight,b,y"), (",yes", ",NEVER")])
def test_columns_and_labels_keep_their_names(old: str, new: str):
    table = Path("visits.csv").read_text().replace(",0\n", ",no\n").replace(",1\n", ",yes\n")
    Path("visits.csv").write_text(table)
    run(load_experiment(TABLE), "runs")
    shutil.rmtree("runs/seed-1")
    Path("visits.csv").write_text(table.replace(old, new))
    with pytest.raises(InputError, match=CHANGED):
        run(load_experiment(TABLE), "runs", mode="resume")


def test_a_baseline_needs_the_data_of_its_run():
    def experiment() -> Experiment:
        return load_experiment(TABLE | {"seeds": [0]}).with_options(baseline="Local")

    run(experiment(), "seed-0")
    shutil.rmtree("seed-0/baseline")
    write_table(1)
    with pytest.raises(InputError, match=CHANGED):
        run(experiment(), "seed-0", mode="resume")


def test_further_runs_of_a_comparison_need_the_data_of_finished_ones():
    compare(TABLE, ["FedAvg", "Local"], compare_dir="c", num_cpus=1)
    shutil.rmtree("c/Local/seed-1")
    write_table(1)
    with pytest.raises(InputError, match=CHANGED):
        compare(resume="c", num_cpus=1)
