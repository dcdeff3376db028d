"""Trains a group of clients in one stack."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_cfl.engines.chain.groups import LEAST, ClientGroup
from lit_cfl.engines.chain.inputs import DualLayer, GatheredInputs
from lit_cfl.engines.chain.losses import losses_and_slopes
from lit_cfl.engines.chain.parts import ChainLayer
from lit_cfl.engines.chain.passes import run_backward, run_forward
from lit_cfl.engines.chain.updates import OptimizerUpdate, PlainUpdate, Training, Update
from lit_cfl.engines.cohort_fit import CohortFit
from lit_cfl.parameters import Slot


@dataclass(frozen=True, eq=False)
class Tables:
    """What differs from step to step, on the device.

    Args:
        rows: positions of the mini-batches' examples within each client's own, int64 `[steps, clients, B]`; where there
            is no example, the first one of the mini-batch.
        shares: what each example counts in the mean over its mini-batch `[steps, clients, B]`; 0 = there is none.
        keys: of the dropout masks, int64 `[steps, clients]`; None without dropout.
    """

    rows: Tensor
    shares: Tensor
    keys: Tensor | None

    @classmethod
    def of(cls, work: CohortFit, group: ClientGroup) -> "Tables":
        firsts, steps = (work.steps.cumsum(0) - work.steps)[group.clients], work.steps[group.clients]
        at = firsts + torch.arange(max(group.steps))[:, None].minimum(steps - 1)
        own = work.batches[:, : group.width][at]
        own = torch.nn.functional.pad(own, (0, group.width - own.shape[2]), value=-1)
        present, device = own >= 0, work.inputs.device
        shares = present.to(work.models.dtype) / present.sum(-1, keepdim=True)
        keys = None if work.keys is None else work.keys[at].to(device)
        return cls(torch.where(present, own, own[..., :1]).to(device), shares.to(device), keys)


class Stack:
    """The clients of a group, their parameters and what they train on.

    Args:
        training: what all clients' training has in common.
        slots: of the trained parameters.
        fixed: the frozen parameters by name, `[1, ...]`.
        work: the cohort's.
        inputs: `[N, d]`.
        targets: see `targets_of`, `[N, k]`.
        group: the clients.
    """

    def __init__(
        self,
        training: Training,
        slots: tuple[Slot, ...],
        fixed: Mapping[str, Tensor],
        work: CohortFit,
        inputs: Tensor,
        targets: Tensor,
        group: ClientGroup,
    ) -> None:
        self._training, self._slots, self._group = training, slots, group
        self._least = least_lanes(training.chain.layers)
        if len(group.steps) < self._least:
            repeated = group.clients.repeat(self._least)
            group = ClientGroup(repeated, group.steps * self._least, group.width, group.size)
        clients = group.clients
        self._trained = self._pieces(work.models, work.start[clients])
        self._centers = None if work.centers is None else self._pieces(work.centers, work.center[clients], alike=True)
        self._tensors = self._trained | {name: t.expand(len(clients), -1, -1) for name, t in fixed.items()}
        self._prox, self._tables = work.prox, Tables.of(work, group)
        starts = (work.sizes.cumsum(0) - work.sizes)[clients].to(inputs.device)
        positions = self._tables.rows + starts[:, None]
        self._targets = targets[positions]
        self._losses = torch.zeros_like(self._tables.shares)
        self._penalties = torch.zeros(len(clients), dtype=torch.float64, device=inputs.device)
        self._gathered, self._dual = GatheredInputs(inputs, positions), None
        if group.size:
            self._dual = self._in_dual_form(inputs, starts, work.sizes[clients].to(inputs.device))
        parameters = tuple(self._trained[name] for name in training.names)
        self._state = () if training.is_plain else training.optimizer.start(parameters)
        numbers = torch.arange(1, len(self._tables.rows) + 1)
        self._corrections = training.optimizer.corrections(numbers).to(inputs.device)

    def _pieces(self, table: Tensor, which: Tensor, alike: bool = False) -> dict[str, Tensor]:
        """Cuts the models `[K, d]` that the clients have into tensors; biases are `[clients, 1, h]`.

        Args:
            alike: one for all where the table has one row.
        """
        which = which[:1] if alike and len(table) == 1 else which
        which = which.to(table.device)
        return {
            slot.name: table[:, slot.start : slot.stop].index_select(0, which).view(len(which), *_two(slot.shape))
            for slot in self._slots
        }

    def _in_dual_form(self, inputs: Tensor, starts: Tensor, sizes: Tensor) -> DualLayer:
        layer, padded = self._training.chain.layers[0], self._group.size
        own = torch.arange(padded, device=inputs.device).minimum(sizes[:, None] - 1) + starts[:, None]
        examples = inputs.index_select(0, own.flatten()).view(len(starts), padded, -1)
        offsets = torch.arange(len(starts), device=inputs.device)[:, None] * padded
        center = None if self._centers is None else self._centers[layer.weight]
        rule = self._training.rules(self._prox if self._centers is not None else 0.0)[layer.weight]
        return DualLayer(layer, rule, examples, self._trained[layer.weight], center, self._tables.rows + offsets)

    def train(self, rows: Tensor, losses: Tensor, ended: Callable[[int], None]) -> None:
        """Trains the clients.

        Args:
            rows: `[n, d]`, of the cohort; those of the clients are written.
            losses: sums of each client's losses, float64 `[n]`, in the same way.
            ended: called with how many of them have ended, whenever some have.
        """
        for steps, busy, following in self._group.spans():
            lanes = max(busy, self._least)
            update = self._update(lanes)
            tensors = {name: tensor[:lanes] for name, tensor in self._tensors.items()}
            for step in steps:
                self._step(step, lanes, busy, tensors, update)
            self._save(rows, steps.stop, slice(following, busy))
            ended(busy - following)
        losses.index_copy_(0, self._group.clients, self._sums()[: len(self._group.clients)])

    def _update(self, lanes: int) -> Update:
        trained = {name: tensor[:lanes] for name, tensor in self._trained.items()}
        centers = self._centers and {name: tensor[:lanes] for name, tensor in self._centers.items()}
        if self._training.is_plain:
            return PlainUpdate(self._training, trained, centers, self._prox)
        state = tuple(tuple(tensor[:lanes] for tensor in slot) for slot in self._state)
        return OptimizerUpdate(self._training, trained, centers, self._prox, state, self._corrections)

    def _step(self, step: int, lanes: int, busy: int, tensors: Mapping[str, Tensor], update: Update) -> None:
        """Takes a step of the first clients; those beyond the busy ones have ended, and nobody reads their numbers."""
        chain, arithmetic, dual = self._training.chain, self._training.arithmetic, self._dual
        shares = self._tables.shares[step, :lanes]
        keys = None if self._tables.keys is None else self._tables.keys[step, :lanes]
        parts = chain.parts if dual is None else chain.parts[1:]
        if dual is None:
            values = self._gathered.values(step, lanes)
        else:
            values = dual.values(step, lanes, tensors.get(dual.layer.bias or ""))
        outputs, kept = run_forward(parts, tensors, values, keys, arithmetic)
        found, slopes = losses_and_slopes(chain.loss, outputs, self._targets[step, :lanes])
        self._losses[step, :lanes] = found
        self._add_penalties(step, busy, tensors)
        slopes.mul_(shares[..., None])
        below = run_backward(parts, tensors, kept, slopes, keys, arithmetic, update.take, dual is not None)
        if dual is not None and below is not None and isinstance(update, PlainUpdate):
            dual.take(step, below)
            update.take_bias(dual.layer, below)
        update.finish(step)

    def _add_penalties(self, step: int, busy: int, tensors: Mapping[str, Tensor]) -> None:
        for layer in self._training.chain.layers:
            if layer.penalty:
                flat = tensors[layer.weight][:busy].flatten(1)
                counts = (self._tables.shares[step, :busy] > 0).sum(1)
                self._penalties[:busy] += torch.linalg.vecdot(flat, flat).double() * (layer.penalty * counts.double())

    def _sums(self) -> Tensor:
        """Sums up each client's losses in the order of its steps, float64 `[clients]`, on the CPU."""
        steps = torch.arange(len(self._losses), device=self._losses.device)[:, None]
        own = torch.tensor(self._group.steps, device=self._losses.device)
        own = own.expand(self._losses.shape[1]) if len(own) < self._losses.shape[1] else own
        counted = (self._tables.shares > 0) & (steps < own)[..., None]
        each = torch.where(counted, self._losses, 0.0).double().sum(-1)
        return (each.cumsum(0)[-1] + self._penalties).cpu()

    def _save(self, rows: Tensor, steps: int, ending: slice) -> None:
        """Writes the models of clients that end into their rows."""
        if self._dual is not None:
            self._dual.weights_after(steps, ending)
        clients = self._group.clients[ending].to(rows.device)
        for slot in self._slots:
            rows[:, slot.start : slot.stop].index_copy_(0, clients, self._trained[slot.name][ending].flatten(1))


def least_lanes(layers: list[ChainLayer]) -> int:
    """Returns how many clients a stack has at least.

    A product with a single row or column is computed in another way where it is alone in its stack than in company.
    """
    return LEAST if any(min(layer.inputs, layer.outputs) == 1 for layer in layers) else 1


def _two(shape: torch.Size) -> tuple[int, int]:
    return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])
