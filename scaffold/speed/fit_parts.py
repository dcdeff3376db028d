"""Measures the cost of a fit apart from its training steps: the host's work, and testing and averaging model rows.

    python scaffold/speed/fit_parts.py [--turns 7] [--profile]

All figures are medians of CPU time on one thread. Clients have 60 images of 28 x 28 and batches of 10.

* The first table trains the linear net for one step in a way that computes nothing, so that only the host's work
  remains. Drawing the mini-batches and gathering the images are measured separately. The images of 300 clients are
  gathered at once, those of 1,000 in three parts, whose rows are copied together.
* The second table is of rounds with the way `chain`: the share of the time that is spent on testing the rows for
  infinity, and on their mean.

`--profile` prints the functions that take most of the host's time.
"""

import argparse
import cProfile
import pstats
from collections.abc import Callable
from functools import partial
from statistics import median
from time import process_time
from typing import Any
from unittest.mock import patch

import torch
from engines import BATCH, NETS, make_data, read_processor
from torch import Tensor

from lit_cfl.aggregation import mean_by_cluster
from lit_cfl.engines import engine as engine_module
from lit_cfl.engines.cohort import CohortFit, Ended
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining, draw_batches
from lit_cfl.engines.plain_loop import LoopWay
from lit_cfl.engines.plan import Plan, keep_freed_memory
from lit_cfl.local_work import Budget
from lit_cfl.tasks import Classification

SIZE, MANY = 60, 1_000


class NoTraining(LoopWay):
    """Way of training that returns the same rows each time, without training."""

    reads_bytes = True
    rows = torch.zeros(MANY, 7850)

    def fit(self, work: CohortFit, ended: Ended) -> tuple[Tensor, Tensor]:
        ended(len(work))
        return self.rows[: len(work)], torch.zeros(len(work), dtype=torch.float64)


def cpu_time(function: Callable[[], Any]) -> float:
    """Measures the CPU seconds of a call."""
    begun = process_time()
    function()
    return process_time() - begun


def build(net: str, epochs: int) -> Engine:
    """Builds an engine for one of the nets of `benchmarks/engines.py`."""

    def task() -> Classification:
        return Classification(NETS[net](), partial(torch.optim.SGD, lr=0.03))

    return Engine(task, Plan("chain"), 0, LocalTraining(epochs, BATCH))


def measure_host(count: int, turns: int, profile: bool) -> str:
    """Measures the host's time per client in a fit: in total, and for drawing and gathering mini-batches."""
    engine, held, clients = build("linear", 1), make_data(str(SIZE), count), torch.arange(count)
    engine._way = NoTraining(engine.template, engine.layout, engine.plan, engine.local)
    start, sizes, steps = engine.initial(0)[None], torch.full((count,), SIZE), torch.ones(count, dtype=torch.int64)
    entries = held.train.select(clients).entries

    def fit() -> None:
        engine.at(0, held).fit(start, clients, budget=Budget(1, "steps"))

    parts: list[Callable[[], Any]] = [
        fit,
        lambda: draw_batches(range(count), sizes, steps, BATCH),
        lambda: engine.examples(held).stored_bytes(entries, torch.float32),
    ]
    times = [[cpu_time(call) for call in parts] for _ in range(turns + 1)][1:]
    whole, *known = (1e6 * median(found) / count for found in zip(*times, strict=True))
    if profile:
        with cProfile.Profile() as found:
            for _ in range(turns):
                fit()
        pstats.Stats(found).sort_stats("tottime").print_stats(12)
    return " | ".join([str(count), *(f"{figure:.1f}" for figure in (whole, *known, whole - sum(known)))])


def measure_rows(net: str, count: int, epochs: int, turns: int) -> str:
    """Measures a round's CPU time, and how much of it is spent testing and averaging model rows."""
    engine, held, clients = build(net, epochs), make_data(str(SIZE), count), torch.arange(count)
    start, labels = engine.initial(0)[None], torch.zeros(count, dtype=torch.int64)
    finite, spent = engine_module._finite, [0.0]

    def timed(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
        found: list[Any] = []
        spent[0] += cpu_time(lambda: found.append(function(*given, **options)))
        return found[0]

    def train() -> None:
        mean_by_cluster(engine.at(number, held).fit(start, clients), labels, into=start)

    wholes, means = [], []
    with (
        patch.object(engine_module, "_finite", partial(timed, finite)),
        patch(f"{__name__}.mean_by_cluster", partial(timed, mean_by_cluster)),
    ):
        for number in range(turns + 1):
            spent[0] = 0.0
            whole = cpu_time(train)
            if number:
                wholes.append(whole)
                means.append(spent[0] / whole)
    return f"{net}, {count} clients, {epochs} | {1e3 * median(wholes):.1f} | {median(means):.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    print(read_processor(), "\n")
    print("| clients | µs per client | drawing | gathering | the rest |\n|---|---|---|---|---|")
    for count in (300, MANY):
        print(f"| {measure_host(count, options.turns, options.profile)} |", flush=True)
    print("\n| net, clients, epochs | CPU ms | test and mean |\n|---|---|---|")
    for net in ("linear", "mlp"):
        for count in (20, 100):
            for epochs in (1, 10):
                print(f"| {measure_rows(net, count, epochs, options.turns)} |", flush=True)


if __name__ == "__main__":
    main()
