"""Training steps of several clients at once, as functions of tensors: the core of the way `stack`.

The clients of a stack are its lanes. Each lane has separate parameters, optimizer state, batch and proximal centre; no
lane's numbers depend on another lane. Shapes are fixed, and a step changes the lanes in place, so that it can be
captured as a CUDA graph. A lane without a batch computes numbers that are never read: the next client overwrites them.
"""

from dataclasses import dataclass, replace

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from lit_cfl.engines.dropout import key_names
from lit_cfl.engines.optimizers import FunctionalOptimizer, Tensors
from lit_cfl.engines.stacked.products import StackedProducts
from lit_cfl.engines.stacked.stackable_layers import PRESENT, find_stacked_norms
from lit_cfl.engines.task_protocol import Batch, weigh_losses
from lit_cfl.parameters import ParameterLayout

_NO_EXAMPLE = -1


@dataclass(frozen=True)
class Lanes:
    """The models and optimizer states of clients that train together.

    Args:
        rows: Each tensor of the model, `[lanes, *shape]`, in the order of the layout.
        state: State of the optimizer, see `FunctionalOptimizer.start`.
    """

    rows: Tensors
    state: tuple[Tensors, ...]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors: rows, then optimizer state."""
        return [*self.rows, *(tensor for slot in self.state for tensor in slot)]

    def first(self, width: int) -> "Lanes":
        """Returns views of the first lanes."""
        return Lanes(first_lanes(self.rows, width), tuple(first_lanes(slot, width) for slot in self.state))


@dataclass(frozen=True)
class LaneWork:
    """The batches, keys and optimizer inputs of the lanes in all steps of a fit.

    Args:
        inputs, labels: Pool of examples, `[N, ...]` and `[N]`.
        index: Positions in the pool `[steps, lanes, B]`, -1 = no example.
        keys: Keys of the dropout masks, int64 `[steps, lanes]`.
        corrections: See `FunctionalOptimizer.corrections`, `[steps, 2, lanes]`.
        first: True for a client's first step, bool `[steps, lanes]`.
        at: Number of the next step, int64 `[1]`; a step increments it.
        losses: Output: sums of the losses over each batch `[steps, lanes]`.
        prox: 0-d tensor; None = no proximal term.
        centers: Proximal centres, each tensor of a model `[lanes, *shape]`.
        weights: Factor of the loss of each example of the pool `[N]`; None = 1.
    """

    inputs: Tensor
    labels: Tensor
    index: Tensor
    keys: Tensor
    corrections: Tensor
    first: Tensor
    at: Tensor
    losses: Tensor
    prox: Tensor | None = None
    centers: Tensors | None = None
    weights: Tensor | None = None

    @property
    def tables(self) -> Tensors:
        """The values that differ from step to step."""
        return self.index, self.keys, self.corrections, self.first

    def of_lanes(self, width: int) -> "LaneWork":
        """Returns views of the inputs of the first lanes."""
        index, keys, corrections, first = self.tables
        return replace(
            self,
            index=index[:, :width],
            keys=keys[:, :width],
            corrections=corrections[:, :, :width],
            first=first[:, :width],
            losses=self.losses[:, :width],
            centers=None if self.centers is None else first_lanes(self.centers, width),
        )


class Steps:
    """Training steps of a module under an optimizer's update rule.

    Args:
        module: The LightningModule, in training mode.
        layout: Layout of the module's rows.
        update: The optimizer's rule.
        clip: Maximum norm of a lane's gradient; None = no clipping.
        autocast: Dtype in which losses are computed; None = the dtype of the rows.
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
        self._trained = sum(not slot.is_buffer for slot in layout.slots)  # trained parameters come first
        self._keys = [f"module.{name}" for name in key_names(module)]
        self._norms = find_stacked_norms(self._losses)
        self._optimizer, self._clip, self._autocast = update, clip, autocast

    def __call__(self, lanes: Lanes, work: LaneWork) -> None:
        """Takes step number `work.at`: updates the lanes, stores the losses, and increments the number."""
        index, keys, corrections, first = (table.index_select(0, work.at)[0] for table in work.tables)
        present = index != _NO_EXAMPLE
        own = index[:, :1]  # pads a short batch with the client's own example: another client's may be infinite
        chosen = torch.where(present, index, own).clamp(min=0)
        parameters, buffers = lanes.rows[: self._trained], lanes.rows[self._trained :]
        batch = work.inputs[chosen], work.labels[chosen]
        factors = None if work.weights is None else work.weights[chosen]
        gradients, sums, updated = self.gradients(parameters, buffers, batch, present, keys, factors)
        if work.prox is not None and work.centers is not None:
            gradients = add_pull(work.centers, work.prox, gradients, parameters)
        if self._clip is not None:
            gradients = clip_gradients(gradients, self._clip)
        self._optimizer.step_(parameters, gradients, lanes.state, corrections, first)
        if self._norms:
            for mine, new in zip(buffers, updated, strict=True):
                mine.copy_(new)
        work.losses.index_copy_(0, work.at, sums[None].to(work.losses.dtype))
        work.at.add_(1)

    def gradients(
        self,
        parameters: Tensors,
        buffers: Tensors,
        batch: Batch,
        present: Tensor,
        keys: Tensor,
        factors: Tensor | None = None,
    ) -> tuple[Tensors, Tensor, Tensors]:
        """Computes each lane's gradients of the mean loss, its sum of losses `[lanes]`, and its buffers afterwards.

        Args:
            factors: Factors of the losses `[lanes, B]`; None = 1.
        """
        weights = present.to(parameters[0].dtype)
        weights = weights / weights.sum(1, keepdim=True).clamp(min=1)

        def total(parameters: Tensors) -> tuple[Tensor, tuple[Tensor, Tensors]]:
            given = (*parameters, *buffers), batch[0], batch[1], keys, present
            losses, updated = vmap(self._lane)(*given, *(() if factors is None else (factors,)))
            return (losses * weights).sum(), (torch.where(present, losses.detach(), 0.0).sum(1), updated)

        gradients, (sums, updated) = grad(total, has_aux=True)(parameters)
        return gradients, sums, updated if self._norms else buffers

    def _lane(
        self,
        rows: Tensors,
        inputs: Tensor,
        labels: Tensor,
        key: Tensor,
        present: Tensor,
        factors: Tensor | None = None,
    ) -> tuple[Tensor, Tensors]:
        """Computes the losses `[B]` of one client's batch, and the updated buffers if there are BatchNorms."""
        tensors = dict(zip(self._names, rows, strict=True)) | dict.fromkeys(self._keys, key)
        given = dict.fromkeys((f"{name}.{PRESENT}" for name in self._norms), present)
        autocast = torch.autocast(inputs.device.type, self._autocast, enabled=self._autocast is not None)
        with autocast, StackedProducts():
            losses: Tensor = functional_call(self._losses, tensors | given, ((inputs, labels), factors))
        for name, layer in self._norms.items():
            if layer.updated is not None:
                tensors[f"{name}.running_mean"], tensors[f"{name}.running_var"] = layer.updated
                layer.updated = None
        return losses, tuple(tensors[name] for name in self._names[self._trained :]) if self._norms else ()


class _Losses(nn.Module):
    """Calls `losses` as the forward of a module, for `functional_call`."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Batch, factors: Tensor | None) -> Tensor:
        losses: Tensor = self.module.losses(batch)  # type: ignore[operator]  # the engine has checked that it is there
        return losses if factors is None else weigh_losses(self.module, losses, factors)


def add_pull(centers: Tensors, prox: Tensor | float, gradients: Tensors, parameters: Tensors) -> Tensors:
    """Adds the gradient of the proximal term, prox/2 * |w - center|^2.

    Centres may have buffers after the parameters.
    """
    return tuple(g + prox * (p - c) for g, p, c in zip(gradients, parameters, centers, strict=False))


def clip_gradients(gradients: Tensors, norm: float) -> Tensors:
    """Scales each lane's gradient to at most this norm, like `torch.nn.utils.clip_grad_norm_`."""
    squares = torch.stack([vmap(torch.sum)(g * g) for g in gradients]).sum(0)
    scale = (norm / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    return tuple(g * scale.view(-1, *[1] * (g.dim() - 1)) for g in gradients)


def first_lanes(tensors: Tensors, width: int) -> Tensors:
    """Returns views of the first lanes of these tensors."""
    return tuple(tensor[:width] for tensor in tensors)
