"""Tests whether CFL splits the clients of label-shifted MNIST into their four true clusters.

    LITCFL_DATA=DIR python benchmarks/cfl.py --out FILE.csv [--seeds 0 1 2 3 4] [--linkage single complete]

20 clients with 1,750 images each, whose labels are shifted by 0, 3, 6 or 9 (modulo 10): clients of different clusters
want different answers for the same image, so the joint model stagnates while their updates diverge. The net is
linear; 1 epoch of batches of 50 per round, lr 0.05, 60 rounds. A cell is one run, with a linkage and a seed. Its rows
(one per round and cluster) are appended to the file when it has ended; cells that the file contains are not run again.

* u, v: norm of the cluster's mean update, and the largest norm of an update, before the round's splits.
* ari, accuracy: over all clients, after the round.

Prints one row per cell: the rounds (from 1) with a split, with u and v of the cluster that was split; then the number
of clusters, and the final ARI and accuracy.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal

import torch
from cells import run_cells
from sklearn.metrics import adjusted_rand_score

from lit_cfl.algorithms import CFL
from lit_cfl.datamodules import IID, MNIST, LabelShifts
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.evaluation import EvaluationPlan, evaluate
from lit_cfl.experiment import Experiment
from lit_cfl.metric_names import Row
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification

Linkage = Literal["single", "complete"]
CELL = ("linkage", "seed")
COLUMNS = ("round", "cluster", "parent", "size", "u", "v", "ari", "accuracy")
ROUNDS, CLIENTS = 60, 20
EPS1, EPS2 = 0.1, 0.6  # in 40 rounds of the joint model, u falls from 0.54 to 0.04, and v from 1.4 to 1.2


def build_experiment(linkage: Linkage, seed: int) -> Experiment:
    module = MNIST(partition=IID(CLIENTS, test=0.5), skew=LabelShifts())

    def task() -> Classification:
        return Classification(MCLR([1, 28, 28], 10), partial(torch.optim.SGD, lr=0.05))

    algorithm = CFL(eps1=EPS1, eps2=EPS2, warmup_rounds=5, linkage=linkage)
    return Experiment(
        module,
        task,
        algorithm,
        seeds=[seed],
        rounds=ROUNDS,
        cohort_size=CLIENTS,
        local=LocalTraining(1, 50),
        device="cpu",
    )


def run_cell(linkage: Linkage, seed: int) -> Iterator[Row]:
    """Runs one setting, and yields a row per round and cluster."""
    prepared = build_experiment(linkage, seed).prepare(seed)
    algorithm = prepared.experiment.algorithm
    for r in prepared.rounds():
        found = evaluate(algorithm, r.state, prepared.engine, r.data, EvaluationPlan(), round=r.index)
        scores = {
            "ari": adjusted_rand_score(r.data.true_clusters, found.index),
            "accuracy": found.metrics["test/weighted_accuracy"],
        }
        for cluster in found.index.unique().tolist():
            known = {name: values[cluster].item() for name, values in r.info.clusters.items()}
            size = int((found.index == cluster).sum())
            yield {"linkage": linkage, "seed": seed, "round": r.number, "cluster": cluster, "size": size} | (
                known | scores
            )


def format_row(rows: list[Row]) -> str:
    """Formats the results of a cell as a row of the printed table."""
    known: set[str] = {"0"}
    splits = []
    for row in rows:
        if str(row["cluster"]) not in known:
            known.add(str(row["cluster"]))
            before = next(
                one for one in rows if one["round"] == row["round"] and str(one["cluster"]) == str(row["parent"])
            )
            splits.append(f"{row['round']}: {float(before['u']):.3f}, {float(before['v']):.2f}")
    last = rows[-1]
    figures = ["; ".join(splits), str(len(known)), f"{float(last['ari']):.3f}", f"{float(last['accuracy']):.3f}"]
    return f"| {' | '.join([*(str(last[column]) for column in CELL), *figures])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--linkage", nargs="+", choices=["single", "complete"], default=["single", "complete"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = parser.parse_args()
    shown = [*CELL, "splits (round: u, v)", "clusters", "ARI", "accuracy"]
    print(f"| {' | '.join(shown)} |\n|{'---|' * len(shown)}", flush=True)
    wanted = product(options.linkage, options.seeds)
    for rows in run_cells(options.out, CELL, COLUMNS, wanted, run_cell):
        print(format_row(rows), flush=True)


if __name__ == "__main__":
    main()
