"""Repeats FLUX's experiments on MNIST with the authors' generator; docs/flux_table.md compares the results.

    LITCFL_DATA=DIR python -m experiments flux-table --anda ANDA [--out experiments/docs/flux_table.csv]
        [--levels 8 1] [--folds 0 1 2 3 4] [--shifts x y y-given-x x-given-y] [--systems FedAvg ...] [--net MLP]
        [--device auto]

ANDA is a checkout of github.com/alfredoLimo/ANDA (at 05d0dfb), which needs torchvision, SciPy and Matplotlib. A row is
a run; rows that the file already contains are not run again. `--tables` prints the tables of the rows.

Protocol, written before the first run of the table:

* Setting of FLUX (public/config.py and run.sh of github.com/dariofenoglio98/FLUX at 43aadbe): MNIST divided among 10
  clients, with a fifth of each training part set aside; all participate in 10 rounds of 2 epochs of batches of 64; SGD
  at rate 0.005 with momentum 0.9. Folds are ANDA's seeds 42 to 46, and our seeds 0 to 4.
* Shifts of levels L = 1 to 8, with run.sh's arguments. x: rotations and colours (2, 1) (3, 1) (4, 1) (5, 1) (2, 3)
  (3, 3) (4, 3) (5, 3), `feature_skew_strict`. y: 11 - L of ten classes, 5 sets of them, `label_skew_strict`.
  y-given-x: L labels in a client-specific order. x-given-y: L labels, each rotated by one of 4 client-specific angles.
  For these two run.sh names `label_condition_skew` and `feature_condition_skew`, but its arguments belong to the other
  function of the two at 05d0dfb; FLUX's own commit of ANDA (4bf0f3d) is not public. We call the function that accepts
  the arguments.
* True clusters: the generator's key `cluster`; where it is -1 (the last two shifts), clients with the same printed
  mapping of labels form one cluster.
* Net: an MLP with 128 units; `--net LeNet5` is FLUX's: ReLU, average pooling, padding 2, layers of 120 and 84 units,
  and runs on a GPU (`--device cuda`), levels 8, 1 and 4 first.
* Systems: K = 3 for IFCA, FeSEM, FedEM and FedRC (K_model in config.py of github.com/alfredoLimo/baselines_fedrc);
  FeSEM with both first partitions; FLUX with 3 rounds of warm-up, and with the true number of clusters given; FedDrift
  with time steps of 5 rounds and delta 1, our defaults; CFL that may split from round 4 on: `CFL` with eps1 0.7 and
  eps2 1.5, chosen by the norms in a run outside the table (level 8, shift x, fold 5: u 0.6 and v 2.3 in round 4, 0.4
  and 2.1 in round 6), and `CFL 0.4 0.6` with the thresholds of FedRC's code.
* accuracy: mean over the clients of the accuracy of the client's model after round 10 on its test part (FLUX's "known
  association"). Nothing is chosen by it. Order: levels 8 and 1, fold by fold, then the others.

Changed after the first rows had been seen, since a run takes minutes: grey images, which ANDA stores in three equal
channels, are reduced to one channel (shift x-given-y). Added then: IFCA and FeSEM with the true number of clusters (`K
given`), FedRC at three times the rate, FedAvg at a third of the rate. LeNet-5 has run on shift x at level 8 and three
times at level 1, where the time on the GPU ended; six of these runs were completed on a CPU. Then added, before their
runs: LeNet-5 on a CPU, with the first eight systems, on the other shifts at level 8, fold by fold, then on all shifts
at level 1; and IFCA and FeSEM with the true number of clusters on all shifts at level 8, fold by fold. Then added,
before their runs: with the MLP at levels 8 and 1, Local, Ditto (lambda 1, our default), FedAvg + FT (FedAvg, whose last
model each client trains for two epochs more before it is scored), and `CFL 0.4 0.6`, which had never run; and the
differences to FLUX, paired by fold, with 95 % t intervals.

FLUX's figure has one number per level, which we take as the mean of its four shifts, as its standard deviations
suggest.
"""

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.fedrc import FedRC
from experiments.files import Row, read_yaml
from lit_cfl import __version__, run
from lit_cfl.algorithms import CFL, FLUX, IFCA, Algorithm, Ditto, FedAvg, FedDrift, FedEM, FeSEM, Local
from lit_cfl.data import ClientIndex, Division
from lit_cfl.datamodules import MNIST, ArrayData
from lit_cfl.datamodules.partition import Partition, Pool
from lit_cfl.experiment import EvaluationPlan, Experiment, LocalTraining, Pictures
from lit_cfl.local_work import Budget
from lit_cfl.nets import MLP
from lit_cfl.statistics import paired_difference
from lit_cfl.tasks import Classification

