"""Trains a group of clients in one stack."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import Any

import torch
from torch import Tensor

from lit_cfl.engines.chain.groups import LEAST, ClientGroup, Span
from lit_cfl.engines.chain.inputs import DualBias, DualLayer, HeldLayer
from lit_cfl.engines.chain.losses import compute_losses, compute_slopes
from lit_cfl.engines.chain.parts import ChainLayer
from lit_cfl.engines.chain.passes import run_backward, run_forward
from lit_cfl.engines.chain.replay import FEWEST, ReplayedStep, StepCapture
from lit_cfl.engines.chain.tables import CohortExamples, StackSteps, Step, lay_out
from lit_cfl.engines.chain.updates import OptimizerUpdate, PlainUpdate, Training, Update
from lit_cfl.engines.cohort_fit import CohortFit
from lit_cfl.parameters import Slot

_KEPT = 32  # maximum number of steps whose outputs are kept until their losses are computed
Taken = tuple[Tensor, Tensor | None]  # outputs `[lanes, B, outputs]`, and penalties `[lanes]`
TakeStep = Callable[[Step, Any], Taken]


class Stack:
    """The clients of a group, their parameters and their mini-batches.

    Args:
        training: Chain and optimizer that all clients share.
        slots: Slots of the trained parameters.
        work: Local training of the cohort.
        examples: The cohort's examples.
        group: Clients of the stack.
        capture: Captures steps on a GPU; None on a CPU.
    """

    def __init__(
        self,
        training: Training,
        slots: tuple[Slot, ...],
        work: CohortFit,
        examples: CohortExamples,
        group: ClientGroup,
        capture: StepCapture | None = None,
    ) -> None:
        self._training, self._slots, self._group, self._capture = training, slots, group, capture
        self._min_lanes = min_lanes(training.chain.layers)
        self._penalised = [layer for layer in training.chain.layers if layer.penalty]
        fewest = self._min_lanes
        if len(group.steps) < fewest:
            group = ClientGroup(group.clients.repeat(fewest), group.steps * fewest, group.width, group.size)
        clients, device = group.clients, examples.inputs.device
        self._rules = training.rules(work.prox if work.centers is not None else 0.0)
        in_dual = self._names_in_dual_form() if group.size else []
        self._starts = self._pieces(work.models, work.start[clients])
        # forces a copy: otherwise a single client would train the cluster model in place
        kept = torch.contiguous_format
        trained = {name: t for name, t in self._starts.items() if name not in in_dual}
        self._trained = {name: t.clone(memory_format=kept) for name, t in trained.items()}
        self._centers = None if work.centers is None else self._pieces(work.centers, work.center[clients])
        fixed = {name: tensor.expand(len(clients), -1, -1) for name, tensor in examples.fixed.items()}
        self._tensors, self._prox = self._trained | fixed, work.prox
        starts = (work.sizes.cumsum(0) - work.sizes)[clients].to(device)
        self._dual = None
        if in_dual:
            sizes = work.sizes[clients].to(device)
            self._dual = self._in_dual_form(in_dual, examples, starts, sizes, max(group.steps))
        self._first = self._dual or HeldLayer(examples)
        self._all_steps = self._add_dual_values(lay_out(work, group, examples, starts, training.chain.draws_masks))
        self._ends = torch.tensor(group.steps, device=device)
        self._sums = torch.zeros(len(clients), dtype=torch.float64, device=device)
        parameters = tuple(self._trained[name] for name in training.names if name not in in_dual)
        self._state = () if training.is_plain else training.optimizer.start(parameters)

    def _pieces(self, table: Tensor, which: Tensor) -> dict[str, Tensor]:
        """Splits the clients' rows of a table `[K, d]` into parameters by name; biases are `[clients, 1, h]`."""
        count = len(which)
        rows = table.expand(count, -1) if len(table) == 1 else table.index_select(0, which.to(table.device))
        return {slot.name: as_matrix(rows[:, slot.start : slot.stop], slot) for slot in self._slots}

    def _names_in_dual_form(self) -> list[str]:
        """Returns the name of the first layer's weight, and of its bias if that decays in the same way."""
        layer = self._training.chain.layers[0]
        weight, bias = self._rules[layer.weight], self._rules.get(layer.bias or "")
        alike = bias is not None and weight.rate > 0 and (bias.shrink, bias.pull) == (weight.shrink, weight.pull)
        return [layer.weight, layer.bias] if alike and layer.bias is not None else [layer.weight]

    def _in_dual_form(
        self, names: list[str], examples: CohortExamples, starts: Tensor, sizes: Tensor, steps: int
    ) -> DualLayer:
        """Converts the first layer to dual form."""
        padded, device = self._group.size, starts.device
        own = torch.arange(padded, device=device).minimum(sizes[:, None] - 1) + starts[:, None]
        rules, centers = [self._rules[name] for name in names], self._centers or {}
        bias = None
        if len(names) == 2:
            bias = DualBias(self._starts[names[1]], centers.get(names[1]), rules[1].rate / rules[0].rate)
        weight = names[0]
        return DualLayer(rules[0], examples.read(own), self._starts[weight], centers.get(weight), steps, bias)

    def _add_dual_values(self, steps: StackSteps) -> StackSteps:
        """Extends the table of steps by the values that the dual form and the optimizer read."""
        if self._dual is not None:
            left, pulled = self._dual.shares()
            steps = replace(steps, left=left, pulled=pulled)
        if not self._training.is_plain:
            numbers, device = torch.arange(1, len(steps.rows) + 1), steps.rows.device
            corrections = self._training.optimizer.corrections(numbers).T.contiguous()
            steps = replace(steps, corrections=corrections.to(device), first=(numbers == 1).to(device))
        return steps

    def train(self, rows: Tensor, losses: Tensor, ended: Callable[[int], None]) -> None:
        """Trains all clients of the group.

        Args:
            rows: Rows of the cohort `[n, d]`; those of these clients are overwritten.
            losses: Sum of each client's losses, float64 `[n]`, overwritten likewise.
            ended: Called with the number of finished clients, whenever it changes.
        """
        for spans in self._group.stretches(self._capture is not None):
            self._train_stretch(spans, rows, ended)
        losses.index_copy_(0, self._group.clients, self._sums[: len(self._group.clients)].cpu())

    def _train_stretch(self, spans: list[Span], rows: Tensor, ended: Callable[[int], None]) -> None:
        """Trains the busy clients for consecutive spans of steps with a constant number of lanes.

        Lanes of finished clients continue to compute, but their numbers are not read.
        """
        steps, busy = range(spans[0].steps.start, spans[-1].steps.stop), spans[0].busy
        lanes = max(busy, self._min_lanes)
        tensors = {name: tensor[:lanes] for name, tensor in self._tensors.items()}
        take = partial(self._step, tensors=tensors, update=self._update(lanes))
        losses = self._all_steps.shares.new_empty(len(steps), lanes, self._group.width, 1)
        if self._capture is None or len(steps) < FEWEST:
            advance = self._launch_steps(take, steps, losses)
        else:
            advance = self._replay_steps(self._capture, take, steps, losses)
        for span in spans:
            advance(len(span.steps))
            self._save(rows, span.steps.stop, slice(span.following, span.busy))
            ended(span.busy - span.following)
        self._add(losses[:, :busy], steps)

    def _launch_steps(self, take: TakeStep, steps: range, losses: Tensor) -> Callable[[int], None]:
        start, lanes = 0, losses.shape[1]

        def advance(times: int) -> None:
            nonlocal start
            for stop in (*range(start + _KEPT, start + times, _KEPT), start + times):
                span = slice(steps.start + start, steps.start + stop)
                losses[start:stop] = self._take_steps(take, self._all_steps.part(span, lanes), lanes)
                start = stop

        return advance

    def _replay_steps(
        self, capture: StepCapture, take: TakeStep, steps: range, losses: Tensor
    ) -> Callable[[int], None]:
        number, lanes = torch.full((1,), steps.start, device=losses.device), losses.shape[1]

        def step() -> None:
            found = self._take_steps(take, self._all_steps.at(number, lanes), lanes)
            losses.index_copy_(0, number - steps.start, found)
            number.add_(1)

        return ReplayedStep(step, capture)

    def _take_steps(self, take: TakeStep, steps: StackSteps, lanes: int) -> Tensor:
        """Trains the first clients for some steps. Returns the losses before each step `[steps, lanes, B, 1]`."""
        chain = self._training.chain
        each = steps.each(chain.loss, chain.layers[-1].outputs)
        found = list(starmap(take, zip(each, self._first.read(steps, lanes), strict=True)))
        losses = compute_losses(chain.loss, torch.stack([outputs for outputs, _ in found]), steps.targets)
        losses = losses if steps.weights is None else losses * steps.weights
        penalties = [penalty for _, penalty in found if penalty is not None]
        return losses + torch.stack(penalties)[..., None, None] if penalties else losses

    def _add(self, losses: Tensor, steps: range) -> None:
        """Adds the losses of these steps `[steps, clients, B, 1]` to the clients' sums, in step order."""
        busy, device = losses.shape[1], losses.device
        trains = torch.arange(steps.start, steps.stop, device=device)[:, None] < self._ends[:busy]
        present = self._all_steps.shares[steps.start : steps.stop, :busy] > 0
        each = torch.where(present & trains[..., None, None], losses, 0.0).squeeze(-1).double().sum(-1)
        self._sums[:busy] = torch.cat([self._sums[None, :busy], each]).cumsum(0)[-1]

    def _update(self, lanes: int) -> Update:
        trained = {name: tensor[:lanes] for name, tensor in self._trained.items()}
        centers = self._centers and {name: tensor[:lanes] for name, tensor in self._centers.items()}
        if self._training.is_plain:
            return PlainUpdate(self._training, trained, centers, self._prox)
        state = tuple(tuple(tensor[:lanes] for tensor in slot) for slot in self._state)
        return OptimizerUpdate(self._training, trained, centers, self._prox, state)

    def _step(self, step: Step, read: Any, tensors: Mapping[str, Tensor], update: Update) -> Taken:
        """Takes one step. Returns the outputs before the update, and the penalties."""
        chain, arithmetic, dual, keys = self._training.chain, self._training.arithmetic, self._dual, step.keys
        first = chain.layers[0]
        if dual is None:
            parts, values = chain.parts, read
        else:
            parts, values = chain.parts[1:], dual.outputs(read, tensors.get(first.bias or ""))
        outputs, kept = run_forward(parts, tensors, values, keys, arithmetic)
        slopes = compute_slopes(chain.loss, outputs, step.targets, step.shares)
        penalty = _penalty(self._penalised, tensors) if self._penalised else None
        below = run_backward(parts, tensors, kept, slopes, keys, arithmetic, update.take, below=dual is not None)
        if dual is not None and below is not None and isinstance(update, PlainUpdate):
            update.take_bias(first, below)
            dual.take(read.rows, below)
        update.finish(step.corrections, step.first)
        return outputs, penalty

    def _save(self, rows: Tensor, steps: int, ending: slice) -> None:
        """Saves the models of finished clients into their rows."""
        clients = self._group.clients[ending]
        first, count = int(clients[0]), len(clients)
        in_order = bool((clients == torch.arange(first, first + count)).all())
        for slot in self._slots:
            columns = rows[:, slot.start : slot.stop]
            whole = columns[first : first + count] if in_order else columns.new_empty(count, columns.shape[1])
            found = as_matrix(whole, slot)
            if slot.name in self._trained:
                found.copy_(self._trained[slot.name][ending])
            elif self._dual is not None:
                after = self._dual.weights_after if len(slot.shape) == 2 else self._dual.bias_after
                after(steps, ending, found)
            if not in_order:
                columns.index_copy_(0, clients.to(rows.device), whole)


def _penalty(layers: list[ChainLayer], tensors: Mapping[str, Tensor]) -> Tensor:
    """Computes the sum of these layers' penalties for each lane, `[lanes]`."""
    weights = [tensors[layer.weight].flatten(1) for layer in layers]
    return sum(
        (layer.penalty * torch.linalg.vecdot(w, w) for layer, w in zip(layers, weights, strict=True)),
        torch.zeros((), device=weights[0].device),
    )


def min_lanes(layers: list[ChainLayer]) -> int:
    """Returns the minimum number of lanes in a stack; a single client is repeated to fill them.

    A product with a single row or column is computed differently if it is alone in its stack.
    """
    return LEAST if any(min(layer.inputs, layer.outputs) == 1 for layer in layers) else 1


def as_matrix(rows: Tensor, slot: Slot) -> Tensor:
    """Reshapes the columns of one parameter, `[n, .]`, to weights `[n, h, d]` or biases `[n, 1, h]`."""
    return rows.unsqueeze(1) if len(slot.shape) == 1 else rows.unflatten(1, slot.shape)
