"""Steps as a CUDA graph: on a GPU the launches of a small model's operations take longer than the operations."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lit_cfl.local.steps import Lanes, Steps, Work
from lit_cfl.local.update import Tensors

_WARM_UPS = 3  # before a capture, so that libraries have made their workspaces


@dataclass(frozen=True, eq=False)
class _Captured:
    """A graph, and the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    lanes: Lanes
    work: Work
    losses: Tensor


class CapturedSteps:
    """Steps captured at their first call, for each shape of the work, and replayed from then on.

    The lanes are updated in place: those returned are the graph's own, and so are valid until the next call.

    Args:
        steps: to capture.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._captured: dict[tuple[object, ...], _Captured] = {}

    def __call__(self, lanes: Lanes, work: Work) -> tuple[Lanes, Tensor]:
        key = (work.index.shape, work.prox is not None, work.inputs.data_ptr())
        if key not in self._captured:
            self._captured[key] = self._capture(lanes, work)
        held = self._captured[key]
        for mine, given in zip(_tensors(held.lanes, held.work), _tensors(lanes, work), strict=True):
            if mine is not given:
                mine.copy_(given)
        held.graph.replay()
        return held.lanes, held.losses.clone()

    def _capture(self, lanes: Lanes, work: Work) -> _Captured:
        """The pool of examples is read where it lies; all else is copied into tensors of the graph."""
        own_lanes = Lanes(_copies(lanes.rows), tuple(_copies(slot) for slot in lanes.state))
        own_work = replace(
            work,
            index=work.index.clone(),
            keys=work.keys.clone(),
            corrections=work.corrections.clone(),
            first=work.first.clone(),
            prox=None if work.prox is None else work.prox.clone(),
            centers=None if work.centers is None else _copies(work.centers),
        )
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._steps(own_lanes, own_work)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            after, losses = self._steps(own_lanes, own_work)
            for mine, new in zip(_of_lanes(own_lanes), _of_lanes(after), strict=True):
                mine.copy_(new)
        return _Captured(graph, own_lanes, own_work, losses)


def _tensors(lanes: Lanes, work: Work) -> list[Tensor]:
    """All that may differ from call to call; the pool's buffers do not."""
    prox = [] if work.prox is None else [work.prox]
    return [
        *_of_lanes(lanes), work.index, work.keys, work.corrections, work.first, *prox, *(work.centers or ()),
    ]  # fmt: skip


def _of_lanes(lanes: Lanes) -> list[Tensor]:
    return [*lanes.rows, *(tensor for slot in lanes.state for tensor in slot)]


def _copies(tensors: Tensors) -> Tensors:
    return tuple(tensor.clone() for tensor in tensors)
