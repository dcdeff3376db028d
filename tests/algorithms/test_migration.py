"""Tests migration of clients whose data have drifted, for IFCA and FeSEM (docs/ground_truth.md, check 7)."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from quadratic import ids, rng
from torch import Tensor

from lit_cfl.algorithms.base import Info, State
from lit_cfl.algorithms.fesem import FeSEM
from lit_cfl.algorithms.flexcfl import FlexCFL
from lit_cfl.algorithms.ifca import IFCA
from lit_cfl.algorithms.migration import THRESHOLDS, feature_distance
from lit_cfl.errors import InputError
from lit_cfl.testing import QuadraticWork, check_algorithm

CENTERS, LABELS = [-4.0, 4.0, -5.0, 5.0], [[6, 0], [0, 4], [8, 0], [0, 10]]
MIG = IFCA(num_clusters=2, migrate=True)


def clients(order: tuple[int, ...] = (0, 1, 2, 3), labels: list[list[int]] | None = None) -> QuadraticWork:
    """Makes four clients on both sides of 0; client k has entry `order[k]` of `CENTERS` and `LABELS`."""
    counts = torch.tensor(labels) if labels else torch.tensor(LABELS)[list(order)]
    centers = torch.tensor(CENTERS, dtype=torch.float64)[list(order)][:, None]
    return QuadraticWork(centers, counts.sum(1), 0.5, label_counts=counts)


def begun(algorithm: IFCA = MIG) -> State:
    """Returns the state after one round from the models -1 and 1, with the even clients in cluster 0."""
    state, _ = algorithm.init(clients(), rng())
    state = replace(state, models=torch.tensor([[-1.0], [1.0]], dtype=torch.float64))
    state, _ = algorithm.round(state, ids(0, 1, 2, 3), clients(), rng())
    assert state.index.tolist() == [0, 1, 0, 1]
    return state


def rows(info: Info) -> list[tuple[int, ...]]:
    return [(row["client"], row["cluster_before"], row["cluster_after"]) for row in info.tables["migrations"]]


def test_swapped_clients_change_cluster_before_the_round_although_not_selected():
    swapped = clients((3, 1, 2, 0))
    after, info = MIG.round(begun(), ids(1), swapped, rng())
    assert after.index.tolist() == [1, 1, 0, 0]
    assert rows(info) == [(0, 0, 1), (3, 1, 0)]
    assert (info.scores["shift/detected"], info.scores["shift/migrated"]) == (2, 2)
    assert (info.down, info.up) == (2 * 1 + 2 * 2, 1)  # down K T (m + 1) + m for each shifted client
    sticky, plain = replace(MIG, migrate=False).round(begun(), ids(1), swapped, rng())
    assert sticky.index.tolist() == [0, 1, 0, 1]
    assert (plain.tables, plain.down) == ({}, 2)
    assert torch.equal(sticky.models, after.models)


def test_selected_client_migrates_before_it_chooses_for_the_round():
    state = replace(begun(), index=ids(0, 1, -1, 1))
    after, info = MIG.round(state, ids(0, 2), clients((3, 1, 1, 0)), rng())
    assert rows(info) == [(0, 0, 1), (3, 1, 0)]  # client 2, whose labels also changed, had no cluster yet
    assert (info.scores["shift/detected"], info.scores["shift/migrated"]) == (2, 2)
    assert after.index.tolist() == [1, 1, 1, 0]


def test_migration_ends_once_the_new_labels_are_the_reference():
    swapped = clients((3, 1, 2, 0))
    state, _ = MIG.round(begun(), ids(1), swapped, rng())
    assert state.reference.tolist() == [[0, 10], [0, 4], [8, 0], [6, 0]]
    assert state.sizes.tolist() == [6, 4, 8, 10]  # the sizes n_i at the start, which never change
    after, info = MIG.round(state, ids(1), swapped, rng())
    assert (info.scores["shift/detected"], rows(info), info.down) == (0, [], 2)
    assert after.index.tolist() == [1, 1, 0, 0]


def test_shift_that_leaves_the_cluster_unchanged_is_detected_and_costs():
    relabelled = clients(labels=[[3, 3], [0, 4], [8, 0], [0, 10]])
    after, info = MIG.round(begun(), ids(1), relabelled, rng())
    assert (info.scores["shift/detected"], info.scores["shift/migrated"], rows(info)) == (1, 0, [(0, 0, 0)])
    assert info.down == 2 + 2
    assert after.reference[0].tolist() == [3, 3]


def test_slow_drift_adds_up_until_it_fires():
    state, found = begun(), []
    for moved in (1, 2, 3):  # for client 3's 10 examples these are shares of 0.1, 0.2 (not above the threshold) and 0.3
        work = clients(labels=[[6, 0], [0, 4], [8, 0], [moved, 10 - moved]])
        state, info = MIG.round(state, ids(1), work, rng())
        found.append(info.scores["shift/detected"])
    assert found == [0, 0, 1]


def test_cold_client_does_not_migrate():
    state = replace(begun(), index=ids(0, 1, -1, 1))
    changed = clients(labels=[[6, 0], [0, 4], [0, 8], [10, 0]])  # client 2 is cold
    after, info = MIG.round(state, ids(1), changed, rng())
    assert (info.scores["shift/detected"], rows(info)) == (1, [(3, 1, 1)])
    assert after.index.tolist() == [0, 1, -1, 1]
    assert after.reference.tolist() == [[6, 0], [0, 4], [8, 0], [10, 0]]


def test_client_that_lost_its_data_is_detected_stays_and_is_tried_again():
    empty = clients(labels=[[0, 0], [0, 4], [8, 0], [0, 10]])
    state = begun()
    for _ in range(2):
        state, info = MIG.round(state, ids(1), empty, rng())
        scores = info.scores["shift/detected"], info.scores["shift/migrated"]
        assert (scores, rows(info)) == ((1, 0), [])
        assert state.index.tolist() == [0, 1, 0, 1]
        assert state.reference[0].tolist() == [6, 0]
    state, info = MIG.round(state, ids(1), clients((3, 1, 2, 3)), rng())
    assert rows(info) == [(0, 0, 1)]
    assert state.reference[0].tolist() == [0, 10]


def test_client_that_was_not_there_at_the_start_is_compared_with_its_first_data():
    state, _ = MIG.init(_first(3), rng())
    state, _ = MIG.place(state, ids(3), clients(), rng())
    state, info = MIG.round(state, ids(1), clients(), rng())
    assert info.scores["shift/detected"] == 0
    assert state.sizes.tolist() == [6, 4, 8, 10]
    _, info = MIG.round(state, ids(1), clients((0, 1, 2, 0)), rng())
    assert info.scores["shift/detected"] == 1


def _first(number: int) -> QuadraticWork:
    labels = torch.tensor(LABELS)[:number]
    return QuadraticWork(clients().centers[:number], labels.sum(1), 0.5, label_counts=labels)


def test_migrating_fesem_trains_the_same_models():  # check 7
    plain, migrating = FeSEM(num_clusters=2), FeSEM(num_clusters=2, migrate=True)
    a, b = plain.init(clients(), rng())[0], migrating.init(clients(), rng())[0]
    works = [clients(), clients(), clients((3, 1, 2, 0)), clients((3, 0, 2, 1)), clients((0, 1, 2, 3))]
    detected, up = 0.0, 0
    for number, (cohort, work) in enumerate(zip(_cohorts(), works, strict=True)):
        (a, _), (b, info) = plain.round(a, cohort, work, rng(number)), migrating.round(b, cohort, work, rng(number))
        assert torch.equal(a.models, b.models)
        detected, up = detected + info.scores["shift/detected"], up + info.up
        assert (info.down, info.up) == (len(cohort), len(cohort))  # migration needs no communication
    assert detected >= 4


def _cohorts() -> list[Tensor]:
    return [ids(0, 1, 2, 3), ids(0, 2), ids(1, 3), ids(2), ids(0, 3)]


def test_migrating_fesem_moves_shifted_clients_to_the_nearest_model():
    algorithm = FeSEM(num_clusters=2, migrate=True)
    state, _ = algorithm.init(clients(), rng())
    last = {0: -2.5, 1: 2.5, 2: 2.0, 3: 1.0}
    state = replace(
        state,
        models=torch.tensor([[-3.0], [3.0]], dtype=torch.float64),
        index=ids(0, 1, 0, 0),
        last={client: torch.tensor([value], dtype=torch.float64) for client, value in last.items()},
    )
    after, info = algorithm.round(state, ids(1), clients((1, 1, 3, 3)), rng())  # the labels of clients 0 and 2 changed
    # client 0 stays, since FeSEM compares models, not data; client 3 was not shifted
    assert after.index.tolist() == [0, 1, 1, 0]
    assert rows(info) == [(0, 0, 0), (2, 0, 1)]
    assert (info.scores["shift/detected"], info.scores["shift/migrated"]) == (2, 1)


def test_selected_client_of_fesem_migrates_before_the_e_step():
    algorithm = FeSEM(num_clusters=2, migrate=True)
    state, _ = algorithm.init(clients(), rng())
    last = {client: torch.tensor([2.0], dtype=torch.float64) for client in range(4)}
    models = torch.tensor([[-3.0], [3.0]], dtype=torch.float64)
    state = replace(state, models=models, index=ids(0, 1, -1, 1), last=last)
    # the labels of clients 0 and 2 changed
    after, info = algorithm.round(state, ids(0, 2), clients((1, 1, 3, 3)), rng())
    assert rows(info) == [(0, 0, 1)]
    assert (info.scores["shift/detected"], info.scores["shift/migrated"]) == (1, 1)
    assert after.index.tolist() == [1, 1, 1, 1]


def test_client_that_has_no_model_of_its_own_stays_and_keeps_its_reference():
    algorithm = FeSEM(num_clusters=2, migrate=True)
    state, _ = algorithm.init(clients(), rng())
    state = replace(state, index=ids(0, 1, 0, 1))  # assigned, but without a trained model
    after, info = algorithm.round(state, ids(), clients((3, 1, 2, 0)), rng())
    assert (info.scores["shift/detected"], rows(info)) == (2, [])
    assert torch.equal(after.reference, state.reference)


@pytest.mark.parametrize("kind", [IFCA, FeSEM, FlexCFL])
def test_without_migration_no_histograms_are_kept(kind: type[IFCA | FeSEM | FlexCFL]):
    state, _ = kind(num_clusters=2, migrate=False).init(clients(), rng())
    assert (state.reference.numel(), state.sizes.numel()) == (0, 0)


LOSS = replace(MIG, shift_metric="loss", shift_threshold=1.0)
FEATURES = replace(MIG, shift_metric="features", shift_threshold=1.0)


class FromTwo(QuadraticWork):
    """Quadratic clients in one dimension, whose initial model is at 2: a client at 0 has the initial loss 2."""

    def initial(self, number: int) -> Tensor:
        return torch.full((1,), 2.0, dtype=torch.float64)


def at(*points: float) -> FromTwo:
    centers = torch.tensor(points, dtype=torch.float64)[:, None]
    # a learning rate of 0: training changes no model
    return FromTwo(centers, torch.ones(len(points), dtype=torch.int64), 0.0)


def placed(algorithm: IFCA, work: QuadraticWork, models: list[float], index: Tensor, last: list[float]) -> State:
    state, _ = algorithm.init(work, rng())
    rows = torch.tensor(models, dtype=torch.float64)[:, None]
    reference = torch.tensor(last, dtype=torch.float64)[:, None] if last else state.reference
    return replace(state, models=rows, index=index, reference=reference)


def test_rise_of_the_loss_counts_in_units_of_the_initial_models_loss_and_strictly():
    before = placed(LOSS, at(0, 0, 0), [0.0, 4.0], ids(0, 0, 0), [0.5, 0.5, 0.5])
    now = at(5.0, 4.0, 0.0)  # losses 12.5, 8, 0; under the initial model 4.5, 2, 2: distances 2.67, 3.75, -0.25
    for threshold, fired in ((2.0, [0, 1]), (12.0 / 4.5, [1]), (3.75, [])):
        _, info = replace(LOSS, shift_threshold=threshold).round(before, ids(0, 1, 2), now, rng())
        assert [row[0] for row in rows(info)] == fired
        assert info.scores["shift/detected"] == len(fired)


def test_loss_is_tested_in_the_cohort_against_the_last_test_and_falls_are_not_drift():
    state = placed(LOSS, at(0, 0), [0.0, 99.0], ids(0, 0), [])
    found = []
    for cohort, point in ((ids(0), -1.0), (ids(1), -9.0), (ids(0), -2.0), (ids(0), -6.0), (ids(0), -1.0)):
        state, info = LOSS.round(state, cohort, at(point, 0.0), rng())
        found.append((info.scores["shift/detected"], float(state.reference[0, 0])))
    # losses 0.5, not tested, 2, 18, 0.5; initial model's 4.5, -, 8, 32, 4.5: all distances below 1, new references
    assert found == [(0, 0.5), (0, 0.5), (0, 2.0), (0, 18.0), (0, 0.5)]


def test_client_that_was_placed_again_is_compared_under_its_new_clusters_model():
    before = placed(LOSS, at(0, 0), [0.0, 9.0], ids(0, 0), [0.0, 0.0])
    state, info = LOSS.round(before, ids(0), at(9.5, 0.0), rng())
    assert rows(info) == [(0, 0, 1)]
    assert state.reference[:, 0].isnan().tolist() == [True, False]
    # the loss 0.125 under the new model becomes the reference
    state, info = LOSS.round(state, ids(0), at(9.5, 0.0), rng())
    assert (info.scores["shift/detected"], state.reference[0].tolist()) == (0, [0.125])


def test_client_that_changes_its_cluster_by_its_loss_receives_one_model_more():
    before = placed(LOSS, at(0, 0), [0.0, 9.0], ids(0, 0), [0.0, 0.0])
    _, info = LOSS.round(before, ids(0, 1), at(9.5, 0.0), rng())
    # both clients receive two models to choose from; one chooses again, and receives another
    assert info.down == 2 * 2 + 2 + 1


def test_features_see_inputs_that_move_for_every_client_and_slow_drift_adds_up():
    work = at(0.0, 0.0, 1.0)
    state = placed(FEATURES, work, [0.0, 9.0], ids(0, 0, 0), [])
    assert state.reference.tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]  # a mean, and no variance
    state, info = FEATURES.round(state, ids(1), at(9.0, 0.0, 1.0), rng())
    assert rows(info) == [(0, 0, 1)]  # migrates although it is not in the cohort
    assert state.reference[0].tolist() == [9.0, 0.0]
    _, info = FEATURES.round(state, ids(1), at(9.0, 0.0, 1.0), rng())
    assert rows(info) == []


def test_features_that_moved_by_exactly_the_threshold_have_not_drifted():
    work = at(0.0)
    state = placed(FEATURES, work, [0.0, 9.0], ids(0), [])
    state = replace(state, reference=torch.tensor([[3.0, 2.0]], dtype=torch.float64))  # |0 - 3| / sqrt((0 + 2) / 2)
    for threshold, detected in ((3.0, 0), (2.999, 1)):
        _, info = replace(FEATURES, shift_threshold=threshold).round(state, ids(0), work, rng())
        assert info.scores["shift/detected"] == detected


def test_distance_of_features_is_in_units_of_their_spread():
    now, before = torch.tensor([[3.0, 4.0, 6.0]]), torch.tensor([[0.0, 0.0, 2.0]])
    assert feature_distance(now, before).tolist() == [2.5]  # 5 / sqrt((6 + 2) / 2)
    assert feature_distance(before, before).tolist() == [0.0]
    assert feature_distance(now, torch.full((1, 3), torch.nan)).isnan().all()


@pytest.mark.parametrize(("metric", "kind"), list(product(["loss", "features"], [IFCA, FlexCFL, FeSEM])))
def test_every_method_with_migration_keeps_the_contract_with_losses_and_features(kind: type, metric: str):
    check_algorithm(kind(migrate=True, shift_metric=metric, shift_threshold=0.05))


def test_default_threshold_is_that_of_the_metric():
    work = at(0.0)
    for metric in ("loss", "features"):
        threshold = THRESHOLDS[metric]
        for distance, detected in ((threshold - 0.01, 0), (threshold + 0.01, 1)):
            algorithm = replace(MIG, shift_metric=metric)
            last = [2.0 * (0.0 - distance)] if metric == "loss" else []  # the loss under the initial model is 2
            state = placed(algorithm, work, [0.0, 9.0], ids(0), last)
            if metric == "features":
                state = replace(state, reference=torch.tensor([[distance, 2.0]], dtype=torch.float64))
            _, info = algorithm.round(state, ids(0), work, rng())
            assert info.scores["shift/detected"] == detected, metric


def test_data_without_classes_can_migrate_by_losses_and_features_alone():
    work = at(0.0)
    work.label_counts = torch.empty(1, 0, dtype=torch.int64)
    with pytest.raises(InputError, match="these data have no classes; set shift_metric to loss or features"):
        MIG.init(work, rng())
    assert LOSS.init(work, rng())[0].reference.shape == (1, 1)


def test_tokens_have_no_mean_inputs():
    work = at(0.0)
    work.centers = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(InputError, match=r"these are torch\.int64, as token ids are; set shift_metric to loss"):
        FEATURES.init(work, rng())
