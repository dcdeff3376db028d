"""Tests nets with a frozen part: clients fine-tune adapters, and share the rest."""

import pytest
import torch
from ragged import PLANS, SGD, fitted, ragged_data, reasons_against, rows_of, task
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked.way import StackWay

WIDTH, RANK = 12, 4


class Adapted(nn.Module):
    """Frozen fully connected layer with a trained low-rank product (LoRA; Hu et al., 2022)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, inputs) / 10)
        self.up = nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base(inputs) + inputs @ self.down.T @ self.up.T


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH).requires_grad_(False) for _ in range(2))
        self.attend, self.project = Adapted(WIDTH, 3 * WIDTH), Adapted(WIDTH, WIDTH)
        self.fc1, self.fc2 = Adapted(WIDTH, 2 * WIDTH), Adapted(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.attend(self.norm1(x)).chunk(3, -1)
        x = x + self.project((query @ key.mT / WIDTH**0.5).softmax(-1) @ value)
        return x + self.fc2(self.fc1(self.norm2(x)).relu())


class ViT(nn.Module):
    """Small vision transformer on patches of 2 x 2, with trained adapters and head."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, 2, 2).requires_grad_(False)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.patches(images).flatten(2).mT).mean(1))


@pytest.mark.parametrize("plan", ["plain loop", "4 lanes"])
def test_adapters_train_in_a_stack_as_with_a_trainer(plan: str):
    local = LocalTraining(2, 10)
    assert reasons_against(task(ViT)) == []
    rows = [
        rows_of(fitted(task(ViT, SGD), Plan(one.engine, precision="64-true", lanes=one.lanes), local=local)[0])
        for one in (PLANS["trainer"], PLANS[plan])
    ]
    assert_close(rows[1], rows[0], rtol=0, atol=1e-12)
    assert (rows[0][1] - rows[0][2]).norm() > 1e-3


def test_lanes_hold_adapters_alone_and_all_nets_of_an_engine_share_what_is_frozen():
    _, engine = fitted(task(ViT), Plan("stack", lanes=4), local=LocalTraining(1, 10))
    stack = engine.way
    assert isinstance(stack, StackWay)
    adapters = 2 * RANK * WIDTH * ((1 + 3) + (1 + 1) + (1 + 2) + (2 + 1))  # adapters of two blocks
    assert engine.layout.num_columns == adapters + (WIDTH + 1) * 10  # and the parameters of the head
    assert sum(tensor.numel() for tensor in stack._lanes.tensors) == 4 * engine.layout.num_columns
    nets = [stack._steps.module, stack.module_for_gradients, engine.way.scorer(lambda first: None)._module]
    for name, parameter in nets[0].named_parameters():
        same = len({net.get_parameter(name).data_ptr() for net in nets}) == 1
        assert same == (not parameter.requires_grad), name


@pytest.mark.parametrize("plan", [Plan("trainer"), Plan("loop"), Plan("stack", lanes=4)])
def test_modules_that_are_handed_out_share_nothing_with_the_engine(plan: Plan):
    engine, data = build_engine(task(ViT), plan, 5, LocalTraining(1, 10)), ragged_data()
    model, clients = engine.initial(0), torch.tensor([1, 2])
    before = engine.at(0, data).gradients(model, clients)
    first, second = engine.module(model), engine.module(model)
    pointers = [{tensor.data_ptr() for tensor in one.state_dict().values()} for one in (first, second)]
    assert not pointers[0] & pointers[1]
    for parameter in first.half().parameters():
        parameter.data.zero_()
    assert torch.equal(engine.at(0, data).gradients(model, clients), before)
    assert torch.equal(engine.module(model).net.patches.weight, second.net.patches.weight)
