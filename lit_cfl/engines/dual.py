"""Trains perceptrons on full batches with the weights of the first layer in dual form.

A client that takes each step on all of its examples X `[n, d]` has in each step a gradient of the first layer's weights
W `[h, d]` that is dU^T X, where dU `[n, h]` is the gradient of the layer's products U = X W^T. So a step of SGD changes
the products by -lr G dU, with the Gram matrix G = X X^T, and W itself is needed at the end alone: it is then what the
decay has left of the first W, and a combination of the examples, as in a dual perceptron. A step takes n^2 h
multiply-adds instead of 2 n d h and touches no weights of the layer, which are most of the model (docs/performance.md).

It serves what `perceptron.py` serves, but for `kernel_l2` in the first layer. Numbers are those of the plain loop but
for rounding. Clients that train on mini-batches, or for which it takes more multiply-adds, train in the plain loop.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import cast

import torch
from lightning import LightningModule
from torch import Tensor, nn

from lit_cfl.engines.client_fit import ClientFit, ExamplePool, FitResult, finite_rows
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.engines.loop import PlainLoop
from lit_cfl.engines.optimizers import FunctionalOptimizer
from lit_cfl.engines.perceptron import is_perceptron
from lit_cfl.engines.task_protocol import losses_of
from lit_cfl.errors import InputError
from lit_cfl.parameters import ParameterLayout, Slot
from lit_cfl.tasks import Classification

Product = Callable[[Tensor, Tensor], Tensor]
_FIRST = "fc1"  # the first layer of MCLR and MLP


class DualLoop:
    """Trains one client after the other.

    Args:
        module: the LightningModule, in training mode; it is overwritten, and loses the first layer's weights.
        layout: of its rows.
        optimizer: the optimizer's rule.
        local: how clients train.
        multiply: the product of two matrices.
        plain: trains the clients for which the dual form does not pay.

    Raises:
        InputError: it is no module that `has_dual`.
    """

    def __init__(
        self,
        module: LightningModule,
        layout: ParameterLayout,
        optimizer: FunctionalOptimizer,
        local: LocalTraining,
        multiply: Product,
        plain: PlainLoop,
    ) -> None:
        if not has_dual(module, local):
            raise InputError(
                "plan.dual trains Classification with MCLR or MLP by SGD, without momentum, gradient_clip, and "
                "kernel_l2 in the first layer; leave it out"
            )
        self._first = _FirstLayer(cast(nn.Linear, module.get_submodule(f"net.{_FIRST}")))
        module.set_submodule(f"net.{_FIRST}", self._first)
        self._module, self._layout, self._multiply, self._plain = module, layout, multiply, plain
        self._options = dict(zip(layout.slots, optimizer.options, strict=True))
        (self._slot,) = (slot for slot in layout.slots if slot.name == f"net.{_FIRST}.weight")
        self._others = {slot: module.get_parameter(slot.name) for slot in layout.slots if slot != self._slot}

    def run(self, fits: Sequence[ClientFit], pool: ExamplePool, prox: float) -> Iterator[FitResult]:
        """Trains the fits in their order."""
        for fit in fits:
            if not self._pays(fit):
                yield from self._plain.run([fit], pool, prox)
                continue
            loss = self._train(fit, pool, prox)
            yield FitResult(fit.position, loss, isfinite(loss) and all(finite_rows(fit.row[None])))

    def _pays(self, fit: ClientFit) -> bool:
        """Says whether a client takes each step on all its examples, and the dual form takes fewer multiply-adds."""
        (steps, n), (h, d) = fit.table.shape, self._slot.shape
        products = (2 if fit.center is None else 3) * n * d * h  # with the first W, the centre, and at the end
        if products + n * n * d + (steps - 1) * n * n * h >= 2 * steps * n * d * h:
            return False
        entries = fit.table.sort(1).values
        return len(entries[0].unique()) == n and bool((entries == entries[0]).all())

    def _train(self, fit: ClientFit, pool: ExamplePool, prox: float) -> float:
        """Trains a client's row in place. Returns the mean loss."""
        entries, options = fit.table[0].sort().values, self._options
        inputs, labels = pool[0][entries].flatten(1), pool[1][entries]
        row = self._pieces(fit.row)
        center = {} if fit.center is None or not prox else self._pieces(fit.center)
        first = _DualWeights(inputs, row[self._slot], options[self._slot], center.get(self._slot), prox, self._multiply)
        for slot, p in self._others.items():
            p.copy_(row[slot])
        losses = torch.zeros((), dtype=torch.float64)
        for step in range(1, fit.num_steps + 1):
            self._first.products = first.products.requires_grad_()
            with torch.enable_grad():
                loss = losses_of(self._module, (inputs, labels)).mean()
                of_products, *gradients = torch.autograd.grad(loss, [first.products, *self._others.values()])
            first.step(of_products, is_last=step == fit.num_steps)
            for (slot, p), g in zip(self._others.items(), gradients, strict=True):
                pull = prox * (p - center[slot]) if center else 0.0
                p.sub_(options[slot]["lr"] * (g + options[slot]["weight_decay"] * p + pull))
            losses += loss.detach()
        row[self._slot].copy_(first.weights())
        for slot, p in self._others.items():
            row[slot].copy_(p)
        return float(losses) / fit.num_steps

    def _pieces(self, row: Tensor) -> dict[Slot, Tensor]:
        return {slot: row[slot.start : slot.stop].view(slot.shape) for slot in self._layout.slots}


