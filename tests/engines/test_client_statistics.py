"""Tests what `work.map` refuses, and that what clients send holds no other memory.

Order, answers and bytes are stated by `test_local_work.py`, random numbers by `test_ways.py`.
"""

from collections.abc import Callable

import pytest
import torch
from quadratic import ids
from ragged import SHAPE, ragged_data, task
from torch import Tensor

from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError
from lit_cfl.local_work import LocalWork
from lit_cfl.nets import MCLR


def work_of(round: int = 0) -> LocalWork:
    return build_engine(task(lambda: MCLR(SHAPE, 10)), Plan("loop"), 5, LocalTraining()).at(round, ragged_data())


def test_what_a_client_sends_holds_no_other_memory_and_draws_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    (first,) = work_of().map(lambda inputs, labels: inputs[0, 0].T[1] + torch.rand(8), ids(3))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.untyped_storage().nbytes() == first.nbytes
    assert first.is_contiguous()


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (lambda inputs, labels: 3.0, "a float"),
        (lambda inputs, labels: (inputs, 2), "a tuple of Tensor, int"),
        (lambda inputs, labels: {1: inputs}, "a dict of Tensor"),
    ],
)
def test_anything_but_tensors_is_refused_with_the_client(answer: Callable, named: str):
    with pytest.raises(InputError, match=f"client 3: .*{named}"):
        work_of().map(answer, ids(0, 3, 2))


def test_error_of_the_function_names_the_client():
    def fails(inputs: Tensor, labels: Tensor) -> Tensor:
        return 1 // (len(labels) - 17) * inputs

    with pytest.raises(ZeroDivisionError) as caught:
        work_of(4).map(fails, ids(1, 2, 3))
    assert caught.value.__notes__ == ["It was raised in round 5, by the function of work.map on client 2."]
