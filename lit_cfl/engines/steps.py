"""Computes training steps of several clients as one function of tensors, which the stacked engine runs or compiles.

The clients of a stack are its lanes. Each lane has its own parameters, optimizer state, batch and proximal centre; no
number of one lane enters another one. Shapes are fixed, so that a compiled function serves a whole run.
"""

from dataclasses import dataclass, replace

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from lit_cfl.engines.batch_norm import PRESENT, stacked_norms
from lit_cfl.engines.dropout import key_names
from lit_cfl.engines.optimizers import FunctionalOptimizer, Tensors
from lit_cfl.engines.task_protocol import Batch
from lit_cfl.parameters import ParameterLayout

_NO_EXAMPLE = -1


@dataclass(frozen=True)
class Lanes:
    """The clients that train together.

    Args:
        rows: each tensor of the model, `[lanes, *shape]`, in the order of the layout.
        state: of the optimizer, see `FunctionalOptimizer.start`.
    """

    rows: Tensors
    state: tuple[Tensors, ...]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors: the rows, then the state."""
        return [*self.rows, *(tensor for slot in self.state for tensor in slot)]


@dataclass(frozen=True)
class LaneWork:
    """The batches, keys and optimizer inputs of the lanes in some steps.

    Args:
        inputs, labels: the pool of examples, `[N, ...]` and `[N]`.
        index: positions in the pool `[steps, lanes, B]`, -1 = no example; a batch without any changes nothing.
        keys: of the dropout masks, int64 `[steps, lanes]`.
        corrections: see `FunctionalOptimizer.corrections`, `[steps, 2, lanes]`.
        first: whether it is a client's first step, bool `[steps, lanes]`.
        prox: 0-d tensor; None = no proximal term.
        centers: of the proximal term, each tensor of a model `[lanes, *shape]`.
        at: number of the next step, int64 `[1]`, where the tables are those of many calls; see `CapturedSteps`.
        losses: where the losses of all steps are kept `[steps, lanes]`, if `at` is given.
    """

    inputs: Tensor
    labels: Tensor
    index: Tensor
    keys: Tensor
    corrections: Tensor
    first: Tensor
    prox: Tensor | None = None
    centers: Tensors | None = None
    at: Tensor | None = None
    losses: Tensor | None = None

    @property
    def tables(self) -> Tensors:
        """What differs from step to step."""
        return self.index, self.keys, self.corrections, self.first

    def with_tables(self, tables: Tensors, centers: Tensors | None) -> "LaneWork":
        """Returns the work with other tables and centres."""
        index, keys, corrections, first = tables
        return replace(self, index=index, keys=keys, corrections=corrections, first=first, centers=centers)


class Steps:
    """Steps of a module under an update rule.

    Args:
        module: the LightningModule, in training mode.
        layout: of its rows.
        update: the optimizer's rule.
        clip: largest norm of a lane's gradient; None = any.
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
        self.module, self._losses = module, _Losses(module)
        self._names = [f"module.{slot.name}" for slot in layout.slots]
        self._trained = sum(not slot.is_buffer for slot in layout.slots)  # they come first
        self._keys = [f"module.{name}" for name in key_names(module)]
        self._norms = stacked_norms(self._losses)
        self._optimizer, self._clip, self._autocast = update, clip, autocast

    @property
    def rates(self) -> frozenset[float]:
        """Of the optimizer."""
        return self._optimizer.rates

    def __call__(self, lanes: Lanes, work: LaneWork) -> tuple[Lanes, Tensor]:
        """Computes the lanes after these steps, and the sum of the losses over each batch `[steps, lanes]`."""
        losses = []
        for step in range(len(work.index)):
            lanes, loss = self._step(lanes, work, step)
            losses.append(loss)
        return lanes, torch.stack(losses)

    def _step(self, lanes: Lanes, work: LaneWork, step: int) -> tuple[Lanes, Tensor]:
        index = work.index[step]
        present = index != _NO_EXAMPLE
        counts = present.sum(1)
        own = index[:, :1]  # a short batch is filled up with its own example: another client's may be infinite
        chosen = torch.where(present, index, own).clamp(min=0)
        batch = work.inputs[chosen], work.labels[chosen]
        parameters, buffers = lanes.rows[: self._trained], lanes.rows[self._trained :]
        gradients, sums, updated = self.gradients(parameters, buffers, batch, present, work.keys[step])
        if work.prox is not None and work.centers is not None:
            gradients = tuple(
                g + work.prox * (p - c) for g, p, c in zip(gradients, parameters, work.centers, strict=False)
            )
        if self._clip is not None:
            gradients = clipped(gradients, self._clip)
        new, state = self._optimizer.step(parameters, gradients, lanes.state, work.corrections[step], work.first[step])
        active = counts > 0
        if self._norms:
            buffers = tuple(_where(active, n, o) for n, o in zip(updated, buffers, strict=True))
        rows = tuple(_where(active, n, p) for n, p in zip(new, parameters, strict=True))
        slots = tuple(
            tuple(_where(active, n, o) for n, o in zip(mine, old, strict=True))
            for mine, old in zip(state, lanes.state, strict=True)
        )
        return Lanes((*rows, *buffers), slots), sums

    def gradients(
        self, parameters: Tensors, buffers: Tensors, batch: Batch, present: Tensor, keys: Tensor
    ) -> tuple[Tensors, Tensor, Tensors]:
        """Computes the gradients of each lane's mean loss, its sum of losses `[lanes]`, and the buffers afterwards."""
        weights = present.to(parameters[0].dtype)
        weights = weights / weights.sum(1, keepdim=True).clamp(min=1)

        def total(parameters: Tensors) -> tuple[Tensor, tuple[Tensor, Tensors]]:
            losses, updated = vmap(self._lane)((*parameters, *buffers), batch[0], batch[1], keys, present)
            return (losses * weights).sum(), (torch.where(present, losses.detach(), 0.0).sum(1), updated)

        gradients, (sums, updated) = grad(total, has_aux=True)(parameters)
        return gradients, sums, updated if self._norms else buffers

    def _lane(
        self, rows: Tensors, inputs: Tensor, labels: Tensor, key: Tensor, present: Tensor
    ) -> tuple[Tensor, Tensors]:
        """Computes the losses of one client's batch `[B]`, and its buffers afterwards where there are BatchNorms."""
        tensors = dict(zip(self._names, rows, strict=True)) | dict.fromkeys(self._keys, key)
        given = dict.fromkeys((f"{name}.{PRESENT}" for name in self._norms), present)
        with torch.autocast(inputs.device.type, self._autocast, enabled=self._autocast is not None):
            losses: Tensor = functional_call(self._losses, tensors | given, ((inputs, labels),))
        for name, layer in self._norms.items():
            if layer.updated is not None:
                tensors[f"{name}.running_mean"], tensors[f"{name}.running_var"] = layer.updated
                layer.updated = None
        return losses, tuple(tensors[name] for name in self._names[self._trained :]) if self._norms else ()


class _Losses(nn.Module):
    """`losses` as the forward of a module, for `functional_call`."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Batch) -> Tensor:
        losses: Tensor = self.module.losses(batch)  # type: ignore[operator]  # the engine has checked that it is there
        return losses


def clipped(gradients: Tensors, norm: float) -> Tensors:
    """Scales each lane's gradient to at most this norm, as `torch.nn.utils.clip_grad_norm_` does it."""
    squares = torch.stack([vmap(torch.sum)(g * g) for g in gradients]).sum(0)
    scale = (norm / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    return tuple(g * scale.view(-1, *[1] * (g.dim() - 1)) for g in gradients)


def _where(lanes: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(lanes.view(-1, *[1] * (new.dim() - 1)), new, old)
