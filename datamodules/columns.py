"""Columns of a table as arrays: labels, clients, numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lit_cfl.errors import InputError


def whole_numbers(values: Sequence[Any], column: str) -> np.ndarray:
    """Converts labels to int64 `[N]`: whole numbers as they are, strings to their place in sorted order.

    Raises:
        InputError: a label is missing, or the column holds anything else.
    """
    _require_all(values, f"label column {column!r}")
    try:
        array = np.asarray(values)
    except ValueError as error:  # lists of unequal length
        raise InputError(f"label column {column!r} holds lists; give a column of integers or strings") from error
    if array.dtype.kind == "U":
        return np.unique(array, return_inverse=True)[1].astype(np.int64)
    if array.dtype.kind == "f":
        broken = np.flatnonzero(array != np.floor(array))
        if len(broken):
            raise InputError(
                f"label column {column!r} holds {array[broken[0]]} in row {broken[0]}: no whole number; give "
                "num_labels: 0 where the labels are numbers to predict"
            )
    elif array.dtype.kind not in "iub" or array.ndim != 1:
        raise InputError(f"label column {column!r} holds {values[0]!r} in row 0; give a column of integers or strings")
    return array.astype(np.int64)


def in_range(labels: np.ndarray, num_labels: int, column: str) -> np.ndarray:
    """Returns these labels, int64 `[N]`. Raises InputError where one is not 0 to `num_labels - 1`."""
    wrong = np.flatnonzero((labels < 0) | (labels >= num_labels))
    if len(wrong):
        most = int(labels.max())
        wider = f", or read them by HFDataset with num_labels: {most + 1}" if most >= num_labels else ""
        if labels[wrong[0]] < 0:
            wider = ", or leave out a test part without labels, by HFDataset with splits: [train, validation]"
        raise InputError(
            f"label column {column!r} holds {labels[wrong[0]]} in row {wrong[0]} (from 0, test rows after the training "
            f"rows), but labels are 0 to {num_labels - 1}; mend the data{wider}"
        )
    return labels


def clients(values: Sequence[Any], column: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers the ids of clients, of whatever type.

    Returns:
        the client of each row, int64 `[N]`, 0 to n - 1 in sorted order of the ids; and their names, str `[n]`.
    """
    _require_all(values, f"client column {column!r}")
    names, owner = np.unique(np.asarray(values), return_inverse=True)
    return owner.astype(np.int64), names.astype(np.str_)


def matrix(parts: Sequence[Sequence[np.ndarray]], what: str) -> np.ndarray:
    """Converts number columns to float32 `[N, ...]`.

    Args:
        parts: the splits of one column `[n, ...]`, or those of several scalar columns `[n]`, which become the columns
            of `[N, columns]`.
        what: their name, for errors.

    Raises:
        InputError: rows of different length, something that is no number, or NaN.
    """
    try:
        whole = [np.concatenate(splits) for splits in parts]
        array = np.asarray(whole[0] if len(whole) == 1 else np.stack(whole, axis=1), dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} cannot be made one array of numbers ({error}); give rows of equal length") from error
    array = array[:, None] if array.ndim == 1 else array
    missing = np.flatnonzero(np.isnan(array.reshape(len(array), -1)).any(axis=1))
    if len(missing):
        raise InputError(f"{what} holds NaN, or nothing, in row {missing[0]}; mend the data or drop the row")
    return array


def _require_all(values: Sequence[Any], what: str) -> None:
    for row, value in enumerate(values):
        if value is None or value != value:
            raise InputError(f"{what} holds {value} in row {row} (from 0); mend the data or drop the row")
