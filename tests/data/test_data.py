import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratic import ids
from torch import Tensor

from lit_cfl.data import ClientIndex, Examples, FederatedData, View
from lit_cfl.datamodules.partition.base import apportion, split_each
from lit_cfl.errors import Notice

few = settings(deadline=None, derandomize=True, max_examples=30)


def pool(views: tuple[View, ...] = (View(),), dtype: torch.dtype = torch.uint8, scale: float = 1.0) -> Examples:
    """Makes three 2 x 2 images with the pixels 1 to 12 in order, and the labels 0, 2 and 1."""
    return Examples(torch.arange(1, 13).view(3, 1, 2, 2).to(dtype), ids(0, 2, 1), 3, scale, views)


def owned(*lists: list[int]) -> ClientIndex:
    return ClientIndex.from_lists([torch.tensor(one, dtype=torch.int64) for one in lists])


def held(index: ClientIndex) -> list[list[int]]:
    return [one.tolist() for one in index]


def test_views_mix_in_one_batch_and_turn_counter_clockwise():
    views = (View(), View(2), View(0, (1, 2, 0)), View(1, (2, 1, 0)))
    images, labels = pool(views).batch(ids(10, 0, 5, 7))  # example and view: 1 3, 0 0, 2 1, 1 2
    assert images[:, 0].tolist() == [[[6, 8], [5, 7]], [[1, 2], [3, 4]], [[12, 11], [10, 9]], [[5, 6], [7, 8]]]
    assert labels.tolist() == pool(views).targets(ids(10, 0, 5, 7)).tolist() == [0, 0, 1, 0]


def test_without_labels_the_inputs_are_the_same_and_no_view_gives_labels():
    whole = pool((View(1), View(1, (2, 0, 1))))
    hidden = whole.without_labels()
    assert torch.equal(hidden.batch(ids(0, 4))[0], whole.batch(ids(0, 4))[0])
    assert hidden.batch(ids(0, 4))[1].tolist() == [0, 0]
    assert hidden.label_kind == "none"


def test_bytes_stay_bytes_in_the_pool_and_are_scaled_when_handed_out():
    examples = pool(scale=0.25)
    images, labels = examples.batch(ids(1))
    assert images.tolist() == [[[[1.25, 1.5], [1.75, 2.0]]]]
    assert (examples.inputs.dtype, images.dtype, labels.dtype) == (torch.uint8, torch.float32, torch.int64)
    assert examples.batch(ids(0), torch.float64)[0].dtype == torch.float64


@pytest.mark.parametrize("views", [(View(),), (View(), View(1), View(3)), (View(2, (1, 0, 2)),)])
def test_stored_bytes_become_what_a_batch_hands_out(views: tuple[View, ...]):
    examples, index = pool(views, scale=1 / 255), torch.arange(3 * len(views)).flip(0)
    inputs, labels = examples.stored_bytes(index, torch.float32)
    assert inputs.dtype == torch.uint8
    for found, expected in zip((examples.decoding(torch.float32)(inputs), labels), examples.batch(index), strict=True):
        assert torch.equal(found, expected)


def test_batch_leaves_the_pool_alone_and_may_be_empty():
    examples = pool((View(), View(1, (1, 0, 2))), torch.float32, 0.5)
    examples.batch(ids(0, 3, 4, 5))[0].fill_(-1)
    examples.targets(ids(3, 4)).fill_(-1)
    assert examples.inputs.flatten().tolist() == list(range(1, 13))
    assert examples.labels.tolist() == [0, 2, 1]
    images, labels = examples.batch(ids())
    assert (images.shape, labels.shape) == ((0, 1, 2, 2), (0,))


def test_index_gives_each_client_its_list():
    index = owned([4, 2], [], [7], [0, 1, 3])
    assert (held(index), len(index)) == ([[4, 2], [], [7], [0, 1, 3]], 4)
    assert (index.sizes.tolist(), index.owners.tolist()) == ([2, 0, 1, 3], [0, 0, 2, 3, 3, 3])
    chosen = index.select(ids(3, 1, 0))
    assert (held(chosen), chosen.owners.tolist()) == ([[0, 1, 3], [], [4, 2]], [0, 0, 0, 2, 2])
    packed = chosen.pack()
    assert (packed.values.tolist(), packed.starts.tolist()) == ([0, 1, 3, 4, 2], [0, 3, 3])
    assert (held(owned()), owned().values.dtype, owned().owners.tolist()) == ([], torch.int64, [])


def test_lists_are_cut_and_joined_client_by_client():
    index = owned([4, 2], [], [7], [0, 1, 3])
    assert held(index.first(ids(1, 1, 0, 2))) == [[4], [], [], [0, 1]]
    assert held(index.after(ids(1, 1, 0, 2))) == [[2], [], [7], [3]]
    assert held(index.first(2)) == [[4, 2], [], [7], [0, 1]]
    assert held(index.plus(owned([1], [3], [8, 9], []))) == [[4, 2, 1], [3], [7, 8, 9], [0, 1, 3]]
    assert held(ClientIndex.from_owners(ids(2, 0, -1, 2, 0), 4)) == [[1, 4], [], [0, 3], []]


