"""The first layer of a stack of clients, with explicit weights or in dual form.

Dual form: whatever mini-batches a client trains on, the weights W `[h, d]` of the first layer change only by linear
combinations of its examples X `[n, d]`. A step adds -lr dU^T X, where dU `[n, h]` is the gradient of the layer's
products U = X W^T, 0 for examples outside the mini-batch. So W is W_0 scaled by the decay, plus the share of the
proximal centre, minus S^T X, where S `[n, h]` is the decayed sum of lr dU. The products of a mini-batch B are those of
W_0 minus G_B S, with the rows of B of the Gram matrix G = X X^T. W itself is needed only at the end, as in a dual
perceptron.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_cfl.engines.chain.tables import CohortExamples, StackSteps
from lit_cfl.engines.chain.updates import Rule

_NARROW = 64  # number of outputs below which `index_put_` takes a third of the time of `index_add_` on a CPU
_GATHERED = 2**17  # values gathered at once, for several steps if clients are few: 512 KiB in float32
_PASS = 8  # estimated cost of the rest of a step, in multiply-adds per weight


def dual_pays(size: Tensor, steps: Tensor, width: Tensor, inputs: int, hidden: int) -> Tensor:
    """Returns for which clients the first layer is cheaper in dual form, bool `[n]`.

    The cost is counted in multiply-adds, and each weight that a step reads and writes outside of products costs 8. With
    explicit weights a step multiplies twice, forward and back: `2 B d h`, and passes over `d h` weights. The dual form
    computes the Gram matrix `n^2 d`, products with the initial and final weights `2 n d h`, and in each step `B n h`.

    Args:
        size: Number of examples n, padded, int64 `[n]`.
        steps: Number of mini-batches.
        width: Examples per mini-batch B, padded.
        inputs: Inputs of the first layer, d.
        hidden: Outputs of the first layer, h.
    """
    held = steps * (2 * width + _PASS) * inputs * hidden
    dual = size * size * inputs + 2 * size * inputs * hidden + steps * width * size * (hidden + _PASS)
    return dual < held


@dataclass(frozen=True, eq=False)
class DualBias:
    """A bias that decays like its weight, handled as a further weight column with a constant input.

    Args:
        start: Initial bias of each client `[clients, 1, h]`.
        center: Proximal centre of each client, of the same shape; None without one.
        ratio: The bias's learning rate divided by the weight's: the constant column's share of the Gram matrix.
    """

    start: Tensor
    center: Tensor | None
    ratio: float


class HeldLayer:
    """The first layer of a stack's clients, with explicit weights.

    All steps write their examples to the same memory, which stays in a cache.

    Args:
        examples: Examples of the cohort.
    """

    def __init__(self, examples: CohortExamples) -> None:
        self._examples = examples
        self._memory: Tensor | None = None

    def read(self, steps: StackSteps, lanes: int) -> Iterator[Tensor]:
        """Yields the examples of each step's mini-batches `[lanes, B, d]`; the next step may overwrite them."""
        numbers = steps.rows.shape[1] * self._examples.width
        for rows in steps.rows.split(_steps_at_once(numbers)):
            memory = None if self._memory is None or self._memory.numel() < len(rows) * numbers else self._memory
            found = self._examples.read(rows.view(len(rows), lanes, -1), out=memory)
            self._memory = memory if memory is not None else found
            yield from found.unbind(0)


class DualReads(NamedTuple):
    """Values that a step reads from a layer in dual form.

    Args:
        rows: Positions of the mini-batches' examples among all, int64 `[lanes * B]`.
        gram: Rows of the Gram matrix `[lanes, B, n]`.
        products: Products of the mini-batches with the decayed initial weights `[lanes, B, h]`, to be
            overwritten.
    """

    rows: Tensor
    gram: Tensor
    products: Tensor


