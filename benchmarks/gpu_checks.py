"""Compares results for `gpu.py`: a GPU's with the CPU's, and a run that changes its device with one that stays."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
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


def checks(names: Sequence[str], device: str, until: float) -> Iterator[Row]:
    """Rows of every model, until the time is up."""
    on_gpu = device != "cpu"
    for name in names:
        case = replace(case_of(name, device), cohort=4, epochs=1)
        work = {f"parity of {way}": partial(parity, case, way, device) for way in ("plain loop", "eager")}
        work |= {"parity of graph": partial(parity, case, "graph", device)} if on_gpu else {}
        work |= {f"{first}, then {then}": partial(resumed, case, first, then) for first, then in _pairs(device)}
        for check, function in work.items():
            late = time() > until
            yield {"model": name, "check": check} | ({"note": "no time left"} if late else tried(function))


def _pairs(device: str) -> list[tuple[str, str]]:
    return [("cpu", device), (device, "cpu")] if device != "cpu" else [("cpu", "cpu")]


def parity(case: Case, way: str, device: str) -> Row:
    """Compares the models of four clients with those of a plain loop on the CPU."""
    rows = []
    for one, where in (("plain loop", "cpu"), (way, device)):
        engine = build(case, one, case.cohort, case.cohort, where)
        start = engine.initial(0)
        rows.append(engine.at(0, case.data(case.cohort)).fit(start[None], torch.arange(case.cohort)).rows)
    return compared(rows[1], rows[0], start)


def resumed(case: Case, first: str, then: str) -> Row:
    """Compares a run that is saved on one device and resumed on another one with a run on the CPU."""
    data, ends = case.data(case.cohort), []
    for devices in (("cpu", "cpu"), (first, then)):
        after = None
        for device, last in zip(devices, (ROUNDS // 2, ROUNDS), strict=True):
            engine = planned(case, case.cohort, device)
            *_, after = rounds(FedAvg(), engine, data, Cohorts(2), seed=0, num_rounds=last, after=after)
            after = replace(after, state=_saved(after))
        ends.append(after.state.models)
    return compared(ends[1], ends[0], engine.initial(0))


def _saved(after: Round) -> object:
    """Saves a state as a checkpoint does, and loads it."""
    file = BytesIO()
    torch.save(state_to_dict(after.state), file)
    file.seek(0)
    return state_from_dict(type(after.state), torch.load(file, weights_only=True))


def compared(found: Tensor, expected: Tensor, start: Tensor) -> Row:
    """Returns the largest difference, as a share of the largest change that training made."""
    return {"difference": float((found - expected).abs().max() / (expected - start).abs().max())}
