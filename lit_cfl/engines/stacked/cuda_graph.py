"""Captures training steps as CUDA graphs: launching a small model's operations takes longer than the operations."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lit_cfl.engines.base import is_out_of_memory
from lit_cfl.engines.optimizers import Tensors
from lit_cfl.engines.steps import Lanes, LaneWork, Steps

_WARM_UPS = 3  # before a capture, so that libraries have made their workspaces


@dataclass(frozen=True, eq=False)
class _Captured:
    """A graph, and the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    lanes: Lanes
    work: LaneWork
    losses: Tensor


class CapturedSteps:
    """Steps captured at their first call, for each shape of the work, and replayed from then on.

    The lanes are updated in place: those returned are the graph's own, and so are valid until the next call. The pool
    of examples is read where it lies: a call with another pool drops all graphs.

    Args:
        steps: to capture; no operation in them may wait for the GPU or draw random numbers.
        device: `cuda:<i>`.
    """

    def __init__(self, steps: Steps, device: str) -> None:
        self._steps, self._device = steps, torch.device(device)
        self._captured: dict[tuple[object, ...], _Captured] = {}
        self._pool: Tensor | None = None
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, lanes: Lanes, work: LaneWork) -> tuple[Lanes, Tensor]:
        with torch.cuda.device(self._device):  # streams and captures belong to the current device
            held = self._graph_for(lanes, work)
            for mine, given in zip(_tensors(held.lanes, held.work), _tensors(lanes, work), strict=True):
                if mine is not given:
                    mine.copy_(given)
            held.graph.replay()
            return held.lanes, held.losses.clone()

    def _graph_for(self, lanes: Lanes, work: LaneWork) -> _Captured:
        if self._pool is not work.inputs:
            self._captured.clear()
            self._pool = work.inputs
        key = (work.index.shape, work.prox is not None)
        if key not in self._captured:
            try:
                self._captured[key] = self._capture(lanes, work)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise torch.OutOfMemoryError(f"no memory for a CUDA graph: {error}") from error
        return self._captured[key]

    def _capture(self, lanes: Lanes, work: LaneWork) -> _Captured:
        """Captures the steps as PyTorch's notes on CUDA graphs advise: fixed tensors, and warm-ups on a side stream."""
        own_lanes, own_work = _copied(lanes, work)
        self._stream = stream = self._stream or torch.cuda.Stream()  # one for all: they share memory
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # and back to this one where a capture breaks off, which torch 2.11 forgets
            for _ in range(_WARM_UPS):
                self._steps(own_lanes, own_work)
            shared = next((held.graph.pool() for held in self._captured.values()), None)  # they never run at once
            with torch.cuda.graph(graph, pool=shared, stream=stream):
                after, losses = self._steps(own_lanes, own_work)
                for mine, new in zip(own_lanes.tensors, after.tensors, strict=True):
                    mine.copy_(new)
        torch.cuda.current_stream().wait_stream(stream)
        return _Captured(graph, own_lanes, own_work, losses)


def _tensors(lanes: Lanes, work: LaneWork) -> list[Tensor]:
    """Lists the tensors that may differ from call to call; the pool's buffers do not."""
    prox = [] if work.prox is None else [work.prox]
    return [
        *lanes.tensors,
        work.index,
        work.keys,
        work.corrections,
        work.first,
        *prox,
        *(work.centers or ()),
    ]


def _copied(lanes: Lanes, work: LaneWork) -> tuple[Lanes, LaneWork]:
    """Copies lanes and work, all but the pool."""
    own_work = replace(
        work,
        index=work.index.clone(),
        keys=work.keys.clone(),
        corrections=work.corrections.clone(),
        first=work.first.clone(),
        prox=None if work.prox is None else work.prox.clone(),
        centers=None if work.centers is None else _copies(work.centers),
    )
    return Lanes(_copies(lanes.rows), tuple(_copies(slot) for slot in lanes.state)), own_work


def _copies(tensors: Tensors) -> Tensors:
    return tuple(tensor.clone() for tensor in tensors)
