"""Checks what an algorithm returns: states, Infos, and assignments of models to clients.

Runs and the test kit (`lit_cfl.testing`) check every answer, and raise the same errors. The functions `_faults_of_...`
yield what is wrong, of which the first is reported: a check may rely on those before it.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from lit_cfl.algorithms.base import Algorithm, Assignment, Info, State
from lit_cfl.errors import InputError

_CLUSTER_COLUMNS = ("parent", "u", "v")


def check_answer(algorithm: Algorithm, call: str, answer: Any, served: Callable[[State], int]) -> tuple[State, Info]:
    """Checks and returns the state and the Info that `init`, `round` or `place` returned.

    Args:
        call: Name of the method.
        answer: Value that the method returned.
        served: Function that counts the models that `serve` returns for a state; called only for an Info with
            `clusters`.

    Raises:
        InputError: the value is not a pair of a state and an Info, or a value of the Info has the wrong type.
    """
    _refuse(algorithm, _faults_of_answer(algorithm, call, answer, served))
    state, info = answer
    return state, info


def require_savable(algorithm: Algorithm, state: State) -> None:
    """Raises InputError if a field of a state has a value that a checkpoint cannot store."""
    values = {f.name: getattr(state, f.name) for f in fields(algorithm.state_type)}
    _refuse(
        algorithm,
        (f"state.{name} holds a {type(value).__name__}" for name, value in values.items() if not _is_savable(value)),
    )


def check_assignment(algorithm: Algorithm, served: Any, clients: Tensor, columns: int) -> Assignment:
    """Checks and returns the assignment that `serve` returned for these clients.

    Args:
        served: Value that `serve` returned.
        clients: Ids of the clients, int64 `[n]`.
        columns: Length d of a model.

    Raises:
        InputError: models, index or further rows have a wrong shape or dtype, or the index names a missing model.
    """
    _refuse(algorithm, _faults_of_assignment(algorithm, served, clients, columns))
    assignment: Assignment = served
    return assignment


def _refuse(algorithm: Algorithm, faults: Iterator[str]) -> None:
    for fault in faults:
        raise InputError(f"{type(algorithm).__name__}: {fault}")


def _faults_of_answer(algorithm: Algorithm, call: str, answer: Any, served: Callable[[State], int]) -> Iterator[str]:
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], Info):
        parts = answer if isinstance(answer, tuple) else (answer,)
        yield f"{call} returns {', '.join(type(part).__name__ for part in parts)}; return a state and an Info"
    state, info = answer
    kind, own = getattr(algorithm, "state_type", None), type(state).__name__
    if not is_dataclass(kind):
        yield "has no state_type, or one that is not a dataclass; set it to the dataclass of the state"
    if type(state) is not kind:
        yield f"its state is a {own}, but state_type is another class; set state_type to {own}"
    yield from _faults_of_numbers(algorithm, call, info)
    for name, rows in info.tables.items():
        columns = set(algorithm.tables.get(name, ()))
        if not columns or not all(row.keys() <= columns for row in rows):
            yield f"Info.tables[{name!r}] has columns that `tables` does not list; add them to `tables`"
    if info.similarity is not None:
        size, shape = len(info.similarity.clients), tuple(info.similarity.matrix.shape)
        if shape != (size, size):
            yield f"Info.similarity compares {size} clients, but its matrix has shape {shape}; give [{size}, {size}]"
    for name, values in info.clusters.items():
        if name not in _CLUSTER_COLUMNS or values.shape != (served(state),):
            yield f"Info.clusters[{name!r}] is not one of {', '.join(_CLUSTER_COLUMNS)} with one value per model"


def _faults_of_numbers(algorithm: Algorithm, call: str, info: Info) -> Iterator[str]:
    for name in ("down", "up", "bytes_up", "skipped"):
        count: Any = getattr(info, name)
        if not isinstance(count, Integral):
            yield f"{call} gives Info.{name} as a {type(count).__name__}; give int(...)"
        if int(count) < 0:
            yield f"{call} counts negative traffic: Info.{name} is {count}"
    unknown = info.scores.keys() - {"train/discrepancy", *algorithm.score_columns}
    if unknown:
        yield f"{call} gives the scores {sorted(unknown)}, which score_columns does not name"
    numbers: dict[str, Any] = {"loss": info.loss, **info.scores}
    for name, value in numbers.items():
        if not isinstance(value, Real):
            yield f"{call} gives {name} as a {type(value).__name__}; give float(...)"


def _is_savable(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, (int, str)) and _is_savable(item) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_savable(item) for item in value)
    return value is None or type(value) in (Tensor, int, float, bool, str)


def _faults_of_assignment(algorithm: Algorithm, served: Any, clients: Tensor, columns: int) -> Iterator[str]:
    if not isinstance(served, Assignment):
        yield f"serve returns a {type(served).__name__}; return Assignment(models, index)"
    models, index, weights, n = served.models, served.index, served.weights, len(clients)
    if index.dtype != torch.int64 or index.shape != clients.shape:
        yield (
            f"serve gives an index of {index.dtype} and shape {tuple(index.shape)} for {n} clients; give int64 [{n}]"
        )
    for rows in (models, *(row[None] for row in served.extra.values())):
        if rows.ndim != 2 or (len(rows) and rows.shape[1] != columns):
            yield f"serve gives a model of shape {tuple(rows.shape[1:])}; give ({columns},)"
    if n and not -1 <= int(index.min()) <= int(index.max()) < len(models):
        yield f"serve gives an index to which no model belongs; give 0 to {len(models) - 1}, or -1 for no model"
    if (weights is not None) != algorithm.mixes_models:
        what = "no weights" if weights is None else "weights"
        yield f"serve gives {what}, but mixes_models is {algorithm.mixes_models}; make them agree"
    if weights is None:
        return
    shape = [n, len(models)]
    if list(weights.shape) != shape:
        yield f"serve gives weights of shape {list(weights.shape)}; give {shape}"
    known, given = index >= 0, weights.sum(1)
    if not (weights >= 0).all() or not torch.allclose(given, known.to(given.dtype), rtol=0, atol=1e-6):
        yield "serve gives weights that do not sum to 1 (0 for a client without a model)"
    if not torch.equal(index[known], weights[known].argmax(1)):
        yield "serve gives an index that is not the largest weight; use Assignment.of_mixtures"
