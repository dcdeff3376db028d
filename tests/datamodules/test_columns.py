"""Tests columns of labels, clients and clusters in all forms that occur in tables."""

import datetime
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lit_cfl.datamodules.arrays import ArrayData
from lit_cfl.datamodules.columns import (
    label_space,
    labels_of,
    matrix,
    number_clients,
    pad_names,
    require_in_range,
)
from lit_cfl.errors import InputError, Notice

WORDS = ["b", "a", "b", "c"]


@pytest.mark.parametrize(
    "column",
    [
        WORDS,
        tuple(WORDS),
        np.array(WORDS),
        np.array(WORDS, object),
        np.array([word.encode() for word in WORDS]),
        [word.encode() for word in WORDS],
        pd.Series(WORDS),
        pd.Series(WORDS, dtype="object"),
        pd.Series(WORDS, dtype="category"),
        pd.Series(WORDS, dtype="string[pyarrow]"),
    ],
    ids=["list", "tuple", "U", "O", "S", "bytes", "str", "object", "category", "arrow"],
)
def test_words_are_words_in_every_form(column: Any):
    owner, names = number_clients(column, "client")
    assert (owner.tolist(), names.tolist()) == ([1, 0, 1, 2], ["a", "b", "c"])
    labels, found = labels_of(column, "y")
    assert (labels.tolist(), found) == ([1, 0, 1, 2], ("a", "b", "c"))
    data = ArrayData(np.zeros((4, 2)), column, column, column)
    assert data.pool().names == data.examples.label_names == ("a", "b", "c")
    assert data.federated(0).true_clusters.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "column",
    [
        [7, 2, 7, 11],
        np.array([7, 2, 7, 11], np.uint16),
        np.array([7, 2, 7, 11], object),
        np.array([7.0, 2.0, 7.0, 11.0]),
        torch.tensor([7, 2, 7, 11]),
        pd.Series([7, 2, 7, 11], dtype="Int64"),
        ["7", "2", "7", "11"],
        pd.Series(["7", "2", "7", "11"]),
    ],
    ids=["list", "uint16", "object", "float", "tensor", "Int64", "words", "str"],
)
def test_clients_that_are_numbers_are_in_the_order_of_numbers(column: Any):
    owner, names = number_clients(column, "client")
    assert (owner.tolist(), names.tolist()) == ([1, 0, 1, 2], ["2", "7", "11"])


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([str(i) for i in (10, 9, 8, 11)], ["8", "9", "10", "11"]),
        (["-1.5", "10", "2", "1e1"], ["-1.5", "2", "10", "1e1"]),
        (["10", "9", "x"], ["10", "9", "x"]),
    ],
)
def test_words_are_numbers_only_if_all_of_them_are(words: list[str], names: list[str]):
    index, found = number_clients(np.array(words), "client")
    assert found.tolist() == names
    assert [names[i] for i in index] == words


@pytest.mark.parametrize("large", [2.0**53, -1e19, float("inf")])
def test_floats_too_large_to_be_exact_ids_are_refused(large: float):
    assert number_clients([3.0, 2.0**53 - 1], "client")[1].tolist() == ["3", "9007199254740991"]
    with pytest.raises(
        InputError, match=r"client holds .*, but float64 cannot represent all whole numbers from 9007199254740992"
    ):
        number_clients([3.0, large], "client")


def test_bytes_that_are_not_text_stay_distinct():
    owner, names = number_clients([b"\xff", b"\xfe", b"\xff"], "client")
    assert (owner.tolist(), names.tolist()) == ([1, 0, 1], ["\xfe", "\xff"])  # þ and ÿ


def test_dates_are_in_the_order_of_time():
    days = [datetime.date(2024, 2, 1), datetime.date(2023, 5, 1), datetime.date(2024, 2, 1)]
    assert number_clients(days, "client")[1].tolist() == ["2023-05-01", "2024-02-01"]
    assert number_clients(pd.Series(pd.to_datetime(days)), "client")[0].tolist() == [1, 0, 1]
    with pytest.raises(InputError, match=r"y holds 2024-02-01.* in row 0; give a column of integers or strings"):
        labels_of(pd.Series(pd.to_datetime(days)), "y")


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["a", None], "client holds None in row 1"),
        ([1.0, float("nan")], "client holds nan in row 1"),
        (np.array([1.0, np.nan]), "client holds nan in row 1"),
        (pd.Series(["a", pd.NA], dtype="string"), "client holds (<NA>|nan) in row 1"),
        (pd.Series([1, pd.NA], dtype="Int64"), "client holds (<NA>|nan) in row 1"),
        (np.array(["2024-01-01", "NaT"], "M8[D]"), "client holds NaT in row 1"),
        ([[1], [2, 3]], r"client holds \[1\] in row 0; give one number or word in each row"),
        ([{"a": 1}], "client holds {'a': 1} in row 0"),
        (np.zeros((2, 2)), r"client has shape \(2, 2\); give one number or word in each row"),
        (["a", 1], "client holds 1 in row 1; give one number or word in each row, all of one kind"),
        ([1, True], "client holds True in row 1; give one"),
        (["a", b"a"], "client holds b'a' in row 1; give one"),
        (["a", "a\0"], r"client holds 'a\\x00', and NumPy drops such an end"),
        (
            np.array([2.0**24 + 2], np.float32),
            "client holds 16777218.0, but float32 cannot represent all whole numbers",
        ),
        (np.array([1j]), "client has dtype complex128"),
        (np.ma.masked_equal([1, 2], 2), "client is masked in row 1"),
    ],
)
def test_an_invalid_column_is_refused_by_its_row(column: Any, expected: str):
    with pytest.raises(InputError, match=expected):
        number_clients(column, "client")


# The label space


