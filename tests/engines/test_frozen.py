"""Tests nets with a frozen part: clients fine-tune the rest, and all nets of an engine share the frozen part.

That every way trains them is stated by `test_ways.py`.
"""

import pytest
import torch
from ragged import fitted, ragged_data, task
from torch import nn

from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked.way import StackWay


def half_frozen() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12).requires_grad_(False), nn.LayerNorm(12), nn.Linear(12, 10))


def test_lanes_hold_what_is_trained_alone_and_all_nets_of_an_engine_share_what_is_frozen():
    _, engine = fitted(task(half_frozen), Plan("stack", lanes=4), local=LocalTraining(1, 10))
    stack = engine.way
    assert isinstance(stack, StackWay)
    assert engine.layout.num_columns == 2 * 12 + (12 + 1) * 10
    assert sum(tensor.numel() for tensor in stack._lanes.tensors) == 4 * engine.layout.num_columns
    nets = [stack._steps.module, stack.module_for_gradients, engine.way.scorer(lambda first: None)._module]
    for name, parameter in nets[0].named_parameters():
        same = len({net.get_parameter(name).data_ptr() for net in nets}) == 1
        assert same == (not parameter.requires_grad), name


@pytest.mark.parametrize("plan", [Plan("trainer"), Plan("loop"), Plan("stack", lanes=4)])
def test_modules_that_are_handed_out_share_nothing_with_the_engine(plan: Plan):
    engine, data = build_engine(task(half_frozen), plan, 5, LocalTraining(1, 10)), ragged_data()
    model, clients = engine.initial(0), torch.tensor([1, 2])
    before = engine.at(0, data).gradients(model, clients)
    first, second = engine.module(model), engine.module(model)
    pointers = [{tensor.data_ptr() for tensor in one.state_dict().values()} for one in (first, second)]
    assert not pointers[0] & pointers[1]
    for parameter in first.half().parameters():
        parameter.data.zero_()
    assert torch.equal(engine.at(0, data).gradients(model, clients), before)
    assert torch.equal(engine.module(model).net[1].weight, second.net[1].weight)
