"""Shift over the rounds: swaps, incremental release and label drift, alone and together."""

from collections import Counter
from dataclasses import fields, replace
from fractions import Fraction
from itertools import permutations
from math import ceil, sqrt

import numpy as np
import pytest
import torch
from conftest import ids
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from datamodules import Digits
from datamodules.shift import Incremental, LabelDrift, SwapAll, SwapPart
from datamodules.shift.incremental import share_of
from datamodules.shift.swaps import drawn_pairs, swap_part, unique_labels
from lit_cfl.data import ClientIndex, Examples, FederatedData, View
from lit_cfl.data.lists import lists_of, with_lists
from lit_cfl.errors import InputError
from lit_cfl.shifting import Moves, Occasion, Shift, data_at, shifted, with_concepts

VISIBLE = ("train", "validation", "test")
ALL = (*VISIBLE, "withheld")
SHIFTS = (SwapAll(0.4), SwapPart(0.4), Incremental((1, 3, 5), (0.3, 0.5, 1.0)), LabelDrift(start=2, duration=3))

few = settings(deadline=None, derandomize=True, max_examples=25)


def made(
    clients: int = 12, labels: int = 4, seed: int = 0, shifts: tuple[Shift, ...] = (), **more: object
) -> FederatedData:
    """Clients with 3 to 20 training, 0 to 3 validation and 1 to 6 test examples, seen under two views in turn."""
    rng = np.random.default_rng(seed)
    sizes = [torch.from_numpy(rng.integers(low, high, clients)) for low, high in ((3, 21), (0, 4), (1, 7))]
    number = int(sum(sizes).sum())
    inputs = torch.arange(number)[:, None].float()
    views = (View(), View(label_map=tuple(reversed(range(labels)))))
    examples = Examples(inputs, torch.from_numpy(rng.integers(0, labels, number)), labels, views=views)
    for shift in shifts:
        examples = shift.widen(examples)
    own = torch.from_numpy(rng.permutation(number)).split([int(size.sum()) for size in sizes])
    clusters = torch.arange(clients) % 2
    lists = [
        ClientIndex.from_sizes(indices + number * clusters.repeat_interleave(size), size)
        for indices, size in zip(own, sizes, strict=True)
    ]
    return with_concepts(FederatedData(examples, *lists, clusters, **more), shifts)


def after(
    data: FederatedData, *shifts: Shift, round: int = 0, seed: int = 0, warm: Tensor | None = None
) -> FederatedData:
    """The data after one round's shifts."""
    return shifted(data, shifts, round, seed, data.population if warm is None else warm)[0]


def lists(data: FederatedData, *names: str) -> list[list[list[int]]]:
    """The index lists of each client, in order."""
    kept = [index for name in names or ALL if (index := getattr(data, name)) is not None]
    return [[one.tolist() for one in index] for index in kept]


def everything(data: FederatedData) -> tuple[list[list[list[int]]], list[int]]:
    return lists(data), data.true_clusters.tolist()


def seen(data: FederatedData, client: int, *names: str) -> Counter[tuple[float, int]]:
    """Inputs and labels as a client sees them."""
    pairs: Counter[tuple[float, int]] = Counter()
    for index in (getattr(data, name) for name in names or VISIBLE):
        if index is not None:
            inputs, labels = data.examples.batch(index[client])
            pairs.update(zip(inputs.flatten().tolist(), labels.tolist(), strict=True))
    return pairs


def union(data: FederatedData, *names: str) -> Counter[tuple[float, int]]:
    return sum((seen(data, client, *names) for client in range(data.num_clients)), Counter())


def rows(moves: Moves) -> list[tuple[int, ...]]:
    columns = (moves.clients, moves.partners, moves.examples, moves.before, moves.after)
    return list(zip(*(column.tolist() for column in columns), strict=True))


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
    swapped, (moves,) = shifted(data, [SwapAll(1.0)], 0, seed, data.population)
    source = torch.arange(clients).index_copy(0, moves.clients, moves.partners).tolist()
    assert lists(swapped) == [[one[client] for client in source] for one in lists(data)]
    assert swapped.true_clusters.tolist() == [data.true_clusters.tolist()[client] for client in source]
    assert [source[client] for client in source] == list(range(clients))  # an exchange: there and back


def test_swap_copies_no_list():
    data = made()
    assert after(data, SwapAll(1.0)).train.values is data.train.values


@pytest.mark.parametrize("shift", [SwapAll(0.0), SwapPart(0.0)])
def test_probability_0_swaps_nothing(shift: Shift):
    data = made()
    assert shifted(data, [shift], 0, 0, data.population) == (data, ())


