"""Trains clients in a plain loop over clients and steps, which is fastest on a CPU without a compiler."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from math import ceil, isfinite

import torch
from lightning import LightningModule
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from lit_cfl.engines.client_fit import ClientFit, ExamplePool, FitResult, finite_rows
from lit_cfl.engines.dropout import key_names, set_key
from lit_cfl.engines.optimizers import FunctionalOptimizer
from lit_cfl.engines.steps import clipped
from lit_cfl.engines.task_protocol import Batch, losses_of
from lit_cfl.parameters import ParameterLayout

_PART = 1_024  # examples, at most


class PlainLoop:
    """Trains one client after the other with the module's own parameters.

    On a CPU the gradients of a larger batch than 1,024 examples are summed up over parts of it, whose activations take
    less memory and leave the caches less often; not under BatchNorm and dropout, which depend on the whole batch.

    Args:
        module: the LightningModule, in training mode; it is overwritten.
        layout: of its rows.
        update: the optimizer's rule.
        clip: largest norm of a client's gradient; None = any.
        autocast: compute losses in this dtype; None = in the rows' own.
    """

    def __init__(
        self,
        module: LightningModule,
        layout: ParameterLayout,
        update: FunctionalOptimizer,
        clip: float | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self._module, self._layout, self._optimizer, self._clip = module, layout, update, clip
        self._autocast, self._keyed = autocast, bool(key_names(module))
        self._whole = self._keyed or any(isinstance(layer, _BatchNorm) for layer in module.modules())
        named = dict(module.named_parameters())
        self._parameters = [named[slot.name] for slot in layout.slots if not slot.is_buffer]

    def run(self, fits: Sequence[ClientFit], pool: ExamplePool, prox: float) -> Iterator[FitResult]:
        """Trains the fits in their order."""
        for fit in fits:
            loss = self._train(fit, pool, prox)
            fit.row.copy_(self._layout.read(self._module, fit.row.dtype, fit.row.device))
            yield FitResult(fit.position, loss, isfinite(loss) and all(finite_rows(fit.row[None])))

    def _train(self, fit: ClientFit, pool: ExamplePool, prox: float) -> float:
        """Trains a client; its model is in the module afterwards. Returns the mean loss."""
        self._layout.write(fit.row, self._module)
        center = None if fit.center is None or not prox else self._pieces(fit.center)
        stacked = tuple(p.detach()[None] for p in self._parameters)  # views: what is written there, the module has
        state = self._optimizer.start(stacked)
        device = stacked[0].device
        corrections = self._optimizer.corrections(torch.arange(1, fit.num_steps + 1)[:, None]).to(device).unbind(1)
        table = fit.table.to(device)
        sums = torch.zeros((), dtype=torch.float64, device=device)
        counts = (fit.table >= 0).sum(1).tolist()
        for step, count in enumerate(counts):
            chosen = table[step, :count]
            gradients, loss = self._gradients(pool[0][chosen], pool[1][chosen], int(fit.keys[step]))
            if center is not None:
                gradients = tuple(g + prox * (p - c) for g, p, c in zip(gradients, stacked, center, strict=True))
            if self._clip is not None:
                gradients = clipped(gradients, self._clip)
            first = torch.full((1,), step == 0, device=device)
            new, state = self._optimizer.step(stacked, gradients, state, corrections[step], first)
            for p, n in zip(stacked, new, strict=True):
                p.copy_(n)
            sums += loss.double() * count
        return float(sums) / fit.num_examples

    def _gradients(self, inputs: Tensor, labels: Tensor, key: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """Computes the gradients of the mean loss, each with a leading axis of 1, and the mean loss."""
        if self._keyed:
            set_key(self._module, key)
        total, parts = len(labels), [(inputs, labels)]
        if total > _PART and inputs.device.type == "cpu" and not self._whole:
            count = ceil(total / _PART)
            parts = list(zip(inputs.tensor_split(count), labels.tensor_split(count), strict=True))
        gradients, loss = self._share(parts[0], total)
        for part in parts[1:]:
            others, other = self._share(part, total)
            gradients, loss = [g + o for g, o in zip(gradients, others, strict=True)], loss + other
        return tuple(gradient[None] for gradient in gradients), loss

    def _share(self, part: Batch, total: int) -> tuple[list[Tensor], Tensor]:
        """Computes what a part adds to the gradients of the mean loss of so many examples, and to this loss."""
        with torch.enable_grad():
            cast = nullcontext() if self._autocast is None else torch.autocast(part[1].device.type, self._autocast)
            with cast:
                loss = losses_of(self._module, part).mean()
                loss = loss if len(part[1]) == total else loss * (len(part[1]) / total)
            found = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        pairs = zip(found, self._parameters, strict=True)
        return [torch.zeros_like(p) if g is None else g for g, p in pairs], loss.detach()

    def _pieces(self, row: Tensor) -> tuple[Tensor, ...]:
        slots = self._layout.slots[: len(self._parameters)]
        return tuple(
            row[slot.start : slot.stop].view(1, *slot.shape).to(p.device)
            for slot, p in zip(slots, self._parameters, strict=True)
        )
