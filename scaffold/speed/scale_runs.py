"""Measures whole runs of every algorithm for growing numbers of clients: times of rounds and evaluations, memory.

    python scaffold/speed/scale_runs.py [--algorithms FedAvg Ditto ...] [--clients 10000 100000] [--evaluate all]
                                    [--cohort 100] [--largest 1000000] [--limit 3600] [--out FILE.json]
Every row is a separate process with one thread, forked after the imports, which makes a run directory: two rounds of
100 clients, both evaluated. Clients are synthetic, with 2 to some tens of examples of 20 numbers, and train a linear
net of 210 parameters for one epoch; there are four true clusters. `--evaluate all` places every client without a model
in each evaluation, which for many algorithms means training it: FlexCFL's pre-training is one epoch and StoCFL's one
step here, so that options do not make one of them the slowest. CFL, AdaCFL and LayerCFL train all clients in each
round.

`round s` and `evaluation s` are those of the second round, in CPU seconds of the process, as is `run s`; `wall s` is
the run's wall time. `growth` is the ratio of the run's CPU time to that of the algorithm's previous row. `--largest`
adds a run of FedAvg with that many clients, unless 0. A run that is refused, or takes longer than `--limit` seconds,
has a row with a note. Rows that `--out` already contains are not run again, so that a long table can be made piece by
piece. `load` is the machine's load average over the last minute of a row.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from datetime import date
from functools import partial
from multiprocessing import TimeoutError, get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from data import SMALL_CLIENTS, measure_peak_mib
from tables import print_rows

from lit_cfl import algorithms
from lit_cfl.config import catalogue
from lit_cfl.datamodules import Synthetic
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.errors import InputError
from lit_cfl.experiment import EvaluationPlan, Experiment
from lit_cfl.local_work import Budget
from lit_cfl.metric_names import Row
from lit_cfl.nets import MCLR
from lit_cfl.runs.recorder import Recorder
from lit_cfl.runs.run import run
from lit_cfl.tasks import Classification
from lit_cfl.tracking.options import Tracking

COLUMNS = (
    "algorithm",
    "clients",
    "round s",
    "evaluation s",
    "run s",
    "wall s",
    "growth",
    "peak MiB",
    "files",
    "load",
    "note",
)


def measure_run(algorithm: str, clients: int, cohort: int, evaluated: str) -> Row:
    options = {"FlexCFL": {"pretrain": Budget(1)}, "StoCFL": {"psi_budget": Budget(1, "steps", "full")}}
    data = Synthetic(num_clients=clients, num_clusters=4, **SMALL_CLIENTS)
    experiment = Experiment(
        data,
        lambda: Classification(MCLR([20], 10), partial(torch.optim.SGD, lr=0.03)),
        getattr(algorithms, algorithm)(**options.get(algorithm, {})),
        rounds=2,
        cohort_size=cohort,
        evaluation=EvaluationPlan(clients=evaluated if not evaluated.isdigit() else int(evaluated)),  # type: ignore[arg-type]
        local=LocalTraining(1, 10),
        tracking=Tracking(wandb="disabled"),
    )
    times = record_evaluation_times()
    begun, begun_wall = process_time(), perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run(experiment, Path(folder) / "run")
        files = sum(file.is_file() for file in Path(folder).rglob("*"))
    (_, first), (trained, second) = times
    return {
        "round s": trained - first,
        "evaluation s": second - trained,
        "run s": process_time() - begun,
        "wall s": perf_counter() - begun_wall,
        "peak MiB": measure_peak_mib(),
        "files": files,
    }


def record_evaluation_times() -> list[tuple[float, float]]:
    """Returns a list that will receive the CPU time at the start and the end of each evaluation of a run."""
    times: list[tuple[float, float]] = []
    add_row = Recorder._add_row

    def timed(recorder: Recorder, *arguments: Any) -> Row:
        begun = process_time()
        row = add_row(recorder, *arguments)
        times.append((begun, process_time()))
        return row

    Recorder._add_row = timed  # measures the time of `_add_row`, which a run does not report
    return times


def measure_cells(cells: list[Row], known: list[Row], limit: float) -> Iterator[Row]:
    """Yields the row of each cell, known or measured, with `growth` relative to the algorithm's previous row."""
    before: Row = {}
    for cell in cells:
        same = (row for row in known if row.items() >= cell.items())
        row = next(same, None) or cell | measure_in_process(cell, limit)
        if before.get("algorithm") == row["algorithm"] and "run s" in row and "run s" in before:
            row = row | {"growth": float(row["run s"]) / float(before["run s"])}
        yield row
        before = row


def save_rows(found: Iterator[Row], known: list[Row], out: Path | None) -> Iterator[Row]:
    """Yields the rows, and merges them into the rows of the file."""
    for row in found:
        known += [row] if row not in known else []
        if out:
            out.write_text(json.dumps(known, indent=1) + "\n")
        yield row


def measure_in_process(cell: Row, limit: float) -> Row:
    """Measures a run in a separate process."""
    with get_context("fork").Pool(1) as pool:  # a separate process, which ends with the block
        try:
            found = pool.apply_async(measure_run, tuple(cell.values())).get(limit)
        except InputError as error:
            found = {"note": f"refused: {error}"}
        except TimeoutError:
            found = {"note": f"not finished after {limit:.0f} s"}
    return found | {"load": os.getloadavg()[0], "day": date.today().isoformat()}


def list_cells(options: argparse.Namespace) -> list[Row]:
    pairs = [(name, clients) for name in options.algorithms for clients in options.clients]
    if options.largest and "FedAvg" in options.algorithms:
        pairs.insert(1 + max(at for at, pair in enumerate(pairs) if pair[0] == "FedAvg"), ("FedAvg", options.largest))
    return [
        {"algorithm": name, "clients": clients, "cohort": options.cohort, "evaluated": options.evaluate}
        for name, clients in pairs
    ]


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", default=catalogue.names("algorithms"))
    parser.add_argument("--clients", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--evaluate", default="all", help="all, assigned, or a number of clients")
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--limit", type=float, default=3600.0, help="time limit of a run in seconds")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    known = json.loads(options.out.read_text()) if options.out and options.out.exists() else []
    print_rows(COLUMNS, save_rows(measure_cells(list_cells(options), known, options.limit), known, options.out))


if __name__ == "__main__":
    main()