@pytest.mark.parametrize(("clients", "moved"), [(1, 0), (2, 2), (8, 8), (9, 8)])
def test_probability_1_swaps_every_pair(clients: int, moved: int):
    data = made(clients)
    _, moves = shifted(data, [SwapAll(1.0)], 0, 0, data.population)
    assert sum(len(one.clients.unique()) for one in moves) == moved


def test_number_of_exchanges_is_binomial():
    clients, rounds, p = 1001, 60, 0.05
    counts = [len(drawn_pairs(torch.arange(clients), p, np.random.default_rng(r))) for r in range(rounds)]
    assert abs(np.mean(counts) - 500 * p) < 4 * sqrt(500 * p * (1 - p) / rounds)
    assert 0.5 < np.var(counts) / (500 * p * (1 - p)) < 1.7  # 4 standard deviations of a variance of 60 draws


def test_every_partner_is_as_likely():
    draws = [drawn_pairs(ids(3, 5, 6, 9), 1.0, np.random.default_rng(r)) for r in range(3000)]
    partners = Counter(int(pairs[(pairs == 3).any(1)].sum()) - 3 for pairs in draws)
    assert set(partners) == {5, 6, 9}
    assert all(abs(count - 1000) < 4 * sqrt(3000 * 2 / 9) for count in partners.values())


# Swap part


def two_clients(**more: object) -> FederatedData:
    """Client 0 has labels 0 and 1 and an untested 2, client 1 has 1 and 2 and an untested 0."""
    labels = ids(0, 0, 1, 2, 1, 2, 2, 0, 0, 1, 1, 2, 0, 2)
    examples = Examples(torch.arange(14)[:, None].float(), labels, 3)
    train = ClientIndex.from_lists([ids(0, 1, 2, 3), ids(4, 5, 6, 7)])
    validation = ClientIndex.from_lists([ids(12), ids(13)])
    test = ClientIndex.from_lists([ids(8, 9), ids(10, 11)])
    return FederatedData(examples, train, validation, test, ids(0, 1), **more)


def test_partial_swap_exchanges_one_label_each():
    data = two_clients()
    swapped, (moves,) = shifted(data, [SwapPart(1.0)], 0, 0, data.population)
    kept = [[sorted(one) for one in clients] for clients in lists(swapped)]
    # client 0 gives its 0s (train 0 1, validation 12, test 8), client 1 its 2s (train 5 6, validation 13, test 11)
    assert kept == [[[2, 3, 5, 6], [0, 1, 4, 7]], [[13], [12]], [[9, 11], [8, 10]]]
    assert rows(moves) == [(0, 1, 4, 0, -1), (1, 0, 4, 1, -1)]
    assert swapped.true_clusters.tolist() == [-1, -1]


def test_partial_swap_takes_withheld_examples_along():
    withheld = ClientIndex.from_lists([ids(1), ids(6, 7)])
    data = replace(two_clients(withheld=withheld), train=ClientIndex.from_lists([ids(0, 2, 3), ids(4, 5)]))
    swapped, (moves,) = shifted(data, [SwapPart(1.0)], 0, 0, data.population)
    assert [sorted(one) for one in lists(swapped, "withheld")[0]] == [[6], [1, 7]]
    assert moves.examples.tolist() == [3, 3]  # what is withheld is not counted


@few
@given(st.integers(2, 15), st.integers(2, 8), st.integers(0, 1000), st.sampled_from(["pair", "round"]))
def test_partial_swaps_never_change_the_union(clients: int, labels: int, seed: int, part_abort: str):
    data = after(made(clients, labels, seed), Incremental((0,), (0.5,)))
    swapped = data_at(data, [SwapPart(0.7, part_abort)], 3, seed)
    for name in ALL:
        assert union(swapped, name) == union(data, name)


@few
@given(st.integers(2, 15), st.integers(2, 8), st.integers(0, 1000))
def test_partial_swap_leaves_all_other_labels(clients: int, labels: int, seed: int):
    data = made(clients, labels, seed)
    swapped, moves = shifted(data, [SwapPart(1.0)], 0, seed, data.population)
    for client, partner, examples, *_ in [row for one in moves for row in rows(one)]:
        came, went = seen(swapped, client) - seen(data, client), seen(data, client) - seen(swapped, client)
        (given,), (got,) = ({label for _, label in pairs} for pairs in (went, came))
        assert given != got
        assert came.total() == examples
        assert came == Counter({pair: n for pair, n in seen(data, partner).items() if pair[1] == got})
        assert given not in {label for _, label in seen(swapped, client)} - {label for _, label in seen(data, partner)}
        for name in ("train", "test"):  # each gives what it has in both, and the other not in both
            assert given in {label for _, label in seen(data, client, name)}
        assert not all(given in {label for _, label in seen(data, partner, name)} for name in ("train", "test"))


