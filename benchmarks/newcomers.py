"""Measures how well each algorithm serves clients that were held out of training, by one protocol for all.

    LITCFL_DATA=DIR python benchmarks/newcomers.py --out docs/newcomers.csv [--data rotated femnist] [--seeds 0 1 2]
                                                   [--algorithms FedAvg ...] [--rounds 50] [--page docs/newcomers.md]

30 % of the clients are held out. After the last round each of them is placed by the method's own rule, from its
training data. Its test data are scored with the model that serves it (0 steps), and after 1 and 10 further mini-batches
of local training from that model. Nothing is chosen by these figures.

* rotated: MNIST in four rotations, 400 clients of 600 images (StoCFL, section A.1), linear net, 10 % of the others per
  round, 5 epochs of batches of 50, lr 0.1. ari: agreement of the newcomers' clusters with their rotations.
* femnist: 105 writers of LEAF's FEMNIST, MLP of 128, 10 writers per round, 5 epochs of batches of 20, lr 0.02 (among
  0.05, 0.02 and 0.01 the rate with FedAvg's lowest training loss after 50 rounds of seed 0).

Methods that need a number of clusters are given 4. Prints one row per cell; `--page` writes the tables of that page
from all cells of the CSV: means over the seeds.
"""

import argparse
import csv
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from time import perf_counter

import torch
from cells import run_cells
from sklearn.metrics import adjusted_rand_score

from lit_cfl.algorithms import (
    CFL,
    FLHC,
    IFCA,
    AdaCFL,
    Algorithm,
    Ditto,
    FedAvg,
    FedGroup,
    FedGrouProx,
    FedProx,
    FeSEM,
    FlexCFL,
    LayerCFL,
    StoCFL,
)
from lit_cfl.datamodules import FEMNIST, IID, MNIST, Rotations
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.errors import count_noun
from lit_cfl.evaluation import place_for_scoring, score_clients
from lit_cfl.experiment import Experiment
from lit_cfl.local_work import Budget
from lit_cfl.metric_names import Row
from lit_cfl.nets import MCLR, MLP
from lit_cfl.tasks import Classification

DATA, STEPS = ("rotated", "femnist"), (0, 1, 10)
TITLES = ("algorithm", *(count_noun(steps, "step") for steps in STEPS), "ARI", "clusters")
BEGIN, END = "<!-- written by benchmarks/newcomers.py -->", "<!-- until here -->"
KEY, COLUMNS = ("data", "algorithm", "seed", "rounds"), ("steps", "accuracy", "ari", "clusters", "placed", "seconds")
SPLITTING = {
    "rotated": {"eps1": 0.15, "eps2": 0.6, "warmup_rounds": 5},
    "femnist": {"eps1": 0.3, "eps2": 0.6, "warmup_rounds": 5},
}


def list_algorithms(data: str) -> dict[str, Algorithm]:
    known = [
        FedAvg(),
        FedProx(),
        Ditto(),
        IFCA(4),
        FeSEM(4),
        FLHC(5, num_clusters=4),
        FedGroup(4),
        FedGrouProx(4),
        FlexCFL(4),
        StoCFL(),
        CFL(**SPLITTING[data]),
        LayerCFL(layers="auto", **SPLITTING[data]),
        AdaCFL(**SPLITTING[data]),
    ]
    return {type(algorithm).__name__: algorithm for algorithm in known}


def build_experiment(data: str, algorithm: Algorithm, seed: int, rounds: int) -> Experiment:
    if data == "rotated":
        module = MNIST(partition=IID(100, test="shared"), skew=Rotations(), copies=True, newcomers=0.3)
        net, local, lr, cohort = partial(MCLR, [1, 28, 28], 10), LocalTraining(5, 50), 0.1, 28
    else:
        module = FEMNIST(newcomers=0.3)
        net, local, lr, cohort = partial(MLP, 128, [1, 28, 28], 62), LocalTraining(5, 20), 0.02, 10

    def task() -> Classification:
        return Classification(net(), partial(torch.optim.SGD, lr=lr))

    return Experiment(module, task, algorithm, seeds=[seed], rounds=rounds, cohort_size=cohort, local=local)


