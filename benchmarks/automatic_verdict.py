"""Compares `num_clusters: auto` with the true number and with FedAvg, for docs/automatic_clusters.md.

    LITCFL_DATA=DIR python -m benchmarks.automatic_verdict --out benchmarks/results/automatic_verdict.csv
        [--seeds 11 12] [--systems FedGroup IFCA] [--data 'Rotated MNIST'] [--tables | --numbers]

Each system runs with the options that its search chose for docs/which_method.md, once with `auto` and once with the
number of clusters used there; FedAvg runs as the reference. A row is a run; rows that the file already contains are not
run again. `--tables` prints tables of the rows. `--numbers` only computes what determines the number, at each learning
rate that a system chose, and writes rows of data, rate and seed (FLHC decides later, from other updates).
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from operator import itemgetter
from pathlib import Path
from time import perf_counter

from benchmarks.cells import run_cells
from benchmarks.reproduction.files import read_yaml
from lit_cfl import load_experiment
from lit_cfl.data import Examples
from lit_cfl.evaluation import place_for_scoring, score_clients
from lit_cfl.metric_names import Row
from lit_cfl.seeds import generator
from lit_cfl.statistics import paired_difference

ROOT = Path(__file__).parents[1]
PROTOCOL = read_yaml(ROOT / "benchmarks" / "reproduction" / "which_method.yaml")
DATA = [name for name, what in PROTOCOL["data"].items() if "since" not in what]
SYSTEMS = ("FedGroup", "FLHC", "IFCA", "FlexCFL", "FedGrouProx", "FeSEM")
KEY, COLUMNS = ("data", "system", "number", "seed"), ("accuracy", "clusters", "models_sent", "seconds")


@cache
def read_options(data: str, system: str) -> tuple[str, ...]:
    """Reads the options chosen for a system on a data set from `results.csv`, as command-line words."""
    grid = {**PROTOCOL["common"], **PROTOCOL["systems"][system]["options"]}
    with (ROOT / "docs" / "which_method" / "results.csv").open(newline="") as file:
        (row,) = (
            row
            for row in csv.DictReader(file)
            if (row["data"], row["system"], row["variant"]) == (data, system, "best")
        )
    chosen = dict(part.split(" ", 1) for part in row["options"].split(", "))
    full = {name.rpartition(".")[2]: name for name in grid}
    return tuple(word for name, value in chosen.items() for word in (f"--{full[name]}", value))


@cache
def load_examples(data: str) -> Examples:
    """Loads a data set's examples, once for all seeds."""
    return load_experiment(PROTOCOL["data"][data]["config"]).data.examples


def run_cell(data: str, system: str, number: str, seed: int) -> Iterator[Row]:
    begun = perf_counter()
    words = ["--algorithm", system, *read_options(data, system), "--seed", str(seed)]
    if number != "-":
        words += ["--algorithm.num_clusters", str(PROTOCOL["data"][data]["clusters"] if number == "true" else number)]
    experiment = load_experiment(PROTOCOL["data"][data]["config"], words)
    experiment.data.examples = load_examples(data)
    prepared = experiment.prepare(seed)
    *_, last = prepared.rounds()
    clients = last.data.population
    served = place_for_scoring(experiment.algorithm, last.state, prepared.engine, last.data, clients, last.index)
    able, index = clients[served.index >= 0], served.index[served.index >= 0]
    scores = score_clients(prepared.engine, served.models, index, able, last.data, "test")
    yield {
        "accuracy": round(100 * scores.metrics("test")["test/mean_accuracy"], 3),
        "clusters": len(index.unique()),
        "models_sent": last.traffic.down + last.traffic.up,
        "seconds": round(perf_counter() - begun, 1),
    }


def list_rates(data: str) -> list[str]:
    """Lists the learning rates of the systems that determine the number of clusters before the first round."""
    return sorted({read_options(data, system)[1] for system in SYSTEMS if system != "FLHC"})


def determine_number(data: str, rate: str, seed: int) -> Iterator[Row]:
    words = [
        "--algorithm",
        "IFCA",
        "--task.optimizer.lr",
        rate,
        "--seed",
        str(seed),
        "--algorithm.num_clusters",
        "auto",
    ]
    experiment = load_experiment(PROTOCOL["data"][data]["config"], words)
    experiment.data.examples = load_examples(data)
    prepared = experiment.prepare(seed)
    work = prepared.engine.at(0, prepared.data)
    decided, _ = experiment.algorithm.decide_number(work, generator(seed, "init", 0))
    yield {"found": decided.num_clusters}


def list_cells(seeds: list[int], systems: list[str], data: list[str]) -> Iterator[tuple[str, str, str, int]]:
    """Yields the cells (data set, system, number of clusters, seed), seed by seed over all data sets."""
    for seed, system, name in product(seeds, ["FedAvg", *systems], data):
        yield from ((name, system, number, seed) for number in (("-",) if system == "FedAvg" else ("auto", "true")))


def format_tables(path: Path) -> str:
    """Formats tables by data set and system: models used with `auto`, and accuracy of `auto` minus each reference's.

    The references are the same system with the true number of clusters, and FedAvg.
    """
    accuracies, models = defaultdict(dict), defaultdict(list)
    with path.open(newline="") as file:
        for row in sorted(csv.DictReader(file), key=itemgetter("seed")):
            run = (row["data"], row["system"], row["number"])
            accuracies[run][int(row["seed"])] = float(row["accuracy"])
            models[run].append(row["clusters"])

    def compare(data: str, system: str, reference: tuple[str, str]) -> str:
        gap = paired_difference(accuracies[data, system, "auto"], accuracies[data, *reference])
        return "" if gap.mean is None else f"{gap.mean:+.2f}" + ("" if gap.margin is None else f" ± {gap.margin:.2f}")

    tables: dict[str, Callable[[str, str], str]] = {
        "Models that clients use at the end with `auto`, by seed": lambda *run: " ".join(models[*run, "auto"]),
        "`auto` minus the true number": lambda *run: compare(*run, (run[1], "true")),
        "`auto` minus FedAvg": lambda *run: compare(*run, ("FedAvg", "-")),
    }
    lines = []
    for title, cell in tables.items():
        lines += [f"{title}:", "", f"| data | {' | '.join(SYSTEMS)} |", "|---" * (len(SYSTEMS) + 1) + "|"]
        lines += [f"| {data} | {' | '.join(cell(data, system) for system in SYSTEMS)} |" for data in DATA]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13, 14, 15])
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, choices=SYSTEMS)
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--numbers", action="store_true")
    given = parser.parse_args()
    if given.tables:
        print(format_tables(given.out))
        return
    if given.numbers:
        cells = ((data, rate, seed) for data in given.data for seed in given.seeds for rate in list_rates(data))
        for rows in run_cells(given.out, ("data", "rate", "seed"), ("found",), cells, determine_number):
            print(", ".join(str(value) for value in rows[0].values()), flush=True)
        return
    for rows in run_cells(given.out, KEY, COLUMNS, list_cells(given.seeds, given.systems, given.data), run_cell):
        print(", ".join(str(value) for value in rows[0].values()), flush=True)


if __name__ == "__main__":
    main()
