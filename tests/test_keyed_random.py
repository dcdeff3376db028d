from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratic import ids
from torch import Tensor

from lit_cfl.keyed_random import draw_keyed_normal, draw_keyed_uniform, hash_keys

few = settings(deadline=None, derandomize=True, max_examples=50)


def test_hash_is_the_finaliser_of_murmurhash3():
    keys = [0, 1, 2, 12345, 2**31, 2**32 - 1, 2**32 + 1]
    assert hash_keys(ids(*keys)).tolist() == [finaliser(key) for key in keys]
    assert hash_keys(ids(1)).tolist() == [0x514E28B7]


def finaliser(key: int) -> int:
    """Computes fmix32 of MurmurHash3 with Python integers."""
    key &= 0xFFFFFFFF
    key = ((key ^ key >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    key = ((key ^ key >> 13) * 0xC2B2AE35) & 0xFFFFFFFF
    return key ^ key >> 16


KEYS = torch.arange(20_000)


@few
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=10), st.integers(1, 9))
def test_keyed_numbers_depend_on_their_key_alone(keys: list[int], size: int):
    together = draw_keyed_uniform(ids(*keys), size)
    assert torch.equal(together, torch.cat([draw_keyed_uniform(ids(key), size) for key in keys]))
    assert torch.equal(together.flip(0), draw_keyed_uniform(ids(*keys).flip(0), size))
    assert ((together > 0) & (together < 1)).all()


@pytest.mark.parametrize(
    "keys", [KEYS, KEYS << 32, KEYS ^ 0x1234567890ABCDEF, -KEYS], ids=["low", "high", "xor", "minus"]
)
def test_keyed_uniform_numbers_are_uniform(keys: Tensor):
    tenths = (draw_keyed_uniform(keys, 5).flatten() * 10).long().bincount()
    assert len(tenths) == 10
    # chi-squared with 9 degrees of freedom exceeds this in 1 of 10,000 cases
    assert float(((tenths - 10_000) ** 2 / 10_000).sum()) < 33.7


def test_keyed_normal_numbers_are_normal():
    numbers = draw_keyed_normal(KEYS, 8).flatten()
    bound = 4 / sqrt(len(numbers))
    assert abs(float(numbers.mean())) < bound
    assert abs(float(numbers.std()) - 1) < bound / sqrt(2)
    assert abs(float((numbers**3).mean())) < bound * sqrt(15)
    assert abs(float((numbers**4).mean()) - 3) < bound * sqrt(96)
    for limit, share in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        assert abs(float((numbers.abs() < limit).double().mean()) - share) < bound


@pytest.mark.parametrize("apart", [1, 2, 28 * 28, 50_000, 2**32])
def test_neighbouring_keys_are_not_correlated(apart: int):
    one, other = draw_keyed_normal(KEYS, 4), draw_keyed_normal(KEYS + apart, 4)
    shared = len(set(KEYS.tolist()) & set((KEYS + apart).tolist()))
    assert shared == max(0, len(KEYS) - apart)
    for k in range(4):  # each number of one key with each number of the other key
        for j in range(4):
            assert abs(correlation(one[:, k], other[:, j])) < 4.5 / sqrt(len(KEYS))
    for k in range(4):  # and those of the same key
        for j in range(k):
            assert abs(correlation(one[:, k], one[:, j])) < 4.5 / sqrt(len(KEYS))


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1])
