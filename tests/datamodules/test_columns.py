import datetime
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from own_arrays import assert_refused

from lit_cfl.datamodules.arrays import ArrayData
from lit_cfl.datamodules.columns import label_space, labels_of, matrix, number_clients
from lit_cfl.errors import Notice

DAYS = [datetime.date(2024, 2, 1), datetime.date(2023, 5, 1), datetime.date(2024, 2, 1)]


def test_an_invalid_column_is_refused_by_its_row():
    assert_refused(lambda: number_clients([3.0, 2.0**53], "who"), "who | 9007199254740992.0 | integers or strings")
    assert_refused(lambda: number_clients(np.array([2.0**24 + 2], np.float32), "who"), "who | 16777218.0 | float32")
    assert_refused(lambda: number_clients(["a", 1], "who"), "who | 1 in row 1 | one kind")
    assert_refused(lambda: number_clients([1, True], "who"), "who | True | row 1")


def test_what_is_no_label_or_number_is_named_by_its_row():
    assert_refused(lambda: labels_of([0, None, 1], "y"), "y | None | row 1 (from 0)")
    assert_refused(lambda: labels_of([1.0, 0.5], "y"), "y | 0.5 | row 1 | number them")
    assert_refused(lambda: labels_of(pd.Series(pd.to_datetime(DAYS)), "y"), "y | 2024-02-01 | row 0")
    assert_refused(lambda: matrix([[np.array([[1.0]]), np.array([1.0])]], "y"), "y | array of numbers")
    assert_refused(lambda: matrix([[np.array([[1.0, 2.0], [3.0, np.nan]])]], "y"), "y | row 1")


def test_a_label_space_is_as_large_as_the_largest_says_and_ids_are_none():
    assert label_space(np.array([2, 0, 1, 2]), "y") == 3
    for largest, count in ((29, 3), (30, 3), (200_000, 4)):  # up to 10 times as many as there are
        labels = np.array([0, 7, largest, 8][:count] * 9)  # few labels, even if there are more examples than numbers
        inputs = np.zeros((len(labels), 2))
        if largest == 29:
            assert label_space(labels, "y") == 30
        else:
            assert_refused(ArrayData(inputs, labels), f"y | {count} different | {largest} | strings")
        named = ArrayData(inputs, labels.astype(str)).pool().examples
        assert named.labels.tolist()[:3] == [0, 1, count - 1]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["s0", "s1", "s0 "], "'s0' and 's0 '"),
        (["cafe\u0301", "caf\u00e9", "b"], r"'cafe\u0301' and 'caf\xe9'"),
        (["Ja", "ja", "nein"], "'Ja' and 'ja' | str.lower"),
        (["", "a"], "'' | drop"),
        (["A", "a", "s1", "s 1", "1", "2"], ""),  # these differ to the eye
    ],
    ids=["a blank", "Unicode", "capitals", "empty", "different"],
)
@pytest.mark.parametrize("read", [number_clients, labels_of])
def test_names_that_look_alike_are_noted_once(names: list[str], words: str, read: Callable, recwarn):
    read(names, "site")
    notes = [str(one.message) for one in recwarn if one.category is Notice]
    assert len(notes) == bool(words)
    assert all(word in notes[0] for word in words.split(" | ") if words)
