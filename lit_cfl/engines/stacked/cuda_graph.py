"""Captures training steps as CUDA graphs: launching a small model's operations takes longer than running them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch

from lit_cfl.devices import is_out_of_memory
from lit_cfl.engines.stacked.lane_steps import Lanes, LaneWork

_WARM_UPS = 3  # calls before a capture, in which libraries allocate their workspaces


class CapturingError(RuntimeError):
    """Raised when steps run but cannot be captured, e.g. because a user's loss makes a tensor from a number."""


# A graph with its input and output tensors, which must live as long as the graph
_Captured = tuple[torch.cuda.CUDAGraph, Lanes, LaneWork]


class CapturedSteps:
    """Captures a step at its first call, for each width of the stack, and replays it from then on.

    A graph reads and writes the tensors that it was captured with: lanes, tables and the number of the next step
    (`LaneWork.at`), which it increments. So a call copies nothing, and the caller fills the same tensors again; new
    tables or a new pool of examples discard all graphs.

    Args:
        steps: Steps to capture; no operation in them may wait for the GPU or draw random numbers.
        device: `cuda:<i>`.
    """

    def __init__(self, steps: Callable[[Lanes, LaneWork], None], device: str) -> None:
        self._steps, self._device = steps, torch.device(device)
        self._captured: dict[tuple[object, ...], _Captured] = {}
        self._read: tuple[int, ...] = ()
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, lanes: Lanes, work: LaneWork) -> None:
        """Takes a step as `Steps` does."""
        with torch.cuda.device(self._device):  # streams and captures belong to the current device
            self._graph_for(lanes, work).replay()

    def _graph_for(self, lanes: Lanes, work: LaneWork) -> torch.cuda.CUDAGraph:
        # a graph reads fixed addresses; the address of a view is that of its first element
        read = tuple(tensor.data_ptr() for tensor in (work.inputs, work.losses, lanes.rows[0]))
        if read != self._read:
            self._captured.clear()
            self._read = read
        key = (len(lanes.rows[0]), work.prox is not None, work.weights is not None)
        if key not in self._captured:
            try:
                self._captured[key] = self._capture(lanes, work)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise torch.OutOfMemoryError(f"no memory for a CUDA graph: {error}") from error
        return self._captured[key][0]

    def _capture(self, lanes: Lanes, work: LaneWork) -> _Captured:
        """Captures the step as PyTorch's CUDA graph notes advise: fixed tensors, and warm-ups on a side stream."""
        changed = [*lanes.tensors, work.at]
        before = [tensor.clone() for tensor in changed]
        self._stream = stream = self._stream or torch.cuda.Stream()  # one stream for all captures, which share memory
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with (
            _fastest_convolutions(),
            torch.cuda.stream(stream),
        ):  # restores the stream after a failed capture, as torch 2.11 itself does not
            for number in range(_WARM_UPS):
                work.at.copy_(before[-1])  # keeps the losses of earlier steps
                with _refuse_waits() if number else nullcontext():
                    self._steps(lanes, work)
            # graphs may share memory, since no two run at the same time
            shared = next((graph.pool() for graph, *_ in self._captured.values()), None)
            work.at.copy_(before[-1])
            # `thread_local`, since another thread may pin memory for the next examples meanwhile (`prepare_ahead`)
            try:
                with torch.cuda.graph(graph, pool=shared, stream=stream, capture_error_mode="thread_local"):
                    self._steps(lanes, work)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                raise CapturingError(str(error)) from error
            for tensor, held in zip(changed, before, strict=True):
                tensor.copy_(held)
        torch.cuda.current_stream().wait_stream(stream)
        return graph, lanes, work


@contextmanager
def _refuse_waits() -> Iterator[None]:
    """Raises CapturingError if the step in the block waits for the GPU.

    Its capture would fail, and a failed capture leaks memory (torch 2.11).
    """
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        raise CapturingError(str(error)) from error
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _fastest_convolutions() -> Iterator[None]:
    """Lets cuDNN choose its algorithms by benchmarking, unless operations must be deterministic.

    A capture tries them once, and its graph keeps the choice. Elsewhere each new batch size would cost a trial.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
