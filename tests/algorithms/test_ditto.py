"""Tests Ditto against closed forms on quadratic clients (docs/ground_truth.md, check 5)."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from few_rounds import begin, last
from quadratic import clients_at, ids, quadratic_clients, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms.ditto import Ditto
from lit_cfl.local_work import Budget, Fitted
from lit_cfl.testing import QuadraticWork


def test_personal_models_take_the_steps_of_the_paper():
    """With eta .25 and lambda .5, a step from v leads to v - .25 (v - c) - .125 (v - w)."""
    work = clients_at(4.0, -8.0, sizes=(1, 3), rate=0.25, start=0.0)
    first, _ = Ditto(0.5).round(begin(Ditto(0.5), work), ids(0), work, rng())
    assert first.personal[0].tolist() == [1.0]  # 0 - .25 (0 - 4) - .125 (0 - 0)
    assert first.models.tolist() == [[1.0]]
    second, _ = Ditto(0.5).round(first, ids(0, 1), work.at(1), rng())
    assert second.personal[0].tolist() == [1.75]  # 1 + .25 * 3 - .125 (1 - 1)
    assert second.personal[1].tolist() == [-1.875]  # starts at w_0 = 0, pulled to w = 1: 0 - 2 + .125
    assert second.models.tolist() == [[(1 * 1.75 + 3 * -1.25) / 4]]


def test_clients_are_served_their_own_model_and_newcomers_train_one():
    work, algorithm = quadratic_clients(6), Ditto(1.0)
    state = last(algorithm, work, [ids(1, 4)])
    served = algorithm.serve(state, ids(4, 0, 1))
    assert served.index.tolist() == [1, -1, 0]
    assert torch.equal(served.models[1], state.personal[4])
    assert torch.equal(served.extra["global"], state.models[0])
    placed, info = algorithm.place(state, ids(0, 4), work.at(1), rng())
    resting = (work.centers[0] + state.models[0]) / 2
    assert_close(placed.personal[0], resting + 0.5**3 * (state.models[0] - resting))
    assert placed.personal[4] is state.personal[4]
    assert (info.down, info.up) == (1, 0)


@pytest.mark.parametrize(("diverged", "kept"), [((), [0, 2]), ((2,), [0])])
def test_clients_that_did_not_train_send_nothing_up_and_one_of_two_fits_counts_once(diverged: tuple, kept: list):
    class Diverging(QuadraticWork):
        """Clients whose personal models diverge, if they are listed."""

        def fit(self, models: Tensor, clients: Tensor, *arguments: Any, purpose: str = "train", **options: Any):
            fitted = super().fit(models, clients, *arguments, purpose=purpose, **options)
            if purpose == "train":
                return fitted
            well = ~torch.isin(clients, ids(*diverged))
            chunks = [replace(chunk, trained=chunk.trained & well) for chunk in fitted.chunks()]
            return Fitted(chunks, self.num_examples[clients], held=True)

    work = Diverging(torch.tensor([[4.0], [-8.0], [1.0]]), ids(1, 0, 3), 0.25)  # client 1 has no data for either fit
    state, info = Ditto().round(begin(Ditto(), work), ids(0, 1, 2), work, rng())
    assert (info.down, info.up, info.skipped, list(state.personal)) == (3, 2, 1 + len(diverged), kept)


def test_personal_model_trains_on_batches_of_its_own_and_with_its_own_budget():
    asked = []

    class Listening(QuadraticWork):
        def fit(self, *arguments: object, purpose: str = "train", budget: Budget | None = None, **options: object):
            asked.append((purpose, budget))
            return super().fit(*arguments, purpose=purpose, budget=budget, **options)

    work, algorithm = Listening(torch.tensor([[4.0], [-8.0]]), ids(1, 3), 0.25), Ditto(personal=Budget(2, "steps"))
    algorithm.round(begin(algorithm, work), ids(0, 1), work, rng())
    assert asked == [("train", None), ("personal", algorithm.personal)]
