"""`--dry-run`: estimates the size and duration of an experiment without running it."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter, thread_time

import torch
from rich.console import Console
from torch import Tensor

from lit_cfl.algorithms.base import Algorithm
from lit_cfl.engines.mini_batches import count_steps
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.workload import TaskTraits, mean_steps
from lit_cfl.experiment import Experiment, PreparedRun
from lit_cfl.local_work import Budget

_ENOUGH = 1.0  # seconds of training that are timed; more of a cohort is inferred
_BUSY = 1.25  # wall time over CPU time, above which other processes are reported
_SHORT = 0.1  # seconds of training, in which other processes may not have had their turn


def show(console: Console, experiment: Experiment) -> float:
    """Prints the size of the experiment, and a time estimate from training its first cohort.

    Returns:
        the seconds of local training of all its runs.
    """
    prepared = experiment.prepare(experiment.seeds[0])
    try:
        timing = time_cohort(prepared)
    finally:
        prepared.engine.close()
    show_lines(console, _size(prepared) | _time(prepared, timing))
    return _total(prepared, timing)


def show_lines(console: Console, lines: Mapping[str, str]) -> None:
    """Prints names, and a second column with their descriptions."""
    for name, value in lines.items():
        console.print(f"{name:<18} {value}", soft_wrap=True)


def _size(prepared: PreparedRun) -> dict[str, str]:
    experiment, data, engine, plan = prepared.experiment, prepared.data, prepared.engine, prepared.engine.plan
    sizes, inputs = data.num_examples[data.population], data.examples.inputs
    row = engine.layout.num_columns * plan.dtype.itemsize
    sent = experiment.algorithm.sent_columns(engine.layout) * plan.dtype.itemsize
    less = "" if sent == row else f", of which {sent / 2**20:.2f} MiB are sent"
    runs = len(experiment.seeds) * len(_algorithms(experiment))
    cohort = min(experiment.cohort_size * row, max(plan.rows_mib * 2**20, row))
    return {
        "clients": f"{len(data.population)} in training, {data.num_clients - len(data.population)} newcomers",
        "training examples": f"{int(sizes.sum())}, {int(sizes.min())} to {int(sizes.max())} a client",
        "model": f"{engine.layout.num_parameters:,} parameters, {row / 2**20:.2f} MiB{less}",
        "rounds": f"{experiment.rounds} with {experiment.cohort_size} clients, {runs} run(s)",
        "local steps": f"about {client_steps(prepared):,}, pre-training and evaluation not counted",
        "plan": f"engine {plan.engine}, {plan.device}, {plan.precision}, {plan.threads} thread(s), {_stack(plan)}",
        "module": "; ".join(TaskTraits.of(engine.template, data).trainer_reasons) or "losses and one plain optimizer",
        "memory": f"about {(cohort + inputs.nbytes) / 2**20:.1f} MiB for data and local models, beside PyTorch itself",
    }


def client_steps(prepared: PreparedRun) -> int:
    """Estimates the mini-batches over all rounds of all runs."""
    experiment, everyone = prepared.experiment, len(prepared.data.population)
    fits = sum(
        algorithm.models_per_client * (everyone if algorithm.needs_all(number) else experiment.cohort_size)
        for algorithm in _algorithms(experiment)
        for number in range(experiment.rounds)
    )
    return round(len(experiment.seeds) * fits * mean_steps(experiment.local, prepared.data))


def _algorithms(experiment: Experiment) -> list[Algorithm]:
    return [experiment.algorithm, *([experiment.baseline] if experiment.baseline else [])]


@dataclass(frozen=True)
class Timing:
    """The training time of a cohort.

    Args:
        steps: mini-batches of all its clients together.
        seconds: Estimated seconds on an otherwise idle machine.
        slowdown: how many times as long they took now; None where other processes or threads or a GPU do the work.
    """

    steps: int
    seconds: float
    slowdown: float | None = None


def time_cohort(prepared: PreparedRun) -> Timing:
    """Trains the clients of the first round for more and more steps, until a second has passed or all are done.

    What is left is inferred from the steps by which the last two trials differ. Where this thread computes, its own
    CPU time counts: other processes do not add to it. Chains in several threads leave this one idle.
    """
    plan = prepared.engine.plan
    computes = plan.device == "cpu" and not plan.workers and not (plan.engine == "chain" and plan.threads > 1)
    cohort = replace(prepared.cohorts, dropout=0.0).at(0, prepared.data.population, prepared.seed)
    lengths = _lengths(prepared, cohort)
    _seconds(prepared, cohort, lengths.clamp(max=1))  # the first fit also loads
    trials = []
    for taken in _growing(lengths):
        wall, own = _seconds(prepared, cohort, taken)
        trials.append((int(taken.sum()), own if computes else wall))
        if wall >= _ENOUGH and len(trials) > 1:
            break
    return Timing(int(lengths.sum()), extrapolate(trials, int(lengths.sum())), wall / own if computes else None)


def _lengths(prepared: PreparedRun, cohort: Tensor) -> Tensor:
    """Counts the mini-batches of each client in a round, int64 `[n]`."""
    local, sizes = prepared.experiment.local, prepared.data.num_examples[cohort]
    return count_steps(local.budget, torch.full_like(sizes, local.epochs), sizes, local.batch_size, local.last_batch)


def _growing(lengths: Tensor) -> Iterator[Tensor]:
    """Yields numbers of steps of each client, doubling until all steps are included."""
    most = 1
    while most < int(lengths.max()):
        yield lengths.clamp(max=most)
        most *= 2
    yield lengths


def extrapolate(trials: list[tuple[int, float]], steps: int) -> float:
    """Extrapolates the seconds of a number of steps from steps and seconds of some trials, ascending."""
    done, seconds = trials[-1]
    if done == steps or len(trials) == 1:
        return seconds * steps / done
    (before, less), _ = list(pairwise(trials))[-1]
    return seconds + max(0.0, seconds - less) / (done - before) * (steps - done)


def _seconds(prepared: PreparedRun, cohort: Tensor, steps: Tensor) -> tuple[float, float]:
    """Measures the wall time and this thread's CPU time of a fit."""
    work, start = prepared.engine.at(0, prepared.data), prepared.engine.initial(0)[None]
    wall, own = perf_counter(), thread_time()
    for _ in work.fit(start, cohort, budget=Budget(steps, "steps")).chunks():
        pass
    return perf_counter() - wall, thread_time() - own


def _total(prepared: PreparedRun, timing: Timing) -> float:
    return timing.seconds * client_steps(prepared) / timing.steps


def _time(prepared: PreparedRun, timing: Timing) -> dict[str, str]:
    total = _total(prepared, timing)
    judged = (
        f"judged by the clients of the first round on this machine, {timing.seconds:.2g} s for {timing.steps} steps"
    )
    lines = {"time": f"about {duration(total)} of local training, {judged}"}
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if timing.slowdown is not None and timing.slowdown > _BUSY:
        lines["machine"] = (
            f"busy: the training got {1 / timing.slowdown:.0%} of the processor; the time is without the others, and "
            f"beside them about {duration(total * timing.slowdown)}"
        )
    elif (timing.slowdown is None or timing.seconds < _SHORT) and load > cores:
        alone = (
            "alone the training is faster than this" if timing.slowdown is None else "the time is without the others"
        )
        lines["machine"] = f"busy: a load of {load:.0f} on {cores} cores; {alone}"
    return lines


def _stack(plan: Plan) -> str:
    return "one client after the other" if plan.lanes == 1 else f"up to {plan.lanes} clients together"


def duration(seconds: float) -> str:
    """Formats seconds as hours and minutes, minutes and seconds, or seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
