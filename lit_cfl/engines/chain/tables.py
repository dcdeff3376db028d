"""Tables of a stack's inputs that change from step to step."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_cfl.data.examples import Decoding
from lit_cfl.devices import send
from lit_cfl.engines.chain.groups import ClientGroup
from lit_cfl.engines.chain.losses import prepare_targets
from lit_cfl.engines.chain.parts import Loss
from lit_cfl.engines.cohort_fit import CohortFit


@dataclass(frozen=True, eq=False)
class CohortExamples:
    """The training examples of a cohort, in the form that stacks read.

    Args:
        inputs: `[N, ...]`.
        targets: Targets `[N, k]`, see `targets_of`.
        fixed: Frozen parameters by name, `[1, ...]`.
        decode: Converts inputs to floats, see `CohortFit`; None = inputs are floats.
    """

    inputs: Tensor
    targets: Tensor
    fixed: Mapping[str, Tensor]
    decode: Decoding | None = None

    @property
    def width(self) -> int:
        """Number of input values per example."""
        return self.inputs.shape[1:].numel()

    def read(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Reads examples at these positions `[...]` as floats `[..., d]`.

        Bytes are converted here, while they are in a cache, rather than before the training.

        Args:
            out: Earlier result of at least this size, to be overwritten.
        """
        which, inputs = rows.flatten(), self.inputs.view(-1, self.width)
        out = None if out is None else out.view(-1, self.width)[: len(which)]
        if self.decode is None:
            found = torch.index_select(inputs, 0, which, out=out)
        else:
            found, shape = inputs.index_select(0, which), (len(which), *self.inputs.shape[1:])
            found = self.decode(found.view(shape), out=None if out is None else out.view(shape))
        return found.view(*rows.shape, self.width)


class Step(NamedTuple):
    """Inputs of one step for the first clients of a stack, except those that `inputs.py` gathers.

    Args:
        targets: Targets `[lanes, B, k]`, see `prepare_targets`.
        shares: Weight of each example in the mean over its mini-batch `[lanes, B, 1]`, times its loss's factor; 0 =
            no example.
        keys: Keys of the dropout masks, int64 `[lanes]`; None without dropout.
        corrections, first: See `Update.finish`; None under plain SGD.
    """

    targets: Tensor
    shares: Tensor
    keys: Tensor | None
    corrections: Tensor | None
    first: Tensor | None


@dataclass(frozen=True, eq=False)
class StackSteps:
    """Inputs of several steps for the first clients (lanes) of a stack, on the device.

    Args:
        rows: Positions of the mini-batches' examples, int64 `[steps, lanes * B]`: among those of the cohort, or in dual
            form among the padded ones of the stack. Places without an example repeat the first one of the mini-batch.
        targets: Targets of these examples, see `targets_of`, `[steps, lanes, B, k]`.
        shares: Weight of each in the mean over its mini-batch `[steps, lanes, B, 1]`; 0 = no example.
        weights: Factor of the loss of each, of the same shape; None = 1.
        keys: Keys of the dropout masks, int64 `[steps, lanes]`; None without dropout.
        left, pulled: See `DualLayer.shares`; None if no layer is in dual form.
        corrections, first: See `Update.finish`; None under plain SGD.
    """

    rows: Tensor
    targets: Tensor
    shares: Tensor
    keys: Tensor | None = None
    left: Tensor | None = None
    pulled: Tensor | None = None
    corrections: Tensor | None = None
    first: Tensor | None = None
    weights: Tensor | None = None

    def part(self, span: slice, lanes: int) -> "StackSteps":
        """Selects a range of steps, for the first `lanes` clients."""
        return self._select(lanes, lambda part: part[span])

    def at(self, number: Tensor, lanes: int) -> "StackSteps":
        """Selects one step, for the first `lanes` clients; the step's number is int64 `[1]` on the device."""
        return self._select(lanes, lambda part: part.index_select(0, number))

    def _select(self, lanes: int, select: Callable[[Tensor], Tensor]) -> "StackSteps":
        def selected(part: Tensor | None) -> Tensor | None:
            return None if part is None else select(part)

        return StackSteps(
            select(self.rows[:, : lanes * self.targets.shape[2]]),
            select(self.targets[:, :lanes]),
            select(self.shares[:, :lanes]),
            None if self.keys is None else select(self.keys[:, :lanes]),
            selected(self.left),
            selected(self.pulled),
            selected(self.corrections),
            selected(self.first),
            None if self.weights is None else select(self.weights[:, :lanes]),
        )

    def each(self, loss: Loss, outputs: int) -> Iterator[Step]:
        """Yields the steps one by one, with targets for a chain with this loss and this number of outputs."""
        shares = self.shares if self.weights is None else self.shares * self.weights
        targets = prepare_targets(loss, self.targets, shares, outputs)
        parts = (targets, shares, self.keys, self.corrections, self.first)
        none = [None] * len(self.rows)
        return map(Step, *(none if part is None else part.unbind(0) for part in parts))


def lay_out(work: CohortFit, group: ClientGroup, examples: CohortExamples, starts: Tensor, masked: bool) -> StackSteps:
    """Builds the tables of a group's mini-batches.

    Args:
        starts: Position of each client's first example in the cohort's, int64 `[clients]`, on the device.
        masked: True if the chain has dropout.
    """
    firsts, steps = (work.steps.cumsum(0) - work.steps)[group.clients], work.steps[group.clients]
    at = firsts + torch.arange(max(group.steps))[:, None].minimum(steps - 1)  # finished clients repeat their last step
    own, present = work.batches.table(at, group.width)
    among = starts if not group.size else torch.arange(len(starts), device=starts.device) * group.size
    positions = (own + starts[:, None]).flatten()
    return StackSteps(
        rows=(own + among[:, None]).flatten(1),
        targets=examples.targets.index_select(0, positions).view(*own.shape, -1),
        shares=(present.to(work.models.dtype) / present.sum(-1, keepdim=True))[..., None],
        keys=send(work.keys[at], own.device) if masked and work.keys is not None else None,
        weights=None if work.weights is None else work.weights[positions].view(*own.shape, 1),
    )
