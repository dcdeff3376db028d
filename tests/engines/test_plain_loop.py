"""Tests the plain loop: large batches are split into parts."""

from functools import partial

import pytest
import torch
from ragged import fitted, ragged_data, rows_of, task
from test_batch_norm import Residual
from test_engines import NETS
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.engines import plain_loop
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.task_protocol import Batch, weighted_losses_of

FULL = LocalTraining(epochs=3, batch_size="full")
DATA = ragged_data((3, 8, 16, 17, 9, 20))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes the loop split batches into parts of at most 8 examples; returns a list that records their sizes."""
    sizes = []

    def counted(module: torch.nn.Module, batch: Batch, weights: Tensor | None) -> Tensor:
        sizes.append(len(batch[1]))
        return weighted_losses_of(module, batch, weights)

    monkeypatch.setattr(plain_loop, "weighted_losses_of", counted)
    monkeypatch.setattr(plain_loop, "_PART", 8)
    return sizes


@pytest.mark.parametrize("net", ["linear", "mlp"])
def test_gradients_of_large_batches_are_summed_up_over_parts(net: str, computed: list[int]):
    make = task(NETS[net])
    rows, losses = [], []
    for engine in ("trainer", "loop"):
        found, _ = fitted(make, Plan(engine, precision="64-true"), local=FULL, data=DATA, prox=0.3)
        rows.append(rows_of(found))
        losses.append(found.losses)
    assert_close(rows[1], rows[0], rtol=0, atol=1e-12)
    assert_close(losses[1], losses[0], rtol=1e-12, atol=0)
    steps = [[3], [8], [8, 8], [6, 6, 5], [5, 4], [7, 7, 6]]
    assert computed == [size for client in steps for size in client * 3]


class Counting(torch.nn.Module):
    """Net that counts its batches in training."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(64, 10)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += self.training
        return self.fc(inputs.flatten(1))


@pytest.mark.parametrize("net", ["mlp with dropout", "batch norm", "counting"])
def test_batches_stay_whole_where_a_layer_depends_on_all_of_one(net: str, computed: list[int]):
    fitted(task({**NETS, "batch norm": Residual, "counting": Counting}[net]), Plan("loop"), local=FULL, data=DATA)
    assert computed == [size for size in (3, 8, 16, 17, 9, 20) for _ in range(3)]


@pytest.mark.usefixtures("computed")
def test_gradients_that_share_their_memory_are_not_added_to_each_other():
    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = (torch.nn.Parameter(torch.zeros(10)) for _ in range(2))

        def forward(self, inputs: Tensor) -> Tensor:
            return (self.one + self.other).expand(len(inputs), 10)

    decayed = partial(torch.optim.SGD, lr=0.1, weight_decay=0.5)
    found, _ = fitted(task(Sum, decayed), Plan("loop", precision="64-true"), local=FULL, data=DATA)
    whole, _ = fitted(task(Sum, decayed), Plan("trainer", precision="64-true"), local=FULL, data=DATA)
    assert_close(rows_of(found), rows_of(whole), rtol=0, atol=1e-12)