def run_cell(data: str, name: str, seed: int, rounds: int) -> Iterator[Row]:
    algorithm, begun = list_algorithms(data)[name], perf_counter()
    prepared = build_experiment(data, algorithm, seed, rounds).prepare(seed)
    *_, last = prepared.rounds()
    engine, clients = prepared.engine, last.data.newcomers.nonzero().flatten()
    served = place_for_scoring(algorithm, last.state, engine, last.data, clients, last.index)
    clients, index = clients[served.index >= 0], served.index[served.index >= 0]
    truth = last.data.true_clusters[clients]
    known = {"placed": len(clients), "clusters": len(index.unique())}
    known |= {"ari": adjusted_rand_score(truth, index) if (truth >= 0).all() else ""}
    for steps in STEPS:
        models, which = served.models, index
        if steps:
            work, budget = engine.at(rounds, last.data), Budget(steps, "steps")
            models = work.fit(served.models, clients, index, purpose="adapt", budget=budget).rows
            which = torch.arange(len(clients))
        scores = score_clients(engine, models, which, clients, last.data, "test")
        accuracy = scores.weighted_means()["accuracy"]
        yield known | {"steps": steps, "accuracy": accuracy, "seconds": round(perf_counter() - begun, 1)}


def format_tables(path: Path, rounds: int) -> str:
    """Formats a table of means over seeds for each data set, from the rows with this number of rounds."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["rounds"] == str(rounds)]
    return "\n".join(_format_table(data, [row for row in rows if row["data"] == data]) for data in DATA)


def _format_table(data: str, rows: list[Row]) -> str:
    seeds = sorted({row["seed"] for row in rows})
    lines = [f"### {data.capitalize()}, seed(s) {', '.join(seeds)}", "", f"| {' | '.join(TITLES)} |"]
    lines.append(f"|{'---|' * len(TITLES)}")
    for name in list_algorithms(data):
        mine = [row for row in rows if row["algorithm"] == name]
        if mine:
            cells = [
                _format_mean([row["accuracy"] for row in mine if row["steps"] == str(steps)], ".3f") for steps in STEPS
            ]
            found = [row["clusters"] for row in mine if row["steps"] == "0"]
            cells += [_format_mean([row["ari"] for row in mine if row["ari"]], ".2f"), _format_mean(found, ".3g")]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    said = [algorithm.caveat for algorithm in list_algorithms(data).values() if algorithm.caveat]
    return "\n".join([*lines, "", *(f"{caveat}." for caveat in said)]) + "\n"


def _format_mean(values: list[str], form: str) -> str:
    return format(fmean(map(float, values)), form) if values else ""


def write_page(page: Path, path: Path, rounds: int) -> None:
    """Writes the tables between the page's two markers."""
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{format_tables(path, rounds)}{END}{rest.split(END)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", nargs="*", default=DATA)
    parser.add_argument("--algorithms", nargs="+", default=list(list_algorithms("rotated")))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    titles = [*KEY, *TITLES[1:], "seconds"]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}", flush=True)
    wanted = product(options.data, options.algorithms, options.seeds, [options.rounds])
    for rows in run_cells(options.out, KEY, COLUMNS, wanted, run_cell):
        figures = [f"{float(row['accuracy']):.3f}" for row in rows]
        ari = f"{float(rows[0]['ari']):.2f}" if rows[0]["ari"] else ""
        named = [rows[0][column] for column in KEY]
        print(f"| {' | '.join([*named, *figures, ari, rows[0]['clusters'], rows[-1]['seconds']])} |", flush=True)
    if options.page:
        write_page(options.page, options.out, options.rounds)


if __name__ == "__main__":
    main()
