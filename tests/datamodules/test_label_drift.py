"""Tests label drift: which clients drift, when and how far, and the log."""

from collections import Counter
from dataclasses import replace
from math import sqrt

import pytest
import torch
from quadratic import ids
from shift_cases import VISIBLE, after, data_at, everything, lists, made, rows, seen, with_sizes
from torch import Tensor

from lit_cfl.data import FederatedData
from lit_cfl.data.shift import apply_shifts, with_concepts
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.shift import Incremental, LabelDrift, SwapAll
from lit_cfl.datamodules.skew import LabelShifts
from lit_cfl.errors import InputError


def drifting(data: FederatedData, shift: LabelDrift, round: int, seed: int = 0) -> Tensor:
    """Returns the share of drifted examples in each client's training data."""
    now = data_at(data, [shift], round, seed)
    views = len(data.examples.views) // 2
    old = [float((one // len(data.examples) >= views).double().mean()) for one in now.train]
    return torch.tensor(old)


def test_abrupt_drift_moves_the_labels_of_its_clients_only():
    shift = LabelDrift(share=0.25, labels=3, start=2)
    data = made(shifts=(shift,))
    assert everything(data_at(data, [shift], 1, 0)) == everything(data)
    now, (moves,) = apply_shifts(data_at(data, [shift], 1, 0), [shift], 2, 0, data.population)
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
    later, moves = apply_shifts(data, [shift], 3, 0, data.population)
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
        data, moves = apply_shifts(data, [shift], r, 0, data.population)
        for one in moves:
            changed.index_add_(0, one.clients, one.examples)
    assert changed.tolist() == [seen(data, client).total() for client in range(12)]


def test_degree_grows_from_the_start_over_the_duration():
    assert [LabelDrift(start=1, duration=2).degree(r) for r in range(5)] == [0, 0.5, 1, 1, 1]
    assert [LabelDrift(start=2).degree(r) for r in range(5)] == [0, 0, 1, 1, 1]


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.3, 12), (0.5, 20), (1.0, 40)])
def test_share_of_the_clients_drifts(share: float, count: int):
    shift = LabelDrift(share, start=0)
    drifts = drifting(made(40, shifts=(shift,)), shift, 0)
    assert int((drifts == 1).sum()) == count
    assert int((drifts == 0).sum()) == 40 - count


def test_who_drifts_depends_on_the_seed_but_not_on_who_takes_part():
    shift = LabelDrift(start=0, participants="warm")
    data = made(40, shifts=(shift,))
    (everybody,), (some,) = (apply_shifts(data, [shift], 0, 0, who)[1] for who in (torch.arange(40), torch.arange(20)))
    assert some.clients.tolist() == [client for client in everybody.clients.tolist() if client < 20]
    assert everybody.clients.tolist() != apply_shifts(data, [shift], 0, 1, torch.arange(40))[1][0].clients.tolist()


def test_warm_client_drifts_when_it_becomes_warm():
    shift = LabelDrift(1.0, start=0, participants="warm")
    data = made(3, shifts=(shift,))
    data, (first,) = apply_shifts(data, [shift], 0, 0, ids(0))
    data, (second,) = apply_shifts(data, [shift], 1, 0, ids(0, 2))
    assert (first.clients.tolist(), second.clients.tolist()) == ([0], [2])


def test_newcomers_drift_as_the_others_do_but_are_not_logged():
    shift = LabelDrift(start=1, duration=2)
    data = made(40, shifts=(shift,))
    held_out = replace(data, newcomers=torch.arange(40) % 3 == 0)
    for r in range(4):
        data, moves = apply_shifts(data, [shift], r, 0, data.population)
        held_out, logged = apply_shifts(held_out, [shift], r, 0, held_out.population)
        assert everything(held_out) == everything(data)
        expected = [row for one in moves for row in rows(one) if row[0] % 3]
        assert [row for one in logged for row in rows(one)] == expected
    assert (data.true_clusters[::3] % 2).unique().tolist() == [0, 1]  # some newcomers have drifted, and some have not


def test_newcomers_keep_their_labels_where_only_warm_clients_drift():
    shift = LabelDrift(1.0, start=0, participants="warm")
    data = made(4, shifts=(shift,), newcomers=torch.tensor([False, True, False, True]))
    now = after(data, shift, warm=ids(0))
    assert [client for client in range(4) if seen(now, client) != seen(data, client)] == [0]


def test_drift_that_makes_one_cluster_into_another_is_refused():
    shifts = LabelShifts((0, 3))
    for labels, message in ((3, "a drift by 3 labels turns one cluster's data into another's"), (7, "a drift by 7")):
        with pytest.raises(InputError, match=message):
            Digits(skew=[shifts], shift=LabelDrift(labels=labels)).federated(0)
    assert len(Digits(skew=[shifts], shift=LabelDrift(labels=4)).examples.views) == 4


def test_unknown_cluster_stays_unknown_under_drift():
    shift = LabelDrift(1.0, start=1)
    data = made(4, shifts=(shift,))
    data = replace(data, true_clusters=ids(-1, 2, -1, 2))
    assert [data_at(data, [shift], r, 0).true_clusters.tolist() for r in range(2)] == [[-1, 2, -1, 2], [-1, 3, -1, 3]]


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
    _, (moves,) = apply_shifts(data, [shift], 0, 0, data.population)
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
    drifted, (moves,) = apply_shifts(data, [drift], 0, 0, data.population)
    (who,) = moves.clients.tolist()
    now = after(drifted, SwapAll(1.0), drift, round=1)
    assert seen(now, 1 - who) == seen(drifted, who)  # these examples keep their new labels
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
    now, moves = apply_shifts(hidden, [shift], 1, 0, data.population)
    assert moves == ()
    assert torch.equal(now.withheld.entries, data.train.entries)


def test_clients_that_share_a_list_share_it_under_drift():
    data = with_sizes(3, 4, 5, 6)
    data = replace(data, examples=replace(data.examples, num_labels=2))
    shift = LabelDrift(0.5, start=0)
    data = with_concepts(replace(data, examples=shift.widen(data.examples)), [shift])
    now, (moves,) = apply_shifts(data, [shift], 0, 0, data.population)
    assert len(now.test.values) == 4
    expected = [[18, 19] if client in moves.clients.tolist() else [0, 1] for client in range(4)]
    assert lists(now, "test")[0] == expected


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 1.5}, "LabelDrift: share is 1.5; give 0 to 1"),
        ({"share": float("nan")}, "LabelDrift: share is nan"),
        ({"start": -1}, "LabelDrift: start is -1; give 0 or more"),
        ({"duration": -2}, "LabelDrift: duration is -2; give 0 or more"),
    ],
)
def test_drift_that_cannot_be_is_refused(options: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        LabelDrift(**options)


@pytest.mark.parametrize("labels", [0, 4, -8])
def test_drift_that_changes_no_label_is_refused(labels: int):
    with pytest.raises(InputError, match=f"drift by {labels} labels changes nothing with 4 labels; give 1 to 3"):
        made(shifts=(LabelDrift(labels=labels),))
