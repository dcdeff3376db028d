"""Captures training steps as CUDA graphs: launching a small model's operations takes longer than the operations."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lit_cfl.devices import is_out_of_memory
from lit_cfl.engines.optimizers import Tensors
from lit_cfl.engines.steps import Lanes, LaneWork

_WARM_UPS = 3  # before a capture, so that libraries have made their workspaces


class CapturingError(RuntimeError):
    """The steps run, but cannot be captured, for example because a user's loss makes a tensor from a number."""


@dataclass(frozen=True, eq=False)
class _Captured:
    """A graph, and the tensors that it reads and writes: they must live as long as it does."""

    graph: torch.cuda.CUDAGraph
    lanes: Lanes
    work: LaneWork
    offsets: Tensor


class CapturedSteps:
    """Steps captured at their first call, for each width of the stack, and replayed from then on.

    A graph reads and writes the tensors that it was captured with: lanes, tables and the number of the next step
    (`LaneWork.at`), which it counts up itself. So a call copies nothing, and the caller fills the same tensors
    again; other tables or another pool of examples drop all graphs.

    Args:
        steps: to capture, eager or compiled; no operation in them may wait for the GPU or draw random numbers.
        device: `cuda:<i>`.
        num_steps: of one call.
    """

    def __init__(
        self, steps: Callable[[Lanes, LaneWork], tuple[Lanes, Tensor]], device: str, num_steps: int = 1
    ) -> None:
        self._steps, self._device, self._num_steps = steps, torch.device(device), num_steps
        self._captured: dict[tuple[object, ...], _Captured] = {}
        self._read: tuple[Tensor | None, ...] = ()
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, lanes: Lanes, work: LaneWork) -> None:
        """Advances the lanes in place, and keeps the losses in `work.losses`."""
        with torch.cuda.device(self._device):  # streams and captures belong to the current device
            self._graph_for(lanes, work).replay()

    def _graph_for(self, lanes: Lanes, work: LaneWork) -> torch.cuda.CUDAGraph:
        read = (work.inputs, work.losses)
        if len(read) != len(self._read) or any(mine is not given for mine, given in zip(self._read, read, strict=True)):
            self._captured.clear()
            self._read = read
        key = (len(lanes.rows[0]), work.prox is not None)
        if key not in self._captured:
            try:
                self._captured[key] = self._capture(lanes, work)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise torch.OutOfMemoryError(f"no memory for a CUDA graph: {error}") from error
        return self._captured[key].graph

    def _capture(self, lanes: Lanes, work: LaneWork) -> _Captured:
        """Captures the steps as PyTorch's notes on CUDA graphs advise: fixed tensors, and warm-ups on a side stream."""
        if work.at is None or work.losses is None:
            raise TypeError("captured steps count for themselves")
        changed = [*lanes.tensors, work.at]
        before = [tensor.clone() for tensor in changed]
        offsets = torch.arange(self._num_steps, device=work.at.device)
        self._stream = stream = self._stream or torch.cuda.Stream()  # one for all: they share memory
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with (
            _fastest_convolutions(),
            torch.cuda.stream(stream),
        ):  # and back to this one where a capture breaks off, which torch 2.11 forgets
            for _ in range(_WARM_UPS):
                work.at.copy_(before[-1])  # the losses of other steps are known already
                self._advance(lanes, work, work.at, work.losses, offsets)
            shared = next((held.graph.pool() for held in self._captured.values()), None)  # they never run at once
            work.at.copy_(before[-1])
            # Another thread may pin memory for the next examples meanwhile (`prepared_ahead`).
            try:
                with torch.cuda.graph(graph, pool=shared, stream=stream, capture_error_mode="thread_local"):
                    self._advance(lanes, work, work.at, work.losses, offsets)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                raise CapturingError(str(error)) from error
            for tensor, held in zip(changed, before, strict=True):
                tensor.copy_(held)
        torch.cuda.current_stream().wait_stream(stream)
        return _Captured(graph, lanes, work, offsets)

    def _advance(self, lanes: Lanes, work: LaneWork, at: Tensor, kept: Tensor, offsets: Tensor) -> None:
        """Computes the steps from `at` on, all on the device."""
        numbers = at + offsets
        tables: Tensors = tuple(table.index_select(0, numbers) for table in work.tables)
        now = replace(work.with_tables(tables, work.centers), at=None, losses=None)
        after, losses = self._steps(lanes, now)
        for mine, new in zip(lanes.tensors, after.tensors, strict=True):
            mine.copy_(new)
        kept[:, : losses.shape[1]].index_copy_(0, numbers, losses.to(kept.dtype))
        at.add_(len(offsets))


@contextmanager
def _fastest_convolutions() -> Iterator[None]:
    """Lets cuDNN choose its algorithms by trial, unless operations must be deterministic.

    A capture tries them once, and its graph keeps them. Outside of it each new size of a batch would cost a trial.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
