"""A whole run of the papers' kind: FedGroup on MNIST-1000, linear net, 300 rounds, every one evaluated.

    LITCFL_DATA=DIR python benchmarks/whole_run.py [--rounds 300] [--repeats 3]

1,000 clients of two digits each (FedProx's generator), 20 a round, 10 epochs of batches of 10, lr 0.03; FedGroup with
m = 3 and alpha = 20, one epoch of pre-training. Each run is a fresh process and a whole run directory; seconds count
from its first line after the imports to its last file, compiling and evaluation included, and reading the data apart.
"""

import argparse
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from lit_cfl import run
from lit_cfl.algorithms import FedGroup
from lit_cfl.datamodules import MNIST, MNIST1000
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.experiment import Experiment
from lit_cfl.nets import MCLR
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tasks import Classification
from lit_cfl.tracking.options import Tracking


def whole_run(rounds: int) -> str:
    module = MNIST(partition=MNIST1000(), pixels="standardised_pooled")

    def task() -> Classification:
        return Classification(MCLR([1, 28, 28], 10), partial(torch.optim.SGD, lr=0.03))

    experiment = Experiment(
        module,
        task,
        FedGroup(3, pretrain_scale=20),
        rounds=rounds,
        cohort_size=20,
        selection="round_robin_first",
        local=LocalTraining(10, 10),
        tracking=Tracking(wandb="disabled"),
    )
    begun = perf_counter()
    module.federated(0)
    read = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run(experiment, Path(folder) / "run")
        done = perf_counter()
        rows = read_table(Path(folder) / "run" / "metrics.csv")
    training, evaluation = (sum(row[f"time/{part}_seconds"] for row in rows) for part in ("training", "evaluation"))
    best = max(row["test/weighted_accuracy"] for row in rows if row["clusters/unobserved"] == 0)
    figures = [read - begun, done - read, training, evaluation, best]
    return " | ".join(f"{figure:.3g}" for figure in figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(whole_run(options.rounds))
        return
    print("| data s | run s | training s | evaluation s | best accuracy |\n|---|---|---|---|---|", flush=True)
    took = []
    for _ in range(options.repeats):
        words = [sys.executable, __file__, "--once", "--rounds", str(options.rounds)]
        line = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip().splitlines()[-1]
        took.append(float(line.split(" | ")[1]))
        print(f"| {line} |", flush=True)
    print(f"median {median(took):.1f} s")


if __name__ == "__main__":
    main()
