"""Gives a stack of clients the values that its upper layers start from: examples, or the first layer's dual form.

Dual form: whatever mini-batches a client takes its steps on, the weights W `[h, d]` of the first layer change by
combinations of its examples X `[n, d]` alone. A step adds -lr dU^T X, where dU `[n, h]` is the gradient of the layer's
products U = X W^T, 0 for examples outside the mini-batch. So W is what the decay has left of W_0 (and put in of the
proximal centre), less S^T X, where S `[n, h]` is the sum of lr dU, decayed. The products of a mini-batch B are those of
W_0 less G_B S, with the rows of B of the Gram matrix G = X X^T. W itself is needed at the end alone, as in a dual
perceptron.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_cfl.engines.chain.parts import ChainLayer
from lit_cfl.engines.chain.updates import Rule

_PASS = 8  # multiply-adds that take as long as what a step does with a weight beside products: an estimate


def dual_pays(size: Tensor, steps: Tensor, width: Tensor, inputs: int, hidden: int) -> Tensor:
    """Says for which clients the first layer takes less in dual form, bool `[n]`.

    Counted are multiply-adds; where a step reads and writes a weight beside products, 8 for each. With the weights held
    a step multiplies twice, forward and back: `2 B d h`, and passes over `d h` weights. The dual form has the Gram
    matrix `n^2 d`, the products with the first weights and those at the end `2 n d h`, and in each step `B n h`.

    Args:
        size: n, examples, padded, int64 `[n]`.
        steps: mini-batches.
        width: B, examples of one, padded.
        inputs: d, of the first layer.
        hidden: h, its outputs.
    """
    held = steps * (2 * width + _PASS) * inputs * hidden
    dual = size * size * inputs + 2 * size * inputs * hidden + steps * width * size * (hidden + _PASS)
    return dual < held


class GatheredInputs:
    """Gives the examples of each mini-batch.

    Args:
        examples: of all clients `[N, d]`.
        rows: their positions, int64 `[steps, clients, B]`.
    """

    def __init__(self, examples: Tensor, rows: Tensor) -> None:
        self._examples, self._rows = examples, rows

    def values(self, step: int, count: int) -> Tensor:
        """Returns the inputs of the first clients `[count, B, d]`."""
        rows = self._rows[step, :count]
        return self._examples.index_select(0, rows.flatten()).view(*rows.shape, -1)


class DualLayer:
    """Gives the outputs of the first layer, whose weights are in dual form.

    Args:
        layer: the first layer.
        rule: of its weight.
        examples: X of each client, padded, `[clients, n, d]`.
        weight: W_0 of each client `[clients, h, d]`; `weights_after` changes it in place.
        center: of the proximal term `[clients, h, d]` or `[1, h, d]`; None without one.
        rows: of the examples of each mini-batch, int64 `[steps, clients, B]`, counted over the clients' n each.
    """

    def __init__(
        self, layer: ChainLayer, rule: Rule, examples: Tensor, weight: Tensor, center: Tensor | None, rows: Tensor
    ) -> None:
        self.layer, self._rule, self._rows = layer, rule, rows
        self._examples, self._weight, self._center = examples, weight, center
        clients, size, _ = examples.shape
        self._gram = torch.bmm(examples, examples.mT).flatten(0, 1)
        self._products = torch.bmm(examples, weight.mT).flatten(0, 1)
        self._pulls = None
        if center is not None:
            self._pulls = torch.bmm(examples, center.mT.expand(clients, -1, -1)).flatten(0, 1)
        self._sums = examples.new_zeros(clients, size, layer.outputs)
        self._left, self._pulled = _shares(rule, len(rows))

    def values(self, step: int, count: int, bias: Tensor | None) -> Tensor:
        """Computes the layer's outputs for the first clients `[count, B, h]`."""
        shape = self._rows.shape[2]
        rows = self._rows[step, :count].flatten()
        gram = self._gram.index_select(0, rows).view(count, shape, -1)
        products = self._products.index_select(0, rows)
        if self._left[step] != 1:
            products.mul_(self._left[step])
        if self._pulls is not None:
            products.add_(self._pulls.index_select(0, rows), alpha=self._pulled[step])
        products = products.view(count, shape, -1).baddbmm_(gram, self._sums[:count], alpha=-1)
        return products if bias is None else products.add_(bias)

    def take(self, step: int, slopes: Tensor) -> None:
        """Takes the gradient by the layer's outputs `[count, B, h]`."""
        count = len(slopes)
        if self._rule.shrink != 1:
            self._sums[:count].mul_(self._rule.shrink)
        rows = self._rows[step, :count].flatten()
        self._sums.flatten(0, 1).index_add_(0, rows, slopes.flatten(0, 1), alpha=self._rule.rate)

    def weights_after(self, steps: int, clients: slice) -> None:
        """Computes the weights of these clients, who end after so many steps, in place."""
        weight = self._weight[clients]
        if self._left[steps] != 1:
            weight.mul_(self._left[steps])
        if self._center is not None:
            center = self._center if len(self._center) == 1 else self._center[clients]
            weight.add_(center, alpha=self._pulled[steps])
        weight.baddbmm_(self._sums[clients].mT, self._examples[clients], alpha=-1)


def _shares(rule: Rule, steps: int) -> tuple[Sequence[float], Sequence[float]]:
    """Computes what is left of the first weights, and put in of the centre, before each step and after the last."""
    left, pulled = [1.0], [0.0]
    for _ in range(steps):
        left.append(rule.shrink * left[-1])
        pulled.append(rule.shrink * pulled[-1] + rule.pull)
    return left, pulled