def test_each_possible_label_is_as_likely():
    data = two_clients()
    wide = replace(data, train=ClientIndex.from_lists([ids(0, 1, 2), ids(5, 6)]), test=data.test)  # {0, 1} and {2}
    drawn = [unique_labels(wide, ids(0, 1)[None], np.random.default_rng(r)).tolist() for r in range(1000)]
    assert {tuple(labels[0]) for labels in drawn} == {(0, 2), (1, 2)}
    assert abs(sum(labels[0][0] for labels in drawn) - 500) < 4 * sqrt(250)


def alike_and_different() -> FederatedData:
    """Six clients with label 0, two with 1 and two with 2, the labels both in training and in test."""
    labels = ids(0, 0, 0, 0, 0, 0, 1, 1, 2, 2).repeat(2)
    one_each = ClientIndex.from_sizes(torch.arange(10), torch.ones(10, dtype=torch.int64))
    examples = Examples(torch.arange(20)[:, None].float(), labels, 3)
    test = replace(one_each, values=one_each.values + 10)
    return FederatedData(examples, one_each, ClientIndex.empty(10), test, torch.zeros(10, dtype=torch.int64))


def test_pair_without_labels_of_its_own_is_skipped():
    data = alike_and_different()
    for seed in range(20):
        for part_abort in ("pair", "round"):
            _, moves = shifted(data, [SwapPart(1.0, part_abort)], 0, seed, data.population)
            held = data.examples.labels[:10]
            assert all((held[one.clients] != held[one.partners]).all() for one in moves)


def test_first_pair_without_labels_ends_the_round_if_asked_for():
    data = alike_and_different()
    held, ended_early = data.examples.labels[:10], 0
    for seed in range(20):
        at = Occasion(0, seed, data.population)
        pairs = drawn_pairs(at.participants, 1.0, at.rng("pairs"))  # in the order in which they swap
        able = held[pairs[:, 0]] != held[pairs[:, 1]]
        for rule, swap in (("pair", able), ("round", able.cumprod(0).bool())):
            _, moves = SwapPart(1.0, rule).step(data, at)
            assert (moves.clients.tolist() if moves else []) == sorted(pairs[swap].flatten().tolist())
        ended_early += not able[:-1].all()
    assert ended_early > 5


def test_swap_part_looks_at_labels_as_clients_see_them():
    data = two_clients()
    examples = replace(data.examples, views=(View(), View(label_map=(2, 0, 1))))
    unseen = data.of_lists(lambda index: replace(index, values=index.values + 14))
    data = replace(unseen, examples=examples)
    labels = unique_labels(data, ids(0, 1)[None], np.random.default_rng(0))
    assert labels.tolist() == [[2, 1]]  # 0 and 2 as they are stored
    swapped, moves = swap_part(data, ids(0, 1)[None], labels, np.random.default_rng(0))
    assert [sorted(one) for one in lists(swapped, "train")[0]] == [[16, 17, 19, 20], [14, 15, 18, 21]]
    assert moves.examples.tolist() == [4, 4]


# Incremental


def with_sizes(*sizes: int) -> FederatedData:
    """One label, one client a size, two test examples each."""
    total = sum(sizes)
    examples = Examples(torch.arange(total)[:, None].float(), torch.zeros(total, dtype=torch.int64), 1)
    train = ClientIndex.from_sizes(torch.arange(total), torch.tensor(sizes))
    shared = ClientIndex(ids(0, 1), ids(0).repeat(len(sizes)), ids(2).repeat(len(sizes)))
    return FederatedData(examples, train, train.first(1), shared, torch.arange(len(sizes)))


@pytest.mark.parametrize("share", ["0.25", "0.5", "0.75", "1.0", "0.1", "0.7", "0.55", "0.29", "0.07", "1/3", "2/3"])
def test_share_is_rounded_up_exactly(share: str):
    sizes = torch.arange(0, 201)
    expected = [ceil(Fraction(share) * n) for n in sizes.tolist()]
    assert share_of(float(Fraction(share)), sizes).tolist() == expected


def test_releases_have_the_nominal_sizes_and_are_nested():
    sizes = (1, 2, 3, 7, 10, 99, 100, 101)
    data, there = with_sizes(*sizes), [set[int]() for _ in sizes]
    for r, share in ((0, 0.25), (50, 0.5), (100, 0.75), (150, 1.0)):
        data, _ = shifted(data, [Incremental()], r, 3, data.population)
        assert data.num_examples.tolist() == [ceil(share * n) for n in sizes]
        now = [set(one.tolist()) for one in data.train]
        assert all(before <= later for before, later in zip(there, now, strict=True))
        there = now
    assert lists(data, "train")[0] != lists(with_sizes(*sizes), "train")[0]
    assert [sorted(one) for one in lists(data, "train")[0]] == lists(with_sizes(*sizes), "train")[0]


