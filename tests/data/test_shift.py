"""Tests that all shifts, single and combined, depend only on seed and round, and log exactly what changed."""

from collections import Counter
from dataclasses import fields, replace
from itertools import permutations

import pytest
import torch
from quadratic import ids
from shift_cases import ALL, SHIFTS, VISIBLE, after, data_at, everything, held, lists, made, rows, seen

from lit_cfl.data import ClientIndex
from lit_cfl.data.federated import lists_of, with_lists
from lit_cfl.data.shift import Shift, apply_shifts
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.shift import LabelDrift, SwapAll, SwapPart


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


@pytest.mark.parametrize("seed", [0, 7])
def test_data_of_a_round_depend_on_seed_and_round_alone(seed: int):
    data = made(shifts=SHIFTS)
    stepped = data
    for r in range(8):
        stepped, _ = apply_shifts(stepped, SHIFTS, r, seed, ids(0, 1))  # with any clients as warm ones
        fresh = tuple(replace(shift) for shift in SHIFTS)
        assert everything(stepped) == everything(data_at(made(shifts=fresh), fresh, r, seed))


def test_run_resumed_at_any_round_is_the_same():
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
    assert lists(twice) != lists(data)  # with equal draws, the second swap would undo the first


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
        now, moves = apply_shifts(now, [shift], r, 0, warm)
        moved |= {client for one in moves for client in one.clients.tolist()}
    assert moved
    assert moved <= set(warm.tolist())
    for client in cold:
        assert [one[client] for one in lists(now, *VISIBLE)] == [one[client] for one in lists(data)]
        assert now.true_clusters[client] == data.true_clusters[client]


def test_newcomers_never_swap_and_have_all_their_data():
    newcomers, shifts = torch.arange(12) % 3 == 0, SHIFTS[:3]
    data = made(shifts=shifts, newcomers=newcomers)
    now, moved = data, set[int]()
    for r in range(8):
        now, moves = apply_shifts(now, shifts, r, 0, data.population)
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
        now, moves = apply_shifts(data, [shift], r, 0, data.population)
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
    names = [one.what for r in range(4) for one in apply_shifts(data, SHIFTS, r, 0, data.population)[1]]
    assert sorted(set(names)) == ["incremental", "label_drift", "swap_all", "swap_part"]


def test_clients_without_data_shift_without_trouble():
    data = made(6, shifts=SHIFTS)
    empty = data.of_lists(lambda index: index.first(ids(0, 5, 0, 5, 0, 5)))
    now = data_at(empty, SHIFTS, 6, 0)
    assert torch.equal(held(now, "train", "withheld"), held(empty, "train"))


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