OUT = Path("experiments/docs/flux_table.csv")
CLIENTS, ROUNDS, CLUSTERS, FOLDS = 10, 10, 3, range(5)
Runs = dict[tuple[str, ...], dict[str, str]]  # rows of the results file by net, level, system, fold and shift
KEY = ("shift", "level", "fold", "system", "net")
COLUMNS = ("accuracy", "ari", "clusters", "true_clusters", "seconds", "processor", "version")
SHIFTS = ("x", "y", "y-given-x", "x-given-y")
SYSTEMS: dict[str, Callable[[int], Algorithm]] = {  # each makes a system, given the true number of clusters
    "FedAvg": lambda true: FedAvg(),
    "IFCA": lambda true: IFCA(CLUSTERS),
    "FeSEM random": lambda true: FeSEM(CLUSTERS, start_partition="random"),
    "FeSEM loss": lambda true: FeSEM(CLUSTERS, start_partition="loss"),
    "FLUX": lambda true: FLUX(),
    "FLUX K given": lambda true: FLUX(num_clusters=true),
    "FedDrift": lambda true: FedDrift(),
    "CFL": lambda true: CFL(0.7, 1.5, warmup_rounds=3),
    "FedRC": lambda true: FedRC(CLUSTERS),
    "FedEM": lambda true: FedEM(CLUSTERS),
    "IFCA K given": lambda true: IFCA(true),
    "FeSEM random K given": lambda true: FeSEM(true, start_partition="random"),
    "FeSEM loss K given": lambda true: FeSEM(true, start_partition="loss"),
    "FedRC rate 0.015": lambda true: FedRC(CLUSTERS),
    "FedAvg rate 0.0017": lambda true: FedAvg(),
    "CFL 0.4 0.6": lambda true: CFL(0.4, 0.6, warmup_rounds=3),
    "Local": lambda true: Local(),
    "FedAvg + FT": lambda true: FedAvg(),
    "Ditto": lambda true: Ditto(),
}
TUNED = {"FedAvg + FT": Budget(2, "epochs")}
RATES = {"FedRC rate 0.015": 0.015, "FedAvg rate 0.0017": 0.005 / 3}


class LeNet5(nn.Module):
    """FLUX's LeNet-5 for images `[N, channels, 28, 28]`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = pool(self.conv2(pool(self.conv1(inputs).relu())).relu())
        outputs: Tensor = self.fc3(self.fc2(self.fc1(hidden.flatten(1)).relu()).relu())
        return outputs


def pool(images: Tensor) -> Tensor:
    """Averages squares of 2 x 2 pixels, like `AvgPool2d(2)`; with it a step takes 0.6 times as long on a CPU."""
    rows = images[:, :, ::2] + images[:, :, 1::2]
    return (rows[..., ::2] + rows[..., 1::2]) / 4


def choose_arguments(shift: str, level: int) -> tuple[str, dict[str, Any]]:
    """Returns ANDA's name for a shift, and ANDA's arguments at this level."""
    turned: dict[str, Any] = {"set_rotation": True, "set_color": True}
    if shift == "x":
        return "feature_skew_strict", turned | {"rotations": (level - 1) % 4 + 2, "colors": 1 if level < 5 else 3}
    if shift == "y":
        return "label_skew_strict", {"client_n_class": 11 - level, "py_bank": 5}
    if shift == "y-given-x":
        some = {"mixing_label_number": level, "scaling_label_low": 1.0, "scaling_label_high": 1.0}
        return "feature_condition_skew", {"random_mode": True} | some
    some = {"rotations": 4, "colors": 1, "rotated_label_number": level, "colored_label_number": level}
    return "label_condition_skew", turned | {"random_mode": True} | some


@dataclass(frozen=True)
class OwnTest(Partition):
    """Partition by owner: the pool's first `num_train` examples are training data, the others test data."""

    num_train: int

    def divide(self, pool: Pool, rng: np.random.Generator) -> Division:
        owner = pool.owner
        assert owner is not None  # `load_fold` gives the client of each example
        clients = int(owner.max()) + 1
        train = ClientIndex.from_owners(owner[: self.num_train], clients)
        test = ClientIndex.from_owners(owner[self.num_train :], clients)
        test = ClientIndex(test.values + self.num_train, test.starts, test.sizes)
        return Division(train, test, torch.full((len(train),), -1), self.skew)


