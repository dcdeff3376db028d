"""Measures the cost of tracking a typical run of the papers, and of a similarity picture of 5,000 clients.

    LITCFL_DATA=DIR python scaffold/speed/tracking.py [--rounds 300] [--repeats 3] [--clients 5000]

The run is FedGroup's on MNIST-1000 with a linear net, with evaluation in every round: 1,000 clients of two digits each
(FedProx's generator), 20 per round, 10 epochs of batches of 10, lr 0.03, m = 3, alpha = 20, one epoch of pre-training.
It runs with W&B offline and all pictures, and without, in turn, each in a fresh process. `run`: seconds after the
imports and the reading of the data up to the last file; `training` and `evaluation` are parts of it. `waited`: seconds
in which training waited for the trackers, including their start and end. `background`: CPU seconds of the thread that
draws pictures and feeds W&B, including the import of wandb; if no core is idle, this bounds the slowdown of training.
The picture is made from the cosines of all clients and written as PNG; its memory is the peak of a process that does
nothing else.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from lit_cfl import run
from lit_cfl.algorithms import FedGroup
from lit_cfl.algorithms.base import Similarity
from lit_cfl.datamodules import MNIST, MNIST1000
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.experiment import Experiment
from lit_cfl.nets import MCLR
from lit_cfl.pictures.figures import similarity
from lit_cfl.pictures.files import write_figure
from lit_cfl.pictures.run_files import read_run
from lit_cfl.pictures.sample import MOST_CLIENTS
from lit_cfl.runs.recorder import Recorder
from lit_cfl.runs.rows import snapshot
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tasks import Classification
from lit_cfl.tracking.options import Tracking
from lit_cfl.tracking.trackers import Trackers

CLUSTERS, WIDTH = 10, 64


def measure_run(rounds: int, tracked: bool) -> str:
    """Measures a run; returns a row with its time, its parts' times, the wait for tracking, and tracking's CPU time."""
    module = MNIST(partition=MNIST1000(), pixels="standardised_pooled")
    tracking = Tracking(wandb="offline") if tracked else Tracking(wandb="disabled")
    experiment = Experiment(
        module,
        lambda: Classification(MCLR([1, 28, 28], 10), partial(torch.optim.SGD, lr=0.03)),
        FedGroup(3, pretrain_scale=20),
        rounds=rounds,
        cohort_size=20,
        selection="round_robin_first",
        local=LocalTraining(10, 10),
        tracking=tracking,
    )
    module.federated(0)
    waited, background = [], []
    for owner, names, spent, clock in (
        (Trackers, ("__init__", "log", "conclude", "finish"), waited, perf_counter),
        (Recorder, ("round_view",), waited, perf_counter),
        (Trackers, ("_start_wandb", "_log", "_conclude", "_finish"), background, thread_time),
    ):
        for name in names:
            setattr(owner, name, count_time(getattr(owner, name), spent, clock))
    begun = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run(experiment, Path(folder) / "run")
        took = perf_counter() - begun
        rows = read_table(Path(folder) / "run" / "metrics.csv")
    parts = [f"{sum(row[f'time/{part}_seconds'] for row in rows):.2f}" for part in ("training", "evaluation")]
    parts += [part for spent in (waited, background) for part in (f"{sum(spent):.2f}", f"{sum(spent) / took:.1%}")]
    return " | ".join([f"{took:.2f}", *parts])


def count_time(call: Callable[..., Any], spent: list[float], clock: Callable[[], float]) -> Callable[..., Any]:
    @wraps(call)
    def measured(*arguments: Any, **options: Any) -> Any:
        begun = clock()
        try:
            return call(*arguments, **options)
        finally:
            spent.append(clock() - begun)

    return measured


def measure_picture(clients: int) -> str:
    """Measures a similarity picture; returns clients, seconds, and peak memory in MiB before and after."""
    rng = torch.Generator().manual_seed(0)
    true = torch.arange(clients) % CLUSTERS
    directions = torch.randn(CLUSTERS, WIDTH, generator=rng)[true] + torch.randn(clients, WIDTH, generator=rng)
    directions /= directions.norm(dim=1, keepdim=True)
    before, begun = read_peak_mib(), perf_counter()
    alike = Similarity(torch.arange(clients), directions @ directions.T)
    arrays = snapshot(SimpleNamespace(data=SimpleNamespace(true_clusters=true)), alike, true)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "snapshots").mkdir()
        np.savez(Path(folder) / "snapshots" / "0.npz", **arrays)
        write_figure(similarity(read_run(Path(folder)), MOST_CLIENTS), Path(folder) / "similarity", ["png"])
    return f"{clients:,} | {perf_counter() - begun:.2f} | {before:,.0f} | {read_peak_mib():,.0f}"


def read_peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_in_process(*words: str) -> str:
    """Runs a part of this script in a separate process; returns the last line of its output."""
    command = [sys.executable, __file__, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3, help="0: only the picture")
    parser.add_argument("--clients", type=int, default=5000)
    parser.add_argument("--once", choices=("tracked", "untracked", "picture"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once == "picture":
        print(measure_picture(options.clients))
    elif options.once:
        print(measure_run(options.rounds, options.once == "tracked"))
    else:
        compare(options.rounds, options.repeats)
        print("\n| clients | picture s | MiB before | peak MiB |\n|---|---|---|---|")
        print(f"| {run_in_process('--once', 'picture', '--clients', str(options.clients))} |")


def compare(rounds: int, repeats: int) -> None:
    columns = ("", "run s", "training s", "evaluation s", "waited s", "share", "background CPU s", "share")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    took: dict[str, list[float]] = {"untracked": [], "tracked": []}
    for _ in range(repeats):
        for kind, found in took.items():
            line = run_in_process("--once", kind, "--rounds", str(rounds))
            found.append(float(line.split(" | ")[0]))
            print(f"| {kind} | {line} |", flush=True)
    if repeats:
        untracked, tracked = (median(found) for found in took.values())
        print(f"\nmedians: {untracked:.1f} and {tracked:.1f} s, {tracked / untracked - 1:+.1%}")


if __name__ == "__main__":
    main()
