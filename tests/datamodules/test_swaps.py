"""Tests swaps: two clients exchange all their data, or the examples of one label each."""

from collections import Counter
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from quadratic import ids
from shift_cases import ALL, VISIBLE, after, data_at, few, lists, made, rows, seen, two_clients, union

from lit_cfl.data import ClientIndex, Examples, FederatedData, View
from lit_cfl.data.shift import Shift, ShiftContext, apply_shifts
from lit_cfl.datamodules.shift import Incremental, SwapAll, SwapPart
from lit_cfl.datamodules.shift.swaps import draw_pairs, swap_part, unique_labels
from lit_cfl.errors import InputError

# Swap all


@few
@given(st.integers(2, 15), st.floats(0, 1), st.integers(0, 1000))
def test_whole_swaps_never_change_the_union(clients: int, probability: float, seed: int):
    data = made(clients, seed=seed)
    swapped = data_at(data, [SwapAll(probability)], 3, seed)
    for name in VISIBLE:
        assert union(swapped, name) == union(data, name)


@few
@given(st.integers(2, 15), st.integers(0, 1000))
def test_training_validation_test_and_truth_move_together(clients: int, seed: int):
    data = after(made(clients, seed=seed), Incremental((0,), (0.5,)))
    swapped, (moves,) = apply_shifts(data, [SwapAll(1.0)], 0, seed, data.population)
    source = torch.arange(clients).index_copy(0, moves.clients, moves.partners).tolist()
    assert lists(swapped) == [[one[client] for client in source] for one in lists(data)]
    assert swapped.true_clusters.tolist() == [data.true_clusters.tolist()[client] for client in source]
    assert [source[client] for client in source] == list(range(clients))  # each swap is an exchange in both directions


def test_swap_copies_no_list():
    data = made()
    assert after(data, SwapAll(1.0)).train.values is data.train.values


@pytest.mark.parametrize("shift", [SwapAll(0.0), SwapPart(0.0)])
def test_probability_0_swaps_nothing(shift: Shift):
    data = made()
    assert apply_shifts(data, [shift], 0, 0, data.population) == (data, ())


@pytest.mark.parametrize(("clients", "moved"), [(1, 0), (2, 2), (8, 8), (9, 8)])
def test_probability_1_swaps_every_pair(clients: int, moved: int):
    data = made(clients)
    _, moves = apply_shifts(data, [SwapAll(1.0)], 0, 0, data.population)
    assert sum(len(one.clients.unique()) for one in moves) == moved


def test_number_of_exchanges_is_binomial():
    clients, rounds, p = 1001, 60, 0.05
    counts = [len(draw_pairs(torch.arange(clients), p, np.random.default_rng(r))) for r in range(rounds)]
    assert abs(np.mean(counts) - 500 * p) < 4 * sqrt(500 * p * (1 - p) / rounds)
    assert 0.5 < np.var(counts) / (500 * p * (1 - p)) < 1.7  # 4 standard deviations of a variance of 60 draws


def test_every_partner_is_as_likely():
    draws = [draw_pairs(ids(3, 5, 6, 9), 1.0, np.random.default_rng(r)) for r in range(3000)]
    partners = Counter(int(pairs[(pairs == 3).any(1)].sum()) - 3 for pairs in draws)
    assert set(partners) == {5, 6, 9}
    assert all(abs(count - 1000) < 4 * sqrt(3000 * 2 / 9) for count in partners.values())


# Swap part


def test_partial_swap_exchanges_one_label_each():
    data = two_clients()
    swapped, (moves,) = apply_shifts(data, [SwapPart(1.0)], 0, 0, data.population)
    kept = [[sorted(one) for one in clients] for clients in lists(swapped)]
    # client 0 gives its 0s (train 0 1, validation 12, test 8), client 1 its 2s (train 5 6, validation 13, test 11)
    assert kept == [[[2, 3, 5, 6], [0, 1, 4, 7]], [[13], [12]], [[9, 11], [8, 10]]]
    assert rows(moves) == [(0, 1, 4, 0, -1), (1, 0, 4, 1, -1)]
    assert swapped.true_clusters.tolist() == [-1, -1]


def test_partial_swap_takes_withheld_examples_along():
    withheld = ClientIndex.from_lists([ids(1), ids(6, 7)])
    data = replace(two_clients(withheld=withheld), train=ClientIndex.from_lists([ids(0, 2, 3), ids(4, 5)]))
    swapped, (moves,) = apply_shifts(data, [SwapPart(1.0)], 0, 0, data.population)
    assert [sorted(one) for one in lists(swapped, "withheld")[0]] == [[6], [1, 7]]
    assert moves.examples.tolist() == [3, 3]  # withheld examples are not counted


