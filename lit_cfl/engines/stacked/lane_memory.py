"""Estimates the memory of one lane of a GPU's stack from a step on fake tensors.

Fake tensors have shapes and no numbers, so the estimate is a property of model, optimizer and batch size. It excludes
the workspaces of cuDNN and cuBLAS, the rounding of the allocator, and the memory of graphs captured earlier: a graph
keeps the memory of its step, and the warm-ups before the capture of another width, or with a proximal term or weights,
take memory in addition to it. By rule lanes take at most a quarter of a GPU's memory (`choose_plan.py`), which leaves
room.
"""

from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from lit_cfl.engines.optimizers import FunctionalOptimizer
from lit_cfl.engines.plan import Precision, compute_dtype, row_dtype
from lit_cfl.engines.stacked.lane_steps import Lanes, LaneWork, Steps
from lit_cfl.engines.stacked.torch_internals import FakeTensorMode, TorchDispatchMode, tree_leaves
from lit_cfl.engines.task_protocol import Batch
from lit_cfl.parameters import ParameterLayout

_LANES = 2  # number of lanes in the measured step; all lanes take the same memory


def lane_bytes(
    steps: Steps,
    layout: ParameterLayout,
    update: FunctionalOptimizer,
    precision: Precision,
    example: Batch,
    batch_size: int,
) -> int:
    """Estimates the bytes of a lane while one of its steps is captured.

    These are its model and optimizer state, their copies during a capture, its proximal centre, its trained model, and
    the maximum of the other tensors in a step with a proximal term: batch, activations, gradients.

    Args:
        steps: Steps of the stack.
        layout: Layout of the module's rows.
        update: The optimizer's rule.
        precision: The plan's precision.
        example: Example as the stack receives it.
        batch_size: Number of examples in a batch.
    """
    dtype = compute_dtype(precision)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        rows = tuple(torch.zeros(_LANES, *slot.shape, dtype=dtype) for slot in layout.slots)
        lanes = Lanes(rows, update.start(rows[: sum(not slot.is_buffer for slot in layout.slots)]))
        work = make_work(lanes, example, batch_size)
        with _Living() as living:
            steps(lanes, work)
    held = sum(tensor.nbytes for tensor in lanes.tensors)
    return int(living.most + 2 * held) // _LANES + layout.num_columns * (dtype.itemsize + row_dtype(precision).itemsize)


def make_work(lanes: Lanes, example: Batch, batch_size: int) -> LaneWork:
    """Builds the inputs of one step of the lanes, with a proximal term."""
    count = len(lanes.rows[0])
    inputs, labels = (torch.zeros(batch_size, *part.shape[1:], dtype=part.dtype) for part in example)
    return LaneWork(
        inputs,
        labels,
        index=torch.zeros(1, count, batch_size, dtype=torch.int64),
        keys=torch.zeros(1, count, dtype=torch.int64),
        corrections=torch.ones(1, 2, count, dtype=torch.float64),
        first=torch.zeros(1, count, dtype=torch.bool),
        at=torch.zeros(1, dtype=torch.int64),
        losses=torch.zeros(1, count),
        prox=torch.zeros((), dtype=lanes.rows[0].dtype),
        centers=lanes.rows,
    )


class _Living(TorchDispatchMode):
    """Counts the bytes of live tensors created by operations, each storage once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.most = self._now = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note((args, kwargs), made=False)
        found = func(*args, **(kwargs or {}))
        self._note(found, made=True)
        return found

    def _note(self, tree: Any, made: bool) -> None:
        for leaf in tree_leaves(tree):
            if not isinstance(leaf, Tensor):
                continue
            storage = leaf.untyped_storage()
            if id(storage) not in self._known:
                size = storage.nbytes() if made else 0
                self._known.add(id(storage))
                self._now += size
                finalize(storage, self._record_free, id(storage), size)
        self.most = max(self.most, self._now)

    def _record_free(self, number: int, size: int) -> None:
        self._known.discard(number)
        self._now -= size
