"""Trains clients in the lanes of a stack, call by call."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lit_cfl.engines.base import Effort
from lit_cfl.engines.client_fit import ClientFit, ExamplePool, FitResult
from lit_cfl.engines.optimizers import FunctionalOptimizer, Tensors
from lit_cfl.engines.stacked.schedule import LaneSlot, busy_lanes, schedule_within_waste, width_for
from lit_cfl.engines.steps import Lanes, LaneWork
from lit_cfl.parameters import ParameterLayout

StepFunction = Callable[[Lanes, LaneWork], tuple[Lanes, Tensor]]


class Runner:
    """Trains clients with a function of fixed shapes.

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
        advance: StepFunction,
        layout: ParameterLayout,
        update: FunctionalOptimizer,
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
        self._advance, self._slots, self._optimizer = advance, layout.slots, update
        self._trained = sum(not slot.is_buffer for slot in layout.slots)
        self.widths, self._most_waste, self._always_pulled = widths, most_waste, always_pulled
        self.lanes, self.steps, self.batch_size = widths[0], steps, batch_size
        self._device, self._dtype = device, dtype
        self.effort = effort
        self._pool: ExamplePool | None = None

    def run(
        self,
        fits: Sequence[ClientFit],
        pool: ExamplePool,
        capacity: int,
        prox: float,
        ended: Callable[[int], None] = lambda number: None,
    ) -> list[FitResult]:
        """Trains the fits.

        Args:
            pool: examples that the fits' tables point into.
            capacity: of the pool; the same in all calls, for shapes are fixed.
            prox: strength of the proximal term; where it is not 0, every fit has a centre.
            ended: called with how many of the fits are through, whenever some are.
        """
        calls = torch.tensor([-(-fit.num_steps // self.steps) for fit in fits])
        lane_slots = schedule_within_waste(calls, self.widths, self._most_waste)
        work = self._work(fits, lane_slots, self._fill_pool(pool, capacity), prox)
        rows, losses = self._run_calls(fits, lane_slots, work, ended)
        return [self._result(fits[lane_slot.fit], lane_slot, rows[lane_slot.fit], losses) for lane_slot in lane_slots]

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
        index, keys, corrections, first = (x.to(self._device) for x in (index, keys, corrections, first))
        pulled = prox or self._always_pulled
        strength = torch.tensor(prox, dtype=self._dtype, device=self._device) if pulled else None
        return LaneWork(*pool, index, keys, corrections, first, strength)

    def _run_calls(
        self, fits: Sequence[ClientFit], lane_slots: Sequence[LaneSlot], work: LaneWork, ended: Callable[[int], None]
    ) -> tuple[dict[int, Tensor], Tensor]:
        """Makes all calls in order. Returns the row of each fit and the losses `[steps, lanes]`."""
        starts: dict[int, list[LaneSlot]] = {}
        stops: dict[int, list[LaneSlot]] = {}
        for lane_slot in lane_slots:
            starts.setdefault(lane_slot.start, []).append(lane_slot)
            stops.setdefault(lane_slot.stop, []).append(lane_slot)
        widths = [
            width_for(busy, self.widths) for busy in busy_lanes(list(lane_slots))
        ]  # the busy lanes are the first ones
        lanes = self._empty(widths[0])
        centers = self._empty(widths[0]).rows if work.prox is not None else None
        rows: dict[int, Tensor] = {}
        losses = []
        for call, width in enumerate(widths):
            if call and width < widths[call - 1]:
                lanes, centers = _narrowed(lanes, width), None if centers is None else _first_lanes(centers, width)
            self._load(lanes, centers, fits, starts.get(call, []))
            lanes, sums = self._advance(lanes, self._work_of_call(work, call, width, centers))
            losses.append(torch.nn.functional.pad(sums, (0, self.lanes - width)))
            if call + 1 in stops:
                rows |= self._rows(lanes, stops[call + 1])
                ended(len(rows))
            self.effort.computed += width * self.steps
        self.effort.useful += sum(fit.num_steps for fit in fits)
        return rows, torch.cat(losses).double().cpu()

    def _work_of_call(self, work: LaneWork, call: int, width: int, centers: Tensors | None) -> LaneWork:
        """Returns the work of the first lanes in one call."""
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
        return Lanes(rows, self._optimizer.start(rows[: self._trained]))

    def _load(
        self, lanes: Lanes, centers: Tensors | None, fits: Sequence[ClientFit], lane_slots: Sequence[LaneSlot]
    ) -> None:
        """Loads the starts of fits into their lanes, all at once: each transfer to a GPU would wait for it."""
        if not lane_slots:
            return
        where, taken = self._lanes_of(lane_slots), [fits[lane_slot.fit] for lane_slot in lane_slots]
        self._fill(lanes.rows, where, [fit.start for fit in taken])
        for tensor in (tensor for tensors in lanes.state for tensor in tensors):
            tensor.index_fill_(0, where, 0)
        drawn = [fit.center for fit in taken if fit.center is not None]
        if centers is not None and drawn:
            self._fill(centers, where, drawn)

    def _fill(self, tensors: Tensors, where: Tensor, rows: Sequence[Tensor]) -> None:
        """Writes rows `[d]` into these lanes."""
        table = torch.stack(list(rows)).to(self._device, self._dtype)
        for slot, tensor in zip(self._slots, tensors, strict=True):
            tensor.index_copy_(0, where, table[:, slot.start : slot.stop].view(-1, *slot.shape))

    def _rows(self, lanes: Lanes, lane_slots: Sequence[LaneSlot]) -> dict[int, Tensor]:
        """Reads the rows of the fits that end in these lanes, by fit."""
        where = self._lanes_of(lane_slots)
        table = torch.cat([tensor.index_select(0, where).flatten(1) for tensor in lanes.rows], dim=1).cpu()
        return {lane_slot.fit: row for lane_slot, row in zip(lane_slots, table, strict=True)}

    def _lanes_of(self, lane_slots: Sequence[LaneSlot]) -> Tensor:
        return torch.tensor([lane_slot.lane for lane_slot in lane_slots], device=self._device)

    def _result(self, fit: ClientFit, lane_slot: LaneSlot, row: Tensor, losses: Tensor) -> FitResult:
        begin = lane_slot.start * self.steps
        total = losses[begin : begin + fit.num_steps, lane_slot.lane].sum()
        return FitResult(fit.position, row, float(total) / fit.num_examples)


def _narrowed(lanes: Lanes, width: int) -> Lanes:
    return Lanes(_first_lanes(lanes.rows, width), tuple(_first_lanes(tensors, width) for tensors in lanes.state))


def _first_lanes(tensors: Tensors, width: int) -> Tensors:
    return tuple(tensor[:width].clone() for tensor in tensors)
