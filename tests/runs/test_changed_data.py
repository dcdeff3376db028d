"""Tests that runs are not averaged or compared with finished ones if the data have changed in between."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lit_cfl import compare, load_experiment, run
from lit_cfl.errors import InputError

WORDS = "--data ArrayData --data.source visits.csv --data.test 0.2 --rounds 1 --cohort_size 2"
CHANGED = "seed-0 was made with different data"

pytestmark = pytest.mark.usefixtures("no_figures")


def write_table(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines = [f"{k % 4},{rng.normal():.3f},{rng.normal():.3f},{k // 4 % 2}" for k in range(80)]
    Path("visits.csv").write_text("\n".join(["client,a,b,y", *lines]) + "\n")


def table_run(path: str, *words: str, mode: str = "new") -> None:
    run(load_experiment("fedavg/digits", [*WORDS.split(), *words]), path, mode=mode)


def seeds(mode: str = "new") -> None:
    table_run("runs", "--seeds", "[0,1]", mode=mode)


def baseline(mode: str = "new") -> None:
    table_run("seed-0", "--baseline", "Local", mode=mode)


def comparison(mode: str = "new") -> None:
    if mode == "new":
        compare("fedavg/digits", ["FedAvg", "Local"], [0, 1], WORDS.split(), compare_dir="c", num_cpus=1)
    else:
        compare(resume="c", num_cpus=1)


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(0)


@pytest.mark.parametrize(
    ("start", "lost"), [(seeds, "runs/seed-1"), (baseline, "seed-0/baseline"), (comparison, "c/Local/seed-1")]
)
def test_runs_are_not_added_to_those_on_other_data(start: Callable[..., None], lost: str):
    start()
    shutil.rmtree(lost)
    write_table(1)
    with pytest.raises(InputError, match=CHANGED):
        start("resume")


@pytest.mark.parametrize(("old", "new"), [("client,a,b,y", "client,weight,b,y"), (",yes", ",NEVER")])
def test_columns_and_labels_keep_their_names_until_all_runs_have_finished(old: str, new: str):
    table = Path("visits.csv").read_text().replace(",0\n", ",no\n").replace(",1\n", ",yes\n")
    Path("visits.csv").write_text(table)
    seeds()
    shutil.rmtree("runs/seed-1")
    Path("visits.csv").write_text(table.replace(old, new))
    with pytest.raises(InputError, match=CHANGED):
        seeds("resume")
    Path("visits.csv").write_text(table)
    seeds("resume")
    Path("visits.csv").write_text(table.replace(old, new))
    seeds("resume")  # loads no data
