"""Evaluates `num_clusters: auto` of FedEM, by the protocol under "Models of a mixture" in docs/automatic_clusters.md.

    python benchmarks/automatic_components.py --out benchmarks/results/automatic_components.csv [--seeds 104 105]

Each row is a run of FedEM with one model (FedAvg), with the true number of models, or with `auto`. Rows that the file
already contains are not run again.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import torch
from automatic_clusters import DATA, IMAGES, SYNTHETIC
from cells import run_cells

from lit_cfl.algorithms import FedEM
from lit_cfl.datamodules import SyntheticMixture
from lit_cfl.evaluation import place_for_scoring, score_clients
from lit_cfl.experiment import Experiment, LocalTraining, PlanOptions
from lit_cfl.metric_names import Row
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification

MIXTURES = {
    f"mixture of {number}": (number, partial(SyntheticMixture, 60, number, mean_log_size=5, log_size_deviation=0.5))
    for number in (1, 3, 5)
}
ALL = MIXTURES | DATA
MIXTURE = ([150], 0.1, LocalTraining(1, 10))
KEY, COLUMNS = ("data", "seed", "number"), ("true", "models", "accuracy")


def run_cell(name: str, seed: int, number: str) -> Iterator[Row]:
    true, make = ALL[name]
    shape, rate, local = MIXTURE if name in MIXTURES else SYNTHETIC if name.startswith("synthetic") else IMAGES
    labels = 2 if name in MIXTURES else 10

    def task() -> Classification:
        # M = 4 times FedAvg's learning rate
        return Classification(MCLR(shape, labels), partial(torch.optim.SGD, lr=4 * rate))

    algorithm = FedEM("auto" if number == "auto" else true if number == "true" else 1)
    plan = PlanOptions(device="cpu", threads=1)
    experiment = Experiment(make(), task, algorithm, seeds=[seed], rounds=50, cohort_size=10, local=local, plan=plan)
    prepared = experiment.prepare(seed)
    *_, last = prepared.rounds()
    clients = last.data.population
    served = place_for_scoring(algorithm, last.state, prepared.engine, last.data, clients, last.index)
    weights = served.weights
    scores = score_clients(
        prepared.engine, served.models, served.index, clients, last.data, "test", weights=weights
    ).metrics("test")
    yield {"true": true, "models": len(last.state.models), "accuracy": round(100 * scores["test/mean_accuracy"], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[104, 105])
    parser.add_argument("--data", nargs="+", default=list(ALL), choices=list(ALL))
    given = parser.parse_args()
    wanted = product(given.data, given.seeds, ("1", "true", "auto"))
    for rows in run_cells(given.out, KEY, COLUMNS, wanted, run_cell):
        print(", ".join(str(value) for value in rows[0].values()), flush=True)


if __name__ == "__main__":
    main()
