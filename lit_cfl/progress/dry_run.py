"""`--dry-run`: estimates the size and duration of an experiment without running it."""

from dataclasses import replace
from time import perf_counter, thread_time

import torch
from rich.console import Console
from torch import Tensor

from lit_cfl.algorithms.base import Algorithm
from lit_cfl.devices import count_cores
from lit_cfl.engines.agreement import Trial
from lit_cfl.engines.ways import get_way
from lit_cfl.errors import count_noun, join_range
from lit_cfl.experiment import Experiment, PreparedRun
from lit_cfl.local_work import Budget

_RAY_PAYS = 1.0  # seconds of training in a round from which Ray's workers pay off


def show(console: Console, experiment: Experiment) -> None:
    """Prints the size of the experiment, and a time estimate from training its first cohort."""
    prepared = experiment.prepare(experiment.seeds[0])
    try:
        steps, seconds = time_cohort(prepared)
    finally:
        prepared.engine.close()
    total = seconds * client_steps(prepared) / steps
    how = f"estimated from the clients of the first round on this machine, {seconds:.2g} s for {steps} steps"
    time = {"time": f"about {duration(total)} of local training, {how}"}
    for name, value in (_size(prepared) | time | _use_of_ray(prepared, total)).items():
        console.print(f"{name:<18} {value}", soft_wrap=True)


def _use_of_ray(prepared: PreparedRun, total: float) -> dict[str, str]:
    """Says that Ray's workers would save time, if they would.

    Args:
        total: Estimated seconds of local training of all runs.
    """
    experiment, plan = prepared.experiment, prepared.engine.plan
    seconds = total / (_num_runs(experiment) * experiment.rounds)
    cores = min(count_cores(), experiment.cohort_size)
    if plan.device != "cpu" or plan.workers or cores < 2 or seconds <= _RAY_PAYS:
        return {}
    return {"engine: ray": f"would train the clients of a round, which takes {seconds:.2g} s, in {cores} processes"}


def _size(prepared: PreparedRun) -> dict[str, str]:
    experiment, data, engine, plan = prepared.experiment, prepared.data, prepared.engine, prepared.engine.plan
    sizes, inputs = data.num_examples[data.population], data.examples.inputs
    tested = data.test.sizes[data.population]
    row = engine.layout.num_columns * plan.dtype.itemsize
    sent = experiment.algorithm.sent_columns(engine.layout) * plan.dtype.itemsize
    less = "" if sent == row else f", of which {_size_of(sent)} are sent"
    runs = count_noun(_num_runs(experiment), "run")
    trial = Trial.of(engine.template, data, engine.local)
    against = trial.reason_against(get_way("loop"), plan.device, plan.precision)
    stack = "one client after the other" if plan.lanes == 1 else f"up to {plan.lanes} clients together"
    cohort = min(experiment.cohort_size * row, max(plan.rows_mib * 2**20, row))
    return {
        "clients": f"{len(data.population)} in training, {data.num_clients - len(data.population)} newcomers",
        "training examples": f"{int(sizes.sum()):,}, {join_range(int(sizes.min()), int(sizes.max()))} per client",
        "test examples": f"{int(tested.sum()):,}, {join_range(int(tested.min()), int(tested.max()))} per client",
        "model": f"{engine.layout.num_parameters:,} parameters, {_size_of(row)}{less}",
        "rounds": f"{experiment.rounds} with {experiment.cohort_size} clients, {runs}",
        "local steps": f"about {client_steps(prepared):,}, pre-training and evaluation not counted",
        "plan": f"engine {plan.engine}, {plan.device}, {plan.precision}, {count_noun(plan.threads, 'thread')}, {stack}",
        "module": against or "losses and one plain optimizer",
        "memory": f"about {(cohort + inputs.nbytes) / 2**20:.1f} MiB for data and local models, without PyTorch itself",
    }


def _size_of(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.2f} MiB" if num_bytes >= 2**18 else f"{num_bytes / 2**10:.1f} KiB"


def client_steps(prepared: PreparedRun) -> int:
    """Estimates the number of mini-batches of all clients in all rounds and runs."""
    experiment, everyone = prepared.experiment, len(prepared.data.population)
    fits = sum(
        algorithm.models_per_client * (everyone if algorithm.needs_all(number) else experiment.cohort_size)
        for algorithm in _algorithms(experiment)
        for number in range(experiment.rounds)
    )
    clients = prepared.data.population
    return round(len(experiment.seeds) * fits * float(_lengths(prepared, clients).double().mean()))


def _num_runs(experiment: Experiment) -> int:
    return len(experiment.seeds) * len(_algorithms(experiment))


def _algorithms(experiment: Experiment) -> list[Algorithm]:
    return [experiment.algorithm, *([experiment.baseline] if experiment.baseline else [])]


def time_cohort(prepared: PreparedRun) -> tuple[int, float]:
    """Trains the first round's clients once, after one step each as a warm-up.

    If this thread computes, its CPU time is used, which other processes do not increase. If Ray workers, a GPU or
    several threads compute, wall time is used.

    Returns:
        The mini-batches of all clients of the round together, and their seconds.
    """
    plan = prepared.engine.plan
    has_threads = get_way(plan.engine).is_collective and plan.threads > 1
    computes = plan.device == "cpu" and not plan.workers and not has_threads
    cohort = replace(prepared.cohorts, dropout=0.0).at(0, prepared.data.population, prepared.seed)
    lengths = _lengths(prepared, cohort)
    _seconds(prepared, cohort, lengths.clamp(max=1))
    wall, own = _seconds(prepared, cohort, lengths)
    return int(lengths.sum()), own if computes else wall


def _lengths(prepared: PreparedRun, cohort: Tensor) -> Tensor:
    """Counts the mini-batches of each client in a round, int64 `[n]`."""
    local, sizes = prepared.experiment.local, prepared.data.num_examples[cohort]
    return local.count_steps(local.budget, torch.full_like(sizes, local.epochs), sizes)


def _seconds(prepared: PreparedRun, cohort: Tensor, steps: Tensor) -> tuple[float, float]:
    """Measures the wall time and this thread's CPU time of a fit."""
    work, start = prepared.engine.at(0, prepared.data), prepared.engine.initial(0)[None]
    wall, own = perf_counter(), thread_time()
    for _ in work.fit(start, cohort, budget=Budget(steps, "steps")).chunks():
        pass
    return perf_counter() - wall, thread_time() - own


def duration(seconds: float) -> str:
    """Formats seconds as hours and minutes, minutes and seconds, or seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