def test_labels_without_gaps_are_as_many_as_the_largest_says(recwarn: pytest.WarningsRecorder):
    assert label_space(np.array([2, 0, 1, 2]), "y") == 3
    assert not [one for one in recwarn if one.category is Notice]


@pytest.mark.parametrize("largest", [30, 200_000, 1_000_000_007, 2**40])
def test_ids_are_refused_as_labels(largest: int):
    with pytest.raises(InputError, match=rf"y holds 3 different labels, the largest {largest}: these are ids") as error:
        ArrayData(np.zeros((6, 2)), np.array([0, 7, largest] * 2)).pool()
    assert "np.unique(y, return_inverse=True)[1], give them as strings, or set num_labels" in str(error.value)
    named = ArrayData(np.zeros((6, 2)), np.array(["0", "7", str(largest)] * 2)).pool().examples
    assert (named.labels.tolist(), named.label_names) == ([0, 1, 2] * 2, ("0", "7", str(largest)))


def test_label_space_that_the_user_counts_may_have_gaps(recwarn: pytest.WarningsRecorder):
    assert ArrayData(np.zeros((6, 2)), np.array([0, 7, 200] * 2), num_labels=300).pool().examples.num_labels == 300
    assert not [one for one in recwarn if one.category is Notice]


def test_names_reach_as_far_as_the_label_space():
    assert pad_names(["cat", "dog"], 4) == ("cat", "dog", "2", "3")
    assert pad_names(["cat", "dog", "owl"], 2) == ("cat", "dog")
    assert pad_names([], 3) == ()


# Labels


@pytest.mark.parametrize(
    ("values", "labels", "names"),
    [
        ([3, 0, 2], [3, 0, 2], ()),
        (["dog", "cat", "dog", "ape"], [2, 1, 2, 0], ("ape", "cat", "dog")),
        (["10", "9"], [1, 0], ("9", "10")),
        ([True, False], [1, 0], ()),
        ([1.0, 0.0], [1, 0], ()),
    ],
)
def test_labels_are_whole_numbers(values: list[Any], labels: list[int], names: tuple[str, ...]):
    numbers, found = labels_of(values, "y")
    assert (numbers.tolist(), numbers.dtype, found) == (labels, np.int64, names)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, None, 1], r"y holds None in row 1 \(from 0\); fix the data or drop the row"),
        ([1.0, 0.5], "y holds 0.5 in row 1, not a whole number; number them"),
        ([[1, 2], [3, 4]], r"y holds \[1, 2\] in row 0; give one number or word in each row"),
    ],
)
def test_label_that_is_missing_or_no_label_is_named(values: list[Any], expected: str):
    with pytest.raises(InputError, match=expected):
        labels_of(values, "y")


@pytest.mark.parametrize(
    ("labels", "wrong"),
    [([0, 1, 3, 4], "3 in row 2"), ([0, -1], "-1 in row 1")],
)
def test_label_out_of_range_is_named_with_its_row(labels: list[int], wrong: str):
    with pytest.raises(InputError, match=f"y holds {wrong} .*labels are 0 to 2; fix the data, or set num_labels"):
        require_in_range(np.array(labels), 3, "y")


# Numbers


def test_number_columns_become_one_matrix():
    whole = matrix([[np.array([[1, 2], [3, 4]]), np.array([[5, 6]])]], "x")
    assert (whole.tolist(), whole.dtype) == ([[1, 2], [3, 4], [5, 6]], np.int32)
    assert matrix([[np.array([1.5, 2.5])]], "x").tolist() == [[1.5], [2.5]]
    both = matrix([[np.array([1, 2]), np.array([3])], [np.array([4.0, 5.0]), np.array([6.0])]], "x")
    assert (both.tolist(), both.dtype) == ([[1, 4], [2, 5], [3, 6]], np.float32)


def test_ragged_rows_words_and_missing_numbers_are_named():
    ragged = np.empty(2, dtype=object)
    ragged[:] = [[1.0, 2.0], [3.0]]
    for broken in ([ragged], [np.array(["a", "b"])], [np.array([[1.0]]), np.array([1.0])]):
        with pytest.raises(InputError, match="column x cannot be converted to one array of numbers"):
            matrix([broken], "column x")
    with pytest.raises(InputError, match="column x holds NaN or an empty value in row 1"):
        matrix([[np.array([[1.0, 2.0], [3.0, np.nan]])]], "column x")
    with pytest.raises(InputError, match="column x holds NaN or an empty value in row 2"):
        matrix([[np.array([1.0, 2.0, None], dtype=object)]], "column x")


# Names


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["s0", "s1", "s0 "], "'s0' and 's0 ', which are treated as different names"),
        (["caf\u00e9", "cafe\u0301"], r"'caf\\xe9' and 'cafe\\u0301'|'cafe\\u0301' and 'caf\\xe9'"),
        (["a b", "a  b"], "'a  b' and 'a b'"),
        (["Größwald", "Größwald "], "'Größwald' and 'Größwald '"),
        (["Ja", "ja", "nein"], "'Ja' and 'ja', which are treated as different names; make them equal .*str.lower"),
        (["", "a"], "holds '' and other names, which are treated .* or drop rows without a name"),
        (["  ", "a"], "holds '  ' and other names"),
    ],
    ids=["a blank", "Unicode", "blanks within", "readable", "capitals", "empty", "blanks alone"],
)
@pytest.mark.parametrize("read", [number_clients, labels_of])
def test_names_that_look_alike_are_noted(names: list[str], said: str, read: Callable[..., object]):
    with pytest.warns(Notice, match=said):
        read(names, "site")


def test_names_that_differ_to_the_eye_are_not_noted():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert number_clients(["A", "a", "s1", "s 1", "1", "2"], "site")[0].tolist() == [2, 3, 5, 4, 0, 1]
