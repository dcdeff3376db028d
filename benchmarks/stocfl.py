"""Tests whether StoCFL finds the true clusters of rotated, shifted, pathological and hybrid MNIST (section A.1).

    LITCFL_DATA=DIR python benchmarks/stocfl.py --out FILE.csv [--data rotated shifted pathological hybrid]
                                                [--psi update gradient] [--seeds 0 1 2 3 4] [--tau 0.5]

As in the paper: 400 clients (hybrid: 200), 10 % of them per round, 50 rounds. As in its section 3.2: 5 epochs of full
batches, lr 0.1, lambda 0.05, tau 0.5. The net is linear. A cell is one run, with a data set, a Psi, a tau and a seed;
its rows are appended to the file when it has ended. Cells that the file already contains are not run again.

* ari, clusters, objective: over the clients observed so far, after each round; unobserved: number of the others.
* ari_all: in the last round, after placing the unobserved. accuracy, global: of the observed clients' models and of
  omega on test data, every tenth round.

Prints one row per cell; `ARI 1 from`: the first round (from 1) from which on the ARI over the observed stays 1.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from cells import run_cells
from sklearn.metrics import adjusted_rand_score

from lit_cfl.algorithms.stocfl import StoCFL
from lit_cfl.datamodules import (
    IID,
    MNIST,
    FashionMNIST,
    FederatedDataModule,
    Hybrid,
    LabelGroups,
    LabelShifts,
    Rotations,
)
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.evaluation import EvaluationPlan, evaluate, place_for_scoring
from lit_cfl.experiment import Experiment, PreparedRun
from lit_cfl.metric_names import Row
from lit_cfl.nets import MCLR
from lit_cfl.rounds import Round
from lit_cfl.tasks import Classification

CELL = ("data", "psi", "tau", "seed")
COLUMNS = ("round", "ari", "unobserved", "clusters", "objective", "accuracy", "global", "ari_all", "seconds")
ROUNDS, SHARE, SHOWN = 50, 0.1, (1, 5, 10, 20, 50)


def make_data(name: str) -> FederatedDataModule:
    hundred = IID(100, test="shared")
    if name == "rotated":
        return MNIST(partition=hundred, skew=Rotations(), copies=True)
    if name == "shifted":
        return MNIST(partition=hundred, skew=LabelShifts(), copies=True)
    if name == "pathological":
        return MNIST(partition=LabelGroups(test="shared"))
    return Hybrid([MNIST(partition=hundred), FashionMNIST(partition=hundred)])


def build_experiment(module: FederatedDataModule, algorithm: StoCFL, seed: int) -> Experiment:
    def task() -> Classification:
        return Classification(MCLR([1, 28, 28], 10), partial(torch.optim.SGD, lr=0.1))

    cohort_size = round(SHARE * module.federated(seed).num_clients)
    local = LocalTraining(5, "full")
    return Experiment(module, task, algorithm, seeds=[seed], rounds=ROUNDS, cohort_size=cohort_size, local=local)


def run_cell(name: str, psi: Any, tau: float, seed: int) -> Iterator[Row]:
    """Runs one setting, and yields a row per round."""
    algorithm, begun = StoCFL(tau=tau, psi=psi), perf_counter()
    prepared = build_experiment(make_data(name), algorithm, seed).prepare(seed)
    truth = prepared.data.true_clusters
    for r in prepared.rounds():
        index = algorithm.serve(r.state, r.data.population).index
        seen = index >= 0
        row: Row = {"data": name, "psi": psi, "tau": tau, "seed": seed, "round": r.number}
        row |= {"ari": adjusted_rand_score(truth[seen], index[seen]), "unobserved": int((~seen).sum())}
        row |= {"clusters": len(index[seen].unique()), "objective": r.info.scores["clusters/objective"]}
        if row["round"] % 10 == 0:
            row |= score_models(prepared, algorithm, r)
        if row["round"] == ROUNDS:
            placed = place_for_scoring(algorithm, r.state, prepared.engine, r.data, r.data.population, r.index)
            row |= {"ari_all": adjusted_rand_score(truth, placed.index), "seconds": round(perf_counter() - begun, 1)}
        yield row


def score_models(prepared: PreparedRun, algorithm: StoCFL, r: Round) -> Row:
    found = evaluate(algorithm, r.state, prepared.engine, r.data, EvaluationPlan(), round=r.index).metrics
    return {"accuracy": found["test/weighted_accuracy"], "global": found["test/global_accuracy"]}


def format_row(rows: list[Row]) -> str:
    """Formats the results of a cell as a row of the printed table."""
    aris = [float(row["ari"]) for row in rows]
    wrong = [number for number, ari in enumerate(aris, 1) if ari < 1]
    since = "never" if wrong and wrong[-1] == len(aris) else str(wrong[-1] + 1 if wrong else 1)
    last = rows[-1]
    figures = [f"{aris[number - 1]:.3f}" for number in SHOWN]
    figures += [since, str(last["unobserved"]), f"{float(last['ari_all']):.3f}"]
    figures += [f"{float(last['accuracy']):.3f}", f"{float(last['global']):.3f}", str(last["seconds"])]
    return f"| {' | '.join([*(last[column] for column in CELL), *figures])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", nargs="+", default=["rotated", "shifted", "pathological", "hybrid"])
    parser.add_argument("--psi", nargs="+", default=["update", "gradient"])
    parser.add_argument("--tau", type=float, nargs="+", default=[0.5])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = parser.parse_args()
    shown = [
        *CELL,
        *(f"ARI at {number}" for number in SHOWN),
        "ARI 1 from",
        "unobserved",
        "ARI of all",
        "accuracy",
        "omega",
        "seconds",
    ]
    print(f"| {' | '.join(shown)} |\n|{'---|' * len(shown)}", flush=True)
    wanted = product(options.data, options.psi, options.tau, options.seeds)
    for rows in run_cells(options.out, CELL, COLUMNS, wanted, run_cell):
        print(format_row(rows), flush=True)


if __name__ == "__main__":
    main()