@few
@given(st.integers(2, 15), st.integers(2, 8), st.integers(0, 1000))
def test_partial_swaps_never_change_the_union(clients: int, labels: int, seed: int):
    data = after(made(clients, labels, seed), Incremental((0,), (0.5,)))
    swapped = data_at(data, [SwapPart(0.7)], 3, seed)
    for name in ALL:
        assert union(swapped, name) == union(data, name)


@few
@given(st.integers(2, 15), st.integers(2, 8), st.integers(0, 1000))
def test_partial_swap_leaves_all_other_labels(clients: int, labels: int, seed: int):
    data = made(clients, labels, seed)
    swapped, moves = apply_shifts(data, [SwapPart(1.0)], 0, seed, data.population)
    exchanges = [row for one in moves for row in rows(one)]
    assume(exchanges)  # hypothesis complains if this rarely holds
    for client, partner, examples, *_ in exchanges:
        came, went = seen(swapped, client) - seen(data, client), seen(data, client) - seen(swapped, client)
        (given,), (got,) = ({label for _, label in pairs} for pairs in (went, came))
        assert given != got
        assert came.total() == examples
        assert came == Counter({pair: n for pair, n in seen(data, partner).items() if pair[1] == got})
        assert given not in {label for _, label in seen(swapped, client)} - {label for _, label in seen(data, partner)}
        for name in ("train", "test"):  # a client gives a label that it has in both splits, and its partner does not
            assert given in {label for _, label in seen(data, client, name)}
        assert not all(given in {label for _, label in seen(data, partner, name)} for name in ("train", "test"))


def test_each_possible_label_is_as_likely():
    data = two_clients()
    wide = replace(data, train=ClientIndex.from_lists([ids(0, 1, 2), ids(5, 6)]), test=data.test)  # {0, 1} and {2}
    drawn = [unique_labels(wide, ids(0, 1)[None], np.random.default_rng(r)).tolist() for r in range(1000)]
    assert {tuple(labels[0]) for labels in drawn} == {(0, 2), (1, 2)}
    assert abs(sum(labels[0][0] for labels in drawn) - 500) < 4 * sqrt(250)


def alike_and_different() -> FederatedData:
    """Makes ten clients with one label each: six with label 0, two with 1 and two with 2."""
    labels = ids(0, 0, 0, 0, 0, 0, 1, 1, 2, 2).repeat(2)
    one_each = ClientIndex.from_sizes(torch.arange(10), torch.ones(10, dtype=torch.int64))
    examples = Examples(torch.arange(20)[:, None].float(), labels, 3)
    test = replace(one_each, values=one_each.values + 10)
    return FederatedData(examples, one_each, ClientIndex.empty(10), test, torch.zeros(10, dtype=torch.int64))


def test_pair_without_labels_of_its_own_is_skipped():
    data = alike_and_different()
    held, skipped = data.examples.labels[:10], 0
    for seed in range(20):
        at = ShiftContext(0, seed, data.population)
        pairs = draw_pairs(at.participants, 1.0, at.rng("pairs"))  # pairs in the order of their swaps
        able = held[pairs[:, 0]] != held[pairs[:, 1]]
        _, moves = SwapPart(1.0).step(data, at)
        assert (moves.clients.tolist() if moves else []) == sorted(pairs[able].flatten().tolist())
        skipped += not able[:-1].all()
    assert skipped > 5


def test_swap_part_looks_at_labels_as_clients_see_them():
    data = two_clients()
    examples = replace(data.examples, views=(View(), View(label_map=(2, 0, 1))))
    unseen = data.of_lists(lambda index: replace(index, values=index.values + 14))
    data = replace(unseen, examples=examples)
    labels = unique_labels(data, ids(0, 1)[None], np.random.default_rng(0))
    assert labels.tolist() == [[2, 1]]  # the numbers stored in the data, not those after the label map
    swapped, moves = swap_part(data, ids(0, 1)[None], labels, np.random.default_rng(0))
    assert [sorted(one) for one in lists(swapped, "train")[0]] == [[16, 17, 19, 20], [14, 15, 18, 21]]
    assert moves.examples.tolist() == [4, 4]


# Bad input


@pytest.mark.parametrize("kind", [SwapAll, SwapPart])
@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_probability_outside_0_to_1_is_refused(kind: type[Shift], probability: float):
    with pytest.raises(InputError, match=f"probability is {probability}; give 0"):
        kind(probability)
