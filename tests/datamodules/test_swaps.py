"""Tests swaps: the laws of their pairs and labels, and clients that have some labels in common."""

from collections import Counter
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch
from quadratic import ids
from shift_cases import lists, two_clients

from lit_cfl.data import ClientIndex, Examples, FederatedData, View
from lit_cfl.data.shift import Shift, ShiftContext, apply_shifts
from lit_cfl.datamodules.shift import SwapAll, SwapPart
from lit_cfl.datamodules.shift.swaps import draw_pairs, swap_part, unique_labels
from lit_cfl.errors import InputError

# Pairs


@pytest.mark.parametrize(
    ("clients", "probability", "expected"), [(1, 1.0, 0), (2, 1.0, 1), (8, 1.0, 4), (9, 1.0, 4), (9, 0.0, 0)]
)
def test_every_client_is_in_one_pair_at_most(clients: int, probability: float, expected: int):
    pairs = draw_pairs(torch.arange(clients), probability, np.random.default_rng(0))
    assert (pairs.shape, len(pairs.unique())) == ((expected, 2), 2 * expected)


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


# Swaps of a label


def test_partial_swap_exchanges_one_label_each_and_withheld_examples_too():
    withheld = ClientIndex.from_lists([ids(1), ids(7)])
    data = replace(two_clients(withheld=withheld), train=ClientIndex.from_lists([ids(0, 2, 3), ids(4, 5, 6)]))
    swapped, (moves,) = apply_shifts(data, [SwapPart(1.0)], 0, 0, data.population)
    # client 0 gives its 0s (train 0, withheld 1, validation 12, test 8), although client 1 withholds one, but client 0
    # keeps the 2 that it has in training alone; client 1 gives its 2s (train 5 6, validation 13, test 11)
    assert lists(swapped, "train", "withheld") == [[[2, 3, 5, 6], [0, 4]], [[], [1, 7]]]
    assert lists(swapped, "validation", "test") == [[[13], [12]], [[9, 11], [8, 10]]]
    assert swapped.true_clusters.tolist() == [-1, -1]
    assert (moves.what, moves.clients.tolist(), moves.partners.tolist()) == ("swap_part", [0, 1], [1, 0])
    assert moves.examples.tolist() == [4, 3]  # withheld examples are not counted
    assert (moves.before.tolist(), moves.after.tolist()) == ([0, 1], [-1, -1])


def test_each_possible_label_is_as_likely():
    data = replace(two_clients(), train=ClientIndex.from_lists([ids(0, 1, 2), ids(5, 6)]))  # possible: {0, 1} and {2}
    drawn = [unique_labels(data, ids(0, 1)[None], np.random.default_rng(r)).tolist() for r in range(1000)]
    assert {tuple(labels[0]) for labels in drawn} == {(0, 2), (1, 2)}
    assert abs(sum(labels[0][0] for labels in drawn) - 500) < 4 * sqrt(250)


def test_pair_without_labels_of_its_own_is_skipped():
    labels = ids(0, 0, 0, 0, 0, 0, 1, 1, 2, 2)  # of ten clients
    one_each = ClientIndex.from_sizes(torch.arange(10), torch.ones(10, dtype=torch.int64))
    examples = Examples(torch.arange(20)[:, None].float(), labels.repeat(2), 3)
    test = replace(one_each, values=one_each.values + 10)
    data = FederatedData(examples, one_each, ClientIndex.empty(10), test, torch.zeros(10, dtype=torch.int64))
    skipped = 0
    for seed in range(20):
        at = ShiftContext(0, seed, data.population)
        pairs = draw_pairs(at.participants, 1.0, at.rng("pairs"))  # pairs in the order of their swaps
        able = labels[pairs[:, 0]] != labels[pairs[:, 1]]
        _, moves = SwapPart(1.0).step(data, at)
        assert (moves.clients.tolist() if moves else []) == sorted(pairs[able].flatten().tolist())
        skipped += not able[:-1].all()
    assert skipped > 5


def test_swap_part_looks_at_labels_as_clients_see_them():
    data = two_clients()
    examples = replace(data.examples, views=(View(), View(label_map=(2, 0, 1, 3))))
    unseen = data.of_lists(lambda index: replace(index, values=index.values + 14))
    data = replace(unseen, examples=examples)
    labels = unique_labels(data, ids(0, 1)[None], np.random.default_rng(0))
    assert labels.tolist() == [[2, 1]]  # the numbers stored in the data, not those after the label map
    swapped, moves = swap_part(data, ids(0, 1)[None], labels, np.random.default_rng(0))
    assert lists(swapped, "train") == [[[16, 17, 19, 20], [14, 15, 18, 21]]]
    assert moves.examples.tolist() == [4, 4]


@pytest.mark.parametrize(
    ("kind", "probability"), [(SwapAll, -0.1), (SwapPart, 1.1), (SwapAll, float("nan"))], ids=lambda value: str(value)
)
def test_probability_outside_0_to_1_is_refused(kind: type[Shift], probability: float):
    with pytest.raises(InputError, match=f"probability is {probability}"):
        kind(probability)