@lru_cache(maxsize=1)
def load_fold(anda_folder: Path, shift: str, level: int, fold: int) -> ArrayData:
    sys.path.insert(0, str(anda_folder.resolve().parent))
    anda: Any = import_module(f"{anda_folder.resolve().name}.anda")
    name, options = choose_arguments(shift, level)
    anda.load_full_datasets = lambda _: load_mnist()
    with redirect_stdout(printed := io.StringIO()):
        parts = anda.load_split_datasets(
            "MNIST", CLIENTS, name, "manual", random_seed=42 + fold, count_labels=False, **options
        )
    clusters = [part["cluster"] for part in parts]
    if -1 in clusters:
        lines = [line.partition("apping: ")[2] for line in printed.getvalue().splitlines()]
        mappings = [line for line in lines if line.startswith("{")][:CLIENTS]
        clusters = [sorted(set(mappings)).index(mapping) for mapping in mappings]
    kinds = ("train", "test")
    x = np.concatenate([convert_to_bytes(part[f"{kind}_features"]) for kind in kinds for part in parts])
    if x.ndim == 4 and (x == x[:, :1]).all():
        x = x[:, :1]  # grey images need only one of their three equal channels
    y = torch.cat([part[f"{kind}_labels"] for kind in kinds for part in parts])
    owner = np.concatenate([np.full(len(p[f"{kind}_labels"]), i) for kind in kinds for i, p in enumerate(parts)])
    num_train = sum(len(part["train_labels"]) for part in parts)
    return ArrayData(x, y, owner, clusters, num_labels=10, partition=OwnTest(num_train), validation=0.2)


def load_mnist() -> list[Tensor]:
    """Loads MNIST as ANDA does: images in [0, 1] `[N, 28, 28]` and labels, of the training and the test part."""
    examples = MNIST().examples
    images, labels = examples.inputs[:, 0] / 255, examples.labels
    return [images[:60_000], labels[:60_000], images[60_000:], labels[60_000:]]


def convert_to_bytes(images: Tensor) -> np.ndarray:
    """Converts pixels k / 255 to bytes k: the same images in a quarter of the memory."""
    return (images * 255).round().byte().numpy()


def run_cell(anda: Path, device: str, shift: str, level: int, fold: int, system: str, net: str) -> Row:
    """Runs a cell, and returns its row."""
    module = load_fold(anda, shift, level, fold)
    true = len(set(module.arrays["cluster"]))
    channels = module.examples.inputs.shape[1]

    def task() -> Classification:
        built = LeNet5(channels) if net == "LeNet5" else MLP(128, [channels, 28, 28], 10)
        return Classification(built, partial(torch.optim.SGD, lr=RATES.get(system, 0.005), momentum=0.9))

    experiment = Experiment(
        module,
        task,
        SYSTEMS[system](true),
        seeds=[fold],
        rounds=ROUNDS,
        cohort_size=CLIENTS,
        local=LocalTraining(2, 64),
        device=device,
        evaluation=EvaluationPlan(every=ROUNDS, fine_tune=TUNED.get(system)),
        pictures=Pictures(formats=[]),
    )
    row = dict(zip(KEY, (shift, level, fold, system, net), strict=True))
    score = "test/mean_tuned_accuracy" if system in TUNED else "test/mean_accuracy"
    return row | {"true_clusters": true} | train(experiment, score) | {"version": __version__}


def train(experiment: Experiment, score: str = "test/mean_accuracy") -> Row:
    """Runs an experiment; returns its results in the last round, its seconds and the name of what trained it."""
    with TemporaryDirectory() as folder:
        summary = run(experiment, Path(folder) / "run").summary
        device = str(read_yaml(Path(folder) / "run" / "config.yaml")["plan"]["device"])
        environment = json.loads((Path(folder) / "run" / "environment.json").read_text("utf-8"))
    return {
        "accuracy": round(100 * summary[score], 3),
        "ari": round(summary["clusters/ari"], 4),
        "clusters": summary["clusters/count"],
        "seconds": round(summary["time/elapsed_seconds"], 1),
        "processor": environment["processor"] if device == "cpu" else torch.cuda.get_device_name(device),
    }


def append_row(path: Path, row: Row) -> None:
    """Appends a row to the results file, which is created if it does not exist."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, (*KEY, *COLUMNS), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def read_runs(path: Path) -> Runs:
    with path.open(newline="") as file:
        return {
            tuple(row[name] for name in ("net", "level", "system", "fold", "shift")): row
            for row in csv.DictReader(file)
        }


def select_cells(runs: Runs, net: str, level: str, system: str, shifts: Sequence[str]) -> list[list[dict[str, str]]]:
    """Returns a system's rows by shift and fold, for the folds in which all these shifts have run."""
    folds = [f for f in map(str, FOLDS) if all((net, level, system, f, shift) in runs for shift in shifts)]
    return [[runs[net, level, system, fold, shift] for fold in folds] for shift in shifts] if folds else []