def test_shrinking_release_takes_shares_of_what_is_there():
    sizes = (1, 3, 7, 99, 1600)
    data, expected = with_sizes(*sizes), list(sizes)
    for r, share in ((0, 0.25), (50, 0.5), (100, 0.75), (150, 1.0)):
        data, _ = shifted(data, [Incremental(release="shrinking")], r, 0, data.population)
        expected = [ceil(Fraction(share) * n) for n in expected]
        assert data.num_examples.tolist() == expected
        assert (data.train.sizes + data.withheld.sizes).tolist() == list(sizes)
    assert data.num_examples[-1] / 1600 == 0.09375  # C3


def test_release_changes_nothing_between_its_rounds():
    data, shift = with_sizes(8, 9), Incremental((2, 4), (0.5, 1.0))
    assert [data_at(data, [shift], r, 0).num_examples.tolist() for r in range(6)] == [
        [8, 9], [8, 9], [4, 5], [4, 5], [8, 9], [8, 9],
    ]  # fmt: skip


def test_test_and_validation_data_are_never_withheld():
    data = with_sizes(8, 9)
    for r in range(3):
        now = data_at(data, [Incremental((0, 1, 2), (0.2, 0.4, 1.0))], r, 0)
        assert lists(now, "validation", "test") == lists(data, "validation", "test")


def test_release_is_at_random():
    data = after(with_sizes(1000), Incremental())
    assert 80 < (data.train.entries < 500).sum() < 170  # 125, 4 standard deviations


def test_quarter_of_60_examples_is_what_the_trigger_is_tested_with():  # algorithms.md, check 16
    data = with_sizes(60)
    data = replace(data, examples=replace(data.examples, labels=torch.arange(60) % 2, num_labels=10))
    now = after(data, Incremental()).label_counts[0]
    assert data.label_counts[0].tolist() == [30, 30] + [0] * 8
    assert int(now.sum()) == 15
    assert float((data.label_counts[0] - now).abs().sum()) / 10 == 4.5


def test_release_goes_on_after_swaps():
    shifts = (SwapAll(0.5), SwapPart(0.5), Incremental((0, 4, 8), (0.25, 0.5, 1.0)))
    data = made(shifts=shifts)
    before = [union(data, "train"), union(data, "test")]
    last = data_at(data, shifts, 8, 0)
    assert [union(last, "train"), union(last, "test")] == before
    assert int(last.withheld.sizes.sum()) == 0


def test_nothing_released_is_taken_back_after_swaps():
    data = after(two_clients(), Incremental((0, 1), (0.25, 0.3)))  # one of four examples each
    rich = replace(data, train=data.train.plus(data.withheld.first(2)), withheld=data.withheld.after(ids(2, 2)))
    assert after(rich, Incremental((0, 1), (0.25, 0.3)), round=1).num_examples.tolist() == [3, 3]


@pytest.mark.parametrize("release", ["nominal", "shrinking"])
def test_client_cold_at_the_first_release_keeps_all(release: str):
    data, shift = with_sizes(8, 8, 8), Incremental((0, 1), (0.25, 0.5), release, participants="warm")
    first = after(data, shift, warm=ids(0, 2))
    assert first.num_examples.tolist() == [2, 8, 2]
    assert first.train[1].tolist() == data.train[1].tolist()
    then = after(first, shift, round=1, warm=ids(0, 1))
    assert then.num_examples.tolist() == [4 if release == "nominal" else 1, 8, 2]


# Label drift


