"""Tests the rules of each shift: laws of its draws, and worked examples that the table of all shifts does not have."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil, sqrt

import numpy as np
import pytest
import torch
from kinds import shifted
from own_arrays import assert_refused
from quadratic import ids
from torch import Tensor

from lit_cfl.data import ClientIndex, Examples, FederatedData, View
from lit_cfl.data.shift import Shift, apply_shifts, with_concepts
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.shift import Incremental, LabelDrift, SwapAll, SwapPart
from lit_cfl.datamodules.shift.drift import draw_drifting
from lit_cfl.datamodules.shift.incremental import share_of
from lit_cfl.datamodules.shift.swaps import draw_pairs, swap_part, unique_labels
from lit_cfl.datamodules.skew import LabelShifts


def two_clients(*shifts: Shift, **more: object) -> FederatedData:
    """Makes two clients with the labels 0 to 2 of 4, with the views that the shifts need.

    Client 0 has no test example of label 2, and client 1 none of label 0.
    """
    labels = ids(0, 0, 1, 2, 1, 2, 2, 0, 0, 1, 1, 2, 0, 2)
    examples = Examples(torch.arange(14)[:, None].float(), labels, 4)
    train = ClientIndex.from_lists([ids(0, 1, 2, 3), ids(4, 5, 6, 7)])
    validation = ClientIndex.from_lists([ids(12), ids(13)])
    test = ClientIndex.from_lists([ids(8, 9), ids(10, 11)])
    return _widened(FederatedData(examples, train, validation, test, ids(0, 1), **more), shifts)


def with_sizes(*sizes: int, shifts: Sequence[Shift] = ()) -> FederatedData:
    """Makes one client per training size; all have the label 0 of 2, and share two test examples."""
    total = sum(sizes)
    examples = Examples(torch.arange(total)[:, None].float(), torch.zeros(total, dtype=torch.int64), 2)
    train = ClientIndex.from_sizes(torch.arange(total), torch.tensor(sizes))
    shared = ClientIndex(ids(0, 1), ids(0).repeat(len(sizes)), ids(2).repeat(len(sizes)))
    clusters = torch.arange(len(sizes))
    return _widened(FederatedData(examples, train, ClientIndex.empty(len(sizes)), shared, clusters), shifts)


def _widened(data: FederatedData, shifts: Sequence[Shift]) -> FederatedData:
    for shift in shifts:
        data = replace(data, examples=shift.widen(data.examples))
    return with_concepts(data, shifts)


def after(data: FederatedData, *shifts: Shift, round: int = 0, warm: Tensor | None = None) -> FederatedData:
    return apply_shifts(data, shifts, round, 0, data.population if warm is None else warm)[0]


def lists(data: FederatedData, *names: str) -> list[list[list[int]]]:
    return [[sorted(one.tolist()) for one in getattr(data, name)] for name in names]


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


@pytest.mark.parametrize("share", ["0.25", "1.0", "0.55", "0.29", "2/3"])
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


ALL = LabelDrift(1.0, start=0)  # all clients drift at once


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.29, 12), (0.51, 20), (1.0, 40)])
def test_share_of_the_clients_drifts(share: float, count: int):
    assert int(draw_drifting(40, share, np.random.default_rng(0)).sum()) == count


def test_a_client_that_is_to_drift_does_so_once_it_takes_part():
    shift = LabelDrift(start=0, participants="warm")
    data = with_sizes(*[3] * 40, shifts=[shift])
    _, (everybody,) = apply_shifts(data, [shift], 0, 0, torch.arange(40))
    data, (some,) = apply_shifts(data, [shift], 0, 0, torch.arange(20))
    _, (others,) = apply_shifts(data, [shift], 1, 0, torch.arange(40))
    assert some.clients.tolist() == [client for client in everybody.clients.tolist() if client < 20]
    assert others.clients.tolist() == [client for client in everybody.clients.tolist() if client >= 20]
    assert len(everybody.clients) == 20


def test_true_clusters_are_numbered_so_that_each_can_drift_and_unknown_ones_stay_unknown():
    data = replace(two_clients(), true_clusters=ids(-1, 2))
    assert with_concepts(data, [SwapAll()]).true_clusters.tolist() == [-1, 2]
    assert with_concepts(data, [LabelDrift(), LabelDrift()]).true_clusters.tolist() == [-1, 8]
    drifting = replace(two_clients(ALL), true_clusters=ids(-1, 4))
    assert after(drifting, ALL).true_clusters.tolist() == [-1, 5]


def test_two_drifts_number_their_concepts_apart():
    shifts = (LabelDrift(1.0, 1, start=1), LabelDrift(1.0, 2, start=2))
    data = two_clients(*shifts)
    assert data.true_clusters.tolist() == [0, 4]
    assert shifted(data, shifts, 2)[-1][0].true_clusters.tolist() == [2, 6]
    both = shifted(data, shifts, 3)[-1][0]
    assert both.true_clusters.tolist() == [3, 7]
    assert torch.equal(both.examples.targets(both.train.entries), (data.examples.targets(data.train.entries) + 3) % 4)


def test_drifting_clients_keep_their_skew():
    shift = [SwapAll(0.5), LabelDrift(start=1)]
    data = Digits(num_clients=8, shift=shift).federated(0)
    assert len(data.examples.views) == 8
    assert data.true_clusters.tolist() == [0, 2, 4, 6] * 2
    now = shifted(data, shift, 3)[-1][0]
    images, labels = now.examples.batch(now.train.entries)
    raw, stored = data.examples.inputs, data.examples.labels
    at, view = now.train.entries % 1797, now.train.entries // 1797
    assert torch.equal(labels, (stored[at] + view // 4) % 10)
    for turns in range(4):
        mine = view % 4 == turns
        assert torch.equal(images[mine], torch.rot90(raw[at[mine]].float() / 16, turns, (2, 3)))


def test_client_whose_truth_alone_changes_is_logged():
    data = two_clients(ALL).of_lists(lambda index: index.first(ids(0, 9)))
    _, (moves,) = apply_shifts(data, [ALL], 0, 0, data.population)
    assert (moves.clients.tolist(), moves.partners.tolist(), moves.examples.tolist()) == ([0, 1], [-1, -1], [0, 7])
    assert (moves.before.tolist(), moves.after.tolist()) == ([0, 2], [1, 3])


def test_withheld_examples_drift_too_but_are_not_logged():
    shifts = (Incremental((0, 2), (0.25, 1.0)), LabelDrift(1.0, start=1))
    data = shifted(two_clients(*shifts), shifts, 2)[-1][0]
    assert (data.withheld.entries // 14).tolist() == [1] * 6
    hidden = replace(data, withheld=replace(data.withheld, values=data.withheld.values % 14))
    now, moves = apply_shifts(hidden, [shifts[1]], 2, 0, data.population)
    assert moves == ()
    assert torch.equal(now.withheld.entries, data.withheld.entries)


def test_clients_that_share_a_list_share_it_under_drift():
    shift = LabelDrift(0.5, start=0)
    data = with_sizes(3, 4, 5, 6, shifts=[shift])
    now, (moves,) = apply_shifts(data, [shift], 0, 0, data.population)
    assert len(now.test.values) == 4
    expected = [[18, 19] if client in moves.clients.tolist() else [0, 1] for client in range(4)]
    assert lists(now, "test")[0] == expected


@pytest.mark.parametrize(
    ("make", "quoted"),
    [
        (lambda: Incremental((0, 1)), "rounds are (0, 1), shares (0.25, 0.5, 0.75, 1.0)"),
        (lambda: Incremental((0, 5, 5), (0.25, 0.5, 0.7)), "rounds are (0, 5, 5)"),
        (lambda: Incremental((0, 1, 2), (0.25, 0.5, 0.4)), "shares (0.25, 0.5, 0.4)"),
        *((lambda by=by: two_clients(LabelDrift(labels=by)), f"by {by} labels | 1 to 3") for by in (0, 4, -8)),
        # a drift from one cluster's labels to those of another
        (lambda: Digits(skew=[LabelShifts((0, 3))], shift=LabelDrift(labels=3)).federated(0), "by 3 labels"),
    ],
)
def test_shift_that_cannot_be_is_refused(make: Callable[[], object], quoted: str):
    assert_refused(make, quoted)
