"""The forward and backward pass of a chain for a stack of clients."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from lit_cfl.engines.chain.parts import Activation, ChainLayer, Drop
from lit_cfl.engines.dropout import compute_kept_share

Kept = list[tuple[Tensor, Tensor]]  # values that each part's derivative needs
# called with a layer, the gradient with respect to its outputs, and its inputs
TakeGradient = Callable[[ChainLayer, Tensor, Tensor], None]


class Arithmetic:
    """Multiplies stacks of matrices, one matrix per client.

    Args:
        mixed: True for factors and results in bfloat16, as in autocast. On a CPU the factors are rounded and multiplied
            in float32, whose bits depend on the shapes of one client's matrices alone.
    """

    def __init__(self, mixed: bool = False) -> None:
        self.mixed = mixed

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """Computes `a @ b`, `[clients, ., .]`."""
        if not self.mixed:
            return torch.bmm(a, b)
        a, b = a.bfloat16(), b.bfloat16()
        if a.device.type == "cpu":
            return torch.bmm(a.float(), b.float()).bfloat16().float()
        return torch.bmm(a, b).float()

    def transform(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Computes a layer: inputs `[clients, B, d]`, weight `[clients, h, d]`, bias `[clients, 1, h]` or None."""
        if bias is None:
            return self.multiply(inputs, weight.mT)
        if not self.mixed:
            return torch.baddbmm(bias, inputs, weight.mT)
        return (self.multiply(inputs, weight.mT) + bias).bfloat16().float()

    def add_product_(self, target: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> None:
        """Sets a target, in place, to `beta * target + alpha * a @ b`."""
        if self.mixed:
            target.mul_(beta).add_(self.multiply(a, b), alpha=alpha)
        else:
            target.baddbmm_(a, b, beta=beta, alpha=alpha)


def run_forward(
    parts: Sequence[ChainLayer | Activation | Drop],
    tensors: Mapping[str, Tensor],
    values: Tensor,
    keys: Tensor | None,
    arithmetic: Arithmetic,
) -> tuple[Tensor, Kept]:
    """Runs the forward pass through these parts of a chain.

    Args:
        tensors: Parameters by name: weights `[clients, h, d]`, biases `[clients, 1, h]`.
        values: Inputs `[clients, B, d]`.
        keys: Keys of the dropout masks, int64 `[clients]`; None = nothing is dropped.
    """
    kept: Kept = []
    for part in parts:
        before = values
        if isinstance(part, ChainLayer):
            values = arithmetic.transform(values, tensors[part.weight], tensors.get(part.bias or ""))
            kept.append((before, values))
        elif isinstance(part, Activation):
            own = bool(kept) and isinstance(parts[len(kept) - 1], ChainLayer)  # nothing else reads a layer's outputs
            values = values.relu_() if own and part.name == "relu" else part.compute(values)
            kept.append((before, values))
        else:
            share = (
                None if keys is None else compute_kept_share(keys, part.p, part.layer, values.shape[1:], values.dtype)
            )
            values = values if share is None else values * share
            kept.append((before, before if share is None else share))
    return values, kept


def run_backward(
    parts: Sequence[ChainLayer | Activation | Drop],
    tensors: Mapping[str, Tensor],
    kept: Kept,
    slopes: Tensor,
    keys: Tensor | None,
    arithmetic: Arithmetic,
    take: TakeGradient,
    below: bool,
) -> Tensor | None:
    """Passes gradients back through the parts; hands each layer's output gradient and inputs to `take`.

    Args:
        slopes: Gradient with respect to the outputs; it is overwritten.
        below: True to compute the gradient with respect to the inputs; otherwise the pass ends at the first layer.

    Returns:
        the gradient with respect to the inputs, or None.
    """
    first = next((number for number, part in enumerate(parts) if isinstance(part, ChainLayer)), 0)
    for number in range(len(parts) - 1, -1, -1):
        part, (before, after) = parts[number], kept[number]
        if isinstance(part, ChainLayer):
            needed = below or number > first
            passed = arithmetic.multiply(slopes, tensors[part.weight]) if needed else None
            take(part, slopes, before)
            if passed is None:
                return None
            slopes = passed
        elif isinstance(part, Activation):
            slopes = slopes.mul_(part.slope(before, after))
        elif keys is not None:
            slopes = slopes.mul_(after)
    return slopes