def drifting(data: FederatedData, shift: LabelDrift, round: int, seed: int = 0) -> Tensor:
    """The share of each client's examples that have drifted."""
    now = data_at(data, [shift], round, seed)
    views = len(data.examples.views) // 2
    old = [float((one // len(data.examples) >= views).double().mean()) for one in now.train]
    return torch.tensor(old)


def test_abrupt_drift_moves_the_labels_of_its_clients_only():
    shift = LabelDrift(share=0.25, labels=3, start=2)
    data = made(shifts=(shift,))
    assert everything(data_at(data, [shift], 1, 0)) == everything(data)
    now, (moves,) = shifted(data_at(data, [shift], 1, 0), [shift], 2, 0, data.population)
    assert len(moves.clients) == 3
    for client in range(12):
        for name in VISIBLE:
            by = 3 if client in moves.clients.tolist() else 0
            assert seen(now, client, name) == Counter(
                {(x, (y + by) % 4): n for (x, y), n in seen(data, client, name).items()}
            )
    assert moves.examples.tolist() == [seen(data, client).total() for client in moves.clients.tolist()]
    assert moves.before.tolist() == [2 * (client % 2) for client in moves.clients.tolist()]
    assert torch.equal(moves.after, moves.before + 1)


def test_abrupt_drift_happens_once():
    shift = LabelDrift(start=2)
    data = data_at(made(shifts=(shift,)), [shift], 2, 0)
    later, moves = shifted(data, [shift], 3, 0, data.population)
    assert moves == ()
    assert everything(later) == everything(data)


def test_gradual_drift_grows_and_never_goes_back():
    shift = LabelDrift(share=1.0, start=2, duration=4)
    data = made(40, shifts=(shift,))
    before = torch.zeros(int(data.num_examples.sum()), dtype=torch.bool)
    for r, degree in ((1, 0.0), (2, 0.25), (3, 0.5), (4, 0.75), (5, 1.0), (6, 1.0)):
        now = data_at(data, [shift], r, 0)
        new = now.train.entries // len(data.examples) >= 2
        assert (new | ~before).all()
        assert abs(float(new.double().mean()) - degree) <= 4 * sqrt(degree * (1 - degree) / len(new))
        assert now.true_clusters.tolist() == [2 * (client % 2) + (degree >= 0.5) for client in range(40)]
        before = new


def test_gradual_drift_logs_what_changes():
    shift = LabelDrift(share=1.0, start=0, duration=3)
    data = made(shifts=(shift,))
    changed = torch.zeros(12, dtype=torch.int64)
    for r in range(4):
        data, moves = shifted(data, [shift], r, 0, data.population)
        for one in moves:
            changed.index_add_(0, one.clients, one.examples)
    assert changed.tolist() == [seen(data, client).total() for client in range(12)]


def test_recurring_drift_comes_and_goes():
    shift = LabelDrift(share=1.0, start=3, period=2)
    data = made(shifts=(shift,))
    on = [bool(drifting(data, shift, r).all()) for r in range(11)]
    assert on == [r in (3, 4, 7, 8) for r in range(11)]
    assert [bool(drifting(data, shift, r).any()) for r in range(11)] == on
    assert everything(data_at(data, [shift], 5, 0)) == everything(data)
    assert data_at(data, [shift], 7, 0).true_clusters.tolist() == [2 * (client % 2) + 1 for client in range(12)]


def test_recurring_drift_may_be_gradual():
    shift = LabelDrift(share=1.0, start=1, duration=2, period=3)
    assert [shift.degree(r) for r in range(9)] == [0, 0.5, 1, 1, 0, 0, 0, 0.5, 1]


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.3, 12), (0.5, 20), (1.0, 40)])
def test_share_of_the_clients_drifts(share: float, count: int):
    shift = LabelDrift(share, start=0)
    drifts = drifting(made(40, shifts=(shift,)), shift, 0)
    assert int((drifts == 1).sum()) == count
    assert int((drifts == 0).sum()) == 40 - count


def test_who_drifts_depends_on_the_seed_but_not_on_who_takes_part():
    shift = LabelDrift(start=0, participants="warm")
    data = made(40, shifts=(shift,))
    (everybody,), (some,) = (shifted(data, [shift], 0, 0, who)[1] for who in (torch.arange(40), torch.arange(20)))
    assert some.clients.tolist() == [client for client in everybody.clients.tolist() if client < 20]
    assert everybody.clients.tolist() != shifted(data, [shift], 0, 1, torch.arange(40))[1][0].clients.tolist()


def test_warm_client_drifts_when_it_becomes_warm():
    shift = LabelDrift(1.0, start=0, participants="warm")
    data = made(3, shifts=(shift,))
    data, (first,) = shifted(data, [shift], 0, 0, ids(0))
    data, (second,) = shifted(data, [shift], 1, 0, ids(0, 2))
    assert (first.clients.tolist(), second.clients.tolist()) == ([0], [2])


def test_unknown_cluster_stays_unknown_under_drift():
    shift = LabelDrift(1.0, start=0, period=1)
    data = made(4, shifts=(shift,))
    data = replace(data, true_clusters=ids(-1, 2, -1, 2))
    assert [data_at(data, [shift], r, 0).true_clusters.tolist() for r in range(2)] == [[-1, 3, -1, 3], [-1, 2, -1, 2]]


def test_true_clusters_are_numbered_so_that_each_can_drift():
    data = replace(made(3), true_clusters=ids(-1, 0, 2))
    assert with_concepts(data, [SwapAll()]).true_clusters.tolist() == [-1, 0, 2]
    assert with_concepts(data, [LabelDrift(), LabelDrift()]).true_clusters.tolist() == [-1, 0, 8]


