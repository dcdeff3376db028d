"""Measures how fast and how reliably drift of the inputs alone is detected; `docs/drift.md` has the protocol.

    python benchmarks/drift.py curve --out benchmarks/results/drift_curve.csv
    python benchmarks/drift.py verdict --out benchmarks/results/drift.csv
    python benchmarks/drift.py report                      # thresholds, tables and figure from these two files

Every finished cell is a row; cells that the file already contains are not run again. One process, one core.
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from cells import run_cells
from torch import Tensor

from lit_cfl import Experiment
from lit_cfl.algorithms import IFCA, Algorithm, FedDrift, FlexCFL
from lit_cfl.algorithms.base import Info, State
from lit_cfl.algorithms.migration import THRESHOLDS, cluster_losses, feature_distance, feature_moments
from lit_cfl.clustering import clusters_of, label_shift_distance
from lit_cfl.data import ClientIndex, FederatedData
from lit_cfl.data.shift import Shift, ShiftContext, ShiftLog
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.partition.base import shuffle_lists
from lit_cfl.datamodules.shift.drift import draw_drifting
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.evaluation import EvaluationPlan, evaluate
from lit_cfl.local_work import LocalWork
from lit_cfl.metric_names import Row
from lit_cfl.nets import MCLR
from lit_cfl.rounds import Round, rounds
from lit_cfl.tasks import Classification

RESULTS = Path(__file__).parent / "results"
ROUNDS, START = 40, 20
TURNS, CONDITIONS, SHARES = 4, ("still", "fresh"), (0.1, 0.25, 0.5)
GRID = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.4)
DEFAULTS = {"total_variation": 0.2} | THRESHOLDS
METRICS = tuple(DEFAULTS)
PLAIN: dict[str, Any] = {"FlexCFL": FlexCFL(4, pretrain_scale=10, migrate=False), "IFCA": IFCA(8)}
METHODS: dict[str, Algorithm] = {
    f"{name} {metric}": replace(PLAIN[name], migrate=True, shift_metric=metric) for name in PLAIN for metric in METRICS
}
METHODS |= {"FedDrift": FedDrift(), "FedDrift delta 0.5": FedDrift(0.5)} | PLAIN
KEYS, SCORES = ("method", "condition", "share", "seed"), ("drifted", "found", "delay", "alarms", "tests")
CURVE, VERDICT = ("metric", "threshold", *SCORES), (*SCORES, "models", "before", "at", "end")


@dataclass(frozen=True)
class Turn(Shift):
    """Rotates the images of some clients by another 90 degrees from round START + 1 on."""

    share: float = 0.0

    def step(self, data: FederatedData, at: ShiftContext) -> tuple[FederatedData, ShiftLog | None]:
        if at.round != START:
            return data, None
        clients = draw_drifting(data.num_clients, self.share, at.rng("who")).nonzero().flatten()
        number = len(data.examples)
        lists: dict[str, Any] = {}
        for name in ("train", "validation", "test", "withheld"):
            index = getattr(data, name)
            if index is not None:
                own = index.select(clients).pack()
                turned = ClientIndex.from_sizes((own.entries + number) % (TURNS * number), own.sizes)
                lists[name] = index.replace_lists(clients, turned)
        before = data.true_clusters[clients]
        after = (before + 1) % TURNS
        log = ShiftLog("turn", clients, torch.full_like(clients, -1), data.num_examples[clients], before, after)
        return replace(data, true_clusters=data.true_clusters.index_copy(0, clients, after), **lists), log


@dataclass(frozen=True)
class Fresh(Shift):
    """Gives each client another random half of its training images in each round."""

    def step(self, data: FederatedData, at: ShiftContext) -> tuple[FederatedData, ShiftLog | None]:
        whole = data.train if data.withheld is None else data.train.plus(data.withheld)
        whole = shuffle_lists(whole, at.rng("half"))
        sizes = whole.sizes // 2
        return replace(data, train=whole.first(sizes), withheld=whole.after(sizes)), None


def build_experiment(algorithm: Algorithm, condition: str, share: float, seed: int) -> Experiment:
    shift = (Turn(share), *([Fresh()] if condition == "fresh" else []))
    return Experiment(
        Digits(num_clients=40, rotations=[0, 90, 180, 270], shift=shift),
        lambda: Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1)),
        algorithm,
        seeds=[seed],
        rounds=ROUNDS,
        cohort_size=10,
        selection="round_robin_first",
        local=LocalTraining(3, 10),
        device="cpu",
    )


class Measuring:
    """Wraps an algorithm without migration, and measures all drift distances before each round."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm, self.found = algorithm, list[tuple[int, str, Tensor, Tensor]]()
        self.first: dict[str, Tensor] = {}
        self.last = torch.full((0,), torch.nan, dtype=torch.float64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.algorithm, name)

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        self.first = {"labels": work.label_counts.clone(), "features": feature_moments(work, work.population)}
        self.last = torch.full((len(work.num_examples),), torch.nan, dtype=torch.float64)
        return self.algorithm.init(work, rng)

    def round(self, state: State, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        index = clusters_of(state.index, work.population)
        warm = work.population[index >= 0]
        if not len(warm):
            return self.algorithm.round(state, cohort, work, rng)
        labels = label_shift_distance(work.label_counts[warm], self.first["labels"][warm], "total_variation")
        features = feature_distance(feature_moments(work, warm), self.first["features"][warm])
        tested = warm[torch.isin(warm, cohort)]
        losses = cluster_losses(work, state.models, tested, clusters_of(state.index, tested))
        rise = (losses - self.last[tested]) / work.losses(work.initial(0)[None], tested)[:, 0].double()
        self.last = self.last.index_copy(0, tested, losses)
        self.found += [(work.round, "total_variation", warm, labels), (work.round, "features", warm, features)]
        self.found += [(work.round, "loss", tested, rise)]
        return self.algorithm.round(state, cohort, work, rng)


def try_thresholds(method: str, condition: str, share: float, seed: int) -> Iterator[Row]:
    """Runs a method without migration, and scores each metric at each threshold."""
    prepared = build_experiment(PLAIN[method], condition, share, seed).prepare(seed)
    measuring = Measuring(PLAIN[method])
    shifts = prepared.experiment.data.shift
    drifted: set[int] = set()
    run: Any = measuring  # not an `Algorithm`, but with the same methods
    for r in rounds(run, prepared.engine, prepared.data, prepared.cohorts, seed=seed, num_rounds=ROUNDS, shifts=shifts):
        drifted |= list_moved_clients(r)
    for metric, threshold in product(METRICS, GRID):
        found = [(index, who, far) for index, name, who, far in measuring.found if name == metric]
        alarms = [(index, client) for index, who, far in found for client in who[far > threshold].tolist()]
        tests = [(index, client) for index, who, far in found for client in who[~far.isnan()].tolist()]
        yield {"metric": metric, "threshold": threshold} | score_alarms(alarms, tests, drifted, 5)


def run_default(method: str, condition: str, share: float, seed: int) -> Iterator[Row]:
    """Runs a method with migration at its default threshold, and scores its alarms."""
    algorithm = METHODS[method]
    prepared = build_experiment(algorithm, condition, share, seed).prepare(seed)
    drifted: set[int] = set()
    alarms, tests, sent, accuracy = [], [], [], {}
    for r in prepared.rounds():
        drifted |= list_moved_clients(r)
        alarms += [(r.index, row["client"]) for row in r.info.tables.get("migrations", [])]
        step = algorithm.step_rounds if isinstance(algorithm, FedDrift) else 1
        of_round = prepared.cohorts.at(r.index, r.data.population, seed) if "loss" in method else r.data.population
        tests += [(r.index, client) for client in of_round.tolist()] if r.index % step == 0 else []
        sent.append(r.info.down + r.info.up + r.info.bytes_up / (4 * prepared.engine.at(0, r.data).layout.num_columns))
        if r.number in (START, START + 1, ROUNDS):
            found = evaluate(algorithm, r.state, prepared.engine, r.data, EvaluationPlan(), round=r.index)
            accuracy[r.number] = found.metrics["test/weighted_accuracy"]
    row = score_alarms(alarms, tests, drifted, 10 if isinstance(algorithm, FedDrift) else 5)
    row |= {"models": sum(sent[START:]) / (ROUNDS - START)}
    yield row | dict(zip(("before", "at", "end"), accuracy.values(), strict=True))


def list_moved_clients(r: Round) -> set[int]:
    return {client for move in r.moves for client in move.clients.tolist()}


def score_alarms(alarms: list[tuple[int, int]], tests: list[tuple[int, int]], drifted: set[int], since: int) -> Row:
    """Counts drifted clients, detected clients, false alarms and tests, and sums the delays.

    An alarm or a test is a pair (completed rounds, client).
    """
    delays: dict[int, int] = {}
    for index, client in sorted(alarms):
        if index >= START and client in drifted:
            delays.setdefault(client, index - START)

    def counted(index: int, client: int) -> bool:
        return index >= since and (index < START or client not in drifted)

    return {
        "drifted": len(drifted),
        "found": len(delays),
        "delay": sum(delays.values()),
        "alarms": sum(counted(*alarm) for alarm in alarms),
        "tests": sum(counted(*test) for test in tests),
    }


def choose_thresholds(rows: list[Row]) -> dict[str, tuple[float, float]]:
    """Returns each metric's threshold by the protocol's rule, with the false alarms per 100 tests at this threshold."""
    found = {}
    for metric in METRICS:
        rates = {t: compute_rate(rows, metric, t) for t in GRID}
        few = [t for t in GRID if rates[t] <= 1] or [min(GRID, key=lambda t: rates[t])]
        found[metric] = few[0], rates[few[0]]
    return found


def compute_rate(rows: list[Row], metric: str, threshold: float) -> float:
    own = [row for row in rows if row["metric"] == metric and float(row["threshold"]) == threshold]
    return 100 * sum(int(row["alarms"]) for row in own) / sum(int(row["tests"]) for row in own)


def format_sums(rows: list[Row]) -> list[str]:
    """Formats three table cells over all rows: percentage found, mean delay, false alarms per 100 tests."""
    drifted, found, delay, alarms, tests = (sum(int(row[name]) for row in rows) for name in SCORES)
    return [f"{100 * found / drifted:.0f}", f"{delay / found:.2f}" if found else "", f"{100 * alarms / tests:.2f}"]


def print_report() -> None:
    curve_rows, verdict_rows = read(RESULTS / "drift_curve.csv"), read(RESULTS / "drift.csv")
    print("| metric | threshold | found, % | delay | false alarms per 100 tests | still | fresh |\n|" + "---|" * 7)
    for metric, threshold in product(METRICS, GRID):
        own = [row for row in curve_rows if row["metric"] == metric and float(row["threshold"]) == threshold]
        by_condition = [format_sums([row for row in own if row["condition"] == name])[2] for name in CONDITIONS]
        print(f"| {metric} | {threshold} | {' | '.join(format_sums(own) + by_condition)} |")
    print(choose_thresholds(curve_rows))
    draw(curve_rows, Path(__file__).parents[1] / "docs" / "drift.png")
    head = ("method", "data", "found, %", "delay", "false alarms", "models per round", "accuracy before", "at", "end")
    print(f"| {' | '.join(head)} |\n|" + "---|" * len(head))
    for method, condition in product(METHODS, CONDITIONS):
        own = [row for row in verdict_rows if (row["method"], row["condition"]) == (method, condition)]
        means = [format_by_share(own, "models", 1), f"{mean(float(row['before']) for row in own):.2f}"]
        means += [format_by_share(own, name, 2) for name in ("at", "end")]
        print(f"| {method} | {condition} | {' | '.join(format_sums(own) + means)} |")


def format_by_share(rows: list[Row], name: str, digits: int) -> str:
    """Formats a column's means over the seeds, with 10, 25 and 50 % of the clients drifting."""
    found = [mean(float(row[name]) for row in rows if float(row["share"]) == share) for share in SHARES]
    return " ".join(f"{value:.{digits}f}" for value in found)


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def draw(rows: list[Row], path: Path) -> None:
    """Draws the delay and the share of drifts found against false alarms, one curve per metric and condition."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(7, 5), sharex=True, layout="constrained")
    for column, condition in enumerate(CONDITIONS):
        for metric, colour in zip(METRICS, ("tab:blue", "tab:orange", "tab:green"), strict=True):
            own = [row for row in rows if (row["metric"], row["condition"]) == (metric, condition)]
            points = [compute_curve_point([row for row in own if float(row["threshold"]) == t]) for t in GRID]
            marked = points[GRID.index(DEFAULTS[metric])]
            for row in (0, 1):
                axis = axes[row, column]
                axis.plot([p[0] for p in points], [p[1 + row] for p in points], ".-", color=colour, label=metric)
                axis.plot(marked[0], marked[1 + row], "o", color=colour, mfc="none", ms=10)
        axes[0, column].set_title({"still": "same data in all rounds", "fresh": "new data in each round"}[condition])
        axes[1, column].set_xlabel("false alarms per 100 tests")
        axes[1, column].set_xscale("symlog", linthresh=0.1)
        axes[1, column].set_xlim(-0.02, 110)
        axes[1, column].set_xticks([0, 0.1, 1, 10, 100], ["0", "0.1", "1", "10", "100"])
    axes[0, 0].set_ylabel("delay in rounds\n(not found: 20)")
    axes[1, 0].set_ylabel("found, %")
    axes[0, 0].legend()
    figure.savefig(path, dpi=150)


def compute_curve_point(rows: list[Row]) -> tuple[float, float, float]:
    """Returns false alarms per 100 tests, mean delay (20 rounds for a client not found), and percentage found."""
    drifted, found, delay, alarms, tests = (sum(int(row[name]) for row in rows) for name in SCORES)
    late = (delay + (ROUNDS - START) * (drifted - found)) / drifted
    return 100 * alarms / tests, late, 100 * found / drifted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("curve", "verdict", "report"))
    parser.add_argument("--seeds", type=int, nargs="+", help="default: those of the protocol")
    parser.add_argument("--out", type=Path, help="CSV file to which rows are appended")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part == "report":
        print_report()
        return
    is_curve = options.part == "curve"
    seeds = options.seeds or ([0, 1, 2, 3, 4] if is_curve else [10, 11, 12])
    wanted = ((m, c, p, s) for s, m, c, p in product(seeds, PLAIN if is_curve else METHODS, CONDITIONS, SHARES))
    for rows in run_cells(
        options.out, KEYS, CURVE if is_curve else VERDICT, wanted, try_thresholds if is_curve else run_default
    ):
        print(*rows[-1].values(), flush=True)


if __name__ == "__main__":
    main()
