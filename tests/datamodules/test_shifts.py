"""Table of shifts by properties, and small examples of each shift that are worked out by hand.

The data are five clients with different numbers of examples, of which the third has no test data. Every order in these
examples is a cycle of three, so that its inverse gives another result.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from kinds import KINDS, experiment_on, lists_of, reloaded, shifted
from quadratic import ids

from lit_cfl.algorithms import IFCA, FedAvg
from lit_cfl.data import ClientIndex, Division, Examples, FederatedData
from lit_cfl.data.federated import lists_of as tensors_of
from lit_cfl.data.federated import with_lists
from lit_cfl.data.shift import apply_shifts
from lit_cfl.datamodules import FederatedDataModule, Incremental, LabelDrift, SwapAll, SwapPart

PARTS = ("train", "validation", "test", "withheld")
SIZES = ((6, 2, 3), (9, 3, 5), (3, 1, 0), (7, 2, 2), (5, 1, 4))  # training, validation and test examples of each client
TOTAL = sum(map(sum, SIZES))
OWNERS = np.repeat(range(5), [sum(sizes) for sizes in SIZES]).tolist()  # client of each example
LABELS = [(client + 1 + number % 2) % 3 for number, client in enumerate(OWNERS)]


class Small(FederatedDataModule):
    """Clients with the labels 0, 1 and 2 of 4; client k lacks the label k modulo 3, and shares no example."""

    def load(self) -> Examples:
        return Examples(torch.arange(TOTAL)[:, None] / TOTAL, torch.tensor(LABELS), 4)

    def divide(self, examples: Examples, rng: np.random.Generator) -> Division:
        whole = ClientIndex.from_sizes(torch.arange(len(examples)), torch.tensor([sum(sizes) for sizes in SIZES]))
        trained = torch.tensor([train + validation for train, validation, _ in SIZES])
        return Division(whole.first(trained).pack(), whole.after(trained).pack(), ids(0, 1, 2, 0, 1))


SHIFTS: dict[str, Sequence[Any]] = {
    "whole swaps": [SwapAll(1.0)],
    "rare whole swaps": [SwapAll(0.5)],
    "swaps of a label": [SwapPart(1.0)],
    "release": [Incremental((1, 2, 4), (0.3, 0.7, 1.0))],
    "sudden drift": [LabelDrift(share=0.6, start=2)],
    "gradual drift": [LabelDrift(share=0.6, start=1, duration=3)],
    "swaps, then drift": [SwapAll(1.0), LabelDrift(share=0.6, start=1)],
    "drift, then swaps": [LabelDrift(share=0.6, start=1), SwapAll(1.0)],
    "release, then swaps": [Incremental((0, 2), (0.5, 1.0)), SwapAll(1.0)],
    "two drifts": [LabelDrift(share=0.6, start=1), LabelDrift(share=0.4, labels=2, start=2)],
    "two swaps": [SwapAll(1.0), SwapAll(1.0)],  # with equal draws, the second would undo the first
    "swaps, then release": [SwapAll(0.5), SwapPart(0.5), Incremental((0, 3), (0.4, 1.0))],
    "release, drift, swaps": [Incremental((0, 2), (0.5, 1.0)), LabelDrift(share=0.6, start=1), SwapPart(1.0)],
}
every_shift = pytest.mark.parametrize("name", SHIFTS)
STARTS = {"release": 1, "sudden drift": 2, "gradual drift": 1, "two drifts": 1}  # the first round with a change
ROUNDS = 5
WORDS = {SwapAll: "swap_all", SwapPart: "swap_part", Incremental: "incremental", LabelDrift: "label_drift"}


def small(name: str, **options: Any) -> FederatedData:
    return Small(shift=SHIFTS[name], validation=0.25, **options).federated(0)


@cache
def rounds_of(name: str, seed: int = 0, newcomers: float = 0.0) -> list[tuple[FederatedData, Any]]:
    """Returns the data before the first round, and the data and the log of each round."""
    data = small(name, newcomers=newcomers)
    return [(data, ()), *shifted(data, SHIFTS[name], ROUNDS, seed)]


def facts(data: FederatedData) -> tuple[Any, ...]:
    return lists_of(data), data.true_clusters.tolist()


def examples_of(data: FederatedData, client: int, *parts: str) -> list[int]:
    lists = lists_of(data)
    return sorted(number % len(data.examples) for name in parts or PARTS for number in lists[name][client])


# Properties of every shift


@every_shift
def test_no_part_loses_an_example(name: str):
    first, last = rounds_of(name)[0][0], rounds_of(name)[-1][0]
    for parts in (("train", "withheld"), ("validation",), ("test",)):
        expected = sorted(number for client in range(5) for number in examples_of(first, client, *parts))
        for data, _ in rounds_of(name):
            assert sorted(number for client in range(5) for number in examples_of(data, client, *parts)) == expected
    assert not any(lists_of(last)["withheld"])  # every release ends with all data


@every_shift
def test_parts_move_together(name: str):
    """Validation and test data of a client are always of the clients from which it has training data."""
    start = rounds_of(name)[0][0]
    for data, _ in rounds_of(name):
        for client in range(5):
            sources = {part: {OWNERS[one] for one in examples_of(data, client, part)} for part in PARTS}
            if not any(isinstance(shift, SwapPart) for shift in SHIFTS[name]):
                (source,) = sources["train"]
                assert set.union(*sources.values()) == {source}
                assert len(examples_of(data, client, "test")) == SIZES[source][2]
                assert len(examples_of(data, client, "validation")) == len(examples_of(start, source, "validation"))
                truth = int(data.true_clusters[client])
                concepts = 2 ** sum(isinstance(shift, LabelDrift) for shift in SHIFTS[name])
                assert truth // concepts == [0, 1, 2, 0, 1][source]


@every_shift
def test_the_log_says_what_changed(name: str):
    for (before, _), (after, moves) in zip(rounds_of(name), rounds_of(name)[1:], strict=False):
        told = {client for move in moves for client in move.clients.tolist()}
        (old, truth), (new, now) = facts(before), facts(after)
        changed = {
            client
            for client in range(5)
            if truth[client] != now[client] or any(old[part][client] != new[part][client] for part in PARTS)
        }
        assert changed <= told
        assert changed == told or len(SHIFTS[name]) > 1  # two shifts may cancel each other
        assert len(moves) <= len(SHIFTS[name])
        assert {move.what for move in moves} <= {WORDS[type(shift)] for shift in SHIFTS[name]}
        for move in moves:
            assert move.clients.tolist() == sorted(set(move.clients.tolist()))
        if len(moves) == 1:
            (move,) = moves
            assert move.before.tolist() == [truth[client] for client in move.clients.tolist()]
            assert move.after.tolist() == [now[client] for client in move.clients.tolist()]
            for client, partner, number in torch.stack([move.clients, move.partners, move.examples], 1).tolist():
                came = {part: set(new[part][client]) - set(old[part][client]) for part in PARTS[:3]}
                released = abs(len(new["train"][client]) - len(old["train"][client]))
                assert number == (released if move.what == "incremental" else sum(map(len, came.values())))
                if partner >= 0:
                    assert all(came[part] <= set(old[part][partner]) for part in came)


@every_shift
def test_it_takes_effect_in_its_round(name: str):
    start = STARTS.get(name, 0)
    (before, _), *rounds = rounds_of(name)
    for data, moves in rounds[:start]:
        assert (facts(data), moves) == (facts(before), ())
    assert len(rounds[start][1]) >= (name != "rare whole swaps")
    assert name in ("rare whole swaps",) or facts(rounds[start][0]) != facts(before)


@every_shift
def test_who_shifts_depends_on_the_seed_alone(name: str):
    expected = [facts(data) for data, _ in rounds_of(name)[1:]]
    again = shifted(small(name, partition_seed=0), SHIFTS[name], ROUNDS, 0, warm=ids(0, 1))
    assert [facts(data) for data, _ in again] == expected
    for number, (data, _) in enumerate(rounds_of(name)[1:-1], 1):  # as in a run that resumes after this round
        stored = with_lists(small(name), tensors_of(data))
        for later in range(number, ROUNDS):
            stored, _ = apply_shifts(stored, SHIFTS[name], later, 0, data.population)
        assert facts(stored) == expected[-1]
    if name != "release":  # every client takes part in a release
        others = [[sorted(one.clients.tolist()) for _, moves in rounds_of(name, k) for one in moves] for k in range(4)]
        assert len(set(map(str, others))) > 1


@every_shift
def test_newcomers_neither_swap_nor_wait_but_drift(name: str):
    rounds = rounds_of(name, newcomers=0.4)
    mine = rounds[0][0].newcomers.nonzero().flatten().tolist()
    assert len(mine) == 2
    for data, moves in rounds:
        assert data.newcomers.nonzero().flatten().tolist() == mine
        assert not {client for move in moves for client in move.clients.tolist()} & set(mine)
        for client in mine:
            for part in PARTS:
                assert examples_of(data, client, part) == examples_of(rounds[0][0], client, part)
    if name == "sudden drift":
        ends = [lists_of(rounds_of(name, seed, 0.4)[-1][0])["train"] for seed in range(6)]
        assert any(train[client][0] >= TOTAL for train in ends for client in mine)


@every_shift
def test_a_client_without_training_data_is_survived(name: str):
    data = small(name)
    sizes = data.train.sizes.clone()
    sizes[2] = 0
    empty = replace(data, train=data.train.first(sizes), validation=data.validation.first(sizes))
    total = sum(len(examples_of(empty, client)) for client in range(5))
    for after, _ in shifted(empty, SHIFTS[name], ROUNDS):
        assert sum(len(examples_of(after, client)) for client in range(5)) == total


@every_shift
def test_only_warm_clients_shift_if_so_asked(name: str):
    shifts = [replace(shift, participants="warm") for shift in SHIFTS[name]]
    data, moved = small(name), set[int]()
    for after, moves in shifted(data, shifts, ROUNDS, warm=ids(1, 2, 4)):
        moved |= {client for move in moves for client in move.clients.tolist()}
        assert moved <= {1, 2, 4}
        for client in (0, 3):
            assert [facts(after)[0][part][client] for part in PARTS] == [facts(data)[0][part][client] for part in PARTS]
    assert moved or name == "swaps of a label"  # of these clients, two lack the same label, and one has no test data


@every_shift
def test_every_method_sees_the_same_data_and_a_resumed_run_too(name: str):
    kind = KINDS["table"]
    runs = []
    for algorithm in (FedAvg(), IFCA(num_clusters=2)):
        module = Small(shift=SHIFTS[name], validation=0.25)
        prepared = experiment_on(kind, module, algorithm, rounds=3, seeds=[0]).prepare(0)
        runs.append(list(prepared.rounds()))
        resumed = list(prepared.rounds(after=reloaded(algorithm, runs[-1][0])))
        assert [facts(one.data) for one in resumed] == [facts(one.data) for one in runs[-1][1:]]
        assert torch.equal(*(algorithm.serve(rounds[-1].state, ids(0)).models for rounds in (resumed, runs[-1])))
    expected = [facts(data) for data, _ in rounds_of(name)[1:4]]
    assert [[facts(one.data) for one in rounds] for rounds in runs] == [expected] * 2


# Examples that are worked out by hand

DRIFTERS = [0, 2, 3]  # clients that drift under the seed 0


def test_releases_are_shares_of_all_training_data_rounded_up():
    rounds = [lists_of(data)["train"] for data, _ in rounds_of("release")]
    sizes = [[len(one) for one in lists] for lists in rounds]
    # 0.3 of all, rounded up; and 0.7, which is 4.2, 6.3, 2.1, 4.9 and 2.8
    everything, few, most = [6, 9, 3, 7, 4], [2, 3, 1, 3, 2], [5, 7, 3, 5, 3]
    assert sizes == [everything, everything, few, most, most, everything]
    for earlier, later in pairwise(rounds[2:]):
        assert all(set(one) <= set(another) for one, another in zip(earlier, later, strict=True))
    released = [[move.examples.tolist() for move in moves] for _, moves in rounds_of("release")]
    assert released == [[], [], [[4, 6, 2, 4, 2]], [[3, 4, 2, 2, 1]], [], [[1, 2, 2, 1]]]  # client 2 had all before


def test_a_gradual_drift_grows_and_counts_as_new_from_half_on():
    shares, truths = [], []
    for data, _ in rounds_of("gradual drift"):
        lists = lists_of(data)
        drifted = ([k % TOTAL for part in PARTS[:3] for k in lists[part][client] if k >= TOTAL] for client in DRIFTERS)
        shares.append(list(map(set, drifted)))
        truths.append([int(data.true_clusters[client]) % 2 for client in DRIFTERS])
    assert truths == [[0] * 3, [0] * 3, [0] * 3, [1] * 3, [1] * 3, [1] * 3]  # a third, two thirds, all
    for earlier, later in pairwise(shares):
        assert all(one <= another for one, another in zip(earlier, later, strict=True))
    total = sum(sum(SIZES[client]) for client in DRIFTERS)
    numbers = [sum(map(len, each)) for each in shares]
    assert numbers[:2] == [0, 0]
    assert numbers[4:] == [total, total]
    assert 0.15 < numbers[2] / total < 0.5 < numbers[3] / total < 0.85


@pytest.mark.parametrize("name", ["swaps, then drift", "drift, then swaps"])
def test_data_keep_their_drift_when_they_are_swapped(name: str):
    holds, drifted = list(range(5)), set()
    for data, moves in rounds_of(name)[1:]:
        for shift in SHIFTS[name]:
            if isinstance(shift, SwapAll):
                (move,) = (one for one in moves if one.what == "swap_all")
                partners = dict(zip(move.clients.tolist(), move.partners.tolist(), strict=True))
                holds = [holds[partners.get(client, client)] for client in range(5)]
            elif any(one.what == "label_drift" for one in moves):
                (move,) = (one for one in moves if one.what == "label_drift")
                drifted |= {holds[client] for client in move.clients.tolist()}
        for client in range(5):
            assert {OWNERS[number] for number in examples_of(data, client)} == {holds[client]}
            assert {number >= TOTAL for number in lists_of(data)["train"][client]} == {holds[client] in drifted}
            assert int(data.true_clusters[client]) == 2 * [0, 1, 2, 0, 1][holds[client]] + (holds[client] in drifted)
    assert len(drifted) > 3  # more than the three clients that drift, since they got other data