class _FirstLayer(nn.Module):
    """Takes the place of a layer whose products with the examples are known."""

    products: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.bias = layer.bias

    def forward(self, inputs: Tensor) -> Tensor:
        return self.products + self.bias


class _DualWeights:
    """The weights of a layer while SGD trains them on the same examples in each step.

    They are `a W_0 + c C - S^T X`: a and c are numbers, W_0 the first weights, C the centre, S `[n, h]` the sum of the
    gradients, times the learning rate, that the decay has left.

    Args:
        inputs: X `[n, d]`.
        weights: W_0 `[h, d]`.
        option: learning rate and weight decay.
        center: C `[h, d]`, or None.
        prox: strength of the pull towards it.
        multiply: the product of two matrices.
    """

    def __init__(
        self,
        inputs: Tensor,
        weights: Tensor,
        option: Mapping[str, float],
        center: Tensor | None,
        prox: float,
        multiply: Product,
    ) -> None:
        self._inputs, self._start, self._center, self._multiply = inputs, weights, center, multiply
        self._rate, self._pull = option["lr"], option["lr"] * prox if center is not None else 0.0
        self._kept = 1 - option["lr"] * option["weight_decay"] - self._pull
        self.products = multiply(inputs, weights.mT)
        self._of_center = None if center is None else multiply(inputs, center.mT)
        self._gram = multiply(inputs, inputs.mT)
        self._sum = torch.zeros_like(self.products)
        self._a, self._c = 1.0, 0.0

    def step(self, gradient: Tensor, is_last: bool) -> None:
        """Takes a step; after the last one the products are of no use, and left as they are.

        Args:
            gradient: of the loss by the products `[n, h]`.
        """
        self._sum.mul_(self._kept).add_(gradient, alpha=self._rate)
        self._a, self._c = self._kept * self._a, self._kept * self._c + self._pull
        if not is_last:
            change = self._multiply(self._gram, gradient).mul_(-self._rate)
            self.products = change.add_(self.products.detach(), alpha=self._kept)
            if self._of_center is not None:
                self.products.add_(self._of_center, alpha=self._pull)

    def weights(self) -> Tensor:
        """Computes the weights `[h, d]`."""
        weights = self._multiply(self._sum.mT, self._inputs).neg_().add_(self._start, alpha=self._a)
        return weights if self._center is None else weights.add_(self._center, alpha=self._c)


def has_dual(module: LightningModule, local: LocalTraining) -> bool:
    """Says whether `DualLoop` computes what this module trains."""
    return is_perceptron(module, local) and _FIRST not in cast(Classification, module).penalised_layers
