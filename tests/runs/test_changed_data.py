"""Tests that runs are not averaged or compared with finished ones if the data have changed in between."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lit_cfl import Experiment, compare, load_experiment, run
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
CHANGED = "seed-0 was made with different data"

pytestmark = pytest.mark.usefixtures("no_figures")


def write_table(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines = [f"{k % 4},{rng.normal():.3f},{rng.normal():.3f},{k // 4 % 2}" for k in range(80)]
    Path("visits.csv").write_text("\n".join(["client,a,b,y", *lines]) + "\n")


def with_baseline() -> Experiment:
    return load_experiment(TABLE | {"seeds": [0]}).with_options(baseline="Local")


def resume() -> None:
    run(load_experiment(TABLE), "runs", mode="resume")


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(0)


@pytest.mark.parametrize(
    ("start", "lost", "complete"),
    [
        (lambda: run(load_experiment(TABLE), "runs"), "runs/seed-1", resume),
        (
            lambda: run(with_baseline(), "seed-0"),
            "seed-0/baseline",
            lambda: run(with_baseline(), "seed-0", mode="resume"),
        ),
        (
            lambda: compare(TABLE, ["FedAvg", "Local"], compare_dir="c", num_cpus=1),
            "c/Local/seed-1",
            lambda: compare(resume="c", num_cpus=1),
        ),
    ],
    ids=["a seed", "a baseline", "a run of a comparison"],
)
def test_runs_are_not_added_to_those_on_other_data(start: Callable[[], object], lost: str, complete: Callable):
    start()
    shutil.rmtree(lost)
    write_table(1)
    with pytest.raises(InputError, match=CHANGED):
        complete()


@pytest.mark.parametrize(("old", "new"), [("client,a,b,y", "client,weight,b,y"), (",yes", ",NEVER")])
def test_columns_and_labels_keep_their_names_until_all_runs_have_finished(old: str, new: str):
    table = Path("visits.csv").read_text().replace(",0\n", ",no\n").replace(",1\n", ",yes\n")
    Path("visits.csv").write_text(table)
    run(load_experiment(TABLE), "runs")
    shutil.rmtree("runs/seed-1")
    Path("visits.csv").write_text(table.replace(old, new))
    with pytest.raises(InputError, match=CHANGED):
        resume()
    Path("visits.csv").write_text(table)
    resume()
    Path("visits.csv").write_text(table.replace(old, new))
    resume()  # loads no data
