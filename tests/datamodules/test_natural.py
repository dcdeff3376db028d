from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from own_arrays import assert_refused
from partition_cases import divided, few, held, pool_of, seeds
from quadratic import ids
from torch import Tensor

from lit_cfl.data import Division
from lit_cfl.datamodules.partition import Natural, Pool
from lit_cfl.errors import Notice

OWNER = ids(2, 0, 2, 4, 0, 2, -1, 2, 4, 2)  # owners 1 and 3 have no examples


def owned_pool(owner: Tensor = OWNER, num_train: int | None = None) -> Pool:
    labels = torch.arange(len(owner)) % 2
    num_train = len(owner) if num_train is None else num_train
    return replace(pool_of(labels[:num_train], labels[num_train:], owner, 2), names=("ann", "bob", "cy", "di", "eve"))


def owners(division: Division, owner: Tensor = OWNER) -> list[set[int]]:
    both = zip(division.train, division.test, strict=True)
    return [set(owner[torch.cat([train, test])].tolist()) for train, test in both]


def lists(division: Division) -> list[list[int]]:
    return [one.tolist() for index in (division.train, division.test) for one in index]


def test_each_owner_is_a_client_with_its_name():
    division = divided(Natural(test=0.0), owned_pool())
    assert [one.tolist() for one in division.train] == [[1, 4], [0, 2, 5, 7, 9], [3, 8]]
    assert (division.true_clusters.tolist(), division.skew) == ([-1, -1, -1], "other")
    assert division.names == ("ann", "cy", "eve")
    assert divided(Natural(test=0.0), replace(owned_pool(), names=())).names == ()


@few
@given(st.lists(st.integers(-1, 6), min_size=2, max_size=60), st.floats(0, 0.9), st.integers(0, 60), seeds)
def test_owners_keep_their_examples_whatever_the_test_share(owner: list[int], share: float, cut: int, seed: int):
    held_by = torch.tensor([*owner, 3])
    pool = replace(owned_pool(held_by, min(cut, len(held_by))), names=())
    division = divided(Natural(test=share), pool, seed)
    assert owners(division, held_by) == [{number} for number in sorted(set(held_by.tolist()) - {-1})]
    assert held(division) == (held_by >= 0).nonzero().flatten().tolist()
    assert division.train.sizes.min() > 0


def test_own_test_part_goes_to_its_owners():
    division = divided(Natural(test="own"), owned_pool(num_train=5))
    assert [one.tolist() for one in division.train] == [[1, 4], [0, 2], [3]]
    assert [one.tolist() for one in division.test] == [[], [5, 7, 9], [8]]
    assert lists(divided(Natural(), owned_pool(num_train=5))) == lists(division)  # null is the default of test
    owner = ids(0, 0, 1, 2, 1, 3)  # owners 2 and 3 have test examples alone, so they are not clients
    assert owners(divided(Natural(test="own"), owned_pool(owner, 3)), owner) == [{0}, {1}]


def test_tests_are_a_tenth_where_nobody_who_trains_owns_any():
    owner = torch.cat([torch.arange(4).repeat(20), torch.full((7,), -1)])  # as in Sent140
    division = divided(Natural(), owned_pool(owner, 80))
    assert (division.train.sizes.tolist(), division.test.sizes.tolist()) == ([18] * 4, [2] * 4)


def test_small_owners_are_left_out_and_noted():
    with pytest.warns(Notice, match=r"2 of 3 clients .* 3 .*min_examples"):
        division = divided(Natural(3, test=0.0), owned_pool())
    assert (owners(division), division.names) == ([{2}], ("cy",))
    assert owners(divided(Natural(2, test=0.0), owned_pool())) == [{0}, {2}, {4}]
    assert owners(divided(Natural(2, test="own"), owned_pool(num_train=5))) == [{0}, {2}, {4}]  # 1 + 1 count as 2


def test_clients_are_drawn_at_random_in_their_order():
    owner = torch.arange(10).repeat(3)
    pool = replace(owned_pool(owner), names=())
    drawn = [owners(divided(Natural(max_clients=4), pool, seed), owner) for seed in range(30)]
    assert all(len(one) == 4 and [max(o) for o in one] == sorted(max(o) for o in one) for one in drawn)
    assert {number for one in drawn for o in one for number in o} == set(range(10))
    assert drawn[7] == owners(divided(Natural(max_clients=4), pool, 7), owner)
    assert len(divided(Natural(max_clients=99), pool).train) == 10


def test_impossible_natural_clients_are_refused():
    assert_refused(lambda: divided(Natural(), pool_of(ids(0, 1))), "client column")
    assert_refused(lambda: divided(Natural(6), owned_pool()), "6 examples | 5 | min_examples")
    assert_refused(lambda: divided(Natural(test="own"), owned_pool()), "test | own")
