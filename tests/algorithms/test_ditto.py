"""Tests Ditto against closed forms on quadratic clients (docs/ground_truth.md, check 5)."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from quadratic import ids, quadratic_clients, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl import memmap_rows
from lit_cfl.algorithms.ditto import Ditto, DittoState
from lit_cfl.algorithms.fedavg import FedAvg
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget, Fitted
from lit_cfl.testing import QuadraticWork

COHORTS = [ids(0, 3, 4), ids(1, 2), ids(0, 1, 4), ids(2, 3, 4)]


def states(algorithm: Ditto, work: QuadraticWork, cohorts: list[Tensor]) -> list[DittoState]:
    found = [algorithm.init(work, rng())[0]]
    for number, cohort in enumerate(cohorts):
        found.append(algorithm.round(found[-1], cohort, work.at(number), rng(number))[0])
    return found


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 3.0])
def test_global_model_is_fedavgs_whatever_lambda_is(lambda_: float):
    work = quadratic_clients(5)
    fedavg, _ = FedAvg().init(work, rng())
    for number, (cohort, state) in enumerate(zip(COHORTS, states(Ditto(lambda_), work, COHORTS)[1:], strict=True)):
        fedavg, _ = FedAvg().round(fedavg, cohort, work.at(number), rng(number))
        assert torch.equal(state.models, fedavg.models)


def test_personal_models_take_the_steps_of_the_paper():
    """With eta .25 and lambda .5, a step from v leads to v - .25 (v - c) - .125 (v - w)."""
    work = QuadraticWork(torch.tensor([[4.0], [-8.0]]), ids(1, 3), 0.25, steps=1)
    start = states(Ditto(0.5), work, [])[0]
    start = DittoState(torch.tensor([[0.0]]), torch.tensor([0.0]), {})
    first, _ = Ditto(0.5).round(start, ids(0), work, rng())
    assert first.personal[0].tolist() == [1.0]  # 0 - .25 (0 - 4) - .125 (0 - 0)
    assert first.models.tolist() == [[1.0]]
    second, _ = Ditto(0.5).round(first, ids(0, 1), work.at(1), rng())
    assert second.personal[0].tolist() == [1.75]  # 1 + .25 * 3 - .125 (1 - 1)
    assert second.personal[1].tolist() == [-1.875]  # starts at w_0 = 0, pulled to w = 1: 0 - 2 + .125
    assert second.models.tolist() == [[(1 * 1.75 + 3 * -1.25) / 4]]


def test_personal_models_settle_between_their_own_and_the_global_optimum():
    work = quadratic_clients(5)
    state = states(Ditto(0.5), work, [torch.arange(5)] * 80)[-1]
    weights = (work.num_examples / work.num_examples.sum()).double()
    best = weights @ work.centers
    for client in range(5):
        assert_close(state.personal[client], (work.centers[client] + 0.5 * best) / 1.5)


def test_without_lambda_personal_models_are_trained_alone():
    work = quadratic_clients(5)
    state = states(Ditto(0.0), work, [ids(2, 4)] * 3)[-1]
    expected = work.centers[4] + 0.75**9 * (state.initial - work.centers[4])
    assert_close(state.personal[4], expected)
    assert set(state.personal) == {2, 4}


def test_large_lambda_keeps_personal_models_at_the_global_one():
    work = quadratic_clients(5, learning_rate=1e-4, steps=1)
    before, after = states(Ditto(1e4 - 1), work, [torch.arange(5)])  # eta (1 + lambda) = 1
    for client in range(5):
        assert_close(after.personal[client], before.models[0], atol=1e-3, rtol=0)


def test_clients_are_served_their_own_model_and_newcomers_train_one():
    work = quadratic_clients(6)
    algorithm = Ditto(1.0)
    state = states(algorithm, work, [ids(1, 4)])[-1]
    served = algorithm.serve(state, ids(4, 0, 1))
    assert served.index.tolist() == [1, -1, 0]
    assert torch.equal(served.models[1], state.personal[4])
    assert torch.equal(served.extra["global"], state.models[0])
    placed, info = algorithm.place(state, ids(0, 4), work.at(1), rng())
    resting = (work.centers[0] + state.models[0]) / 2
    assert_close(placed.personal[0], resting + 0.5**3 * (state.models[0] - resting))
    assert placed.personal[4] is state.personal[4]
    assert (info.down, info.up) == (1, 0)


def test_personal_models_that_take_most_of_the_memory_are_the_same_in_files(monkeypatch: pytest.MonkeyPatch):
    work = quadratic_clients(5)
    expected = states(Ditto(0.5), work, COHORTS)[-1]
    monkeypatch.setattr(memmap_rows, "_IN_MEMORY", 0)
    monkeypatch.setattr(memmap_rows, "machine_memory", lambda: 0)
    found = states(Ditto(0.5), work, COHORTS)[-1]
    assert found.personal.keys() == expected.personal.keys()
    for client, row in found.personal.items():
        assert row.untyped_storage().filename is not None
        assert torch.equal(row, expected.personal[client])


def test_traffic_is_fedavgs():
    work = quadratic_clients(5)
    state, _ = Ditto().init(work, rng())
    _, info = Ditto().round(state, ids(0, 2, 3), work, rng())
    assert (info.down, info.up) == (3, 3)


def test_negative_lambda_is_refused():
    with pytest.raises(InputError, match=r"lambda_ is -0\.1"):
        Ditto(-0.1)


def test_client_that_did_not_train_sends_nothing_up():
    work = QuadraticWork(torch.tensor([[4.0], [-8.0], [1.0]]), ids(1, 0, 3), 0.25)
    state, _ = Ditto().init(work, rng())
    _, info = Ditto().round(state, ids(0, 1, 2), work, rng())
    assert (info.down, info.up, info.skipped) == (3, 2, 1)


def test_client_whose_personal_model_diverged_counts_as_skipped_once():
    class Diverging(QuadraticWork):
        def fit(self, models: Tensor, clients: Tensor, *arguments: Any, purpose: str = "train", **options: Any):
            fitted = super().fit(models, clients, *arguments, purpose=purpose, **options)
            if purpose == "train":
                return fitted
            chunks = [replace(chunk, trained=chunk.trained & (clients != 2)) for chunk in fitted.chunks()]
            return Fitted(chunks, self.num_examples[clients], held=True)

    work = Diverging(torch.tensor([[4.0], [-8.0], [1.0]]), ids(1, 0, 3), 0.25)
    state, info = Ditto().round(Ditto().init(work, rng())[0], ids(0, 1, 2), work, rng())
    assert (info.up, info.skipped, list(state.personal)) == (2, 2, [0])  # client 1 has no data for either fit


def test_personal_model_trains_on_batches_of_its_own_and_with_its_own_budget():
    asked = []

    class Listening(QuadraticWork):
        def fit(self, *arguments: object, purpose: str = "train", budget: Budget | None = None, **options: object):
            asked.append((purpose, budget))
            return super().fit(*arguments, purpose=purpose, budget=budget, **options)

    work = Listening(torch.tensor([[4.0], [-8.0]]), ids(1, 3), 0.25)
    algorithm = Ditto(personal=Budget(2, "steps"))
    algorithm.round(algorithm.init(work, rng())[0], ids(0, 1), work, rng())
    assert asked == [("train", None), ("personal", algorithm.personal)]
