"""Tests training data that are released gradually."""

from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest
import torch
from quadratic import ids
from shift_cases import after, data_at, lists, made, two_clients, union, with_sizes

from lit_cfl.data.shift import apply_shifts
from lit_cfl.datamodules.shift import Incremental, SwapAll, SwapPart
from lit_cfl.datamodules.shift.incremental import share_of
from lit_cfl.errors import InputError


@pytest.mark.parametrize("share", ["0.25", "0.5", "0.75", "1.0", "0.1", "0.7", "0.55", "0.29", "0.07", "1/3", "2/3"])
def test_share_is_rounded_up_exactly(share: str):
    sizes = torch.arange(0, 201)
    expected = [ceil(Fraction(share) * n) for n in sizes.tolist()]
    assert share_of(float(Fraction(share)), sizes).tolist() == expected


def test_releases_have_the_nominal_sizes_and_are_nested():
    sizes = (1, 2, 3, 7, 10, 99, 100, 101)
    data, there = with_sizes(*sizes), [set[int]() for _ in sizes]
    for r, share in ((0, 0.25), (50, 0.5), (100, 0.75), (150, 1.0)):
        data, _ = apply_shifts(data, [Incremental()], r, 3, data.population)
        assert data.num_examples.tolist() == [ceil(share * n) for n in sizes]
        now = [set(one.tolist()) for one in data.train]
        assert all(before <= later for before, later in zip(there, now, strict=True))
        there = now
    assert lists(data, "train")[0] != lists(with_sizes(*sizes), "train")[0]
    assert [sorted(one) for one in lists(data, "train")[0]] == lists(with_sizes(*sizes), "train")[0]


def test_release_changes_nothing_between_its_rounds():
    data, shift = with_sizes(8, 9), Incremental((2, 4), (0.5, 1.0))
    assert [data_at(data, [shift], r, 0).num_examples.tolist() for r in range(6)] == [
        [8, 9],
        [8, 9],
        [4, 5],
        [4, 5],
        [8, 9],
        [8, 9],
    ]


def test_test_and_validation_data_are_never_withheld():
    data = with_sizes(8, 9)
    for r in range(3):
        now = data_at(data, [Incremental((0, 1, 2), (0.2, 0.4, 1.0))], r, 0)
        assert lists(now, "validation", "test") == lists(data, "validation", "test")


def test_release_is_at_random():
    data = after(with_sizes(1000), Incremental())
    assert 80 < (data.train.entries < 500).sum() < 170  # 125 expected, plus or minus 4 standard deviations


def test_quarter_of_60_examples_is_what_the_trigger_is_tested_with():  # docs/ground_truth.md, check 16
    data = with_sizes(60)
    data = replace(data, examples=replace(data.examples, labels=torch.arange(60) % 2, num_labels=10))
    now = after(data, Incremental()).label_counts[0]
    assert data.label_counts[0].tolist() == [30, 30] + [0] * 8
    assert int(now.sum()) == 15
    assert float((data.label_counts[0] - now).abs().sum()) / 10 == 4.5


def test_release_continues_after_swaps():
    shifts = (SwapAll(0.5), SwapPart(0.5), Incremental((0, 4, 8), (0.25, 0.5, 1.0)))
    data = made(shifts=shifts)
    before = [union(data, "train"), union(data, "test")]
    last = data_at(data, shifts, 8, 0)
    assert [union(last, "train"), union(last, "test")] == before
    assert int(last.withheld.sizes.sum()) == 0


def test_nothing_released_is_taken_back_after_swaps():
    data = after(two_clients(), Incremental((0, 1), (0.25, 0.3)))  # each client starts with one of its four examples
    rich = replace(data, train=data.train.plus(data.withheld.first(2)), withheld=data.withheld.after(ids(2, 2)))
    assert after(rich, Incremental((0, 1), (0.25, 0.3)), round=1).num_examples.tolist() == [3, 3]


def test_client_cold_at_the_first_release_keeps_all():
    data, shift = with_sizes(8, 8, 8), Incremental((0, 1), (0.25, 0.5), participants="warm")
    first = after(data, shift, warm=ids(0, 2))
    assert first.num_examples.tolist() == [2, 8, 2]
    assert first.train[1].tolist() == data.train[1].tolist()
    then = after(first, shift, round=1, warm=ids(0, 1))
    assert then.num_examples.tolist() == [4, 8, 2]


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": (0, 1)}, r"rounds are \(0, 1\), shares \(0.25, 0.5, 0.75, 1.0\); give both in ascending"),
        ({"rounds": (), "shares": ()}, "one share for each round"),
        ({"rounds": (0, 5, 5, 6)}, r"rounds are \(0, 5, 5, 6\), .*; give both in ascending order"),
        ({"rounds": (-1, 5, 6, 7)}, "rounds from 0"),
        ({"shares": (0.25, 0.5, 0.4, 1.0)}, r"shares \(0.25, 0.5, 0.4, 1.0\); give both in ascending"),
        ({"shares": (0.0, 0.5, 0.8, 1.0)}, "above 0 to 1"),
        ({"shares": (0.25, 0.5, 0.8, 1.1)}, "above 0 to 1"),
        ({"shares": (0.25, float("nan"), 0.8, 1.0)}, "above 0 to 1"),
    ],
)
def test_releases_that_cannot_be_are_refused(options: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        Incremental(**options)
