"""Schedules clients in the lanes of a stack.

Clients take different numbers of steps. In a padded stack all wait for the longest one; here a lane that is free loads
the next client. Longest first to the emptiest lane keeps the lanes' ends close together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heapreplace

import torch
from torch import Tensor


@dataclass(frozen=True)
class LaneSlot:
    """Place of a fit in the schedule: `lane` from call `start` to before call `stop`."""

    fit: int
    lane: int
    start: int
    stop: int


def schedule_lanes(calls: Tensor, lanes: int) -> list[LaneSlot]:
    """Assigns fits to lanes, longest first, each to the lane that is free first (Graham, 1969).

    Lanes are numbered by how long they are busy, the longest first.

    Args:
        calls: Calls of each fit, int64 `[fits]`, 1 or more.
        lanes: L, 1 or more.
    """
    free = [(0, lane) for lane in range(lanes)]
    heapify(free)
    lane_slots = []
    for fit in calls.argsort(descending=True, stable=True).tolist():
        start, lane = free[0]
        stop = start + int(calls[fit])
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
    """Schedules fits in the cheapest stack: a call costs its lanes, idle ones included, plus `call_cost`.

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
    """Counts the busy lanes in each call; busy lanes come first."""
    ends: dict[int, int] = {}
    for lane_slot in lane_slots:
        ends[lane_slot.lane] = max(ends.get(lane_slot.lane, 0), lane_slot.stop)
    ended = torch.bincount(torch.tensor(list(ends.values()), dtype=torch.int64)).cumsum(0)
    busy: list[int] = (len(ends) - ended[:-1]).tolist()
    return busy
