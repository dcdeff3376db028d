"""Estimates, by simulation, how many workers of the engine `ray` are worthwhile on machines with more cores.

    python benchmarks/hand_over.py [--models linear mlp paper-cnn cnn] [--workers 1 2 4 8 10 16] [--out FILE.json]

A round is handed over as in a run: to real Ray workers, with examples, lists, seeds and models, and with local models
returned. Only the training is replaced: a worker sleeps for the CPU time that one core of this machine needed to train
as many clients (measured before), so more workers than cores can be tried. What workers compute besides (unpacking the
share, copying models) still competes for the existing cores: with one core per worker it would take less time.

The cohort has 20 clients of 60 images, batches of 10, 10 epochs. Seconds of a round are the median of the repeats;
`training` is the longest sleep of a worker.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
import ray
import torch
from engines import BATCH, CLIENTS, NETS, SHAPE, make_data
from tables import print_rows
from torch import Tensor

from lit_cfl.data import Examples
from lit_cfl.engines.base import Engine
from lit_cfl.engines.choose_plan import choose_plan
from lit_cfl.engines.plan import Plan, PlanOptions, set_up_torch
from lit_cfl.engines.ray.engine import RayEngine
from lit_cfl.engines.ray.pool import ShareTask
from lit_cfl.engines.ray.shares import Share
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.engines.workload import measure_workload
from lit_cfl.metric_names import Row
from lit_cfl.nets import MNISTCNN
from lit_cfl.tasks import Classification

EPOCHS = 10
MODELS = NETS | {"paper-cnn": lambda: MNISTCNN(SHAPE, 10)}
COLUMNS = ("model", "workers", "round s", "training s", "hand-over s", "speedup")


def wait(share: Share, seconds: float, engine: Engine, examples: Examples, rows: Tensor) -> list[np.ndarray]:
    """Sleeps instead of training a share of a fit, and returns the models unchanged."""
    request, _, held = share.compute.args
    held.data(examples)
    models = rows[request.start].numpy()
    sleep(seconds)
    return [models, np.zeros(len(models)), np.ones(len(models), dtype=bool)]


class WaitingEngine(RayEngine):
    """Ray engine whose workers sleep instead of training.

    Args:
        model: Model of the rounds.
        workers: Number of workers in the pool; `use` sets how many of them are used.
    """

    def __init__(self, model: str, workers: int) -> None:
        plan = Plan("loop", workers=workers)
        super().__init__(build_task_factory(model), plan, 0, LocalTraining(EPOCHS, BATCH))
        self.model, self.waited = model, list[float]()

    def use(self, workers: int) -> None:
        self.plan = replace(self.plan, workers=workers)

    def _fit_task(self, request: Any, numbers: Tensor, *rest: Any) -> ShareTask:
        task = super()._fit_task(request, numbers, *rest)
        self.waited.append(measure_seconds(self.model, len(numbers)))
        return replace(task, share=replace(task.share, compute=partial(wait, task.share, self.waited[-1])))


def build_task_factory(model: str) -> partial[Classification]:
    return partial(_build_task, model)


def _build_task(model: str) -> Classification:
    return Classification(MODELS[model](), partial(torch.optim.SGD, lr=0.03))


@cache
def _build_engine(model: str) -> Engine:
    work = measure_workload(build_task_factory(model), 0, LocalTraining(EPOCHS, BATCH), make_data(), 1, CLIENTS)
    plan = choose_plan("auto", "cpu", "32-true", work, PlanOptions(threads=1))
    set_up_torch(plan, False)
    return Engine(build_task_factory(model), plan, 0, LocalTraining(EPOCHS, BATCH))


@cache
def measure_seconds(model: str, clients: int) -> float:
    """Measures the CPU seconds that one core needs to train `clients` clients, after a warm-up fit."""
    engine, held, times = _build_engine(model), make_data(), []
    for _ in range(3):
        begun = process_time()
        engine.at(0, held).fit(engine.initial(0)[None], torch.arange(clients))
        times.append(process_time() - begun)
    return min(times[1:])


def measure_all(models: list[str], workers: list[int], repeats: int) -> Iterator[Row]:
    ray.init(num_cpus=max(workers), include_dashboard=False, log_to_driver=False)
    first, held = WaitingEngine(models[0], max(workers)), make_data()
    pool = first._started()  # one pool for all models, since starting a worker takes seconds
    while pool._starting or not pool._idle:
        first.at(0, held).fit(first.initial(0)[None], torch.arange(CLIENTS))
    for model in models:
        engine = WaitingEngine(model, max(workers))
        engine._pool = pool
        for number in workers:
            engine.use(number)
            # the first fit also sends the examples to the workers
            engine.at(0, held).fit(engine.initial(0)[None], torch.arange(CLIENTS))
            engine.waited.clear()
            times = []
            for _ in range(repeats):
                begun = perf_counter()
                engine.at(0, held).fit(engine.initial(0)[None], torch.arange(CLIENTS))
                times.append(perf_counter() - begun)
            took, training = median(times), max(engine.waited)
            speedup = measure_seconds(model, CLIENTS) / took
            yield dict(zip(COLUMNS, (model, number, took, training, took - training, speedup), strict=True))
    first.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4, 8, 10, 16])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print_rows(COLUMNS, measure_all(options.models, options.workers, options.repeats), options.out)


if __name__ == "__main__":
    main()
