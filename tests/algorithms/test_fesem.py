"""Tests FeSEM on quadratic clients (docs/ground_truth.md, checks 7 and 8; C1, C14, C15)."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from few_rounds import begin, last
from quadratic import clients_at, f64, ids, quadratic_clients, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms.fesem import FeSEM, FeSEMState
from lit_cfl.local_work import Fitted
from lit_cfl.testing import QuadraticWork

TWO, LOSS = FeSEM(num_clusters=2), FeSEM(num_clusters=2, start_partition="loss")


def kept(state: FeSEMState) -> dict[int, float]:
    return {client: float(row) for client, row in state.last.items()}


def test_first_partition_by_loss_is_the_model_of_minimum_loss_after_training():
    """A step halves the distance to the client, so the nearest model also has the lowest loss after training."""
    work = clients_at(0.0, -6.0, 10.0, 8.0)
    state, info = LOSS.round(begin(LOSS, work, 1.0, 9.0), ids(0, 2, 3), work, rng())
    assert state.index.tolist() == [0, -1, 1, 1]
    assert kept(state) == {0: 0.5, 2: 9.5, 3: 8.5}  # models trained for the choice are not kept
    assert state.models[:, 0].tolist() == [0.5, 9.0]
    assert (info.down, info.up) == (3 * 2, 3)
    state, info = LOSS.round(state, ids(1, 2), work.at(1), rng())
    assert state.index.tolist() == [0, 0, 1, 1]
    assert (info.down, info.up) == (1 + 2, 2)  # the new client receives both models


def test_loss_of_the_first_partition_is_that_after_training():
    class Held(QuadraticWork):
        """Clients that train with a proximal term if the model is 3, so that this model moves less than others."""

        def fit(self, models: Tensor, clients: Tensor, *given: Any, **options: Any) -> Fitted:
            held = {"prox": 1.0, "centers": models} if models[0, 0] == 3 else {}
            return super().fit(models, clients, *given, **options | held)

    work = Held(torch.zeros(1, 1).double(), ids(4), 0.5, steps=3)
    # the model 3 is nearer to 0, but training ends at 1.5 from it, and at -1 from the model -8
    assert last(LOSS, work, [ids(0)], begin(LOSS, work, 3.0, -8.0)).index.tolist() == [1]


def test_three_rounds_by_hand():
    work = clients_at(0.0, -6.0, 10.0, 8.0)
    state = begin(TWO, work, 1.0, 9.0, index=ids(0, 1, 1, -1))  # as drawn by the random partition of new clients
    state, info = TWO.round(state, ids(0, 1, 2), work, rng())
    assert kept(state) == {0: (1 + 0) / 2, 1: (9 - 6) / 2, 2: (9 + 10) / 2}
    assert state.models[:, 0].tolist() == [0.5, (1.5 + 9.5) / 2]
    assert info.loss == pytest.approx((1 * 0.5 + 2 * 15**2 / 2 + 3 * 0.5) / 6)
    assert (info.down, info.up, info.skipped) == (3, 3, 0)

    earlier = dict(state.last)
    after, _ = TWO.round(state, ids(0, 1), work, rng())
    assert after.index.tolist() == [0, 0, 1, -1]  # 1.5 is 1 away from 0.5, and 4 away from 5.5
    assert kept(after) == {0: 0.25, 1: (0.5 - 6) / 2, 2: 9.5}
    assert after.last[2] is state.last[2]  # shared with the state before, which is unchanged
    assert state.last == earlier
    assert after.models[:, 0].tolist() == [(0.25 - 2.75) / 2, 5.5]

    state, info = TWO.round(after, ids(1, 2), work, rng())
    assert kept(state) == {0: 0.25, 1: (-1.25 - 6) / 2, 2: (5.5 + 10) / 2}
    assert state.models[:, 0].tolist() == [-3.625, 7.75]
    assert (info.down, info.up) == (2, 2)

    state, info = TWO.place(state, ids(3), work, rng())  # trained from the mean 2.0625 half of the way to 8
    assert state.index.tolist() == [0, 0, 1, 1]
    assert kept(state)[3] == (2.0625 + 8) / 2
    assert (info.down, info.up) == (1, 1)
    assert info.closeness.tolist() == [[-(5.03125 + 3.625), -(7.75 - 5.03125)]]


def test_three_rounds_by_hand_weighted_by_examples():
    work, algorithm = clients_at(0.0, -6.0, 10.0), replace(TWO, weights="examples")
    state, _ = algorithm.round(begin(TWO, work, 1.0, 9.0, index=ids(0, 1, 1)), ids(0, 1, 2), work, rng())
    assert_close(state.models[:, 0].tolist(), [0.5, (2 * 1.5 + 3 * 9.5) / 5])
    state, _ = algorithm.round(state, ids(0, 1), work, rng())
    assert_close(state.models[:, 0].tolist(), [(1 * 0.25 + 2 * -2.75) / 3, 6.3])
    state, _ = algorithm.round(state, ids(1, 2), work, rng())
    assert_close(state.models[:, 0].tolist(), [(-1.75 - 6) / 2, (6.3 + 10) / 2])


def test_random_start_spreads_first_time_clients():  # C14
    work = quadratic_clients(300)
    state = begin(FeSEM(), work)
    whole, _ = FeSEM().round(state, torch.arange(300), work, rng(5))
    assert min(whole.index.bincount(minlength=3)) > 70
    some, _ = FeSEM().round(state, ids(7, 250, 3), work, rng(5))
    assert some.index[[3, 7, 250]].tolist() == whole.index[[3, 7, 250]].tolist()  # the draws are made for all ids


def test_tie_goes_to_the_lowest_cluster():
    work = clients_at(0.0)
    state = begin(FeSEM(3), work, 3.0, -1.0, 1.0, last={0: f64(0)})
    assert FeSEM(3).place(state, ids(0), work, rng())[0].index.tolist() == [1]


def test_newcomer_starts_from_the_clusters_that_have_members_and_warm_clients_are_not_trained():
    work = clients_at(0.0, 10.0, 8.0)
    state = last(FeSEM(), work, [ids(0, 1)], begin(FeSEM(), work, 1.0, 9.0, 1000.0, index=ids(0, 1, -1)))
    placed, info = FeSEM().place(state, ids(2, 0), work, rng())
    assert kept(placed)[2] == ((0.5 + 9.5) / 2 + 8) / 2
    assert placed.index.tolist() == [0, 1, 1]
    assert (info.down, info.up) == (1, 1)
