"""Tests migration of clients whose data have drifted, for IFCA and FeSEM (docs/ground_truth.md, check 7)."""

from dataclasses import replace

import pytest
import torch
from few_rounds import begin
from quadratic import Clients, clients_at, f64, ids, rng

from lit_cfl.algorithms.base import Info, State
from lit_cfl.algorithms.fesem import FeSEM
from lit_cfl.algorithms.ifca import IFCA
from lit_cfl.algorithms.migration import feature_distance

CENTERS, LABELS = [-4.0, 4.0, -5.0, 5.0], [[6, 0], [0, 4], [8, 0], [0, 10]]
MIG = IFCA(num_clusters=2, migrate=True)
SEM = FeSEM(num_clusters=2, migrate=True)


def clients(*order: int, labels: list[list[int]] | None = None) -> Clients:
    """Makes four clients on both sides of 0; client k has entry `order[k]` of `CENTERS` and `LABELS`."""
    order = order or (0, 1, 2, 3)
    counts = torch.tensor(labels or [LABELS[k] for k in order])
    return clients_at(*(CENTERS[k] for k in order), sizes=counts.sum(1), label_counts=counts)


def begun() -> State:
    """Returns IFCA's state after one round from the models -1 and 1, with the even clients in cluster 0."""
    state, _ = MIG.round(begin(MIG, clients(), -1.0, 1.0), ids(0, 1, 2, 3), clients(), rng())
    assert state.index.tolist() == [0, 1, 0, 1]
    return state


def rows(info: Info) -> list[tuple[int, ...]]:
    return [(row["client"], row["cluster_before"], row["cluster_after"]) for row in info.tables["migrations"]]


def counts(info: Info) -> tuple[float, float]:
    return info.scores["shift/detected"], info.scores["shift/migrated"]


def test_swapped_clients_change_cluster_once_and_before_the_round_although_not_selected():
    swapped = clients(3, 1, 2, 0)
    after, info = MIG.round(begun(), ids(1), swapped, rng())
    assert after.index.tolist() == [1, 1, 0, 0]
    assert (rows(info), counts(info)) == ([(0, 0, 1), (3, 1, 0)], (2, 2))
    assert (info.down, info.up) == (2 * 1 + 2 * 2, 1)  # down K T (m + 1) + m for each shifted client
    assert after.reference.tolist() == [[0, 10], [0, 4], [8, 0], [6, 0]]
    assert after.sizes.tolist() == [6, 4, 8, 10]  # the sizes n_i at the start, which never change
    again, info = MIG.round(after, ids(1), swapped, rng())
    assert (info.scores["shift/detected"], rows(info), info.down) == (0, [], 2)
    assert again.index.tolist() == [1, 1, 0, 0]
    sticky, plain = replace(MIG, migrate=False).round(begun(), ids(1), swapped, rng())
    assert sticky.index.tolist() == [0, 1, 0, 1]
    assert (plain.tables, plain.down) == ({}, 2)
    assert torch.equal(sticky.models, after.models)


def test_selected_client_migrates_before_it_chooses_for_the_round():
    state = replace(begun(), index=ids(0, 1, -1, 1))
    after, info = MIG.round(state, ids(0, 2), clients(3, 1, 1, 0), rng())
    # client 2, whose labels also changed, had no cluster yet
    assert (rows(info), counts(info)) == ([(0, 0, 1), (3, 1, 0)], (2, 2))
    assert after.index.tolist() == [1, 1, 1, 0]


def test_shift_that_leaves_the_cluster_unchanged_is_detected_and_costs():
    after, info = MIG.round(begun(), ids(1), clients(labels=[[3, 3], [0, 4], [8, 0], [0, 10]]), rng())
    assert (counts(info), rows(info)) == ((1, 0), [(0, 0, 0)])
    assert info.down == 2 + 2
    assert after.reference[0].tolist() == [3, 3]


def test_slow_drift_adds_up_until_it_fires():
    state, found = begun(), []
    for moved in (1, 2, 3):  # for client 3's 10 examples these are shares of 0.1, 0.2 (not above the threshold) and 0.3
        work = clients(labels=[[6, 0], [0, 4], [8, 0], [moved, 10 - moved]])
        state, info = MIG.round(state, ids(1), work, rng())
        found.append(info.scores["shift/detected"])
    assert found == [0, 0, 1]


def test_client_that_lost_its_data_is_detected_stays_and_is_tried_again():
    empty, state = clients(labels=[[0, 0], [0, 4], [8, 0], [0, 10]]), begun()
    for _ in range(2):
        state, info = MIG.round(state, ids(1), empty, rng())
        assert (counts(info), rows(info)) == ((1, 0), [])
        assert state.index.tolist() == [0, 1, 0, 1]
        assert state.reference[0].tolist() == [6, 0]
    state, info = MIG.round(state, ids(1), clients(3, 1, 2, 3), rng())
    assert rows(info) == [(0, 0, 1)]
    assert state.reference[0].tolist() == [0, 10]


def test_clients_that_were_not_there_at_the_start_are_compared_with_their_first_data():
    state, _ = MIG.place(begin(MIG, clients(0)), ids(3, 1, 2), clients(), rng())
    state, info = MIG.round(state, ids(1), clients(), rng())
    assert info.scores["shift/detected"] == 0
    assert state.sizes.tolist() == [6, 4, 8, 10]
    _, info = MIG.round(state, ids(1), clients(0, 1, 2, 0), rng())
    assert info.scores["shift/detected"] == 1


