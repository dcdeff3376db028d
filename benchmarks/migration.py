"""Measures the benefit of migration while clients exchange all their data: FlexCFL migrates clients, FedGroup does not.

    LITCFL_DATA=DIR python benchmarks/migration.py [--data digits mnist] [--seeds 0 1 2 3 4] [--out FILE.csv]

A cell is a data set, a method (FlexCFL with each `shift_metric`, FedGroup with the same pre-training, FedAvg) and a
seed. Clients exchange data in pairs with probability 0.05 per round (swap_all) within a range of rounds, and keep them
before and after. Every finished cell is a row of FILE.csv; cells that the file already contains are not run again.

* before, lowest, end: test accuracy over all clients: before the first exchange, the minimum, and after the last round.
* events: changes of a client's right cluster. The right cluster of a type of client (its true cluster) is the one that
  contained most clients of the type before the first exchange.
* detected: share of events that a trigger followed before the right cluster changed again; delay: rounds until then.
* alarms: triggers; false: triggers of clients whose right cluster has not changed since they were last placed.
* right, wrong: migrations into the client's right cluster, and into another one; misplaced: share of the clients that
  are not in their right cluster after the last round.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from time import perf_counter
from typing import get_args

import torch
from cells import run_cells
from torch import Tensor

from lit_cfl import Experiment
from lit_cfl.algorithms import Algorithm, FedAvg, FedGroup
from lit_cfl.algorithms.flexcfl import FlexCFL
from lit_cfl.clustering import ShiftMetric
from lit_cfl.data import FederatedData
from lit_cfl.data.shift import ShiftContext, ShiftLog
from lit_cfl.datamodules import MNIST, Digits
from lit_cfl.datamodules.federated import FederatedDataModule
from lit_cfl.datamodules.partition import MNIST1000, LabelGroups
from lit_cfl.datamodules.shift import SwapAll
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.evaluation import EvaluationPlan, evaluate
from lit_cfl.metric_names import Row
from lit_cfl.nets import MCLR
from lit_cfl.rounds import Round
from lit_cfl.tasks import Classification

COUNTED = ("events", "alarms", "false", "right", "wrong")
WATCHED = ("events", "detected", "delay", "alarms", "false", "right", "wrong", "misplaced")
KEYS = ("data", "method", "seed")
SCORES = ("before", "lowest", "end", *WATCHED)
COLUMNS = (*SCORES, "seconds")


@dataclass(frozen=True)
class SwapsBetween(SwapAll):
    """A SwapAll that is active only in the rounds from `first` to `end` - 1."""

    first: int = 0
    end: int = 0

    def step(self, data: FederatedData, at: ShiftContext) -> tuple[FederatedData, ShiftLog | None]:
        return super().step(data, at) if self.first <= at.round < self.end else (data, None)


@dataclass(frozen=True)
class Case:
    """A population, its exchanges of data, and its training options.

    Args:
        data: Function that makes the data module with the given shifts.
        swaps: First round with exchanges, and the first without them again.
    """

    data: Callable[[tuple[SwapAll, ...]], FederatedDataModule]
    swaps: tuple[int, int]
    rounds: int
    shape: tuple[int, ...]
    lr: float
    epochs: int
    cohort: int
    clusters: int
    pretrain_scale: int

    def experiment(self, method: str, seed: int) -> Experiment:
        module = self.data((SwapsBetween(0.05, first=self.swaps[0], end=self.swaps[1]),))
        return Experiment(
            module,
            lambda: Classification(MCLR(list(self.shape), 10), partial(torch.optim.SGD, lr=self.lr)),
            list_methods(self.clusters, self.pretrain_scale)[method],
            seeds=[seed],
            rounds=self.rounds,
            cohort_size=self.cohort,
            selection="round_robin_first",
            local=LocalTraining(self.epochs, 10),
            device="cpu",
        )


def list_methods(clusters: int, pretrain_scale: int) -> dict[str, Algorithm]:
    flex = FlexCFL(clusters, pretrain_scale)
    tested = {f"FlexCFL {metric}": replace(flex, shift_metric=metric) for metric in get_args(ShiftMetric)}
    return tested | {"FedGroup": FedGroup(clusters, pretrain_scale, pretrain=flex.pretrain), "FedAvg": FedAvg()}


CASES = {
    "digits": Case(
        lambda shift: Digits(partition=LabelGroups(test=0.2, clients_per_group=10), skew=(), shift=shift),
        swaps=(10, 30),
        rounds=50,
        shape=(1, 8, 8),
        lr=0.1,
        epochs=3,
        cohort=10,
        clusters=4,
        pretrain_scale=5,
    ),
    "mnist": Case(
        lambda shift: MNIST(pixels="standardised_pooled", partition=MNIST1000(), shift=shift),
        swaps=(60, 80),
        rounds=120,
        shape=(1, 28, 28),
        lr=0.03,
        epochs=10,
        cohort=20,
        clusters=3,
        pretrain_scale=20,
    ),
}
METHODS = list(list_methods(2, 1))


class Watch:
    """Tracks which cluster is right for each client, and how the method reacts when that changes."""

    def __init__(self, index: Tensor, truth: Tensor) -> None:
        """Matches each true cluster with the cluster that most of its clients are in, before the first exchange.

        Args:
            index, truth: Found and true cluster of each client before the first exchange, int64 `[clients]`.
        """
        pairs = torch.zeros(int(truth.max()) + 1, int(index.max()) + 1).index_put_(
            (truth, index), torch.tensor(1.0), accumulate=True
        )
        self.home = pairs.argmax(1)  # [types]
        # the right cluster of each client now, and at its last placement
        self.right, self.placed = self.home[truth], self.home[truth]
        self.open: dict[int, int] = {}  # round of each event not yet followed by a trigger
        self.delays: list[int] = []
        self.counts = dict.fromkeys(COUNTED, 0)

    def add(self, r: Round) -> None:
        now = self.home[r.data.true_clusters]
        for client in (now != self.right).nonzero().flatten().tolist():
            self.open[client] = r.number
            self.counts["events"] += 1
        self.right = now
        for row in r.info.tables.get("migrations", []):
            self._migrated(r.number, row["client"], row["cluster_before"], row["cluster_after"])

    def _migrated(self, round: int, client: int, before: int, after: int) -> None:
        self.counts["alarms"] += 1
        self.counts["false"] += int(self.right[client] == self.placed[client])
        if before != after:
            self.counts["right" if after == self.right[client] else "wrong"] += 1
        if client in self.open:
            self.delays.append(round - self.open.pop(client))
        self.placed = self.placed.index_copy(0, torch.tensor([client]), self.right[[client]])

    def scores(self, index: Tensor) -> Row:
        events = self.counts["events"]
        return {
            **self.counts,
            "detected": len(self.delays) / events if events else None,
            "delay": mean(self.delays) if self.delays else None,
            "misplaced": float((index != self.right).double().mean()),
        }


def run_cell(name: str, method: str, seed: int) -> Iterator[Row]:
    case, begun = CASES[name], perf_counter()
    prepared = case.experiment(method, seed).prepare(seed)
    algorithm, watch, accuracy = prepared.experiment.algorithm, None, []
    for r in prepared.rounds():
        if watch is not None:
            watch.add(r)
        if r.number >= case.swaps[0]:
            found = evaluate(algorithm, r.state, prepared.engine, r.data, EvaluationPlan(), round=r.index)
            accuracy.append(found.metrics["test/weighted_accuracy"])
            watch = watch or Watch(found.index, r.data.true_clusters)
    if watch is None:
        raise RuntimeError("the rounds end before the first exchange")
    row = watch.scores(found.index) | {"before": accuracy[0], "lowest": min(accuracy), "end": accuracy[-1]}
    yield row | {"seconds": perf_counter() - begun}


def format_values(values: list[float]) -> str:
    """Formats mean and standard deviation over the seeds."""
    if not values:
        return "-"
    return f"{mean(values):.3g}" + (f" ± {stdev(values):.2g}" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, help="CSV file of finished runs, for resuming")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| data | method | {' | '.join(SCORES)} |\n|{'---|' * (2 + len(SCORES))}")
    for name, method in product(options.data, options.methods):
        wanted = product([name], [method], options.seeds)
        found = [row for rows in run_cells(options.out, KEYS, COLUMNS, wanted, run_cell) for row in rows]
        columns = ([float(row[score]) for row in found if row[score]] for score in SCORES)
        print(f"| {name} | {method} | {' | '.join(map(format_values, columns))} |", flush=True)


if __name__ == "__main__":
    main()