class DualLayer:
    """The first layer of a stack's clients with weights in dual form.

    Args:
        rule: Update rule of the layer's weight.
        examples: X of each client, padded, `[clients, n, d]`.
        weight: W_0 of each client `[clients, h, d]`.
        center: Proximal centre of each client `[clients, h, d]`; None without one.
        steps: Maximum number of mini-batches of a client.
        bias: See `DualBias`; None = the layer has none, or it is trained separately.
    """

    def __init__(
        self,
        rule: Rule,
        examples: Tensor,
        weight: Tensor,
        center: Tensor | None,
        steps: int,
        bias: DualBias | None = None,
    ) -> None:
        self._rule, self._examples, self._weight, self._center, self._bias = rule, examples, weight, center, bias
        clients, self._size, _ = examples.shape
        self._gram = torch.bmm(examples, examples.mT).flatten(0, 1)
        products, pulls = torch.bmm(examples, weight.mT), None if center is None else torch.bmm(examples, center.mT)
        if bias is not None:
            self._gram.add_(bias.ratio)
            products.add_(bias.start)
            if pulls is not None and bias.center is not None:
                pulls.add_(bias.center)
        self._products, self._pulls = products.flatten(0, 1), None if pulls is None else pulls.flatten(0, 1)
        self._sums = examples.new_zeros(clients, self._size, weight.shape[1])
        self._flat_sums = self._sums.flatten(0, 1)
        self._left, self._pulled = _shares(rule, steps)

    def shares(self) -> tuple[Tensor, Tensor]:
        """Returns the factors of the initial weights and of the centre before each step `[steps]`."""
        left, pulled = (torch.tensor(part[:-1], dtype=self._gram.dtype) for part in (self._left, self._pulled))
        return left.to(self._gram.device), pulled.to(self._gram.device)

    def read(self, steps: StackSteps, lanes: int) -> Iterator[DualReads]:
        """Yields the values that each step reads."""
        if steps.left is None or steps.pulled is None:
            raise TypeError("a layer in dual form needs its shares")
        each = _steps_at_once(steps.rows.shape[1] * (self._size + self._products.shape[1]))
        for rows, left, pulled in zip(*(p.split(each) for p in (steps.rows, steps.left, steps.pulled)), strict=True):
            flat, shape = rows.flatten(), (len(rows), lanes, rows.shape[1] // lanes, -1)
            gram, products = self._gram.index_select(0, flat), self._products.index_select(0, flat).view(shape)
            if self._rule.shrink != 1:
                products.mul_(left[:, None, None, None])
            if self._pulls is not None:
                products.addcmul_(self._pulls.index_select(0, flat).view(shape), pulled[:, None, None, None])
            yield from map(DualReads, rows.unbind(0), gram.view(shape).unbind(0), products.unbind(0))

    def outputs(self, reads: DualReads, bias: Tensor | None) -> Tensor:
        """Computes the layer's outputs `[lanes, B, h]` for the mini-batches.

        Args:
            bias: `[lanes, 1, h]`; None = it is one of the weight's columns, or there is none.
        """
        outputs = reads.products.baddbmm_(reads.gram, self._sums[: len(reads.gram)], alpha=-1)
        return outputs if bias is None else outputs.add_(bias)

    def take(self, rows: Tensor, slopes: Tensor) -> None:
        """Updates the layer by the gradient with respect to its outputs `[lanes, B, h]`; overwrites the gradient."""
        if self._rule.shrink != 1:
            self._sums[: len(slopes)].mul_(self._rule.shrink)
        found = slopes.flatten(0, 1)
        if found.shape[1] < _NARROW and found.device.type == "cpu":
            self._flat_sums.index_put_((rows,), found.mul_(self._rule.rate), accumulate=True)
        else:
            self._flat_sums.index_add_(0, rows, found, alpha=self._rule.rate)

    def weights_after(self, steps: int, clients: slice, found: Tensor) -> None:
        """Writes the final weights `[., h, d]` of the clients that finish after `steps` steps into `found`."""
        found.copy_(self._weight[clients])
        if self._left[steps] != 1:
            found.mul_(self._left[steps])
        if self._center is not None:
            found.add_(self._center[clients], alpha=self._pulled[steps])
        found.baddbmm_(self._sums[clients].mT, self._examples[clients], alpha=-1)

    def bias_after(self, steps: int, clients: slice, found: Tensor) -> None:
        """Writes final biases `[., 1, h]` kept in dual form into `found`, for the clients that finish at this step."""
        if self._bias is not None:
            found.copy_(self._bias.start[clients]).mul_(self._left[steps])
            if self._bias.center is not None:
                found.add_(self._bias.center[clients], alpha=self._pulled[steps])
            found.sub_(self._sums[clients].sum(1, keepdim=True), alpha=self._bias.ratio)


def _steps_at_once(numbers: int) -> int:
    """Returns the number of steps whose data are gathered at once, given the size of one step's data."""
    return max(1, _GATHERED // numbers)


def _shares(rule: Rule, steps: int) -> tuple[Sequence[float], Sequence[float]]:
    """Computes the factors of the initial weights and of the centre before each step and after the last."""
    left, pulled = [1.0], [0.0]
    for _ in range(steps):
        left.append(rule.shrink * left[-1])
        pulled.append(rule.shrink * pulled[-1] + rule.pull)
    return left, pulled
