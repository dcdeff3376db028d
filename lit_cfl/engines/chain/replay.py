"""Replays a step on a GPU as a CUDA graph: launching its operations one by one takes ten times their run time."""

from collections.abc import Callable

import torch

FEWEST = 8  # minimum number of steps for a graph: capturing one takes as long as launching two or three
_LAUNCHED = 2  # steps before the capture, in which libraries allocate what they need


class StepCapture:
    """Captures CUDA graphs one after another; each reuses the memory of the previous one.

    Args:
        device: `cuda:<i>`.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._stream: torch.cuda.Stream | None = None
        self._latest: torch.cuda.CUDAGraph | None = None  # kept, since its memory would be freed with it

    def capture(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Captures a step without executing it. The step must neither wait for the GPU nor allocate host memory."""
        with torch.cuda.device(self._device):
            self._stream = stream = self._stream or torch.cuda.Stream()
            pool = None if self._latest is None else self._latest.pool()
            graph = torch.cuda.CUDAGraph()
            stream.wait_stream(torch.cuda.current_stream())
            # Not `torch.cuda.graph`, which first releases all cached memory. Another thread may pin memory meanwhile.
            with torch.cuda.stream(stream):
                graph.capture_begin(pool, capture_error_mode="thread_local")
                try:
                    step()
                finally:
                    graph.capture_end()
            torch.cuda.current_stream().wait_stream(stream)
        self._latest = graph
        return graph


class ReplayedStep:
    """A step that is launched twice, then captured as a CUDA graph and replayed.

    Args:
        step: Reads and changes the same tensors each time.
        capture: Captures the step's graph.
    """

    def __init__(self, step: Callable[[], None], capture: StepCapture) -> None:
        self._step, self._capture, self._taken = step, capture, 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, times: int) -> None:
        """Takes the step this many times."""
        for _ in range(times):
            if self._taken >= _LAUNCHED:
                self._graph = self._graph or self._capture.capture(self._step)
                self._graph.replay()
            else:
                self._step()
            self._taken += 1
