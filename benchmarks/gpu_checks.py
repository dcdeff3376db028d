"""Compares results for `gpu.py`: a GPU's with the CPU's, and a run that changes its device with one that stays."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from io import BytesIO
from time import time

import torch
from gpu_cases import Case, case_of
from gpu_rows import build, planned, tried
from torch import Tensor

from lit_cfl.algorithms import FedAvg
from lit_cfl.metric_names import Row
from lit_cfl.rounds import Cohorts, Round, rounds
from lit_cfl.storage.checkpoint import state_from_dict, state_to_dict

ROUNDS = 4
Computed = Callable[[], tuple[Tensor, Tensor]]


def checks(names: Sequence[str], device: str, until: float) -> Iterator[Row]:
    """Rows of every model, until the time is up."""
    on_gpu = device != "cpu"
    torch.set_num_threads(os.cpu_count() or 1 if on_gpu else 1)
    for name in names:
        case = replace(case_of(name, device), cohort=4, epochs=1)
        fitted, ended = cache(partial(fit_of_four, case, "plain loop", "cpu")), cache(partial(run, case, "cpu", "cpu"))
        ways = ("plain loop", "eager", "graph") if on_gpu else ("plain loop", "eager")
        work = {f"parity of {way}": partial(parity, case, way, device, fitted) for way in ways}
        work |= {f"{first}, then {then}": partial(resumed, case, first, then, ended) for first, then in _pairs(device)}
        for check, function in work.items():
            late = time() > until
            yield {"model": name, "check": check} | ({"note": "no time left"} if late else tried(function))


def _pairs(device: str) -> list[tuple[str, str]]:
    return [("cpu", device), (device, "cpu")] if device != "cpu" else [("cpu", "cpu")]


def parity(case: Case, way: str, device: str, fitted: Computed) -> Row:
    """Compares the models of four clients with those of a plain loop on the CPU."""
    return compared(fit_of_four(case, way, device)[0], *fitted())


def fit_of_four(case: Case, way: str, device: str) -> tuple[Tensor, Tensor]:
    """Trains the clients. Returns their models, and the one that they start from."""
    engine = build(case, way, case.cohort, case.cohort, device)
    start = engine.initial(0)
    return engine.at(0, case.data(case.cohort)).fit(start[None], torch.arange(case.cohort)).rows, start


def resumed(case: Case, first: str, then: str, ended: Computed) -> Row:
    """Compares a run that is saved on one device and resumed on another one with a run on the CPU."""
    return compared(run(case, first, then)[0], *ended())


def run(case: Case, first: str, then: str) -> tuple[Tensor, Tensor]:
    """Runs two rounds on each device. Returns the models in the end, and the one that they start from."""
    data, after = case.data(case.cohort), None
    for device, last in ((first, ROUNDS // 2), (then, ROUNDS)):
        engine = planned(case, case.cohort, device)
        *_, after = rounds(FedAvg(), engine, data, Cohorts(2), seed=0, num_rounds=last, after=after)
        after = replace(after, state=_saved(after))
    return after.state.models, engine.initial(0)


def _saved(after: Round) -> object:
    """Saves a state as a checkpoint does, and loads it."""
    file = BytesIO()
    torch.save(state_to_dict(after.state), file)
    file.seek(0)
    return state_from_dict(type(after.state), torch.load(file, weights_only=True))


def compared(found: Tensor, expected: Tensor, start: Tensor) -> Row:
    """Returns the largest difference, as a share of the largest change that training made."""
    return {"difference": float((found - expected).abs().max() / (expected - start).abs().max())}
