"""Trains clients in the lanes of a stack, call by call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import isfinite

import torch
from torch import Tensor

from lit_cfl.devices import sent
from lit_cfl.engines.client_fit import ClientFit, ExamplePool, FitResult, finite_rows
from lit_cfl.engines.cohort_fit import Effort
from lit_cfl.engines.optimizers import FunctionalOptimizer, Tensors
from lit_cfl.engines.stacked.cuda_graph import CapturedSteps
from lit_cfl.engines.stacked.schedule import LaneSlot, busy_lanes, schedule_by_cost, width_for
from lit_cfl.engines.steps import Lanes, LaneWork
from lit_cfl.parameters import ParameterLayout

StepFunction = Callable[[Lanes, LaneWork], tuple[Lanes, Tensor]]


@dataclass(frozen=True, eq=False)
class _Change:
    """Fits that begin, or end, at the same call.

    Args:
        fits: their numbers.
        lanes: of each, int64, on the device.
        rows: position of each one's model in the chunk, int64, on the device.
    """

    fits: list[int]
    lanes: Tensor
    rows: Tensor


class Runner:
    """Trains clients with a function of fixed shapes.

    Args:
        advance: some steps of all lanes, see `Steps`; plain or compiled. `CapturedSteps` change the lanes in place, so
            theirs, the tables and the centres are made once and filled again.
        layout: of the rows.
        update: the optimizer's rule.
        widths: that the stack can have, the widest, L, first: a call has the narrowest that holds the busy lanes.
        call_cost: see `schedule_by_cost`.
        steps: S, steps of one call.
        batch_size: B.
        device: of the lanes.
        dtype: of the lanes.
        effort: to add to.
    """

    def __init__(
        self,
        advance: StepFunction | CapturedSteps,
        layout: ParameterLayout,
        update: FunctionalOptimizer,
        *,
        widths: Sequence[int],
        call_cost: float,
        steps: int,
        batch_size: int,
        device: str,
        dtype: torch.dtype,
        effort: Effort,
    ) -> None:
        self._advance, self._slots, self._optimizer = advance, layout.slots, update
        self._trained = sum(not slot.is_buffer for slot in layout.slots)
        self.widths, self._call_cost = widths, call_cost
        self.lanes, self.steps, self.batch_size = widths[0], steps, batch_size
        self._device, self._dtype = device, dtype
        self.effort = effort
        self._pool: ExamplePool | None = None
        self._held: tuple[Lanes, LaneWork] | None = None  # of captured steps
        self._centers: Tensors | None = None

    def run(
        self,
        fits: Sequence[ClientFit],
        models: Tensor,
        pool: ExamplePool,
        capacity: int,
        prox: float,
        ended: Callable[[int], None] = lambda number: None,
    ) -> list[FitResult]:
        """Trains the fits.

        Args:
            models: `[c, d]`, of the chunk: the fits' rows are theirs, by position, and change in place.
            pool: examples that the fits' tables point into.
            capacity: of the pool; the same in all calls, for shapes are fixed.
            prox: strength of the proximal term; where it is not 0, every fit has a centre.
            ended: called with how many of the fits are through, whenever some are.
        """
        calls = torch.tensor([-(-fit.num_steps // self.steps) for fit in fits])
        lane_slots = schedule_by_cost(calls, self.widths, self._call_cost)
        work = self._work(fits, lane_slots, self._fill_pool(pool, capacity), prox)
        losses = self._run_calls(fits, models, lane_slots, work, ended)
        return self._results(fits, models, lane_slots, losses)

    def _fill_pool(self, pool: ExamplePool, capacity: int) -> ExamplePool:
        """Copies the examples into buffers of fixed size, and returns these."""
        inputs, labels = pool
        if self._pool is None or len(self._pool[0]) < capacity or self._pool[0].dtype != inputs.dtype:
            held = max(capacity, len(inputs))
            self._pool = inputs.new_zeros((held, *inputs.shape[1:])), labels.new_zeros(held)
        self._pool[0][: len(inputs)] = inputs
        self._pool[1][: len(labels)] = labels
        return self._pool

    def _work(
        self, fits: Sequence[ClientFit], lane_slots: Sequence[LaneSlot], pool: ExamplePool, prox: float
    ) -> LaneWork:
        """Collects the batches, keys and step numbers of all calls."""
        total = max(lane_slot.stop for lane_slot in lane_slots) * self.steps
        index = torch.full((total, self.lanes, self.batch_size), -1)
        keys = torch.zeros(total, self.lanes, dtype=torch.int64)
        number = torch.ones(total, self.lanes, dtype=torch.int64)
        first = torch.zeros(total, self.lanes, dtype=torch.bool)
        for lane_slot in lane_slots:
            fit, begin = fits[lane_slot.fit], lane_slot.start * self.steps
            rows = slice(begin, begin + fit.num_steps)
            index[rows, lane_slot.lane, : fit.table.shape[1]] = fit.table
            keys[rows, lane_slot.lane] = fit.keys
            number[rows, lane_slot.lane] = torch.arange(1, fit.num_steps + 1)
            first[begin, lane_slot.lane] = True
        corrections = self._optimizer.corrections(number).transpose(0, 1).contiguous()
        index, keys, corrections, first = (sent(table, self._device) for table in (index, keys, corrections, first))
        strength = torch.full((), prox, dtype=self._dtype, device=self._device) if prox else None
        work = LaneWork(*pool, index, keys, corrections, first, strength)
        return self._filled(work) if isinstance(self._advance, CapturedSteps) else work

    def _filled(self, work: LaneWork) -> LaneWork:
        """Copies the work into tensors that stay the same from run to run, and returns these."""
        total = len(work.index)
        if self._held is None or len(self._held[1].index) < total:
            lanes = self._empty(self.lanes) if self._held is None else self._held[0]
            self._held = lanes, self._with_room(work, 1 << (total - 1).bit_length())  # so that it seldom changes
        held = self._held[1]
        for mine, given in zip(held.tables, work.tables, strict=True):
            mine[:total].copy_(given)
        if held.at is not None:
            held.at.zero_()
        if work.prox is not None and held.prox is not None:
            held.prox.copy_(work.prox)
        return replace(held, inputs=work.inputs, labels=work.labels, prox=None if work.prox is None else held.prox)

    def _with_room(self, work: LaneWork, steps: int) -> LaneWork:
        """Makes tables for so many steps, with a counter and losses."""
        tables = tuple(table.new_zeros(steps, *table.shape[1:]) for table in work.tables)
        wide = torch.promote_types(self._dtype, torch.float32)  # a module in bfloat16 may compute losses in float32
        losses = torch.zeros(steps, self.lanes, dtype=wide, device=self._device)
        strength = torch.zeros((), dtype=self._dtype, device=self._device)
        at = torch.zeros(1, dtype=torch.int64, device=self._device)
        return replace(work.with_tables(tables, None), prox=strength, at=at, losses=losses)

    def _run_calls(
        self,
        fits: Sequence[ClientFit],
        models: Tensor,
        lane_slots: Sequence[LaneSlot],
        work: LaneWork,
        ended: Callable[[int], None],
    ) -> Tensor:
        """Makes all calls in order. Returns the losses, float64 `[steps, lanes]`, on the CPU."""
        begins = self._changes(fits, lane_slots, [lane_slot.start for lane_slot in lane_slots])
        ends = self._changes(fits, lane_slots, [lane_slot.stop for lane_slot in lane_slots])
        widths = [width_for(busy, self.widths) for busy in busy_lanes(lane_slots)]  # the busy lanes are the first ones
        lanes, centers = self._first(widths[0], work.prox is not None)
        losses, through, of_lanes = [], 0, work
        for call, width in enumerate(widths):
            if call == 0 or width < widths[call - 1]:
                lanes, centers = _narrowed(lanes, width), None if centers is None else _first_lanes(centers, width)
                of_lanes = work.with_tables(_first_of_tables(work.tables, width), centers)
            self._load(lanes, centers, fits, begins.get(call))
            if isinstance(self._advance, CapturedSteps):
                self._advance(lanes, of_lanes)
            else:
                lanes, sums = self._advance(lanes, self._work_of_call(of_lanes, call))
                losses.append(torch.nn.functional.pad(sums, (0, self.lanes - width)))
            if call + 1 in ends:
                self._save(lanes, models, ends[call + 1])
                through += len(ends[call + 1].fits)
                ended(through)
            self.effort.computed += width * self.steps
        self.effort.useful += sum(fit.num_steps for fit in fits)
        found = torch.cat(losses) if work.losses is None else work.losses[: len(widths) * self.steps]
        return found.double().cpu()

    def _work_of_call(self, work: LaneWork, call: int) -> LaneWork:
        """Returns the part of the work that is done in one call."""
        s = slice(call * self.steps, (call + 1) * self.steps)
        return work.with_tables(tuple(table[s].contiguous() for table in work.tables), work.centers)

    def _first(self, width: int, pulled: bool) -> tuple[Lanes, Tensors | None]:
        """Returns the first lanes, and their centres where they are pulled: new ones, or those that are held."""
        if self._held is None:
            return self._empty(width), self._empty(width).rows if pulled else None
        if pulled and self._centers is None:
            self._centers = self._empty(self.lanes).rows
        centers = _first_lanes(self._centers, width) if pulled and self._centers is not None else None
        return _narrowed(self._held[0], width), centers

    def _empty(self, width: int) -> Lanes:
        rows = tuple(torch.zeros(width, *slot.shape, device=self._device, dtype=self._dtype) for slot in self._slots)
        return Lanes(rows, self._optimizer.start(rows[: self._trained]))

    def _changes(
        self, fits: Sequence[ClientFit], lane_slots: Sequence[LaneSlot], calls: Sequence[int]
    ) -> dict[int, _Change]:
        """Groups the fits by these calls. The lanes and rows of all go to the device at once."""
        order = sorted(range(len(lane_slots)), key=calls.__getitem__)
        numbers = [lane_slots[k].fit for k in order]
        lanes, rows = [lane_slots[k].lane for k in order], [fits[number].position for number in numbers]
        table, start, found = sent(torch.tensor([lanes, rows]), self._device), 0, {}
        for call, group in groupby(calls[k] for k in order):
            part = slice(start, start + len(list(group)))
            found[call] = _Change(numbers[part], table[0, part], table[1, part])
            start = part.stop
        return found

    def _load(self, lanes: Lanes, centers: Tensors | None, fits: Sequence[ClientFit], change: _Change | None) -> None:
        """Loads the rows of fits that begin into their lanes, all at once."""
        if change is None:
            return
        taken = [fits[number] for number in change.fits]
        self._fill(lanes.rows, change.lanes, [fit.row for fit in taken])
        for tensor in (tensor for tensors in lanes.state for tensor in tensors):
            tensor.index_fill_(0, change.lanes, 0)
        drawn = [fit.center for fit in taken if fit.center is not None]
        if centers is not None and drawn:
            self._fill(centers, change.lanes, drawn)

    def _fill(self, tensors: Tensors, where: Tensor, rows: Sequence[Tensor]) -> None:
        """Writes rows `[d]` into these lanes."""
        table = torch.stack(list(rows)).to(self._dtype)
        for slot, tensor in zip(self._slots, tensors, strict=True):
            tensor.index_copy_(0, where, table[:, slot.start : slot.stop].view(-1, *slot.shape))

    def _save(self, lanes: Lanes, models: Tensor, change: _Change) -> None:
        """Writes the lanes of fits that end into their rows."""
        count = len(change.lanes)
        table = torch.cat([tensor.index_select(0, change.lanes).reshape(count, -1) for tensor in lanes.rows], dim=1)
        models.index_copy_(0, change.rows, table.to(models.dtype))

    def _results(
        self, fits: Sequence[ClientFit], models: Tensor, lane_slots: Sequence[LaneSlot], losses: Tensor
    ) -> list[FitResult]:
        first, last = fits[0].position, fits[-1].position
        finite, found = finite_rows(models[first : last + 1]), []
        for lane_slot in sorted(lane_slots, key=lambda lane_slot: lane_slot.fit):
            fit, begin = fits[lane_slot.fit], lane_slot.start * self.steps
            loss = float(losses[begin : begin + fit.num_steps, lane_slot.lane].sum()) / fit.num_examples
            found.append(FitResult(fit.position, loss, isfinite(loss) and finite[fit.position - first]))
        return found


def _narrowed(lanes: Lanes, width: int) -> Lanes:
    return Lanes(_first_lanes(lanes.rows, width), tuple(_first_lanes(tensors, width) for tensors in lanes.state))


def _first_lanes(tensors: Tensors, width: int) -> Tensors:
    return tuple(tensor[:width] for tensor in tensors)


def _first_of_tables(tables: Tensors, width: int) -> Tensors:
    index, keys, corrections, first = tables
    return index[:, :width], keys[:, :width], corrections[:, :, :width], first[:, :width]
