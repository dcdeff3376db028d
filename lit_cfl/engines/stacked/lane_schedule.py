"""Schedules clients in the lanes of a stack, and arranges their mini-batches in tables.

Clients take different numbers of steps. In a padded stack all wait for the longest one; here a free lane loads the next
client. Assigning the longest client first, to the lane that is free first, lets all lanes end at about the same time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import heapify, heapreplace
from itertools import groupby

import torch
from torch import Tensor

from lit_cfl.devices import send
from lit_cfl.engines.cohort import CohortFit

Changes = dict[int, Tensor]  # by step: a table with one column per client that begins or ends there


@dataclass(frozen=True)
class LaneSlot:
    """Place of a client's fit in the schedule: in `lane`, from call `start` up to, but excluding, call `stop`."""

    fit: int
    lane: int
    start: int
    stop: int


def schedule_lanes(calls: Tensor, lanes: int) -> list[LaneSlot]:
    """Assigns fits to lanes, longest first, each to the lane that becomes free first (Graham, 1969).

    Lanes are numbered by how long they are busy, the busiest first.

    Args:
        calls: Calls of each fit, int64 `[fits]`, 1 or more.
        lanes: L, 1 or more.
    """
    free = [(0, lane) for lane in range(lanes)]
    heapify(free)
    lane_slots, lengths = [], calls.tolist()
    for fit in calls.argsort(descending=True, stable=True).tolist():
        start, lane = free[0]
        stop = start + lengths[fit]
        lane_slots.append(LaneSlot(fit, lane, start, stop))
        heapreplace(free, (stop, lane))
    rank = {lane: number for number, (_, lane) in enumerate(sorted(free, key=lambda end: (-end[0], end[1])))}
    return [LaneSlot(lane_slot.fit, rank[lane_slot.lane], lane_slot.start, lane_slot.stop) for lane_slot in lane_slots]


def widths_of(lanes: int, narrow: int) -> list[int]:
    """Chooses at most four stack widths, from `lanes` down to `narrow` in equal ratios."""
    ratio = (lanes / narrow) ** (1 / 3)
    return sorted({lanes, round(lanes / ratio), round(lanes / ratio**2), narrow}, reverse=True)


def width_for(busy: int, widths: Sequence[int]) -> int:
    """Returns the smallest width with at least this many lanes."""
    return min(width for width in widths if width >= busy)


def schedule_by_cost(calls: Tensor, widths: Sequence[int], call_cost: float) -> list[LaneSlot]:
    """Schedules fits at the cheapest stack width, where a call costs its width plus `call_cost`.

    Args:
        calls: Calls of each fit, int64 `[fits]`, 1 or more.
        widths: Possible widths of the stack, the widest first.
        call_cost: Cost of a call, in lanes; infinite = always the widest stack, which needs the fewest calls.
    """
    found = schedule_lanes(calls, widths[0])
    if call_cost == float("inf"):
        return found
    return min((found, *(schedule_lanes(calls, width) for width in widths[1:])), key=partial(_cost, widths, call_cost))


def _cost(widths: Sequence[int], call_cost: float, lane_slots: Sequence[LaneSlot]) -> float:
    return sum(call_cost + width_for(busy, widths) for busy in busy_lanes(lane_slots))


def busy_lanes(lane_slots: Sequence[LaneSlot]) -> list[int]:
    """Counts the busy lanes in each call."""
    ends: dict[int, int] = {}
    for lane_slot in lane_slots:
        ends[lane_slot.lane] = max(ends.get(lane_slot.lane, 0), lane_slot.stop)
    ended = torch.bincount(torch.tensor(list(ends.values()), dtype=torch.int64)).cumsum(0)
    busy: list[int] = (len(ends) - ended[:-1]).tolist()
    return busy


@dataclass(frozen=True, eq=False)
class LaneTables:
    """The lane, steps and mini-batches of each client of a fit.

    Args:
        slots: Lane and steps of each client, in the clients' order.
        index: Positions in the fit's examples, int64 `[steps, lanes, B]`, on the device, -1 = no example.
        keys: Keys of the dropout masks, int64 `[steps, lanes]`.
        numbers: Number of the client's step, from 1, int64 `[steps, lanes]`; 1 where a lane is idle.
        owners: Client of each mini-batch of the fit, int64.
        rows: Step of the stack that trains on each mini-batch, int64.
        lanes: Lane that trains on each mini-batch, int64.
    """

    slots: Sequence[LaneSlot]
    index: Tensor
    keys: Tensor
    numbers: Tensor
    owners: Tensor
    rows: Tensor
    lanes: Tensor

    @property
    def num_steps(self) -> int:
        return len(self.index)

    def sum_losses(self, losses: Tensor) -> Tensor:
        """Sums the losses `[steps, lanes]` over the steps of each client: `[n]`."""
        return losses.new_zeros(len(self.slots)).index_add_(0, self.owners, losses[self.rows, self.lanes])

    def lanes_to_load(self, work: CohortFit, device: str) -> Changes:
        """Maps each step to the lanes loaded before it, with the start model and centre of each lane's new client."""
        table = torch.stack([self._lane_of_each, work.start, work.center])
        return _group_columns([slot.start for slot in self.slots], table, device)

    def lanes_to_save(self, device: str) -> Changes:
        """Maps each step to the lanes saved before it, with the client that has finished in each lane."""
        table = torch.stack([self._lane_of_each, torch.arange(len(self.slots))])
        return _group_columns([slot.stop for slot in self.slots], table, device)

    @cached_property
    def _lane_of_each(self) -> Tensor:
        return torch.tensor([slot.lane for slot in self.slots])


def make_tables(work: CohortFit, widths: Sequence[int], call_cost: float, batch_size: int) -> LaneTables:
    """Schedules the clients of a fit, and arranges their mini-batches in tables.

    Args:
        widths, call_cost: See `schedule_by_cost`.
        batch_size: B, the number of places in a lane's mini-batch, at least the size of the fit's largest one.
    """
    slots = sorted(schedule_by_cost(work.steps, widths, call_cost), key=lambda slot: slot.fit)
    owners = torch.arange(len(work)).repeat_interleave(work.steps)
    numbers = torch.arange(len(owners)) - (work.steps.cumsum(0) - work.steps)[owners]
    rows = torch.tensor([slot.start for slot in slots])[owners] + numbers
    lanes = torch.tensor([slot.lane for slot in slots])[owners]
    shape = max(slot.stop for slot in slots), widths[0]
    device = work.inputs.device
    index = torch.full((*shape, batch_size), -1, device=device)
    offsets = (work.sizes.cumsum(0) - work.sizes)[owners]
    *places, offsets = send(torch.stack([rows, lanes, offsets]), device)
    positions, present = work.batches.table(torch.arange(len(owners)), batch_size)
    index[tuple(places)] = torch.where(present, positions + offsets[:, None], -1)
    keys, at = torch.zeros(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.int64)
    at[rows, lanes] = numbers + 1
    if work.keys is not None:
        keys[rows, lanes] = work.keys
    return LaneTables(slots, index, keys, at, owners, rows, lanes)


def _group_columns(steps: Sequence[int], table: Tensor, device: str) -> Changes:
    """Groups the columns of a table by step, on the device."""
    order = sorted(range(len(steps)), key=steps.__getitem__)
    table = send(table[:, order], device)
    found, start = {}, 0
    for step, group in groupby(steps[k] for k in order):
        part = slice(start, start + len(list(group)))
        found[step] = table[:, part]
        start = part.stop
    return found
