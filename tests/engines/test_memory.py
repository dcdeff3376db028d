"""Tests what engines do when memory runs out: fewer lanes, smaller chunks, data that stay on the CPU, or an error."""

from dataclasses import replace

import pytest
import torch
from ragged import PLANS, SHAPE, ragged_data, task
from torch import Tensor

from lit_cfl.data import Examples
from lit_cfl.devices import is_out_of_memory
from lit_cfl.engines import scorer
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.cohort import CohortFit
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked import way as stack_way
from lit_cfl.engines.stacked.way import StackWay
from lit_cfl.errors import InputError, Notice
from lit_cfl.local_work import Budget
from lit_cfl.nets import MLP

CLIENTS = torch.tensor([4, 3, 1, 5, 2])


def engine_of(plan: Plan, hidden: int = 12) -> Engine:
    return build_engine(task(lambda: MLP(hidden, SHAPE, 10)), plan, 5, LocalTraining(1, 10))


def fit(engine: Engine, round: int = 2) -> Tensor:
    return engine.at(round, ragged_data()).fit(engine.initial(0)[None], CLIENTS).rows


def out_of_memory(*given: object, **options: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("CUDA out of memory", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("FIND was unable to find an engine to execute this computation after trying 9 plans.", True),
        ("illegal memory access", False),
    ],
)
def test_which_errors_are_taken_for_a_want_of_memory(error: str, expected: bool):
    assert is_out_of_memory(RuntimeError(error)) == expected
    interrupted = RuntimeError("operation failed due to a previous error during capture")
    interrupted.__context__ = RuntimeError(error)
    assert is_out_of_memory(interrupted) == expected


@pytest.mark.parametrize(("lanes", "left"), [(2, 1), (8, 4)])
def test_running_out_of_memory_halves_lanes_and_says_so_once(lanes: int, left: int, monkeypatch: pytest.MonkeyPatch):
    engine, whole, tried = engine_of(Plan("stack", lanes=16)), StackWay._fit, list[int]()

    def short_of_memory(way: StackWay, *given: object) -> object:
        tried.append(way.plan.lanes)
        return out_of_memory() if tried[-1] >= lanes else whole(way, *given)

    monkeypatch.setattr(StackWay, "_fit", short_of_memory)
    with pytest.warns(Notice, match="and to 8 client") as said:
        rows, _ = (fit(engine, round) for round in (2, 3))
    assert len(said) == 1
    assert tried == [*(width for width in (16, 8, 4, 2) if width >= lanes), left, left]
    assert engine.plan.lanes == left
    assert torch.equal(rows, fit(engine_of(engine.plan)))


def test_running_out_of_memory_halves_the_chunks_and_says_so_once():
    engine = engine_of(Plan("loop"), 2000)  # one model takes 0.57 MiB
    sizes, whole = [], engine._fit_part

    def short_of_memory(request, part, *rest):
        sizes.append(part.stop - part.start)
        return out_of_memory() if sizes[-1] > 4 else whole(request, part, *rest)

    engine._fit_part = short_of_memory
    data, models = ragged_data((3,) * 12), engine.initial(0)[None]
    with pytest.warns(Notice, match="3 MiB of local models") as said:
        rows = engine.at(0, data).fit(models, torch.arange(12)).rows
    assert sizes == [12, 5, *[1] * 12]  # 3 MiB hold five, 1 MiB holds one
    assert len(said) == 1
    assert torch.equal(rows, engine_of(Plan("loop"), 2000).at(0, data).fit(models, torch.arange(12)).rows)


@pytest.mark.parametrize(("augment", "expected"), [(None, [2, 2]), (lambda batch, keys: batch, [1, 1, 1, 1])])
def test_clients_train_together_as_far_as_their_examples_or_augmented_copies_fit(augment, expected, monkeypatch):
    """Of clients with three examples and two epochs, seven examples are two clients, or copies of one."""
    data, engine = ragged_data((3,) * 4), engine_of(Plan("loop"))
    data = replace(data, examples=replace(data.examples, augment=augment))
    monkeypatch.setattr("lit_cfl.engines.engine._PART_MIB", {"cpu": 7 * 4 * data.examples.inputs[0].numel() / 2**20})
    sizes, whole = [], engine._fit_part
    engine._fit_part = lambda request, part, *rest: sizes.append(part.stop - part.start) or whole(request, part, *rest)
    assert len(engine.at(0, data).fit(engine.initial(0)[None], torch.arange(4), budget=Budget(2)).rows) == 4
    assert sizes == expected


def test_gradients_that_run_out_of_memory_are_taken_in_half_the_lanes(monkeypatch: pytest.MonkeyPatch):
    engine = engine_of(Plan("stack", lanes=4, precision="64-true"))
    work, model = engine.at(2, ragged_data()), engine.initial(0)
    expected, seen, whole = work.gradients(model, CLIENTS), list[int](), stack_way.compute_stacked_gradients

    def short_of_memory(steps: object, layout: object, plan: Plan, model: Tensor, work: CohortFit) -> object:
        seen.append(len(work))
        return out_of_memory() if len(work) > 2 else whole(steps, layout, plan, model, work)

    monkeypatch.setattr(stack_way, "compute_stacked_gradients", short_of_memory)
    with pytest.warns(Notice, match="2 clients"):
        found = work.gradients(model, CLIENTS)
    assert (seen, engine.plan.lanes) == ([4, 2, 2, 1], 2)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("plan", ["plain loop", "4 lanes"])
def test_memory_that_does_not_do_for_one_client_is_an_error(plan: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Engine, "_train", out_of_memory)
    with pytest.warns(Notice), pytest.raises(InputError, match="too little memory for one client"):
        fit(engine_of(PLANS[plan]))


def test_evaluation_that_runs_out_of_memory_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch):
    engine, data = engine_of(Plan("loop")), ragged_data()
    monkeypatch.setattr(scorer, "outcomes_of", out_of_memory)
    for score in (engine.outcomes, lambda model, *given: engine.losses_of_all(model[None], *given)):
        with pytest.raises(InputError, match=r"1,024 examples at once .* --device cpu"):
            score(engine.initial(0), torch.arange(50), data)


def test_data_that_do_not_fit_after_all_stay_on_the_cpu(monkeypatch: pytest.MonkeyPatch):
    data = ragged_data()
    monkeypatch.setattr("lit_cfl.engines.engine.fits_on", lambda device, size: True)
    monkeypatch.setattr(Examples, "to", out_of_memory)
    assert engine_of(Plan("loop")).examples(data) is data.examples
    monkeypatch.setattr(Examples, "to", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine_of(Plan("loop")).examples(data)


def test_part_of_a_gpu_fills_its_stack():
    engine = engine_of(Plan("stack", rows_mib=1, lanes=4))
    fitting = 2**20 // (4 * engine.layout.num_columns)
    for device, lanes, clients in (("cpu", 512, fitting), ("cuda:0", 512, 512), ("cuda:0", 8, fitting // 8 * 8)):
        engine.plan = Plan("stack", device, rows_mib=1, lanes=lanes)
        assert engine._clients_that_fit == clients
