"""Index lists that are replaced, and stretches that clients share."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from quadratic import ids
from shift_cases import VISIBLE, data_at, few, made

from lit_cfl.data import ClientIndex
from lit_cfl.datamodules.shift import SwapPart


@few
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_replaced_lists_stand_where_they_should(sizes: list[int], draw: st.DataObject):
    index = ClientIndex.from_lists([torch.arange(size) + 10 * client for client, size in enumerate(sizes)])
    expected = [one.tolist() for one in index]
    for step in range(draw.draw(st.integers(1, 4))):
        chosen = draw.draw(st.lists(st.sampled_from(range(len(sizes))), unique=True))
        new = [draw.draw(st.lists(st.integers(100 * step, 100 * step + 9), max_size=5)) for _ in chosen]
        index = index.replace_lists(ids(*chosen), ClientIndex.from_lists([ids(*one) for one in new]))
        for client, one in zip(chosen, new, strict=True):
            expected[client] = one
        assert [one.tolist() for one in index] == expected
        assert len(index.values) <= 2 * int(index.sizes.sum())


def test_what_nobody_has_any_more_goes_in_time():
    shift = SwapPart(1.0)
    data = data_at(made(30, 10), [shift], 40, 0)
    for name in VISIBLE:
        assert len(getattr(data, name).values) <= 2 * int(getattr(data, name).sizes.sum())


def test_distinct_stretches_are_found():
    index = ClientIndex(torch.arange(10), ids(0, 4, 0, 4, 0), ids(4, 2, 4, 3, 0))
    stretches, stretch_of = index.distinct()
    assert len(stretches) == 4
    assert [one.tolist() for one in stretches.select(stretch_of)] == [one.tolist() for one in index]


def test_lists_that_are_shared_stay_shared_when_others_are_replaced():
    shared = ClientIndex(torch.arange(6), ids(0, 0, 0), ids(6, 6, 6))
    index = shared.replace_lists(ids(1), ClientIndex(ids(7, 8, 9, 9), ids(1), ids(2)))
    assert [one.tolist() for one in index] == [[0, 1, 2, 3, 4, 5], [8, 9], [0, 1, 2, 3, 4, 5]]
    assert len(index.values) == 8