def test_seed_says_which_examples_drift_first():
    shift = LabelDrift(1.0, start=0, duration=2)
    data = made(shifts=(shift,))
    one, other = (data_at(data, [shift], 0, seed).train.entries // len(data.examples) >= 2 for seed in (0, 1))
    assert 0.25 < float((one != other).double().mean()) < 0.75


def test_client_whose_truth_alone_changes_is_logged():
    shift = LabelDrift(1.0, start=0)
    data = made(2, shifts=(shift,)).of_lists(lambda index: index.first(ids(0, 9)))
    _, (moves,) = shifted(data, [shift], 0, 0, data.population)
    assert rows(moves)[0] == (0, -1, 0, 0, 1)


def test_two_drifts_number_their_concepts_apart():
    shifts = (LabelDrift(1.0, 1, start=1), LabelDrift(1.0, 2, start=2))
    data = made(2, shifts=shifts)
    assert data.true_clusters.tolist() == [0, 4]
    assert data_at(data, shifts, 1, 0).true_clusters.tolist() == [2, 6]
    both = data_at(data, shifts, 2, 0)
    assert both.true_clusters.tolist() == [3, 7]
    assert (both.train.entries // len(data.examples)).unique().tolist() == [6, 7]
    assert seen(both, 0) == Counter({(x, (y + 3) % 4): n for (x, y), n in seen(data, 0).items()})


def test_swapped_data_keep_their_labels_and_new_data_get_those_of_the_client():
    drift = LabelDrift(0.5, start=0)
    data = made(2, shifts=(drift,))
    drifted, (moves,) = shifted(data, [drift], 0, 0, data.population)
    (who,) = moves.clients.tolist()
    now = after(drifted, SwapAll(1.0), drift, round=1)
    assert seen(now, 1 - who) == seen(drifted, who)  # under the new labels still
    assert seen(now, who) == Counter({(x, (y + 1) % 4): n for (x, y), n in seen(data, 1 - who).items()})
    assert now.true_clusters.tolist() == [2 * (1 - client) + 1 for client in range(2)]


def test_withheld_examples_drift_too():
    shifts = (Incremental((0, 2), (0.25, 1.0)), LabelDrift(1.0, start=1))
    data = data_at(made(shifts=shifts), shifts, 1, 0)
    assert (data.withheld.entries // len(data.examples) >= 2).all()


def test_drift_of_withheld_examples_alone_is_not_logged():
    shift = LabelDrift(1.0, start=0)
    data = made(2, shifts=(shift,))
    data = after(data, shift)
    hidden = replace(data, withheld=replace(data.train, values=data.train.values % (2 * len(data.examples))))
    now, moves = shifted(hidden, [shift], 1, 0, data.population)
    assert moves == ()
    assert torch.equal(now.withheld.entries, data.train.entries)


def test_clients_that_share_a_list_share_it_under_drift():
    data = with_sizes(3, 4, 5, 6)
    data = replace(data, examples=replace(data.examples, num_labels=2))
    shift = LabelDrift(0.5, start=0)
    data = with_concepts(replace(data, examples=shift.widen(data.examples)), [shift])
    now, (moves,) = shifted(data, [shift], 0, 0, data.population)
    assert len(now.test.values) == 4
    expected = [[18, 19] if client in moves.clients.tolist() else [0, 1] for client in range(4)]
    assert lists(now, "test")[0] == expected


# All shifts


@pytest.mark.parametrize(
    "order", list(permutations(SHIFTS, 3)), ids=lambda order: "-".join(type(s).__name__ for s in order)
)
def test_shifts_compose_in_any_order(order: tuple[Shift, ...]):
    order = tuple(replace(one, duration=0) if isinstance(one, LabelDrift) else one for one in order)
    data = made(seed=1, shifts=order)
    now = data_at(data, order, 6, 0)
    assert torch.equal(held(now, "train", "withheld"), held(data, "train"))
    for name in ("validation", "test"):
        assert torch.equal(held(now, name), held(data, name))
    if not any(isinstance(shift, SwapPart) for shift in order):
        drift = any(isinstance(shift, LabelDrift) for shift in order)
        views = torch.cat([one[:1] // len(data.examples) for one in now.test])
        numbers = views % 2 * (1 + drift) + views // 2  # every client has at least one test example
        assert now.true_clusters.tolist() == numbers.tolist()


def held(data: FederatedData, *names: str) -> Tensor:
    """Numbers of the examples that clients have, ascending."""
    indices = [getattr(data, name).entries for name in names if getattr(data, name) is not None]
    return (torch.cat(indices) % len(data.examples)).sort().values


@pytest.mark.parametrize("seed", [0, 7])
def test_data_of_a_round_depend_on_seed_and_round_alone(seed: int):
    data = made(shifts=SHIFTS)
    stepped = data
    for r in range(8):
        stepped, _ = shifted(stepped, SHIFTS, r, seed, ids(0, 1))  # whoever is warm
        fresh = tuple(replace(shift) for shift in SHIFTS)
        assert everything(stepped) == everything(data_at(made(shifts=fresh), fresh, r, seed))


def test_run_taken_up_at_any_round_goes_on_alike():
    data = made(shifts=SHIFTS)
    end = everything(data_at(data, SHIFTS, 7, 0))
    for r in range(7):
        stored = with_lists(data, lists_of(data_at(data, SHIFTS, r, 0)))
        for later in range(r + 1, 8):
            stored = after(stored, *SHIFTS, round=later)
        assert everything(stored) == end


@pytest.mark.parametrize("shift", SHIFTS, ids=lambda shift: type(shift).__name__)
def test_other_seed_shifts_otherwise(shift: Shift):
    data = made(shifts=(shift,))
    one, same, other = (everything(data_at(data, [shift], 3, seed)) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_rounds_and_shifts_draw_apart():
    data = made(40)
    one, other = (after(data, SwapAll(1.0), round=r).true_clusters.tolist() for r in (0, 1))
    assert one != other
    twice = after(data, SwapAll(1.0), SwapAll(1.0))
    assert lists(twice) != lists(data)  # the second one would undo the first


@pytest.mark.parametrize("shift", SHIFTS, ids=lambda shift: type(shift).__name__)
def test_nothing_is_mutated(shift: Shift):
    data = data_at(made(shifts=SHIFTS), SHIFTS, 2, 0)
    copies = {
        (name, part.name): getattr(getattr(data, name), part.name).clone()
        for name in ALL
        for part in fields(ClientIndex)
    }
    clusters, labels = data.true_clusters.clone(), data.examples.labels.clone()
    assert everything(after(data, *SHIFTS, round=3)) != everything(data)
    for (name, part), copy in copies.items():
        assert torch.equal(getattr(getattr(data, name), part), copy)
    assert torch.equal(data.true_clusters, clusters)
    assert torch.equal(data.examples.labels, labels)


@pytest.mark.parametrize("kind", SHIFTS, ids=lambda shift: type(shift).__name__)
def test_only_warm_clients_shift_if_asked_for(kind: Shift):
    shift = replace(kind, participants="warm")
    if isinstance(shift, SwapAll | SwapPart):
        shift = replace(shift, probability=1.0)
    warm, data = ids(1, 4, 5, 8, 10), made(shifts=(shift,))
    cold = [client for client in range(12) if client not in warm.tolist()]
    now, moved = data, set[int]()
    for r in range(6):
        now, moves = shifted(now, [shift], r, 0, warm)
        moved |= {client for one in moves for client in one.clients.tolist()}
    assert moved
    assert moved <= set(warm.tolist())
    for client in cold:
        assert [one[client] for one in lists(now, *VISIBLE)] == [one[client] for one in lists(data)]
        assert now.true_clusters[client] == data.true_clusters[client]


def test_newcomers_never_shift():
    newcomers = torch.arange(12) % 3 == 0
    data = made(shifts=SHIFTS, newcomers=newcomers)
    now, moved = data, set[int]()
    for r in range(8):
        now, moves = shifted(now, SHIFTS, r, 0, data.population)
        moved |= {client for one in moves for client in one.clients.tolist()}
    assert moved == set(data.population.tolist())
    for client in newcomers.nonzero().flatten().tolist():
        assert [one[client] for one in lists(now, *VISIBLE)] == [one[client] for one in lists(data)]
        assert len(now.withheld[client]) == 0


@pytest.mark.parametrize("shift", SHIFTS, ids=lambda shift: type(shift).__name__)
def test_log_says_exactly_what_changed(shift: Shift):
    data = made(shifts=(shift,), seed=3)
    logged = 0
    for r in range(7):
        now, moves = shifted(data, [shift], r, 0, data.population)
        found = {row[0]: row[1:] for one in moves for row in rows(one)}
        assert [one.clients.tolist() for one in moves] == [sorted(found)] * len(moves)
        for client in range(12):
            before, later = (each.true_clusters.tolist()[client] for each in (data, now))
            came = seen(now, client) - seen(data, client)
            went = seen(data, client) - seen(now, client)
            if not came and not went and before == later:
                assert client not in found
                continue
            partner, examples, *clusters = found[client]
            assert clusters == [before, later]
            assert examples == (came.total() or went.total())
            from_partner = seen(data, partner) if partner >= 0 else Counter()
            assert (came <= from_partner) == (partner >= 0 or not came)
            logged += 1
        data = now
    assert logged > 10


def test_log_names_its_shift():
    data = made(shifts=SHIFTS)
    names = [one.what for r in range(4) for one in shifted(data, SHIFTS, r, 0, data.population)[1]]
    assert sorted(set(names)) == ["incremental", "label_drift", "swap_all", "swap_part"]


def test_clients_without_data_shift_without_trouble():
    data = made(6, shifts=SHIFTS)
    empty = data.of_lists(lambda index: index.first(ids(0, 5, 0, 5, 0, 5)))
    now = data_at(empty, SHIFTS, 6, 0)
    assert torch.equal(held(now, "train", "withheld"), held(empty, "train"))


# Lists that are replaced


@few
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_replaced_lists_stand_where_they_should(sizes: list[int], draw: st.DataObject):
    index = ClientIndex.from_lists([torch.arange(size) + 10 * client for client, size in enumerate(sizes)])
    expected = [one.tolist() for one in index]
    for step in range(draw.draw(st.integers(1, 4))):
        chosen = draw.draw(st.lists(st.sampled_from(range(len(sizes))), unique=True))
        new = [draw.draw(st.lists(st.integers(100 * step, 100 * step + 9), max_size=5)) for _ in chosen]
        index = index.replaced(ids(*chosen), ClientIndex.from_lists([ids(*one) for one in new]))
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
    index = shared.replaced(ids(1), ClientIndex(ids(7, 8, 9, 9), ids(1), ids(2)))
    assert [one.tolist() for one in index] == [[0, 1, 2, 3, 4, 5], [8, 9], [0, 1, 2, 3, 4, 5]]
    assert len(index.values) == 8


# As options of a data module


def test_data_module_makes_the_views_that_drift_needs():
    data = Digits(num_clients=8, shift=[SwapAll(0.5), LabelDrift(start=1)]).federated(0)
    assert len(data.examples.views) == 8
    assert data.true_clusters.tolist() == [0, 2, 4, 6] * 2
    now = data_at(data, [SwapAll(0.5), LabelDrift(start=1)], 2, 0)
    images, labels = now.examples.batch(now.train.entries)
    raw, stored = data.examples.inputs, data.examples.labels
    at, view = now.train.entries % 1797, now.train.entries // 1797
    assert torch.equal(labels, (stored[at] + view // 4) % 10)
    for turns in range(4):
        mine = view % 4 == turns
        assert torch.equal(images[mine], torch.rot90(raw[at[mine]].float() / 16, turns, (2, 3)))


@pytest.mark.parametrize("kind", [SwapAll, SwapPart])
@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_probability_outside_0_to_1_is_refused(kind: type[Shift], probability: float):
    with pytest.raises(InputError, match=f"probability of a swap is {probability}; give 0"):
        kind(probability)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": (0, 1)}, r"rounds \(0, 1\) and shares \(0.25, 0.5, 0.75, 1.0\) must be as many"),
        ({"rounds": (), "shares": ()}, "at least one"),
        ({"rounds": (0, 5, 5, 6)}, r"rounds of releases are \(0, 5, 5, 6\); give them in ascending order"),
        ({"rounds": (-1, 5, 6, 7)}, "ascending order, from 0"),
        ({"shares": (0.25, 0.5, 0.4, 1.0)}, r"shares of releases are \(0.25, 0.5, 0.4, 1.0\)"),
        ({"shares": (0.0, 0.5, 0.8, 1.0)}, "above 0 to 1"),
        ({"shares": (0.25, 0.5, 0.8, 1.1)}, "above 0 to 1"),
        ({"shares": (0.25, float("nan"), 0.8, 1.0)}, "above 0 to 1"),
    ],
)
def test_releases_that_cannot_be_are_refused(options: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        Incremental(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 1.5}, "share of clients that drift is 1.5; give 0 to 1"),
        ({"share": float("nan")}, "share of clients that drift is nan"),
        ({"start": -1}, "starts at -1 and takes 0 rounds; give 0 or more"),
        ({"duration": -2}, "takes -2 rounds"),
        ({"period": 0}, "period of a drift is 0 rounds and its duration 0"),
        ({"period": 3, "duration": 4}, "give a period of 1 or more that is as long as the duration"),
    ],
)
def test_drift_that_cannot_be_is_refused(options: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        LabelDrift(**options)


@pytest.mark.parametrize("labels", [0, 4, -8])
def test_drift_that_changes_no_label_is_refused(labels: int):
    with pytest.raises(InputError, match=f"drift by {labels} of 4 labels changes none; give 1 to 3"):
        made(shifts=(LabelDrift(labels=labels),))
