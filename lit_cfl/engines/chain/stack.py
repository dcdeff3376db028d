"""Trains a group of clients in one stack."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_cfl.devices import sent
from lit_cfl.engines.chain.groups import LEAST, ClientGroup
from lit_cfl.engines.chain.inputs import DualBias, DualLayer
from lit_cfl.engines.chain.losses import losses_and_slopes
from lit_cfl.engines.chain.parts import ChainLayer
from lit_cfl.engines.chain.passes import run_backward, run_forward
from lit_cfl.engines.chain.updates import OptimizerUpdate, PlainUpdate, Training, Update
from lit_cfl.engines.cohort_fit import CohortFit
from lit_cfl.parameters import Slot


@dataclass(frozen=True, eq=False)
class CohortExamples:
    """What the clients of a cohort train on, in the form that stacks read.

    Args:
        inputs: `[N, d]`.
        targets: see `targets_of`, `[N, k]`.
        fixed: the frozen parameters by name, `[1, ...]`.
    """

    inputs: Tensor
    targets: Tensor
    fixed: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class StepTables:
    """What differs from step to step, on the device.

    Args:
        rows: positions of the mini-batches' examples within each client's own, int64 `[steps, clients, B]`; if there is
            no example, the first one of the mini-batch.
        shares: weight of each example in the mean over its mini-batch `[steps, clients, B, 1]`; 0 = there is none.
        keys: of the dropout masks, int64 `[steps, clients]`; None without dropout.
    """

    rows: Tensor
    shares: Tensor
    keys: Tensor | None

    @classmethod
    def of(cls, work: CohortFit, group: ClientGroup, masked: bool) -> "StepTables":
        firsts, steps = (work.steps.cumsum(0) - work.steps)[group.clients], work.steps[group.clients]
        at = firsts + torch.arange(max(group.steps))[:, None].minimum(steps - 1)
        own, present = work.batches.table(at, group.width)
        shares = present.to(work.models.dtype) / present.sum(-1, keepdim=True)
        keys = sent(work.keys[at], own.device) if masked and work.keys is not None else None
        return cls(own, shares[..., None], keys)


class Stack:
    """The clients of a group, their parameters and their mini-batches.

    Args:
        training: what all clients' training has in common.
        slots: of the trained parameters.
        work: of the cohort.
        examples: of the cohort.
        group: the clients.
    """

    def __init__(
        self,
        training: Training,
        slots: tuple[Slot, ...],
        work: CohortFit,
        examples: CohortExamples,
        group: ClientGroup,
    ) -> None:
        self._training, self._slots, self._group = training, slots, group
        self._least = least_lanes(training.chain.layers)
        if len(group.steps) < self._least:
            group = ClientGroup(group.clients.repeat(self._least), group.steps * self._least, group.width, group.size)
        clients, device = group.clients, examples.inputs.device
        self._rules = training.rules(work.prox if work.centers is not None else 0.0)
        in_dual = self._names_in_dual_form() if group.size else []
        self._starts = self._pieces(work.models, work.start[clients])
        kept = torch.contiguous_format  # a copy always: one client of one model would otherwise train that model itself
        trained = {name: t for name, t in self._starts.items() if name not in in_dual}
        self._trained = {name: t.clone(memory_format=kept) for name, t in trained.items()}
        self._centers = None if work.centers is None else self._pieces(work.centers, work.center[clients])
        fixed = {name: tensor.expand(len(clients), -1, -1) for name, tensor in examples.fixed.items()}
        self._tensors, self._prox = self._trained | fixed, work.prox
        self._tables = StepTables.of(work, group, training.chain.draws_masks)
        starts = (work.sizes.cumsum(0) - work.sizes)[clients].to(device)
        positions = self._tables.rows + starts[:, None]
        self._rows, self._inputs = positions.flatten(1), examples.inputs
        self._targets = examples.targets.index_select(0, positions.flatten()).view(*positions.shape, -1)
        self._sums = torch.zeros(len(clients), dtype=torch.float64, device=device)
        self._dual = None
        if in_dual:
            self._dual = self._in_dual_form(in_dual, starts, work.sizes[clients].to(device))
        parameters = tuple(self._trained[name] for name in training.names if name not in in_dual)
        self._state = () if training.is_plain else training.optimizer.start(parameters)
        self._corrections = training.optimizer.corrections(torch.arange(1, len(positions) + 1)).to(device)

    def _pieces(self, table: Tensor, which: Tensor) -> dict[str, Tensor]:
        """Cuts the models of a table `[K, d]` that the clients have into tensors; biases are `[clients, 1, h]`."""
        count = len(which)
        rows = table.expand(count, -1) if len(table) == 1 else table.index_select(0, which.to(table.device))
        return {slot.name: as_matrix(rows[:, slot.start : slot.stop], slot) for slot in self._slots}

    def _names_in_dual_form(self) -> list[str]:
        """Names the first layer's weight, and its bias where that decays alike."""
        layer = self._training.chain.layers[0]
        weight, bias = self._rules[layer.weight], self._rules.get(layer.bias or "")
        alike = bias is not None and weight.rate > 0 and (bias.shrink, bias.pull) == (weight.shrink, weight.pull)
        return [layer.weight, layer.bias] if alike and layer.bias is not None else [layer.weight]

    def _in_dual_form(self, names: list[str], starts: Tensor, sizes: Tensor) -> DualLayer:
        """Puts the first layer into dual form, and counts the mini-batches' examples over the padded clients."""
        padded, device = self._group.size, starts.device
        own = torch.arange(padded, device=device).minimum(sizes[:, None] - 1) + starts[:, None]
        examples = self._inputs.index_select(0, own.flatten()).view(len(starts), padded, -1)
        self._rows = (self._tables.rows + torch.arange(len(starts), device=device)[:, None] * padded).flatten(1)
        rules, centers = [self._rules[name] for name in names], self._centers or {}
        bias = None
        if len(names) == 2:
            bias = DualBias(self._starts[names[1]], centers.get(names[1]), rules[1].rate / rules[0].rate)
        weight, steps = names[0], len(self._rows)
        return DualLayer(rules[0], examples, self._starts[weight], centers.get(weight), steps, bias)

    def train(self, rows: Tensor, losses: Tensor, ended: Callable[[int], None]) -> None:
        """Trains the clients.

        Args:
            rows: `[n, d]`, of the cohort; those of the clients are written.
            losses: sums of each client's losses, float64 `[n]`, in the same way.
            ended: called with how many of them have ended, whenever some have.
        """
        for steps, busy, following in self._group.spans():
            self._train_span(steps, busy)
            self._save(rows, steps.stop, slice(following, busy))
            ended(busy - following)
        losses.index_copy_(0, self._group.clients, self._sums[: len(self._group.clients)].cpu())

    def _train_span(self, steps: range, busy: int) -> None:
        """Takes steps of the first clients.

        Args:
            busy: how many clients have these steps. Lanes beyond have ended, and nobody reads their numbers.
        """
        lanes, span, width = max(busy, self._least), slice(steps.start, steps.stop), self._group.width
        tensors = {name: tensor[:lanes] for name, tensor in self._tensors.items()}
        update, shares = self._update(lanes), self._tables.shares[span, :lanes]
        keys = self._tables.keys
        per_step = zip(
            steps,
            self._rows[span, : lanes * width].unbind(0),
            self._targets[span, :lanes].unbind(0),
            shares.unbind(0),
            [None] * len(steps) if keys is None else keys[span, :lanes].unbind(0),
            strict=True,
        )
        found = torch.stack([self._step(*one, lanes, tensors, update) for one in per_step])
        each = torch.where(shares[:, :busy] > 0, found[:, :busy], 0.0).squeeze(-1).double().sum(-1)
        self._sums[:busy] = torch.cat([self._sums[None, :busy], each]).cumsum(0)[-1]  # in the order of the steps

    def _update(self, lanes: int) -> Update:
        trained = {name: tensor[:lanes] for name, tensor in self._trained.items()}
        centers = self._centers and {name: tensor[:lanes] for name, tensor in self._centers.items()}
        if self._training.is_plain:
            return PlainUpdate(self._training, trained, centers, self._prox)
        state = tuple(tuple(tensor[:lanes] for tensor in slot) for slot in self._state)
        return OptimizerUpdate(self._training, trained, centers, self._prox, state, self._corrections)

    def _step(
        self,
        step: int,
        rows: Tensor,
        targets: Tensor,
        shares: Tensor,
        keys: Tensor | None,
        lanes: int,
        tensors: Mapping[str, Tensor],
        update: Update,
    ) -> Tensor:
        """Takes a step. Returns the losses before it `[lanes, B, 1]`."""
        chain, arithmetic, dual = self._training.chain, self._training.arithmetic, self._dual
        first = chain.layers[0]
        if dual is None:
            parts, values = chain.parts, self._inputs.index_select(0, rows).view(lanes, -1, self._inputs.shape[1])
        else:
            parts, values = chain.parts[1:], dual.outputs(step, rows, tensors.get(first.bias or ""), lanes)
        outputs, kept = run_forward(parts, tensors, values, keys, arithmetic)
        losses, slopes = losses_and_slopes(chain.loss, outputs, targets, shares)
        for layer in chain.layers:
            if layer.penalty:
                flat = tensors[layer.weight].flatten(1)
                losses = losses + (layer.penalty * torch.linalg.vecdot(flat, flat))[:, None, None]
        below = run_backward(parts, tensors, kept, slopes, keys, arithmetic, update.take, below=dual is not None)
        if dual is not None and below is not None and isinstance(update, PlainUpdate):
            update.take_bias(first, below)
            dual.take(rows, below)
        update.finish(step)
        return losses

    def _save(self, rows: Tensor, steps: int, ending: slice) -> None:
        """Writes the models of clients that end into their rows."""
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


def least_lanes(layers: list[ChainLayer]) -> int:
    """Returns how many clients a stack has at least.

    A product with a single row or column is computed in another way where it is alone in its stack than in company.
    """
    return LEAST if any(min(layer.inputs, layer.outputs) == 1 for layer in layers) else 1


def as_matrix(rows: Tensor, slot: Slot) -> Tensor:
    """Views a tensor's columns of models `[n, .]` as weights `[n, h, d]`, or biases `[n, 1, h]`."""
    return rows.unsqueeze(1) if len(slot.shape) == 1 else rows.unflatten(1, slot.shape)