def test_clients_may_share_a_list():
    shared = ClientIndex(ids(8, 9, 5), ids(0, 0, 2), ids(2, 2, 1))
    assert shared.pack().values.tolist() == shared.entries.tolist() == [8, 9, 8, 9, 5]
    compact = ClientIndex(ids(4, 5, 8, 9), ids(2, 2, 1), ids(2, 2, 1)).compact()
    assert held(compact) == [[8, 9], [8, 9], [5]]
    assert (compact.values.tolist(), compact.starts.tolist()) == ([8, 9, 5], [0, 0, 2])
    whole = ClientIndex(torch.arange(6), ids(0, 0, 0), ids(6, 6, 6))
    changed = whole.replace_lists(ids(1), ClientIndex(ids(7, 8, 9, 9), ids(1), ids(2)))
    assert (held(changed), len(changed.values)) == ([[0, 1, 2, 3, 4, 5], [8, 9], [0, 1, 2, 3, 4, 5]], 8)
    index = ClientIndex(torch.arange(10), ids(0, 4, 0, 4, 0), ids(4, 2, 4, 3, 0))
    stretches, stretch_of = index.distinct()
    assert (len(stretches), held(stretches.select(stretch_of))) == (4, held(index))


@few
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_replaced_lists_are_in_their_places_and_what_nobody_has_goes_in_time(sizes: list[int], draw: st.DataObject):
    index = ClientIndex.from_lists([torch.arange(size) + 10 * client for client, size in enumerate(sizes)])
    expected = held(index)
    for step in range(draw.draw(st.integers(1, 4))):
        chosen = draw.draw(st.lists(st.sampled_from(range(len(sizes))), unique=True))
        new = [draw.draw(st.lists(st.integers(100 * step, 100 * step + 9), max_size=5)) for _ in chosen]
        index = index.replace_lists(ids(*chosen), ClientIndex.from_lists([ids(*one) for one in new]))
        for client, one in zip(chosen, new, strict=True):
            expected[client] = one
        assert held(index) == expected
        assert len(index.values) <= 2 * int(index.sizes.sum())


def three_clients(newcomers: Tensor | None = None) -> FederatedData:
    examples = pool((View(), View(0, (1, 2, 0))))
    train, test = owned([0, 1, 2, 0], [], [4, 5]), owned([1], [2, 0], [3])
    truth = ids(0, -1, 1)
    return FederatedData(examples, train, owned([], [1], []), test, truth, newcomers=newcomers, names=("A", "B", "C"))


def test_counts_are_those_that_the_clients_train_on_and_see():
    data = three_clients()
    assert data.label_counts.tolist() == [[2, 1, 1], [0, 0, 0], [1, 0, 1]]
    assert data.num_examples.tolist() == [4, 0, 2]
    assert data.population.tolist() == [0, 1, 2]
    assert three_clients(torch.tensor([False, True, False])).population.tolist() == [0, 2]


def test_subset_is_renumbered_and_cut():
    part = three_clients(torch.tensor([True, False, False])).subset(ids(2, 0), max_examples=3)
    assert (held(part.train), held(part.test)) == ([[4, 5], [0, 1, 2]], [[3], [1]])
    assert (part.true_clusters.tolist(), part.population.tolist(), part.names) == ([1, 0], [0], ("C", "A"))
    assert three_clients().subset(ids(0, 1)).num_examples.tolist() == [4, 0]
    later = three_clients().offset_clients(2)
    assert (held(later.train)[2:], later.names) == (held(three_clients().train), ("", "", "A", "B", "C"))
    assert (later.num_examples.tolist()[:2], later.true_clusters.tolist()) == ([0, 0], [-1, -1, 0, -1, 1])


def test_share_that_rounds_to_nothing_for_all_clients_is_noted(recwarn: pytest.WarningsRecorder):
    rng = np.random.default_rng(0)
    assert split_each(owned([1, 2], list(range(20))), 0.04, rng)[1].sizes.tolist() == [0, 1]
    assert split_each(owned([1, 2]), 0.0, rng)[1].sizes.tolist() == [0]
    assert not recwarn.list
    with pytest.warns(Notice, match=r"test is 0\.04, .* the largest has 10; .* 0\.05"):
        _, taken = split_each(owned([1, 2], list(range(10))), 0.04, rng)
    assert taken.sizes.tolist() == [0, 0]
    with pytest.warns(Notice, match="validation is 0.9, .* the largest has 1;"):
        split_each(owned([1], [2]), 0.9, rng, "validation")


def test_apportioned_numbers_sum_to_the_total_by_largest_remainders():
    # equal remainders: the first entries get more
    assert apportion(torch.tensor([1.0, 1.0, 1.0]), 5).tolist() == [2, 2, 1]
    assert apportion(torch.tensor([0.0, 3.0, 1.0]), 3).tolist() == [0, 2, 1]