@pytest.mark.parametrize(
    ("index", "last", "cohort", "after", "moved", "found"),
    [
        # client 0 stays, since FeSEM compares models, not data; client 3 was not shifted
        (ids(0, 1, 0, 0), {0: -2.5, 1: 2.5, 2: 2.0, 3: 1.0}, ids(1), [0, 1, 1, 0], [(0, 0, 0), (2, 0, 1)], (2, 1)),
        # a selected client migrates before the E-step
        (ids(0, 1, -1, 1), dict.fromkeys(range(4), 2.0), ids(0, 2), [1, 1, 1, 1], [(0, 0, 1)], (1, 1)),
        # a client that has no model of its own stays
        (ids(0, 1, 0, 1), {}, ids(), [0, 1, 0, 1], [], (2, 0)),
    ],
)
def test_shifted_clients_of_fesem_move_to_the_nearest_model(index, last, cohort, after, moved, found):
    state = begin(SEM, clients(), -3.0, 3.0, index=index, last={client: f64(value) for client, value in last.items()})
    end, info = SEM.round(state, cohort, clients(1, 1, 3, 3), rng())  # the labels of clients 0 and 2 changed
    assert end.index.tolist() == after
    assert (rows(info), counts(info)) == (moved, found)
    assert (info.down, info.up) == (len(cohort), len(cohort))  # migration needs no communication
    assert last or torch.equal(end.reference, state.reference)


LOSS = replace(MIG, shift_metric="loss", shift_threshold=1.0)
FEATURES = replace(MIG, shift_metric="features", shift_threshold=1.0)


def at(*points: float) -> Clients:
    """Makes clients that training does not move, with w_0 = 2: a client at 0 has the initial loss 2."""
    return clients_at(*points, sizes=[1] * len(points), rate=0.0, start=2.0)


def placed(algorithm: IFCA, models: list[float], *last: float) -> State:
    """Returns a state with all clients at 0 and in cluster 0, and these references."""
    clients = max(len(last), 1)
    state = begin(algorithm, at(*[0.0] * clients), *models, index=torch.zeros(clients, dtype=torch.int64))
    return replace(state, reference=f64(*last)[:, None]) if last else state


def test_rise_of_the_loss_counts_in_units_of_the_initial_models_loss_and_strictly():
    before, now = placed(LOSS, [0.0, 4.0], 0.5, 0.5, 0.5), at(5.0, 4.0, 0.0)
    # losses 12.5, 8, 0; under the initial model 4.5, 2, 2: distances 2.67, 3.75, -0.25
    for threshold, fired in ((2.0, [0, 1]), (12.0 / 4.5, [1]), (3.75, [])):
        _, info = replace(LOSS, shift_threshold=threshold).round(before, ids(0, 1, 2), now, rng())
        assert [row[0] for row in rows(info)] == fired
        assert info.scores["shift/detected"] == len(fired)


def test_loss_is_tested_in_the_cohort_against_the_last_test_and_falls_are_not_drift():
    state, found = begin(LOSS, at(0.0, 0.0), 0.0, 99.0, index=ids(0, 0)), []
    for cohort, point in ((ids(0), -1.0), (ids(1), -9.0), (ids(0), -2.0), (ids(0), -6.0), (ids(0), -1.0)):
        state, info = LOSS.round(state, cohort, at(point, 0.0), rng())
        found.append((info.scores["shift/detected"], float(state.reference[0, 0])))
    # losses 0.5, not tested, 2, 18, 0.5; initial model's 4.5, -, 8, 32, 4.5: all distances below 1, new references
    assert found == [(0, 0.5), (0, 0.5), (0, 2.0), (0, 18.0), (0, 0.5)]


def test_client_that_was_placed_again_is_compared_under_its_new_clusters_model():
    state, info = LOSS.round(placed(LOSS, [0.0, 9.0], 0.0, 0.0), ids(0, 1), at(9.5, 0.0), rng())
    assert rows(info) == [(0, 0, 1)]
    assert state.reference[:, 0].isnan().tolist() == [True, False]
    # both clients receive two models to choose from; one chooses again, and receives another
    assert info.down == 2 * 2 + 2 + 1
    # the loss 0.125 under the new model becomes the reference
    state, info = LOSS.round(state, ids(0), at(9.5, 0.0), rng())
    assert (info.scores["shift/detected"], state.reference[0].tolist()) == (0, [0.125])


def test_features_see_inputs_that_move_for_every_client():
    state = begin(FEATURES, at(0.0, 0.0, 1.0), 0.0, 9.0, index=ids(0, 0, 0))
    assert state.reference.tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]  # a mean, and no variance
    state, info = FEATURES.round(state, ids(1), at(9.0, 0.0, 1.0), rng())
    assert rows(info) == [(0, 0, 1)]  # migrates although it is not in the cohort
    assert state.reference[0].tolist() == [9.0, 0.0]
    _, info = FEATURES.round(state, ids(1), at(9.0, 0.0, 1.0), rng())
    assert rows(info) == []


def test_features_that_moved_by_exactly_the_threshold_have_not_drifted():
    state = replace(placed(FEATURES, [0.0, 9.0]), reference=f64([3.0, 2.0]))  # |0 - 3| / sqrt((0 + 2) / 2)
    for threshold, detected in ((3.0, 0), (2.999, 1)):
        _, info = replace(FEATURES, shift_threshold=threshold).round(state, ids(0), at(0.0), rng())
        assert info.scores["shift/detected"] == detected


def test_distance_of_features_is_in_units_of_their_spread():
    now, before = f64([3.0, 4.0, 6.0]), f64([0.0, 0.0, 2.0])
    assert feature_distance(now, before).tolist() == [2.5]  # 5 / sqrt((6 + 2) / 2)
    assert feature_distance(before, before).tolist() == [0.0]
    assert feature_distance(now, torch.full((1, 3), torch.nan)).isnan().all()
