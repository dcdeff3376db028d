"""A run that ended early and is resumed equals an uninterrupted one, whatever it was doing: features by ways to end.

A row of `FEATURES` is what a run trains with or records, as options of `lit-cfl run`; a column of `ENDINGS` is how its
process ended. A bug that gets through becomes a row. Processes are forks of this one, and the ends are real: signals
and full disks at file operations that the operating system sees, so no cell depends on how a run is saved.
"""

import os
import random
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product, starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from drawing import let_runs_draw
from kills import Trials, run_in_child
from processes import in_child, wait, wait_for
from same_files import find_damages, find_differences

SMALL = """
    --name run --tracking.wandb disabled --tracking.snapshots_every 2
    --checkpoint.every_seconds 0 --rounds 4 --data.num_clients 12 --cohort_size 5 --local.epochs 1
"""
QUICK = "--config quickstart --algorithm.pretrain_scale 2 --algorithm.pretrain.length 1 --baseline null"
FEATURES = {
    # states of algorithms, of which the contract of algorithms states by day that they survive their file
    "IFCA": "--config ifca/digits --baseline null --algorithm.num_clusters 3",
    "number of clusters found": "--config ifca/digits --baseline null --algorithm.num_clusters auto",
    "StoCFL": "--config stocfl/digits --baseline null",
    "a model per client": "--config ditto/digits",
    "models of clusters and of clients": "--config fesem/digits --baseline null",
    "mixtures of models": "--config fedem/digits --algorithm.num_clusters 3",
    "splits": "--config cfl/digits --cohort_size 12 --algorithm.eps1 10 --algorithm.eps2 0",
    "layers": "--config layercfl/digits --cohort_size 12 --algorithm.warmup_rounds 1 --algorithm.eps2 0",
    "descriptors of the data": "--config flux/digits --baseline null",
    "merged clients": "--config flhc/digits --baseline null",
    "FedGroup and a baseline": QUICK.replace("null", "FedAvg"),
    # layers that are shared or kept, and the server's optimizer
    "layers of clients": f"{QUICK} --personal [fc1.bias]",
    "layers of all clusters": f"{QUICK} --shared [fc1.bias]",
    "server momentum": f"{QUICK} --server torch.optim.SGD --server.lr 0.7 --server.momentum 0.9",
    # local training
    "rates over rounds": f"{QUICK} --local.lr_schedule torch.optim.lr_scheduler.ExponentialLR"
    " --local.lr_schedule.gamma 0.5",
    "augmentation": f"{QUICK} --data.augment.crop 1 --data.augment.flip true",
    # who takes part, and what happens to the data
    "clients that do not answer": f"{QUICK} --dropout 0.4 --selection uniform",
    "drift": "--config feddrift/digits --data.shift.start 3",
    "swapped data": f"{QUICK} --data.shift SwapAll --data.shift.probability 0.5",
    # what is recorded, and when a run stops
    "scores of clients": f"{QUICK} --evaluation.per_client true --evaluation.class_counts true",
    "fine-tuning": f"{QUICK} --evaluation.fine_tune.length 1 --evaluation.every 2",
    "early stopping": f"{QUICK} --stop.metric val/weighted_accuracy --stop.patience 1",
    "pictures of both": QUICK.replace("null", "FedAvg") + " --pictures.formats [png]",
}


EVERY_ENDING = ("FedGroup and a baseline", "swapped data")  # these have every ending by day
IN_A_SAVE = ("layers of clients", "server momentum", "rates over rounds", "drift", "early stopping")  # these have one


class Feature(Trials):
    """A run with a feature: `total` file operations, of which `saves` put a checkpoint in its place."""

    def __init__(self, name: str, folder: Path) -> None:
        options = FEATURES[name] if "--pictures" in FEATURES[name] else f"{FEATURES[name]} --pictures.formats []"
        super().__init__(["run", *shlex.split(options), *shlex.split(SMALL)], folder)
        self.total = self.count_operations()
        listed = (folder / "operations.txt").read_text().splitlines()
        self.saves = [at for at, line in enumerate(listed) if line.startswith("os.rename") and "checkpoint" in line]

    def require_same(self) -> None:
        """Resumes the interrupted run; it must then have the files of the uninterrupted one."""
        assert run_in_child(self.resume(), self.output) == 0, self.output.read_text()
        assert find_differences(self.path, self.reference) + find_damages(self.path) == []


def at(how: str, feature: Feature, operation: int) -> None:
    assert len(feature.saves) >= 4
    assert feature.trial(how, operation) is None


def by_a_signal(feature: Feature, drawn: random.Random) -> None:
    shutil.rmtree(feature.path, ignore_errors=True)
    child, number = in_child(feature.start(feature.path)), drawn.choice([signal.SIGTERM, signal.SIGINT])
    wait_for(feature.path / "metrics.csv", "\n2,")
    os.kill(child, number)
    assert wait(child) == 128 + number
    assert "Resume with: lit-cfl run --resume" in Path(os.environ["CHILD_OUTPUT"]).read_text()
    feature.require_same()


def with_fewer_rounds(feature: Feature, drawn: random.Random) -> None:
    shutil.rmtree(feature.path, ignore_errors=True)
    assert run_in_child([*feature.start(feature.path), "--rounds", "2"], feature.output) == 0
    assert run_in_child([*feature.resume(), "--rounds", "4"], feature.output) == 0, feature.output.read_text()
    assert find_differences(feature.path, feature.reference) + find_damages(feature.path) == []


ENDINGS: dict[str, Callable[[Feature, random.Random], None]] = {
    "kill -9 in a save": lambda feature, drawn: at("kill", feature, drawn.choice(feature.saves[1:])),
    "kill -9 anywhere": lambda feature, drawn: at("kill", feature, drawn.randrange(feature.total)),
    "a full disk": lambda feature, drawn: at("full", feature, drawn.randrange(feature.total)),
    "a signal": by_a_signal,
    "fewer rounds": with_fewer_rounds,
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Makes a folder for all cells, which is the current directory, since a run records where its code was."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # forks of a process that has computed in several threads may hang
    with TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("CHILD_OUTPUT", f"{path}/output.txt")
        patch.setattr("lit_cfl.pictures.files._DPI", 20)  # the pictures would take most of the time
        let_runs_draw(True)
        yield Path(path)
    let_runs_draw(False)
    torch.set_num_threads(threads)


@cache
def feature_in(folder: Path, name: str) -> Feature:
    (folder / name).mkdir()
    return Feature(name, folder / name)


def cell(name: str, ending: str) -> Any:
    """Returns a cell of the table; those of a feature share its uninterrupted run, so they run in one process."""
    by_day = name in EVERY_ENDING or (ending == "kill -9 in a save" and name in IN_A_SAVE)
    by_night = [] if by_day else [pytest.mark.nightly]
    return pytest.param(name, ending, marks=[pytest.mark.xdist_group(name), *by_night], id=f"{name}-{ending}")


@pytest.mark.parametrize(("name", "ending"), list(starmap(cell, product(FEATURES, ENDINGS))))
def test_a_resumed_run_equals_an_uninterrupted_one(name: str, ending: str, folder: Path):
    drawn = random.Random(f"{name}, {ending}")  # a cell has the same moment each time
    ENDINGS[ending](feature_in(folder, name), drawn)
