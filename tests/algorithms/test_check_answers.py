"""Tests that a run and the test kit refuse the same invalid results of an algorithm, with the same messages."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from quadratic import quadratic_clients
from torch import Tensor

from lit_cfl.algorithms import FedAvg
from lit_cfl.algorithms.base import Assignment, Info, Similarity
from lit_cfl.algorithms.check_answers import check_assignment
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.datamodules import ArrayData
from lit_cfl.errors import InputError
from lit_cfl.evaluation import EvaluationPlan, evaluate
from lit_cfl.experiment import Experiment
from lit_cfl.nets import MCLR
from lit_cfl.rounds import Cohorts, rounds
from lit_cfl.tasks import Classification
from lit_cfl.testing import check_algorithm


def clients() -> FederatedData:
    lists = ClientIndex.from_sizes(torch.arange(12), torch.ones(12, dtype=torch.int64))
    examples = Examples(torch.zeros(12, 1), torch.zeros(12, dtype=torch.int64), 1)
    return FederatedData(examples, lists, ClientIndex.empty(12), ClientIndex.empty(12), torch.full((12,), -1))


@dataclass(frozen=True)
class Answers(FedAvg):
    """FedAvg whose round results pass through `change`, which subclasses override."""

    def change(self, state: Any, info: Info) -> Any:
        return state, info

    def round(self, state, cohort, work, rng):
        return self.change(*super().round(state, cohort, work, rng))


@dataclass(frozen=True, eq=False)
class OtherState:
    models: Tensor


def answering(change: Any, **more: Any) -> FedAvg:
    return type("Mine", (Answers,), {"change": lambda self, state, info: change(state, info)} | more)()


def info_with(**changes: Any) -> FedAvg:
    return answering(lambda state, info: (state, replace(info, **changes)))


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (answering(lambda state, info: state), "round returns FedAvgState; return a state and an Info"),
        (answering(lambda state, info: (state, 0.5)), "round returns FedAvgState, float; return a state and an Info"),
        (answering(lambda state, info: (OtherState(state.models), info)), "its state is a OtherState"),
        (info_with(down=-1), "round counts negative traffic: Info.down is -1"),
        (info_with(skipped=-2), "round counts negative traffic: Info.skipped is -2"),
        (info_with(up=torch.tensor(3)), "round gives Info.up as a Tensor; give int"),
        (info_with(up=2.0), "round gives Info.up as a float; give int"),
        (info_with(loss=torch.tensor(0.5)), "round gives loss as a Tensor; give float"),
        (info_with(scores={"mine/score": 1.0}), r"round gives the scores \['mine/score'\], which score_columns"),
        (info_with(scores={"train/discrepancy": torch.tensor(1.0)}), "round gives train/discrepancy as a Tensor"),
        (info_with(tables={"found": [{"a": 1}]}), r"Info.tables\['found'\] has columns that `tables` does not list"),
        (
            info_with(clusters={"parent": torch.zeros(7)}),
            r"Info.clusters\['parent'\] is not one of parent, u, v with one",
        ),
        (info_with(clusters={"size": torch.zeros(1)}), r"Info.clusters\['size'\] is not one of parent"),
        (
            info_with(similarity=Similarity(torch.arange(3), torch.eye(2))),
            r"Info.similarity compares 3 clients, but its matrix has shape \(2, 2\)",
        ),
    ],
)
def test_answer_of_a_round_is_checked_in_a_run_as_by_the_kit(algorithm: FedAvg, expected: str):
    with pytest.raises(InputError, match=f"Mine: {expected}"):
        list(rounds(algorithm, quadratic_clients(12), clients(), Cohorts(5), seed=0, num_rounds=2))
    with pytest.raises(AssertionError, match=f"Mine: {expected}"):
        check_algorithm(algorithm)


def test_numbers_of_numpy_are_numbers():
    algorithm = info_with(down=np.int64(3), loss=np.float32(0.5), scores={"train/discrepancy": np.float64(1)})
    assert len(list(rounds(algorithm, quadratic_clients(12), clients(), Cohorts(5), seed=0, num_rounds=2))) == 2


@dataclass(frozen=True, eq=False)
class WithArray:
    models: Tensor
    seen: object


def test_state_that_no_checkpoint_can_hold_is_refused_before_the_first_round():
    def init(self: FedAvg, work: Any, rng: Any) -> tuple[WithArray, Info]:
        return WithArray(work.initial(0)[None], np.zeros(3)), Info()

    algorithm = type("Mine", (FedAvg,), {"state_type": WithArray, "init": init})()
    with pytest.raises(InputError, match=r"Mine: state.seen holds a ndarray"):
        list(rounds(algorithm, quadratic_clients(12), clients(), Cohorts(5), seed=0, num_rounds=2))
    with pytest.raises(AssertionError, match=r"Mine: state.seen holds a ndarray"):
        check_algorithm(algorithm)


MODELS, THREE = torch.zeros(2, 15), torch.tensor([0, 1, -1])

SERVED = [
    (
        Assignment(MODELS, torch.tensor([0, 1])),
        r"an index of torch.int64 and shape \(2,\) for 3 clients; give int64 \[3\]",
    ),
    (Assignment(MODELS, THREE.int()), r"an index of torch.int32"),
    (Assignment(MODELS, THREE + 1), "serve gives an index to which no model belongs"),
    (Assignment(MODELS, THREE - 1), "serve gives an index to which no model belongs"),
    (Assignment(MODELS[:, :9], THREE), r"serve gives a model of shape \(9,\); give \(15,\)"),
    (Assignment(MODELS[0], THREE), r"serve gives a model of shape \(\); give \(15,\)"),
    (Assignment(MODELS, THREE, {"global": MODELS}), r"serve gives a model of shape \(2, 15\); give \(15,\)"),
    (THREE, "serve returns a Tensor; return Assignment"),
]


@pytest.mark.parametrize(("served", "expected"), SERVED)
def test_assignment_that_does_not_fit_is_refused(served: Any, expected: str):
    with pytest.raises(InputError, match=f"FedAvg: .*{expected}"):
        check_assignment(FedAvg(), served, torch.arange(3), 15)


def test_assignment_that_fits_is_returned():
    served = Assignment(MODELS, THREE, {"global": MODELS[0]})
    assert check_assignment(FedAvg(), served, torch.arange(3), 15) is served
    nobody = Assignment(torch.empty(0, 0), torch.tensor([-1, -1, -1]))
    assert check_assignment(FedAvg(), nobody, torch.arange(3), 15) is nobody


def test_run_evaluates_no_assignment_that_does_not_fit():
    data = ArrayData(np.eye(12, 4), np.arange(12) % 3, np.arange(12) // 4, test=0.5, allow_unseen_labels=True)
    task = lambda: Classification(MCLR([4], 3), partial(torch.optim.SGD, lr=0.1))  # noqa: E731
    run = Experiment(data, task, FedAvg(), rounds=1, cohort_size=2).prepare(0)
    (last,) = run.rounds()
    assert run.engine.layout.num_columns == 15
    for served, expected in SERVED:
        algorithm = type("Mine", (FedAvg,), {"serve": lambda self, state, clients, served=served: served})()
        with pytest.raises(InputError, match=f"Mine: .*{expected}"):
            evaluate(algorithm, last.state, run.engine, last.data, EvaluationPlan(), round=0)