def average_by_fold(cells: Sequence[Sequence[dict[str, str]]]) -> dict[int, float | None]:
    """Returns the mean accuracy over the shifts by fold."""
    return {int(some[0]["fold"]): mean_of([some]) for some in zip(*cells, strict=True)}


def mean_of(cells: Sequence[Sequence[dict[str, str]]], name: str = "accuracy") -> float:
    return fmean(float(row[name]) for some in cells for row in some)


def tabulate_levels(runs: Runs, net: str) -> list[str]:
    """Tabulates the accuracy by system and level, averaged over the four shifts and five folds.

    It has the systems for which all of these have run at some level; a cell is empty at a level at which not all have.
    """
    every = {
        level: {
            system: cells
            for system in SYSTEMS
            if (cells := select_cells(runs, net, level, system, SHIFTS)) and len(cells[0]) == len(FOLDS)
        }
        for level in sorted({key[1] for key in runs if key[0] == net})
    }
    every = {level: by_system for level, by_system in every.items() if by_system}
    lines = [f"| system | {' | '.join(f'level {level}' for level in every)} |", "|" + "---|" * (1 + len(every))]
    for system in SYSTEMS:
        if any(system in by_system for by_system in every.values()):
            means = (f"{mean_of(cells[system]):.1f}" if system in cells else "" for cells in every.values())
            lines.append(f"| {system} | {' | '.join(means)} |")
    return lines


def tabulate_shifts(runs: Runs, net: str, level: str) -> list[str]:
    """Tabulates the accuracy by system and shift, averaged over the folds.

    "Minus FLUX" is the mean difference to FLUX over the folds, with its 95 % interval.
    """
    shifts = [shift for shift in SHIFTS if any((*key[:2], key[4]) == (net, level, shift) for key in runs)]
    columns = [*shifts, "mean"] if len(shifts) > 1 else shifts
    head = ["system", *columns, "minus FLUX", "ARI", "clusters", "folds"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    by_fold = {system: average_by_fold(select_cells(runs, net, level, system, shifts)) for system in SYSTEMS}
    for system in SYSTEMS:
        if cells := select_cells(runs, net, level, system, shifts):
            difference = paired_difference(by_fold[system], by_fold["FLUX"])
            gain = (
                ""
                if system == "FLUX" or difference.margin is None
                else f"{difference.mean:+.1f} ± {difference.margin:.1f}"
            )
            scores = [mean_of([some]) for some in cells]
            if len(shifts) > 1:
                scores.append(mean_of(cells))
            ari, count = mean_of(cells, "ari"), mean_of(cells, "clusters")
            shown = " | ".join(f"{score:.1f}" for score in scores)
            lines.append(f"| {system} | {shown} | {gain} | {ari:.2f} | {count:.1f} | {len(by_fold[system])} |")
    return lines


def format_tables(path: Path) -> str:
    """Formats for each net a table over all levels, and for each net and level a table over the shifts."""
    runs, lines = read_runs(path), list[str]()
    for net in sorted({key[0] for key in runs}):
        if len(table := tabulate_levels(runs, net)) > 2:
            lines += [f"{net}, mean of the shifts:", "", *table, ""]
    for net, level in sorted({key[:2] for key in runs}):
        lines += [f"{net}, level {level}:", "", *tabulate_shifts(runs, net, level), ""]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments flux-table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--anda", type=Path, default=Path("ANDA"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--levels", type=int, nargs="+", default=[8, 1])
    parser.add_argument("--folds", type=int, nargs="+", default=[*FOLDS])
    parser.add_argument("--shifts", nargs="+", default=SHIFTS, choices=SHIFTS)
    parser.add_argument("--systems", nargs="+", default=[*SYSTEMS], choices=[*SYSTEMS])
    parser.add_argument("--net", default="MLP", choices=["MLP", "LeNet5"])
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--tables", action="store_true")
    given = parser.parse_args(arguments)
    if given.tables:
        print(format_tables(given.out))
        return 0
    known = read_runs(given.out) if given.out.exists() else {}
    for fold, level, shift, system in product(given.folds, given.levels, given.shifts, given.systems):
        if (given.net, str(level), system, str(fold), shift) not in known:
            row = run_cell(given.anda, given.device, shift, level, fold, system, given.net)
            append_row(given.out, row)
            print(", ".join(str(row[name]) for name in (*KEY, *COLUMNS)), flush=True)
    return 0
