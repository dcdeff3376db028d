"""Tests that a mini-batch of one example is refused where BatchNorm has no variance, and nowhere else.

That each client has statistics of its own, and when an example may be alone, is stated by `test_ways.py`.
"""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from ragged import PLANS, ragged_data, task
from torch import nn

from lit_cfl.engines.check_module import require_no_single_batch
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget


def units() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))


@pytest.mark.parametrize("plan", ["trainer", "plain loop", "4 lanes"])
def test_every_engine_refuses_a_batch_of_one_example_before_it_trains(plan: str):
    engine = build_engine(task(units), PLANS[plan], 5, LocalTraining(2, 4))
    model, part = engine.initial(0), engine._fit_part
    engine._fit_part = None  # must not be called
    for sizes, budget, client in (
        ((8, 9, 6), None, 1),
        ((8, 10, 6), Budget(1, "epochs", 9), 1),
        ((8, 3, 1), Budget(1, "epochs", "full"), 2),
    ):
        size = budget.batch_size if budget is not None else 4
        with pytest.raises(InputError, match=f"client {client} .* batch size {size}, .* GroupNorm"):
            engine.at(0, ragged_data(sizes)).fit(model[None], torch.arange(3), budget=budget)
    with pytest.raises(InputError, match=r"client 2 .* only example"):
        engine.at(0, ragged_data((8, 9, 1))).gradients(model, torch.arange(3))
    engine._fit_part = part
    with pytest.raises(InputError, match=r"client 1 .* one of its 9 examples"):
        require_trainable(engine, ragged_data((8, 9, 16)))


@pytest.mark.parametrize(
    ("size", "batch_size", "last", "remedy"),
    [
        (31, 10, "keep", "local.last_batch to join,"),
        (1, 10, "join", "partition.min_examples"),
        (31, 10, "join", None),
        (31, 10, "drop", None),
    ],
)
def test_a_remedy_is_named_where_an_example_is_alone(size: int, batch_size: int, last: Any, remedy: str | None):
    counts = torch.tensor([size, 40])
    with pytest.raises(InputError, match=remedy) if remedy else nullcontext():
        require_no_single_batch(torch.arange(2), counts, counts, batch_size, last)
