"""Tests which modules are recognised as chains: those that compute a chain's losses, and no others."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from cohorts import made
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional

from lit_cfl.engines.chain.parts import ChainLayer
from lit_cfl.engines.chain.recognise import NotAChainError, recognise_chain
from lit_cfl.engines.task_protocol import Batch
from lit_cfl.nets import MCLR, MLP, MNISTCNN
from lit_cfl.tasks import Classification, Regression

SHAPE = [1, 4, 4]


class OfFunctions(LightningModule):
    """User module with a linear layer as a function call, a reshape, and another form of cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(5, 16) / 4), nn.Parameter(torch.zeros(5))
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.linear(x.view(x.size(0), -1), self.weight, self.bias)
        return self.last(functional.relu(hidden))

    def losses(self, batch: Batch) -> Tensor:
        return functional.nll_loss(functional.log_softmax(self(batch[0]), 1), batch[1], reduction="none")


class Changed(OfFunctions):
    """An `OfFunctions` with changed outputs or losses."""

    def __init__(
        self,
        change: Callable[[nn.Module, Tensor], Tensor] = lambda module, outputs: outputs,
        losses: Callable[[Tensor, Tensor], Tensor] = partial(functional.cross_entropy, reduction="none"),
    ) -> None:
        super().__init__()
        self.change, self.loss = change, losses

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self, super().forward(x))

    def losses(self, batch: Batch) -> Tensor:
        return self.loss(self(batch[0]), batch[1])


def weighted(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, torch.tensor([1.0, 1.0, 2.0]).to(outputs), reduction="none")


def half_detached(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy((outputs + outputs.detach()) / 2, labels, reduction="none")


def limited(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none").clamp(max=8)


def limited_far(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none").clamp(max=500)


def centred(outputs: Tensor, labels: Tensor) -> Tensor:
    losses = functional.cross_entropy(outputs, labels, reduction="none")
    return losses + losses.mean() - losses.mean().detach()


def shared() -> nn.Module:
    layer = nn.Linear(16, 16)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(16, 3))


def unused() -> nn.Module:
    net = MLP(5, SHAPE, 3)
    net.add_module("other", nn.Linear(2, 2))
    return net


OTHERS: dict[str, tuple[Callable[[], LightningModule], str]] = {
    "convolutions": (lambda: Classification(MNISTCNN([1, 28, 28], 3)), "conv2d in its forward"),
    "another norm": (
        lambda: Classification(nn.Sequential(nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 3))),
        "LayerNorm",
    ),
    "a sum of two paths": (lambda: Changed(lambda _, y: y + y.relu()), "add in its forward joins or repeats values"),
    "a factor": (lambda: Changed(lambda _, y: 2 * y), "mul in its forward is not a part"),
    "a transpose": (lambda: Changed(lambda _, y: y.flip(1)), "flip in its forward is not a part"),
    "softmax": (lambda: Changed(lambda _, y: y.softmax(1)), "softmax in its forward is not a part"),
    "training alone": (lambda: Changed(lambda m, y: 2 * y if m.training else y), "mul in its forward"),
    "evaluation alone": (lambda: Changed(lambda m, y: y if m.training else 2 * y), "losses or gradients differ"),
    "a choice by numbers": (lambda: Changed(lambda _, y: y if y.sum() > 0 else -y), "cannot be traced"),
    "dropout without key": (lambda: Changed(lambda _, y: functional.dropout(y, 0.5)), "dropout in its forward"),
    "weights of classes": (lambda: Changed(losses=weighted), "losses"),
    "half a gradient": (lambda: Changed(losses=half_detached), "losses or gradients differ"),
    "limited losses": (lambda: Changed(losses=limited), "losses or gradients differ"),
    "losses limited far away": (lambda: Changed(losses=limited_far), "losses or gradients differ"),
    "losses of the batch": (lambda: Changed(losses=centred), "losses or gradients differ"),
    "smoothed labels": (
        lambda: Changed(losses=partial(functional.cross_entropy, reduction="none", label_smoothing=0.1)),
        "losses are not the cross-entropy",
    ),
    "shared layers": (lambda: Classification(shared()), "share parameters"),
    "unused layer": (lambda: Classification(unused()), "does not use net.other.weight"),
    "another shape": (
        lambda: Classification(nn.Sequential(nn.Unflatten(1, (1, 1)), nn.Linear(4, 3))),
        "Unflatten",
    ),
    "last axis alone": (lambda: Classification(nn.Sequential(nn.Linear(4, 3), nn.Flatten())), "takes 4 numbers"),
}  # fmt: skip


def batch(labels: Callable[[Tensor], Tensor] = lambda classes: classes, shape: tuple[int, ...] = (1, 4, 4)) -> Batch:
    rng = torch.Generator().manual_seed(5)
    return torch.rand(8, *shape, generator=rng), labels(torch.arange(8) % 3)


@pytest.mark.parametrize("other", OTHERS)
def test_other_modules_are_refused_by_reason(other: str):
    make, reason = OTHERS[other]
    module, layout = made(make)
    with pytest.raises(NotAChainError, match=reason):
        recognise_chain(module, layout, batch(shape=(1, 28, 28) if other == "convolutions" else (1, 4, 4)))


def test_a_users_module_of_functions_is_a_chain():
    module, layout = made(OfFunctions)
    chain = recognise_chain(module, layout, batch())
    assert [layer.weight for layer in chain.layers] == ["weight", "last.weight"]
    assert chain.loss.kind == "cross-entropy"
    module, layout = made(Changed)  # an equal module
    assert recognise_chain(module, layout, batch()) == chain


def test_penalties_and_losses_are_found():
    module, layout = made(lambda: Classification(MLP(5, SHAPE, 3), kernel_l2=0.1, kernel_l2_layers="fc2"))
    layers = recognise_chain(module, layout, batch()).layers
    assert [(layer.weight, layer.penalty) for layer in layers] == [("net.fc1.weight", 0.0), ("net.fc2.weight", 0.1)]
    module, layout = made(lambda: Regression(MCLR(SHAPE, 1)))
    chain = recognise_chain(module, layout, batch(lambda classes: classes.float()))
    assert (chain.loss.kind, chain.loss.factor) == ("squared error", 1.0)
    assert chain.parts == (ChainLayer("net.fc1.weight", "net.fc1.bias", 16, 1),)


def test_recognition_leaves_the_module_unchanged():
    module, layout = made(lambda: Classification(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3))))
    before = layout.read(module)
    recognise_chain(module, layout, batch())
    assert torch.equal(layout.read(module), before)
    assert module.training
    assert all(p.grad is None for p in module.parameters())


def test_token_ids_are_refused_as_inputs_of_a_chain():
    module, layout = made(lambda: Classification(MCLR(SHAPE, 3)))
    with pytest.raises(NotAChainError, match="its inputs are integers"):
        recognise_chain(module, layout, (torch.zeros(2, 16, dtype=torch.int64), torch.tensor([0, 1])))
