"""A module of a configuration is made again by the constructor calls that made it first."""

from threading import Lock
from typing import Any

import pytest
import torch
from jsonargparse import Namespace
from lightning import LightningModule
from quadratic import ids
from torch import nn

from lit_cfl.config import build
from lit_cfl.config.build import task_factory
from lit_cfl.data import Examples
from lit_cfl.errors import InputError

EXAMPLES = Examples(torch.zeros(3, 1, 8, 8), ids(0, 1, 3), 4)


class Lists(LightningModule):
    def __init__(self, sizes: list[int], nets: list[nn.Module]):
        super().__init__()
        sizes.append(len(sizes))
        self.sizes, self.nets = sizes, nn.ModuleList(nets)


class Locked(LightningModule):
    def __init__(self, lock: Any = Lock()):  # the same for all, as no lock can be copied
        super().__init__()
        self.lock, self.weight = lock, nn.Parameter(torch.zeros(1))


class Once(LightningModule):
    left = 1

    def __init__(self) -> None:
        super().__init__()
        Once.left -= 1
        if Once.left < 0:
            raise ValueError("no more")


def own(kind: type, **options: Any) -> Namespace:
    return Namespace(class_path=f"{__name__}.{kind.__name__}", init_args=Namespace(**options))


def linear(width: int) -> Namespace:
    return Namespace(class_path="torch.nn.Linear", init_args=Namespace(in_features=width, out_features=1))


def test_our_task_and_its_net_and_optimizer_are_those_of_the_parser(monkeypatch: pytest.MonkeyPatch):
    net = Namespace(class_path="lit_cfl.nets.MLP", init_args=Namespace(input_shape=None, num_labels=None, hidden=5))
    sgd = Namespace(class_path="torch.optim.SGD", init_args=Namespace(lr=0.25))
    task = Namespace(class_path="lit_cfl.tasks.Classification", init_args=Namespace(net=net, optimizer=sgd))
    make = task_factory(task, lambda: EXAMPLES)
    torch.manual_seed(7)
    first = make()
    monkeypatch.delattr(build, "instantiate")
    torch.manual_seed(7)
    again = make()
    assert all(map(torch.equal, first.state_dict().values(), again.state_dict().values()))
    with torch.no_grad():
        next(first.parameters()).zero_()
    assert next(again.parameters()).any()
    optimizer = again.configure_optimizers()
    assert (type(optimizer), optimizer.defaults["lr"]) == (torch.optim.SGD, 0.25)
    assert optimizer.param_groups[0]["params"] == list(again.parameters())
    assert not torch.equal(next(again.parameters()), next(make().parameters()))  # drawn anew


def test_objects_in_lists_are_made_again_and_lists_are_as_they_were_given():
    make = task_factory(own(Lists, sizes=[4], nets=[linear(2), linear(3)]), lambda: EXAMPLES)
    modules = [make() for _ in range(3)]
    assert [module.sizes for module in modules] == [[4, 1]] * 3
    assert [[net.in_features for net in module.nets] for module in modules] == [[2, 3]] * 3
    assert len({id(net) for module in modules for net in module.nets}) == 6


def test_argument_that_cannot_be_copied_is_left_to_the_parser():
    make = task_factory(own(Locked), lambda: EXAMPLES)
    assert [make().lock for _ in range(2)] == [Locked().lock] * 2


def test_class_that_refuses_later_is_named():
    make = task_factory(own(Once), lambda: EXAMPLES)
    make()
    with pytest.raises(InputError, match="Once raised ValueError: no more"):
        make()
