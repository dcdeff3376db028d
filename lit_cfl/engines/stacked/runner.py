"""Runs jobs in the lanes of a stack, call by call."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lit_cfl.engines.base import Effort
from lit_cfl.engines.client_fit import Job, Pool, Trained
from lit_cfl.engines.optimizers import Tensors, Update
from lit_cfl.engines.stacked.schedule import Seat, busy_lanes, seated, width_for
from lit_cfl.engines.steps import Lanes, Work
from lit_cfl.parameters import ParameterLayout

Advance = Callable[[Lanes, Work], tuple[Lanes, Tensor]]


class Runner:
    """Feeds a function of fixed shapes.

    Args:
        advance: some steps of all lanes, see `Steps`; compiled, captured or plain.
        layout: of the rows.
        update: the optimizer's rule.
        widths: that the stack can have, the widest, L, first: a call has the narrowest that holds the busy lanes.
        most_waste: share of the work that idle lanes may waste; above it clients train in fewer lanes.
        always_pulled: there is always a proximal term, of strength 0 where none is asked for: half as many graphs.
        steps: S, steps of one call.
        batch_size: B.
        device: of the lanes.
        dtype: of the lanes.
        effort: to add to.
    """

    def __init__(
        self,
        advance: Advance,
        layout: ParameterLayout,
        update: Update,
        *,
        widths: Sequence[int],
        most_waste: float,
        always_pulled: bool,
        steps: int,
        batch_size: int,
        device: str,
        dtype: torch.dtype,
        effort: Effort,
    ) -> None:
        self._advance, self._slots, self._update = advance, layout.slots, update
        self._trained = sum(not slot.is_buffer for slot in layout.slots)
        self.widths, self._most_waste, self._always_pulled = widths, most_waste, always_pulled
        self.lanes, self.steps, self.batch_size = widths[0], steps, batch_size
        self._device, self._dtype = device, dtype
        self.effort = effort
        self._pool: Pool | None = None

    def run(
        self,
        jobs: Sequence[Job],
        pool: Pool,
        capacity: int,
        prox: float,
        ended: Callable[[int], None] = lambda number: None,
    ) -> list[Trained]:
        """Trains the jobs.

        Args:
            pool: examples that the jobs' tables point into.
            capacity: of the pool; the same in all calls, for shapes are fixed.
            prox: strength of the proximal term; where it is not 0, every job has a centre.
            ended: called with how many of the jobs are through, whenever some are.
        """
        calls = torch.tensor([-(-job.num_steps // self.steps) for job in jobs])
        seats = seated(calls, self.widths, self._most_waste)
        work = self._work(jobs, seats, self._held(pool, capacity), prox)
        rows, losses = self._go(jobs, seats, work, ended)
        return [self._result(jobs[seat.job], seat, rows[seat.job], losses) for seat in seats]

    def _held(self, pool: Pool, capacity: int) -> Pool:
        """The examples in buffers of fixed size."""
        inputs, labels = pool
        if self._pool is None or len(self._pool[0]) < capacity or self._pool[0].dtype != inputs.dtype:
            held = max(capacity, len(inputs))
            self._pool = inputs.new_zeros((held, *inputs.shape[1:])), labels.new_zeros(held)
        self._pool[0][: len(inputs)] = inputs
        self._pool[1][: len(labels)] = labels
        return self._pool

    def _work(self, jobs: Sequence[Job], seats: Sequence[Seat], pool: Pool, prox: float) -> Work:
        """All calls' batches, keys and step numbers."""
        total = max(seat.stop for seat in seats) * self.steps
        index = torch.full((total, self.lanes, self.batch_size), -1)
        keys = torch.zeros(total, self.lanes, dtype=torch.int64)
        number = torch.ones(total, self.lanes, dtype=torch.int64)
        first = torch.zeros(total, self.lanes, dtype=torch.bool)
        for seat in seats:
            job, begin = jobs[seat.job], seat.start * self.steps
            rows = slice(begin, begin + job.num_steps)
            index[rows, seat.lane, : job.table.shape[1]] = job.table
            keys[rows, seat.lane] = job.keys
            number[rows, seat.lane] = torch.arange(1, job.num_steps + 1)
            first[begin, seat.lane] = True
        corrections = self._update.corrections(number).transpose(0, 1).contiguous()
        index, keys, corrections, first = (x.to(self._device) for x in (index, keys, corrections, first))
        pulled = prox or self._always_pulled
        strength = torch.tensor(prox, dtype=self._dtype, device=self._device) if pulled else None
        return Work(*pool, index, keys, corrections, first, strength)

    def _go(
        self, jobs: Sequence[Job], seats: Sequence[Seat], work: Work, ended: Callable[[int], None]
    ) -> tuple[dict[int, Tensor], Tensor]:
        """All calls in order. Returns the row of each job and the losses `[steps, lanes]`."""
        starts: dict[int, list[Seat]] = {}
        stops: dict[int, list[Seat]] = {}
        for seat in seats:
            starts.setdefault(seat.start, []).append(seat)
            stops.setdefault(seat.stop, []).append(seat)
        widths = [width_for(busy, self.widths) for busy in busy_lanes(list(seats))]  # the busy lanes are the first ones
        lanes = self._empty(widths[0])
        centers = self._empty(widths[0]).rows if work.prox is not None else None
        rows: dict[int, Tensor] = {}
        losses = []
        for call, width in enumerate(widths):
            if call and width < widths[call - 1]:
                lanes, centers = _first(lanes, width), None if centers is None else _cut(centers, width)
            self._load(lanes, centers, jobs, starts.get(call, []))
            lanes, sums = self._advance(lanes, self._part(work, call, width, centers))
            losses.append(torch.nn.functional.pad(sums, (0, self.lanes - width)))
            if call + 1 in stops:
                rows |= self._rows(lanes, stops[call + 1])
                ended(len(rows))
            self.effort.computed += width * self.steps
        self.effort.useful += sum(job.num_steps for job in jobs)
        return rows, torch.cat(losses).double().cpu()

    def _part(self, work: Work, call: int, width: int, centers: Tensors | None) -> Work:
        """The work of one call of the first lanes."""
        s = slice(call * self.steps, (call + 1) * self.steps)
        return replace(
            work,
            index=work.index[s, :width].contiguous(),
            keys=work.keys[s, :width].contiguous(),
            corrections=work.corrections[s, :, :width].contiguous(),
            first=work.first[s, :width].contiguous(),
            centers=centers,
        )

    def _empty(self, width: int) -> Lanes:
        rows = tuple(torch.zeros(width, *slot.shape, device=self._device, dtype=self._dtype) for slot in self._slots)
        return Lanes(rows, self._update.start(rows[: self._trained]))

    def _load(self, lanes: Lanes, centers: Tensors | None, jobs: Sequence[Job], seats: Sequence[Seat]) -> None:
        """Jobs take their seats, all at once: each transfer to a GPU would wait for it."""
        if not seats:
            return
        where, taken = self._lanes_of(seats), [jobs[seat.job] for seat in seats]
        self._fill(lanes.rows, where, [job.start for job in taken])
        for tensor in (tensor for tensors in lanes.state for tensor in tensors):
            tensor.index_fill_(0, where, 0)
        drawn = [job.center for job in taken if job.center is not None]
        if centers is not None and drawn:
            self._fill(centers, where, drawn)

    def _fill(self, tensors: Tensors, where: Tensor, rows: Sequence[Tensor]) -> None:
        """Writes rows `[d]` into these lanes."""
        table = torch.stack(list(rows)).to(self._device, self._dtype)
        for slot, tensor in zip(self._slots, tensors, strict=True):
            tensor.index_copy_(0, where, table[:, slot.start : slot.stop].view(-1, *slot.shape))

    def _rows(self, lanes: Lanes, seats: Sequence[Seat]) -> dict[int, Tensor]:
        """The rows of the jobs that leave these seats, by job."""
        where = self._lanes_of(seats)
        table = torch.cat([tensor.index_select(0, where).flatten(1) for tensor in lanes.rows], dim=1).cpu()
        return {seat.job: row for seat, row in zip(seats, table, strict=True)}

    def _lanes_of(self, seats: Sequence[Seat]) -> Tensor:
        return torch.tensor([seat.lane for seat in seats], device=self._device)

    def _result(self, job: Job, seat: Seat, row: Tensor, losses: Tensor) -> Trained:
        begin = seat.start * self.steps
        total = losses[begin : begin + job.num_steps, seat.lane].sum()
        return Trained(job.position, row, float(total) / job.num_examples)


def _first(lanes: Lanes, width: int) -> Lanes:
    return Lanes(_cut(lanes.rows, width), tuple(_cut(tensors, width) for tensors in lanes.state))


def _cut(tensors: Tensors, width: int) -> Tensors:
    return tuple(tensor[:width].clone() for tensor in tensors)
