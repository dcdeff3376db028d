"""Tests that a run and the test kit name the rule of the contract that an algorithm breaks; and the kit's rounding."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from few_rounds import empty_data
from quadratic import ids, quadratic_clients, rng
from torch import Tensor

from lit_cfl.algorithms import Algorithm, FedAvg, FedGroup
from lit_cfl.algorithms.base import Assignment, Info, Similarity
from lit_cfl.algorithms.fedavg import FedAvgState
from lit_cfl.datamodules import ArrayData
from lit_cfl.errors import InputError
from lit_cfl.evaluation import EvaluationPlan, evaluate
from lit_cfl.experiment import Experiment
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR
from lit_cfl.rounds import Cohorts, rounds
from lit_cfl.tasks import Classification
from lit_cfl.testing import QuadraticWork, check_algorithm


def mine(base: type[Algorithm] = FedAvg, **members: Any) -> Algorithm:
    return dataclass(frozen=True)(type("Mine", (base,), members))()


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_closed_form_is_as_many_gradient_steps_to_the_rounding_of_the_centers(dtype: torch.dtype, rounding: float):
    start, pulled_to, centers = torch.randn(3, 3, 2, generator=rng(), dtype=torch.float64).to(dtype)
    work = QuadraticWork(centers, ids(2, 1, 3), learning_rate=0.1)
    lengths = ids(1, 7, 50)
    budget = Budget(lengths, "steps")
    found = work.fit(start, ids(0, 1, 2), ids(0, 1, 2), prox=0.3, centers=pulled_to, center=ids(0, 1, 2), budget=budget)
    assert found.rows.dtype == dtype
    for client, steps in enumerate(lengths.tolist()):
        model, center, pull = (rows[client].double() for rows in (start, centers, pulled_to))
        for _ in range(steps):
            model = model - 0.1 * (model - center + 0.3 * (model - pull))
        assert float((found.rows[client] - model).abs().max()) <= rounding


# What only the kit can see: it asks for everything twice, in another order, from another generator or after saving.


def change_arguments(self, state, cohort, work, rng):
    state.models.add_(1)
    return FedAvg.round(self, state, cohort, work, rng)


def draw_from_the_global_generator(self, state, cohort, work, rng):
    after, info = FedAvg.round(self, state, cohort, work, rng)
    return replace(after, models=after.models + torch.rand(1)), info


def take_the_first_client(self, state, cohort, work, rng):
    return FedAvgState(work.fit(state.models, cohort).rows[:1] if len(cohort) else state.models), Info()


def change_the_work(self, state, cohort, work, rng):
    work.num_examples.clamp_(max=10)
    return FedAvg.round(self, state, cohort, work, rng)


def peek_at_the_truth(self, state, cohort, work, rng):
    return FedAvg.round(self, state, cohort[work.true_clusters[cohort] == 0], work, rng)


def remember_outside_of_the_state(self, state, cohort, work, rng, cache={}):  # noqa: B006  # the fault
    count = cache.get(id(state.models), 0) + 1
    after, info = FedAvg.round(self, state, cohort, work, rng)
    cache[id(after.models)] = count
    return replace(after, models=after.models * (1 + 0.01 * count)), info


def place_within_the_known_length(self, state, clients, work, rng):
    index = state.index.clone()
    index[clients] = 0  # newcomers' ids exceed the length of this tensor
    return replace(state, index=index), Info()


def serve_in_order_of_ids(self, state, clients):
    return FedGroup.serve(self, state, clients.sort().values)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (mine(round=change_arguments), "changes its arguments"),
        (mine(round=draw_from_the_global_generator), "the same seed gives a different state after round 1"),
        (mine(round=take_the_first_client), "the order of the cohort matters"),
        (mine(round=change_the_work), "changes the data of the clients"),
        (mine(round=peek_at_the_truth), "round 0 .* true_clusters can be read only by"),
        (mine(round=remember_outside_of_the_state), ""),
        (
            mine(FedGroup, place=place_within_the_known_length),
            r"place of clients never seen, the ids \[14, 12\], of which init knew only 0 to 11, raises IndexError",
        ),
        (mine(FedGroup, serve=serve_in_order_of_ids), "in their order"),
    ],
)
def test_the_kit_names_the_broken_rule(algorithm: Algorithm, expected: str):
    with pytest.raises(AssertionError, match=f"Mine: .*{expected}"):
        check_algorithm(algorithm)


# What a run checks as well


def run(algorithm: Algorithm) -> int:
    return len(list(rounds(algorithm, quadratic_clients(12), empty_data(12), Cohorts(5), seed=0, num_rounds=2)))


@dataclass(frozen=True, eq=False)
class OtherState:
    models: Tensor


@dataclass(frozen=True, eq=False)
class WithArray:
    models: Tensor
    seen: object


def answering(change: Any, **members: Any) -> Algorithm:
    return mine(round=lambda self, *given: change(*FedAvg.round(self, *given)), **members)


def info_with(**changes: Any) -> Algorithm:
    return answering(lambda state, info: (state, replace(info, **changes)))


def begin_with_an_array(self, work, rng):
    return WithArray(work.initial(0)[None], np.zeros(3)), Info()


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (answering(lambda state, info: state), "round returns FedAvgState; "),
        (answering(lambda state, info: (OtherState(state.models), info)), "its state is a OtherState"),
        (mine(init=begin_with_an_array, state_type=WithArray), "state.seen holds a ndarray"),
        (info_with(down=-1), "Info.down is -1"),
        (info_with(up=torch.tensor(3)), "Info.up as a Tensor"),
        (info_with(scores={"mine/score": 1.0}), r"\['mine/score'\]"),
        (
            answering(
                lambda state, info: (state, replace(info, tables={"found": [{"a": 1}, {"b": 2}]})),
                tables={"found": ("a",)},
            ),
            r"Info.tables\['found'\]",
        ),
        (info_with(clusters={"parent": torch.zeros(7)}), r"Info.clusters\['parent'\]"),
        (info_with(similarity=Similarity(torch.arange(3), torch.eye(2))), r"Info.similarity .* 3 .*\(2, 2\)"),
    ],
)
def test_answer_of_a_round_is_checked_in_a_run_as_by_the_kit(algorithm: Algorithm, expected: str):
    with pytest.raises(InputError, match=f"Mine: .*{expected}"):
        run(algorithm)
    with pytest.raises(AssertionError, match=f"Mine: .*{expected}"):
        check_algorithm(algorithm)


def test_numbers_of_numpy_are_numbers_and_listed_tables_are_accepted():
    scores = {"train/discrepancy": np.float64(1)}
    assert run(info_with(down=np.int64(3), loss=np.float32(0.5), scores=scores)) == 2
    change = {"tables": {"found": [{"a": 1}]}, "clusters": {"u": torch.zeros(1)}}
    assert run(answering(lambda state, info: (state, replace(info, **change)), tables={"found": ("a", "b")})) == 2


MODELS, THREE = torch.zeros(2, 15), torch.tensor([0, 1, -1])
SERVED = [
    (Assignment(MODELS, torch.tensor([0, 1])), r"torch.int64 and shape \(2,\) for 3 clients"),
    (Assignment(MODELS, THREE + 1), "index to which no model belongs"),
    (Assignment(MODELS[:, :9], THREE), r"\(9,\).*\(15,\)"),
    (Assignment(MODELS, THREE, {"global": MODELS}), r"\(2, 15\).*\(15,\)"),
]


def test_run_evaluates_no_assignment_that_does_not_fit():
    data = ArrayData(np.eye(12, 4), np.arange(12) % 3, np.arange(12) // 4, test=0.5, allow_unseen_labels=True)
    task = lambda: Classification(MCLR([4], 3), partial(torch.optim.SGD, lr=0.1))  # noqa: E731
    run = Experiment(data, task, FedAvg(), rounds=1, cohort_size=2).prepare(0)
    (last,) = run.rounds()
    for served, expected in SERVED:
        algorithm = mine(serve=lambda self, state, clients, served=served: served)
        with pytest.raises(InputError, match=f"Mine: .*{expected}"):
            evaluate(algorithm, last.state, run.engine, last.data, EvaluationPlan(), round=0)
