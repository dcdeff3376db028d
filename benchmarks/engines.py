"""Compares the speed of ways of local training, including those of an earlier checkout; measures them in turns.

    [LITCFL_DATA=DIR] python benchmarks/engines.py [--against PATH] [--cases linear-60x10 mlp ...] [--turns 7]
                                                   [--out FILE.json]

A case is a net, a cohort and a number of epochs; mini-batches have 10 images of 28 x 28, the optimizer is SGD.

* `linear-60x10`: MCLR (7,850 parameters), 20 clients of 60 images each, 10 epochs; `mlp` has 101,770 parameters,
  `mlp2048` has 1,628,170, `cnn` 1,663,370. `100-linear-60x1` has 100 clients.
* `linear-mnist1000x10`: 20 of the 1,000 clients of Li et al. (FedProx, 2020), most of which have a few tens of digits
  and some many hundreds; requires `mnist` in DIR.

Every way runs in its own process, which keeps its engine. In a turn each of them trains rounds for at least 50 ms, one
way after another: in a single round of 2 ms most of the time goes into caches that another process has filled.
The table has medians over the turns: CPU time per client-step, wall time, and the ratio to the first way's CPU time in
the same turn, so that other programs on the machine affect both alike. `spread` gives the ratio's quartiles. A round is
`engine.at(round, data).fit(...)` with its rows: drawing the mini-batches, training, and copying the rows.

PATH is a checkout of an earlier commit, with compiled steps (`python hatch_build.py`). Ways: `chain` and `loop`, and
`earlier chain` and `earlier loop` of PATH. One thread is used unless --threads says otherwise.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any

import torch
from torch import nn

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.nets import MCLR, MLP

HERE = Path(__file__).resolve().parents[1]
SHAPE, CLIENTS, BATCH = [1, 28, 28], 20, 10
MIN_TURN = 0.05  # minimum duration of one measurement, in seconds
CASES = (
    "linear-60x1", "linear-60x5", "linear-60x10", "100-linear-60x1", "100-linear-60x10", "linear-200x1", "linear-200x5",
    "linear-600x2", "linear-mnist1000x1", "linear-mnist1000x10", "mlp-60x1", "mlp-60x10", "100-mlp-60x10", "mlp-200x5",
    "mlp-600x2", "mlp-mnist1000x1", "mlp-mnist1000x10", "mlp2048-60x5", "cnn-60x1",
)  # fmt: skip
_CASE = re.compile(r"(?:(\d+)-)?(linear|mlp|mlp2048|cnn)-(mnist1000|\d+)x(\d+)")
Row = dict[str, Any]


def build_cnn() -> nn.Module:
    """Builds the CNN of `experiments/peers`: two 5 x 5 convolutions, 512 hidden units, 1,663,370 parameters."""
    first = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10))


NETS = {
    "linear": lambda: MCLR(SHAPE, 10),
    "mlp": lambda: MLP(128, SHAPE, 10),
    "mlp2048": lambda: MLP(2048, SHAPE, 10),
    "cnn": build_cnn,
}


def choose_ways(net: str, against: bool) -> dict[str, bool]:
    """Returns the ways to compare, the reference first, and whether each belongs to the other checkout."""
    ways = ["loop"] if net == "cnn" else ["chain", "loop"]
    return dict.fromkeys(ways, False) | (dict.fromkeys([f"earlier {way}" for way in ways], True) if against else {})


def make_data(cohort: str = "60", clients: int = CLIENTS) -> FederatedData:
    """Makes clients with `cohort` random images each, or loads MNIST-1000 if `cohort` is `mnist1000`."""
    if cohort == "mnist1000":
        from lit_cfl.datamodules import MNIST
        from lit_cfl.datamodules.partition import MNIST1000

        return MNIST(partition=MNIST1000()).federated(0)
    rng, total = torch.Generator().manual_seed(0), clients * int(cohort)
    images = torch.randint(0, 255, (total, *SHAPE), generator=rng, dtype=torch.uint8)
    examples = Examples(images, torch.randint(0, 10, (total,), generator=rng), 10, 1 / 255)
    train = ClientIndex.from_sizes(torch.arange(total), torch.full((clients,), int(cohort)))
    none = ClientIndex.empty(clients)
    return FederatedData(examples, train, none, none, torch.zeros(clients, dtype=torch.int64))


def serve(case: str, way: str, threads: int) -> None:
    """Trains rounds each time a line is read from standard input, and prints the µs per client-step."""
    from lit_cfl.engines.plan import Plan, keep_freed_memory
    from lit_cfl.experiment import LocalTraining, build_engine  # type: ignore[attr-defined]  # PATH defines it elsewhere
    from lit_cfl.rounds import Cohorts
    from lit_cfl.tasks import Classification

    count, net, cohort, epochs = parse_case(case)
    keep_freed_memory()
    held = make_data(cohort, count)

    def task() -> Classification:
        return Classification(NETS[net](), partial(torch.optim.SGD, lr=0.03))

    engine = build_engine(task, Plan(way.removeprefix("earlier ")), 0, LocalTraining(epochs, BATCH))
    torch.set_num_threads(threads)
    start = engine.initial(0)[None]
    number = 0
    for _ in sys.stdin:
        wall, cpu, steps = perf_counter(), process_time(), 0
        while perf_counter() - wall < MIN_TURN:
            clients = Cohorts(count).at(number, held.population, 0)
            steps += int((epochs * -(-held.num_examples[clients] // BATCH)).sum())
            assert len(engine.at(number, held).fit(start, clients).rows) == count
            number += 1
        cpu, wall = (1e6 * (now - then) / steps for now, then in ((process_time(), cpu), (perf_counter(), wall)))
        print(json.dumps({"cpu": cpu, "wall": wall}), flush=True)


def parse_case(case: str) -> tuple[int, str, str, int]:
    """Splits the name of a case into its number of clients, net, cohort and epochs."""
    found = _CASE.fullmatch(case)
    if found is None:
        raise SystemExit(f"case {case!r} is unknown; write it as linear-60x10 or 100-mlp-mnist1000x1")
    return int(found[1] or CLIENTS), found[2], found[3], int(found[4])


def measure(case: str, against: Path | None, turns: int, threads: int, asked: Sequence[str]) -> list[Row]:
    """Measures all ways of training on a case, in turns; the first turn, in which they are built, does not count."""
    ways = choose_ways(parse_case(case)[1], against is not None)
    ways = {way: old for way, old in ways.items() if not asked or way in asked}
    processes = {way: start_process(case, way, against if old else None, threads) for way, old in ways.items()}
    times: dict[str, list[Row]] = {way: [] for way in ways}
    for _ in range(turns + 1):
        for way, process in processes.items():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            times[way].append(json.loads(process.stdout.readline()))
    for process in processes.values():
        process.communicate()
    base, rows = next(iter(ways)), []
    for way, found in times.items():
        ratios = [one["cpu"] / other["cpu"] for one, other in zip(found[1:], times[base][1:], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        each = {kind: median(one[kind] for one in found[1:]) for kind in ("cpu", "wall")}
        rows.append({"case": case, "way": way} | each | {f"by {base}": median(ratios), "low": low, "high": high})
    return rows


def start_process(case: str, way: str, against: Path | None, threads: int) -> "subprocess.Popen[str]":
    root = against or HERE
    command = [sys.executable, __file__, "--serve", case, way, "--threads", str(threads)]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": str(threads)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=root, env=environment)


def read_processor() -> str:
    # imported late: the measured checkout may be too old to have it
    from lit_cfl.runs.environment import processor_name

    widest = torch.backends.cpu.get_cpu_capability()
    return f"{processor_name()} ({widest}), {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def format_cells(row: Row) -> Iterator[str]:
    yield from (row["case"], row["way"], f"{row['cpu']:.1f}", f"{row['wall']:.1f}")
    ratio = next(value for name, value in row.items() if name.startswith("by "))
    yield from (f"{ratio:.2f}", f"{row['low']:.2f} to {row['high']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="checkout of an earlier commit")
    parser.add_argument("--cases", nargs="*", default=[case for case in CASES if can_run(case)])
    parser.add_argument("--ways", nargs="*", default=[], help="measure only these ways")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve, options.threads)
        return
    print(
        read_processor(),
        "\n| case | way | CPU µs per step | wall µs | CPU ratio | spread |\n|---|---|---|---|---|---|",
    )
    rows = []
    for case in options.cases:
        against = options.against and options.against.resolve()
        for row in measure(case, against, options.turns, options.threads, options.ways):
            rows.append(row)
            print(f"| {' | '.join(format_cells(row))} |", flush=True)
    if options.out:
        options.out.write_text(json.dumps({"processor": read_processor(), "rows": rows}, indent=1) + "\n")


def can_run(case: str) -> bool:
    return "mnist1000" not in case or "LITCFL_DATA" in os.environ


if __name__ == "__main__":
    main()
