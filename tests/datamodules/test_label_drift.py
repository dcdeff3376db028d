"""Tests label drift: which clients and examples drift, the numbers of their concepts, and what is logged."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from quadratic import ids
from shift_cases import after, data_at, lists, two_clients, with_sizes

from lit_cfl.data.shift import apply_shifts, with_concepts
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.shift import Incremental, LabelDrift, SwapAll
from lit_cfl.datamodules.shift.drift import draw_drifting
from lit_cfl.datamodules.skew import LabelShifts
from lit_cfl.errors import InputError

ALL = LabelDrift(1.0, start=0)  # all clients drift at once

# Who drifts, and how far


def test_degree_grows_from_the_start_over_the_duration():
    assert [LabelDrift(start=1, duration=3).degree(r) for r in range(5)] == [0, 1 / 3, 2 / 3, 1, 1]
    assert [LabelDrift(start=2).degree(r) for r in range(5)] == [0, 0, 1, 1, 1]
    assert ALL.degree(0) == 1


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.3, 12), (0.5, 20), (1.0, 40)])
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


def test_newcomers_keep_their_labels_where_only_warm_clients_drift():
    shift = replace(ALL, participants="warm")
    data = replace(with_sizes(3, 4, 5, 6, shifts=[shift]), newcomers=torch.tensor([False, True, False, True]))
    assert after(data, shift, warm=ids(0)).true_clusters.tolist() == [1, 2, 4, 6]
    assert lists(after(data, shift, warm=ids(0)), "train")[0][1:] == lists(data, "train")[0][1:]


def test_seed_says_which_examples_drift_first():
    shift = LabelDrift(1.0, start=0, duration=2)
    data = with_sizes(60, 40, shifts=[shift])
    one, other = (after(data, shift, seed=seed).train.entries >= 100 for seed in (0, 1))
    assert 0.25 < float((one != other).double().mean()) < 0.75


# Numbers of concepts


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
    assert data_at(data, shifts, 1).true_clusters.tolist() == [2, 6]
    both = data_at(data, shifts, 2)
    assert both.true_clusters.tolist() == [3, 7]
    assert torch.equal(both.examples.targets(both.train.entries), (data.examples.targets(data.train.entries) + 3) % 4)


def test_drifting_clients_keep_their_skew():
    shift = [SwapAll(0.5), LabelDrift(start=1)]
    data = Digits(num_clients=8, shift=shift).federated(0)
    assert len(data.examples.views) == 8
    assert data.true_clusters.tolist() == [0, 2, 4, 6] * 2
    now = data_at(data, shift, 2)
    images, labels = now.examples.batch(now.train.entries)
    raw, stored = data.examples.inputs, data.examples.labels
    at, view = now.train.entries % 1797, now.train.entries // 1797
    assert torch.equal(labels, (stored[at] + view // 4) % 10)
    for turns in range(4):
        mine = view % 4 == turns
        assert torch.equal(images[mine], torch.rot90(raw[at[mine]].float() / 16, turns, (2, 3)))


# Lists and the log


def test_client_whose_truth_alone_changes_is_logged():
    data = two_clients(ALL).of_lists(lambda index: index.first(ids(0, 9)))
    _, (moves,) = apply_shifts(data, [ALL], 0, 0, data.population)
    assert (moves.clients.tolist(), moves.partners.tolist(), moves.examples.tolist()) == ([0, 1], [-1, -1], [0, 7])
    assert (moves.before.tolist(), moves.after.tolist()) == ([0, 2], [1, 3])


def test_withheld_examples_drift_too_but_are_not_logged():
    shifts = (Incremental((0, 2), (0.25, 1.0)), LabelDrift(1.0, start=1))
    data = data_at(two_clients(*shifts), shifts, 1)
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
        (lambda: LabelDrift(share=1.5), "share is 1.5"),
        (lambda: LabelDrift(start=-1), "start is -1"),
        (lambda: LabelDrift(duration=-2), "duration is -2"),
        *((lambda by=by: two_clients(LabelDrift(labels=by)), f"by {by} labels | 1 to 3") for by in (0, 4, -8)),
        # a drift from one cluster's labels to those of another
        (lambda: Digits(skew=[LabelShifts((0, 3))], shift=LabelDrift(labels=3)).federated(0), "by 3 labels"),
        (lambda: Digits(skew=[LabelShifts((0, 3))], shift=LabelDrift(labels=7)).federated(0), "by 7 labels"),
    ],
)
def test_drift_that_cannot_be_is_refused(make: object, quoted: str):
    with pytest.raises(InputError) as refusal:
        make()
    assert all(part in str(refusal.value) for part in quoted.split(" | "))
