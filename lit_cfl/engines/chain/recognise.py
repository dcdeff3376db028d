"""Recognises a chain of fully connected layers in any LightningModule by tracing, and checks it numerically.

The check compares losses and gradients of the module with those of the chain in float64: on the given examples and on
random ones, at other parameters, with and without dropout, on a single example and on many.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.engines.chain.losses import compute_losses, compute_slopes, targets_of
from lit_cfl.engines.chain.parts import Chain, ChainLayer, Loss
from lit_cfl.engines.chain.passes import Arithmetic, run_backward, run_forward
from lit_cfl.engines.chain.trace import NotAChainError, Parts, find_parts
from lit_cfl.engines.dropout import set_key
from lit_cfl.engines.task_protocol import Batch, losses_of
from lit_cfl.parameters import ParameterLayout
from lit_cfl.tasks import Classification

__all__ = ["NotAChainError", "recognise_chain"]

_CLOSE = 1e-9  # tolerance relative to the largest number, in float64
_MOST_LABELS = 1_024  # maximum number of labels that are checked
# a cache: recognising a large net takes half a second
_KNOWN: WeakKeyDictionary[LightningModule, Chain] = WeakKeyDictionary()


@torch.enable_grad()
def recognise_chain(module: LightningModule, layout: ParameterLayout, batch: Batch) -> Chain:
    """Returns the chain that a module computes and trains.

    Args:
        module: Module on the CPU; it is not changed.
        layout: Layout of the module's rows.
        batch: One or more of its examples, on the CPU.

    Raises:
        NotAChainError: the module is another kind of net, or trains another loss.
    """
    if not batch[0].is_floating_point():
        raise NotAChainError("its inputs are integers")
    if module not in _KNOWN:
        _KNOWN[module] = _recognise(module, layout, batch)
    return _KNOWN[module]


def _recognise(module: LightningModule, layout: ParameterLayout, batch: Batch) -> Chain:
    parts = _with_penalties(find_parts(module), module)
    _require_parameters(parts, module, layout)
    check = _Check(parts, module, layout)
    return check.chain((batch[0].double(), _precise(batch[1])))


def _precise(labels: Tensor) -> Tensor:
    return labels.double() if labels.is_floating_point() else labels


def _with_penalties(parts: Parts, module: LightningModule) -> Parts:
    """Adds the penalty `kernel_l2` of a `Classification` module to the layers that it penalises."""
    if not isinstance(module, Classification):
        return parts
    penalised = {f"net.{layer}.weight" for layer in module.penalised_layers}
    return tuple(
        replace(part, penalty=module.kernel_l2) if isinstance(part, ChainLayer) and part.weight in penalised else part
        for part in parts
    )


def _require_parameters(parts: Parts, module: LightningModule, layout: ParameterLayout) -> None:
    layers = [part for part in parts if isinstance(part, ChainLayer)]
    used = [name for layer in layers for name in (layer.weight, layer.bias) if name is not None]
    if not layers:
        raise NotAChainError("its forward has no fully connected layer")
    if len(set(used)) < len(used) or not set(used) <= set(dict(module.named_parameters())):
        raise NotAChainError("two of its layers share parameters")
    if others := [slot.name for slot in layout.slots if slot.name not in used]:
        raise NotAChainError(f"its forward does not use {others[0]} as a layer's parameter")


def tensors_of(module: LightningModule, parts: Parts) -> dict[str, Tensor]:
    """Returns views of the layers' parameters by name: weights `[1, h, d]`, biases `[1, 1, h]`."""
    names = [
        name for part in parts if isinstance(part, ChainLayer) for name in (part.weight, part.bias) if name is not None
    ]
    found = {name: module.get_parameter(name).detach() for name in names}
    return {name: p.view(1, -1, p.shape[-1]) for name, p in found.items()}


