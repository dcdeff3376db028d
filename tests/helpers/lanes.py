"""Chooses the cells of a parametrised test that run by default; all other cells are marked `full`."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def thinned(*axes: Iterable[Any], ids: Iterable[str] | None = None) -> list[Any]:
    """Returns all combinations of the arguments' values, of which the default lane runs only some.

    The default lane has a diagonal, which contains every value of every argument. Of a single argument it has every
    third value.

    Args:
        axes: Values of each argument, in the order of the arguments' names.
        ids: Name of each value of a single argument; None for pytest's names.
    """
    values = [list(axis) for axis in axes]
    step = min([3, *map(len, values)]) if len(values) > 1 else 3
    names = list(ids) if ids is not None else [None] * len(values[0])
    cells = []
    for places in product(*(range(len(axis)) for axis in values)):
        cell = [axis[place] for axis, place in zip(values, places, strict=True)]
        marks = [pytest.mark.full] if sum(places) % step else []
        cells.append(pytest.param(*cell, marks=marks, id=names[places[0]]))
    return cells


def every_third(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Returns all cases, of which the default lane runs every third."""
    return [pytest.param(*case, marks=[pytest.mark.full] if number % 3 else []) for number, case in enumerate(cases)]
