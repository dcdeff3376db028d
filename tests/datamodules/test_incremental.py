"""Tests training data that are released gradually: shares, order, and clients with more or less than others."""

from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest
import torch
from quadratic import ids
from shift_cases import after, two_clients, with_sizes

from lit_cfl.datamodules.shift import Incremental
from lit_cfl.datamodules.shift.incremental import share_of
from lit_cfl.errors import InputError


@pytest.mark.parametrize("share", ["0.25", "0.75", "1.0", "0.1", "0.7", "0.55", "0.29", "0.07", "1/3", "2/3"])
def test_share_is_rounded_up_exactly(share: str):
    expected = [ceil(Fraction(share) * n) for n in range(201)]
    assert share_of(float(Fraction(share)), torch.arange(201)).tolist() == expected


def test_release_is_at_random():
    data = after(with_sizes(1000), Incremental())
    assert len(data.train.entries) == 250
    assert 80 < (data.train.entries < 500).sum() < 170  # 125 expected, plus or minus 4 standard deviations


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


@pytest.mark.parametrize(
    ("rounds", "shares"),
    [
        ((0, 1), (0.25, 0.5, 0.75, 1.0)),
        ((), ()),
        ((0, 5, 5, 6), (0.25, 0.5, 0.75, 1.0)),
        ((-1, 5, 6, 7), (0.25, 0.5, 0.75, 1.0)),
        ((0, 1, 2, 3), (0.25, 0.5, 0.4, 1.0)),
        ((0, 1), (0.0, 0.5)),
        ((0, 1), (0.25, 1.1)),
        ((0, 1), (float("nan"), 0.8)),
    ],
)
def test_releases_that_cannot_be_are_refused(rounds: tuple[int, ...], shares: tuple[float, ...]):
    with pytest.raises(InputError) as refusal:
        Incremental(rounds, shares)
    assert f"rounds are {rounds}, shares {shares}" in str(refusal.value)
