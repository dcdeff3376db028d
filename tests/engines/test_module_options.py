"""Tests which options of a module are recorded besides its tensors, and which differences count."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn

from lit_cfl.engines.module_options import changed_options, module_options


@dataclass
class Shape:
    """User's object that holds options of a net."""

    width: int = 4
    act: Any = torch.relu


class Own(LightningModule):
    """Module with options of all kinds, none of which changes the shape of a weight."""

    def __init__(self, p: float = 0.1, **more: Any) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(0.2))
        self.p, self.mode, self.shape, self.make = p, "mean", Shape(), partial(torch.optim.SGD, lr=0.5)
        self.folder, self.place, self.many = "/data/a", "cuda:0", list(range(500))
        self._private, self.mask, self.loop = 3, torch.ones(2), [1]
        self.loop.append(self.loop)  # type: ignore[arg-type]  # a list that holds itself is to end, too
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)


def test_layers_and_plain_values_are_listed_by_name():
    found = module_options(Own())
    assert {name: text for name, text in found.items() if name.startswith("part ")} == {
        "part module": "Own",
        "part net": "Sequential",
        "part net.0": "Linear",
        "part net.1": "LeakyReLU",
    }
    own = {name: text for name, text in found.items() if not name.startswith(("part ", "net."))}
    assert own == {
        "hparams['p']": "0.1",
        "p": "0.1",
        "mode": "'mean'",
        "shape.width": "4",
        "shape.act": "relu",
        "make": "SGD",
        "make['lr']": "0.5",
        "many": "500 values",
        "loop[0]": "1",
    }
    assert found["net.1.negative_slope"] == "0.2"


def test_values_that_differ_are_named_and_those_of_one_side_alone_are_not():
    before = module_options(Own(0.1))
    assert changed_options(before, module_options(Own(0.1, extra=3))) == []
    assert changed_options(before, module_options(Own(0.4))) == ["p: 0.1 -> 0.4", "hparams['p']: 0.1 -> 0.4"]
    assert changed_options(before, module_options(Own(folder="/b", place="cpu", _private=4))) == []


def test_layers_that_are_new_gone_or_of_another_class_are_named():
    plain, dropped = nn.Sequential(nn.Flatten(), nn.ReLU()), nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Dropout())
    assert changed_options(module_options(plain), module_options(dropped)) == [
        "1: ReLU -> Tanh",
        "2: (no layer) -> Dropout",
    ]
    assert "2: Dropout -> (no layer)" in changed_options(module_options(dropped), module_options(plain))
