"""The way `loop`: trains one client after the other, each in a loop over its mini-batches."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from math import ceil
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn

from lit_cfl.engines.agreement import Trial
from lit_cfl.engines.cohort import CohortFit, Ended, TrainingWay
from lit_cfl.engines.dropout import key_names, set_key
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.optimizers import FunctionalOptimizer, Tensors
from lit_cfl.engines.plan import Plan, Precision
from lit_cfl.engines.stacked.lane_steps import add_pull, clip_gradients
from lit_cfl.engines.stacked.stackable_layers import PlainGRU, why_not_stacked
from lit_cfl.engines.task_protocol import Batch, losses_of, weighted_losses_of
from lit_cfl.parameters import ParameterLayout

_PART = 1_024  # maximum number of examples whose gradient one call computes on a CPU


class LoopWay(TrainingWay):
    """Trains one client after the other in a single module, whose parameters change in place.

    On a CPU the gradients of a batch of more than 1,024 examples are sums over parts, whose activations take less
    memory and exceed the caches less often. A batch whose losses depend on each other, as by BatchNorm, is not split.
    """

    name = "loop"

    def __init__(self, module: LightningModule, layout: ParameterLayout, plan: Plan, local: LocalTraining) -> None:
        super().__init__(module, layout, plan, local)
        self._module = self.copy_module(plan.compute_dtype)
        if plan.device == "cpu":
            _use_plain_gru(self._module)
        self._keyed = bool(key_names(module))
        self._splits: bool | None = None  # whether a mini-batch can be computed in parts; None = not tried yet
        self._on_cpu = plan.device == "cpu"
        named = dict(self._module.named_parameters())
        self._trained = [slot for slot in layout.slots if not slot.is_buffer]
        self._parameters = [named[slot.name] for slot in self._trained]
        self._optimizer = FunctionalOptimizer.from_module(self._module, self._parameters)

    @classmethod
    def reason_against(cls, trial: Trial, device: str, precision: Precision) -> str | None:
        if precision == "16-mixed":
            return "precision 16-mixed needs a gradient scaler"
        return None

    @torch.no_grad()
    def fit(self, work: CohortFit, ended: Ended) -> tuple[Tensor, Tensor]:
        rows = work.models.new_empty(len(work), self.layout.num_columns)
        losses = torch.empty(len(work), dtype=torch.float64)
        optimizer = self._optimizer.with_rates(work.rates)
        for client in range(len(work)):
            losses[client] = self._train(work, client, optimizer)
            rows[client] = self.layout.read(self._module, rows.dtype, rows.device)
            ended(client + 1)
        return rows, losses / work.num_seen

    def _train(self, work: CohortFit, client: int, optimizer: FunctionalOptimizer) -> Tensor:
        """Trains a client's model in the module, and returns the sum of its losses."""
        self.layout.write(work.models[work.start[client]], self._module)
        stacked = tuple(p.detach()[None] for p in self._parameters)  # views of the module's parameters
        centers = None if work.centers is None else self._pieces(work.centers[work.center[client]])
        own = slice(work.starts[client], work.starts[client] + int(work.sizes[client]))
        steps = slice(work.first_steps[client], work.first_steps[client] + int(work.steps[client]))
        inputs, labels = work.inputs[own], work.labels[own]
        weights = None if work.weights is None else work.weights[own]
        keys = None if work.keys is None else work.keys[steps].tolist()
        batches = work.batches.lists(steps)
        state = optimizer.start(stacked)
        device = self.plan.device
        corrections = optimizer.corrections(torch.arange(1, len(batches) + 1)[:, None]).to(device).unbind(1)
        first = torch.ones(1, dtype=torch.bool, device=device)
        total = torch.zeros((), dtype=torch.float64, device=device)
        for step, chosen in enumerate(batches):
            if keys is not None:
                set_key(self._module, keys[step])
            factors = None if weights is None else weights[chosen]
            gradients, loss = self._gradients(inputs[chosen], labels[chosen], factors)
            if centers is not None:
                gradients = add_pull(centers, work.prox, gradients, stacked)
            if self.local.gradient_clip is not None:
                gradients = clip_gradients(gradients, self.local.gradient_clip)
            optimizer.step_(stacked, gradients, state, corrections[step], first)
            if step == 0:
                first = torch.zeros_like(first)
            total += loss.double() * len(chosen)
        return total

    def _gradients(self, inputs: Tensor, labels: Tensor, weights: Tensor | None) -> tuple[Tensors, Tensor]:
        """Computes the gradients of the mean loss, each with a leading axis of 1, and the mean loss."""
        total, count = len(labels), 1
        if total > _PART and self._on_cpu:
            count = ceil(total / _PART) if self._can_split((inputs, labels)) else 1
        factors = [None] * count if weights is None else weights.tensor_split(count)
        first, *others = zip(inputs.tensor_split(count), labels.tensor_split(count), factors, strict=True)
        gradients, loss = self._share(*first, total)
        for part in others:
            more, other = self._share(*part, total)
            gradients, loss = [g + o for g, o in zip(gradients, more, strict=True)], loss + other
        return tuple(gradient[None] for gradient in gradients), loss

    def _can_split(self, batch: Batch) -> bool:
        """Returns whether losses do not depend on the other examples of a mini-batch, and change no buffer."""
        if self._splits is None:
            module, dtype = copy.deepcopy(self._module), self.plan.autocast
            halves = zip(*(part.tensor_split(2) for part in batch), strict=True)
            with torch.no_grad(), nullcontext() if dtype is None else torch.autocast("cpu", dtype):
                whole, *parts = (losses_of(module, part).double() for part in (batch, *halves))
            same = all(map(torch.equal, module.buffers(), self._module.buffers()))
            self._splits = same and torch.allclose(whole, torch.cat(parts), rtol=1e-4, atol=1e-6, equal_nan=True)
        return self._splits

    def _share(self, inputs: Tensor, labels: Tensor, weights: Tensor | None, total: int) -> tuple[list[Tensor], Tensor]:
        """Computes what some of the examples contribute to the mean loss over all, and to its gradients."""
        dtype = self.plan.autocast
        with torch.enable_grad():
            with nullcontext() if dtype is None else torch.autocast(labels.device.type, dtype):
                loss = weighted_losses_of(self._module, (inputs, labels), weights).mean()
                loss = loss if len(labels) == total else loss * (len(labels) / total)
            found = torch.autograd.grad(loss, self._parameters, materialize_grads=True)  # 0 for those that it lacks
        return [gradient.to_dense() if gradient.is_sparse else gradient for gradient in found], loss.detach()

    def _pieces(self, row: Tensor) -> Tensors:
        return tuple(
            row[slot.start : slot.stop].view(1, *slot.shape).to(p.dtype)
            for slot, p in zip(self._trained, self._parameters, strict=True)
        )


def _use_plain_gru(module: nn.Module) -> None:
    """Lets the GRUs of a module compute batches as `PlainGRU`, which is faster on a CPU; PyTorch's LSTM is faster."""
    for layer in module.modules():
        if type(layer) is nn.GRU and not why_not_stacked(layer):
            layer.forward = partial(_run_gru, PlainGRU(layer), layer.forward)  # type: ignore[method-assign]  # of this copy alone


def _run_gru(plain: PlainGRU, fused: Callable[..., Any], input: Any, hx: Tensor | None = None) -> Any:
    """Runs a GRU; `plain` cannot process packed and single sequences."""
    return (plain if isinstance(input, Tensor) and input.dim() == 3 else fused)(input, hx)
