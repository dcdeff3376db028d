"""Who trains in which lane, and when: the timetable of a stack.

Clients take different numbers of steps. In a padded stack all wait for the longest one; here a lane that is free loads
the next client. Longest first to the emptiest lane keeps the lanes' ends close together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

import torch
from torch import Tensor

_POOL_MIB_A_LANE = 16


@dataclass(frozen=True)
class Seat:
    """Where a job runs: in `lane` from call `start` to before call `stop`."""

    job: int
    lane: int
    start: int
    stop: int


def timetable(calls: Tensor, lanes: int) -> list[Seat]:
    """Seats jobs in lanes, longest first, each to the lane that is free first (Graham, 1969).

    Lanes are numbered by how long they are busy, the longest first.

    Args:
        calls: of each job, int64 `[jobs]`, 1 or more.
        lanes: L, 1 or more.
    """
    free = [(0, lane) for lane in range(lanes)]
    heapify(free)
    seats = []
    for job in calls.argsort(descending=True, stable=True).tolist():
        start, lane = free[0]
        stop = start + int(calls[job])
        seats.append(Seat(job, lane, start, stop))
        heapreplace(free, (stop, lane))
    rank = {lane: number for number, (_, lane) in enumerate(sorted(free, key=lambda end: (-end[0], end[1])))}
    return [Seat(seat.job, rank[seat.lane], seat.start, seat.stop) for seat in seats]


def widths_of(lanes: int, narrow: int) -> list[int]:
    """At most four widths of a stack, from `lanes` to `narrow` in equal ratios: the fewer are busy, the narrower."""
    ratio = (lanes / narrow) ** (1 / 3)
    return sorted({lanes, round(lanes / ratio), round(lanes / ratio**2), narrow}, reverse=True)


def width_for(busy: int, widths: Sequence[int]) -> int:
    """The narrowest stack that has so many lanes."""
    return min(width for width in widths if width >= busy)


def seated(calls: Tensor, widths: Sequence[int], most_waste: float) -> list[Seat]:
    """Seats jobs in the widest stack that wastes no more than this share of its work; in the narrowest if all do.

    Args:
        calls: of each job, int64 `[jobs]`, 1 or more.
        widths: that the stack can have, the widest first.
        most_waste: 0 to 1; 1 = always the widest.
    """
    for width in widths:
        seats = timetable(calls, width)
        computed = sum(width_for(busy, widths) for busy in busy_lanes(seats))
        if computed * (1 - most_waste) <= int(calls.sum()):
            break
    return seats


def busy_lanes(seats: list[Seat]) -> list[int]:
    """How many lanes are busy in each call: they are the first ones."""
    ends: dict[int, int] = {}
    for seat in seats:
        ends[seat.lane] = max(ends.get(seat.lane, 0), seat.stop)
    return [sum(end > call for end in ends.values()) for call in range(max(ends.values(), default=0))]


def pool_capacity(sizes: Tensor, bytes_each: int, lanes: int) -> int:
    """Examples of the pool that clients of a stack train from.

    It has room for the largest client, and 16 MiB a lane, so that wide stacks find enough clients; beyond the 64 MiB
    of four lanes no more than there are examples, rounded up to a power of two, so that it seldom changes.

    Args:
        sizes: examples of each client that there is, int64 `[clients]`.
        bytes_each: of one example.
        lanes: L.
    """
    whole = 1 << (max(1, int(sizes.sum())) - 1).bit_length()
    few, many = (_POOL_MIB_A_LANE * 2**20 * number // bytes_each for number in (4, max(4, lanes)))
    return max(int(sizes.max()), few, min(many, whole))


def pool_groups(sizes: Tensor, capacity: int) -> list[slice]:
    """Cuts clients into runs whose examples fit the pool together.

    Args:
        sizes: examples of each client, int64 `[n]`.
        capacity: of the pool, no smaller than the largest client.
    """
    groups, start, held = [], 0, 0
    for position, size in enumerate(torch.as_tensor(sizes).tolist()):
        if held + size > capacity:
            groups.append(slice(start, position))
            start, held = position, 0
        held += size
    return [*groups, slice(start, len(sizes))]
