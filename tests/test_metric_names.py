"""Columns as arrays: labels, clients, numbers, and errors that name the value and the row."""

from datetime import date
from typing import Any

import numpy as np
import pytest

from lit_cfl.datamodules.columns import clients, in_range, matrix, whole_numbers
from lit_cfl.errors import InputError


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([3, 0, 2], [3, 0, 2]),
        (["dog", "cat", "dog", "ape"], [2, 1, 2, 0]),
        (["10", "9"], [0, 1]),
        ([True, False], [1, 0]),
        ([1.0, 0.0], [1, 0]),
    ],
)
def test_labels_are_whole_numbers(values: list[Any], labels: list[int]):
    numbers = whole_numbers(values, "y")
    assert (numbers.tolist(), numbers.dtype) == (labels, np.int64)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, None, 1], "label column 'y' holds None in row 1"),
        ([0.0, 1.0, float("nan")], "label column 'y' holds nan in row 2"),
        (["a", None], "label column 'y' holds None in row 1"),
        ([1.0, 0.5], "label column 'y' holds 0.5 in row 1: no whole number"),
        ([[1, 2], [3]], "label column 'y' holds lists; give a column of integers or strings"),
        ([[1, 2], [3, 4]], r"label column 'y' holds \[1, 2\] in row 0; give a column of integers or strings"),
        ([date(2020, 1, 1)], "label column 'y' holds datetime.date"),
    ],
)
def test_label_that_is_missing_or_no_label_is_named(values: list[Any], expected: str):
    with pytest.raises(InputError, match=expected):
        whole_numbers(values, "y")


@pytest.mark.parametrize(
    ("labels", "wrong", "remedy"),
    [
        ([0, 1, 3, 4], "3 in row 2", "mend the data, or read them by HFDataset with num_labels: 5"),
        (
            [0, -1],
            "-1 in row 1",
            "mend the data, or leave out a test part without labels, by HFDataset with splits: .*",
        ),
    ],
)
def test_label_out_of_range_is_named_with_its_row(labels: list[int], wrong: str, remedy: str):
    with pytest.raises(InputError, match=f"label column 'y' holds {wrong} .*labels are 0 to 2; {remedy}$"):
        in_range(np.array(labels), 3, "y")


@pytest.mark.parametrize(
    ("ids", "owner", "names"),
    [
        (["b", "a", "b", "10"], [2, 1, 2, 0], ["10", "a", "b"]),
        ([10, 9, 10], [1, 0, 1], ["9", "10"]),
    ],
)
def test_clients_are_numbered_in_sorted_order_and_keep_their_names(ids: list[Any], owner: list[int], names: list[str]):
    numbers, kept = clients(ids, "user")
    assert (numbers.tolist(), kept.tolist(), numbers.dtype) == (owner, names, np.int64)


@pytest.mark.parametrize(("ids", "missing"), [(["a", None], "None"), ([1.0, float("nan")], "nan")])
def test_missing_client_is_named(ids: list[Any], missing: str):
    with pytest.raises(InputError, match=f"client column 'user' holds {missing} in row 1"):
        clients(ids, "user")


def test_number_columns_become_one_float32_matrix():
    assert matrix([[np.array([[1, 2], [3, 4]]), np.array([[5, 6]])]], "x").tolist() == [[1, 2], [3, 4], [5, 6]]
    assert matrix([[np.array([1.5, 2.5])]], "x").tolist() == [[1.5], [2.5]]
    both = matrix([[np.array([1, 2]), np.array([3])], [np.array([4.0, 5.0]), np.array([6.0])]], "x")
    assert (both.tolist(), both.dtype) == ([[1, 4], [2, 5], [3, 6]], np.float32)


def test_ragged_rows_words_and_missing_numbers_are_named():
    ragged = np.empty(2, dtype=object)
    ragged[:] = [[1.0, 2.0], [3.0]]
    for broken in ([ragged], [np.array(["a", "b"])], [np.array([[1.0]]), np.array([1.0])]):
        with pytest.raises(InputError, match="column x cannot be made one array of numbers"):
            matrix([broken], "column x")
    with pytest.raises(InputError, match="column x holds NaN, or nothing, in row 1"):
        matrix([[np.array([[1.0, 2.0], [3.0, np.nan]])]], "column x")
    with pytest.raises(InputError, match="column x holds NaN, or nothing, in row 2"):
        matrix([[np.array([1.0, 2.0, None], dtype=object)]], "column x")
