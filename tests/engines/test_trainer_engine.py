"""Tests the way `trainer`, to which the others are compared: what only a Trainer does.

That it trains as plain PyTorch does is stated by `test_ways.py`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from lightning import LightningModule
from quadratic import ids, rng
from ragged import clients_of
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl.data import Examples
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification

SGD = partial(torch.optim.SGD, lr=0.1)
exactly = partial(assert_close, atol=1e-12, rtol=0)


DATA = clients_of(
    Examples(torch.randn(22, 5, generator=rng(), dtype=torch.float64), torch.randint(0, 3, (22,), generator=rng(1)), 3),
    sizes=(0, 7, 12, 3),
)


def engine_of(
    task: Callable[..., LightningModule] = Classification,
    net: Callable[[], nn.Module] = partial(MCLR, [5], 3),
    **local: Any,
) -> Engine:
    plan = Plan("trainer", precision="64-true")
    return Engine(lambda: task(net(), SGD), plan, 11, LocalTraining(**{"epochs": 1, "batch_size": 4} | local))


def test_batch_statistics_are_part_of_the_row():
    engine = engine_of(net=lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)), batch_size=7)
    row = engine.at(0, DATA).fit(engine.initial(0)[None], ids(1)).rows[0]
    mean, variance = row[engine.layout.num_parameters :].view(2, 5)
    inputs = DATA.examples.inputs[DATA.train[1]]
    assert_close(mean, 0.1 * inputs.mean(0))
    assert_close(variance, 0.9 + 0.1 * inputs.var(0))


def test_a_net_made_outside_the_task_is_refused():
    engine = Engine(partial(Classification, MCLR([5], 3)), Plan(), seed=0)
    with pytest.raises(InputError, match="same net at every call"):
        engine.initial(1)
    with pytest.raises(InputError, match="same net at every call"):
        require_trainable(engine, DATA)


def test_hooks_schedulers_progress_and_attributes_of_a_module_start_again_in_each_fit():
    calls: list[tuple[int, int, int]] = []

    class Hooked(Classification):
        count = 0

        def on_train_epoch_end(self) -> None:
            self.count += 1
            calls.append((self.current_epoch, self.global_step, self.count))

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)]

    engine = engine_of(task=lambda net, _: Hooked(net), epochs=3, batch_size="full")
    start, work = engine.initial(0), engine.at(0, DATA)
    row = work.fit(start[None], ids(3, 1)).rows[1]
    assert calls == [(0, 1, 1), (1, 2, 2), (2, 3, 3)] * 2
    assert_close(row, start - work.gradients(start, ids(1))[0])  # from epoch 1 on, the rate is 0


class TwoOptimizers(Classification):
    """Task that updates weights and biases by separate optimizers, after a common backward pass."""

    def __init__(self, *options: object):
        super().__init__(*options)
        self.automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD([p for p in self.parameters() if p.dim() == dim], lr=0.1) for dim in (1, 2)]

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(self.losses(batch).mean())
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("prox", [0.0, 0.8])
def test_several_optimizers_take_the_steps_of_one(prox: float):
    rows = []
    for task in (Classification, TwoOptimizers):
        engine = engine_of(task=task)
        start = engine.initial(0)[None]
        centers, budget = torch.zeros_like(start), Budget(5, "steps")  # client 2 has 3 mini-batches per epoch
        rows.append(engine.at(4, DATA).fit(start, ids(2), budget=budget, prox=prox, centers=centers).rows)
    exactly(*rows)