class _Check:
    """Compares a module with the parts of a chain numerically.

    Args:
        parts: Parts found by tracing.
        module: Module of the user.
        layout: Layout of the module's rows.
    """

    def __init__(self, parts: Parts, module: LightningModule, layout: ParameterLayout) -> None:
        self._parts, self._layout = parts, layout
        self._module = copy.deepcopy(module).double()
        self._names = [slot.name for slot in layout.slots]

    def chain(self, batch: Batch) -> Chain:
        """Returns the chain with its loss, after comparing losses and gradients with the module's.

        Raises:
            NotAChainError: losses or gradients differ from the module's.
        """
        loss = self._find_loss(batch)
        for number, (inputs, labels) in enumerate(trials(batch, Chain(self._parts, loss))):
            row = self._layout.read(self._module, torch.float64)
            rng = torch.Generator().manual_seed(number)
            self._layout.write(
                row * 1.5 + 0.1 * torch.randn(len(row), dtype=torch.float64, generator=rng), self._module
            )
            self._require_same(loss, (inputs, labels), key=number)
            self._layout.write(row, self._module)
        self._module.eval()
        self._require_same(loss, batch, key=None)
        return Chain(self._parts, loss)

    def _tensors(self) -> dict[str, Tensor]:
        return tensors_of(self._module, self._parts)

    def _find_loss(self, batch: Batch) -> Loss:
        expected = self._losses(batch, 0)
        outputs, _ = self._outputs(batch[0], 0)
        for loss in _candidates(batch[1], outputs.shape[-1]):
            if is_close(self._chain_losses(loss, outputs, batch[1])[0], expected):
                return loss
        raise NotAChainError(
            "its losses are not the cross-entropy, squared errors or binary cross-entropy of its outputs"
        )

    def _losses(self, batch: Batch, key: int | None) -> Tensor:
        set_key(self._module, 0 if key is None else key)
        try:
            return losses_of(self._module, batch)
        except Exception as error:  # a user's module may raise anything; training raises it again
            raise NotAChainError(f"its losses cannot be computed ({type(error).__name__})") from error

    def _outputs(self, inputs: Tensor, key: int | None) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        width = next(part.inputs for part in self._parts if isinstance(part, ChainLayer))
        flat = inputs.flatten(1)
        if flat.shape[1] != width:
            raise NotAChainError(f"its first layer takes {width} numbers, an example has {flat.shape[1]}")
        keys = None if key is None else torch.tensor([key])
        return run_forward(self._parts, self._tensors(), flat[None], keys, Arithmetic())

    def _chain_losses(self, loss: Loss, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the losses `[n]`, and the gradient of their mean with respect to the outputs `[1, n, outputs]`."""
        shares = torch.full((1, len(labels), 1), 1 / len(labels), dtype=torch.float64)
        targets = targets_of(loss, labels, torch.float64)[None]
        losses, slopes = compute_losses(loss, outputs, targets), compute_slopes(loss, outputs, targets, shares)
        tensors = self._tensors()
        layers = [part for part in self._parts if isinstance(part, ChainLayer)]
        return losses[0, :, 0] + sum(part.penalty * tensors[part.weight].square().sum() for part in layers), slopes

    def _require_same(self, loss: Loss, batch: Batch, key: int | None) -> None:
        expected = self._losses(batch, key)
        parameters = [self._module.get_parameter(name) for name in self._names]
        wanted = torch.autograd.grad(expected.mean(), parameters, allow_unused=True)
        outputs, kept = self._outputs(batch[0], key)
        losses, slopes = self._chain_losses(loss, outputs, batch[1])
        found: dict[str, Tensor] = {}

        def take(layer: ChainLayer, slopes: Tensor, inputs: Tensor) -> None:
            weight = self._tensors()[layer.weight]
            found[layer.weight] = (slopes.mT @ inputs + 2 * layer.penalty * weight)[0]
            found[layer.bias or ""] = slopes.sum((0, 1))

        keys = None if key is None else torch.tensor([key])
        run_backward(self._parts, self._tensors(), kept, slopes, keys, Arithmetic(), take, below=False)
        same = is_close(losses, expected) and all(
            g is not None and is_close(found[name], g) for name, g in zip(self._names, wanted, strict=True)
        )
        if not same:
            raise NotAChainError("its losses or gradients differ from those of the layers in its forward")


def _candidates(labels: Tensor, outputs: int) -> Iterator[Loss]:
    if not labels.is_floating_point() and labels.dim() == 1 and outputs > 1:
        yield Loss("cross-entropy")
    if labels.numel() == len(labels) * outputs:
        for factor in dict.fromkeys((1.0, 1 / outputs, 0.5, 0.5 / outputs)):
            yield Loss("squared error", factor)
            yield Loss("binary cross-entropy", factor)


def trials(batch: Batch, chain: Chain) -> Iterator[Batch]:
    """Yields the trial batches in float64: the given one, its first example alone, and random examples."""
    inputs, labels = batch[0].double(), _precise(batch[1])
    yield inputs, labels
    yield inputs[:1], labels[:1]
    rng, outputs = torch.Generator().manual_seed(0), chain.layers[-1].outputs
    for scale in (1.0, 10.0, 1e4):  # 1e4 finds losses that are clipped only far from usual examples
        count = max(16, min(outputs, _MOST_LABELS))
        others = scale * torch.randn(count, *inputs.shape[1:], dtype=torch.float64, generator=rng)
        if chain.loss.kind == "cross-entropy":
            yield others, torch.arange(count) % outputs
        elif labels.is_floating_point() and chain.loss.kind == "squared error":
            yield others, scale * torch.randn(count, *labels.shape[1:], dtype=torch.float64, generator=rng)
        else:
            yield others, torch.randint(2, (count, *labels.shape[1:]), generator=rng).to(labels.dtype)


def is_close(found: Tensor, expected: Tensor) -> bool:
    """Returns whether float64 numbers agree up to rounding."""
    if found.shape != expected.shape:
        return False
    size = max(1.0, float(expected.detach().abs().max()))
    return bool(((found - expected).detach().abs() <= _CLOSE * size).all())
