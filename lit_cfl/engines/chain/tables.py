"""Lays out what differs from step to step of a stack of clients."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_cfl.devices import sent
from lit_cfl.engines.chain.groups import ClientGroup
from lit_cfl.engines.cohort_fit import CohortFit


@dataclass(frozen=True, eq=False)
class CohortExamples:
    """What the clients of a cohort train on, in the form that stacks read.

    Args:
        inputs: `[N, d]`.
        targets: see `targets_of`, `[N, k]`.
        fixed: the frozen parameters by name, `[1, ...]`.
    """

    inputs: Tensor
    targets: Tensor
    fixed: Mapping[str, Tensor]


class Step(NamedTuple):
    """What a step of the first clients of a stack reads. In `StepTables` each part has an axis of steps in front.

    Args:
        rows: positions of the mini-batches' examples, int64 `[lanes * B]`: among those of the cohort, or in dual form
            among the padded ones of the stack. Where there is no example, the first one of the mini-batch.
        targets: Targets of these examples, see `targets_of`, `[lanes, B, k]`.
        shares: weight of each in the mean over its mini-batch `[lanes, B, 1]`; 0 = there is none.
        weights: Factor of the loss of each, of the same shape; None = 1.
        keys: Keys of the dropout masks, int64 `[lanes]`; None without dropout.
        left, pulled: see `DualLayer.shares`; None where no layer is in dual form.
        corrections, first: see `Update.finish`; None under plain SGD.
    """

    rows: Tensor
    targets: Tensor
    shares: Tensor
    keys: Tensor | None = None
    left: Any = None
    pulled: Any = None
    corrections: Tensor | None = None
    first: Tensor | None = None
    weights: Tensor | None = None


class StepTables:
    """All steps of a stack, on the device.

    Args:
        whole: the parts of all clients and steps.
        width: B.
    """

    def __init__(self, whole: Step, width: int) -> None:
        self.whole, self._width = whole, width

    def __len__(self) -> int:
        return len(self.whole.rows)

    def of(self, steps: range, lanes: int) -> Iterator[Step]:
        """Yields steps of the first clients."""
        span, none = slice(steps.start, steps.stop), [None] * len(steps)
        parts = [none if part is None else part[span] for part in self._first(lanes)]
        return starmap(Step, zip(*(p.unbind(0) if isinstance(p, Tensor) else p for p in parts), strict=True))

    def at(self, number: Tensor, lanes: int) -> Step:
        """Selects a step of the first clients by its number, int64 `[1]` on the device."""
        parts: list[Any] = [part if part is None else part.index_select(0, number)[0] for part in self._first(lanes)]
        return Step(*parts)

    def _first(self, lanes: int) -> Step:
        whole, keys = self.whole, self.whole.keys
        return whole._replace(
            rows=whole.rows[:, : lanes * self._width],
            targets=whole.targets[:, :lanes],
            shares=whole.shares[:, :lanes],
            keys=None if keys is None else keys[:, :lanes],
            weights=None if whole.weights is None else whole.weights[:, :lanes],
        )


def lay_out(work: CohortFit, group: ClientGroup, examples: CohortExamples, starts: Tensor, masked: bool) -> Step:
    """Lays out the mini-batches of a group, and what goes with them.

    Args:
        starts: position of each client's first example in the cohort's, int64 `[clients]`, on the device.
        masked: True if the chain has dropout.
    """
    firsts, steps = (work.steps.cumsum(0) - work.steps)[group.clients], work.steps[group.clients]
    at = firsts + torch.arange(max(group.steps))[:, None].minimum(steps - 1)  # behind its end a client repeats a step
    own, present = work.batches.table(at, group.width)
    among = starts if not group.size else torch.arange(len(starts), device=starts.device) * group.size
    positions = (own + starts[:, None]).flatten()
    return Step(
        rows=(own + among[:, None]).flatten(1),
        targets=examples.targets.index_select(0, positions).view(*own.shape, -1),
        shares=(present.to(work.models.dtype) / present.sum(-1, keepdim=True))[..., None],
        keys=sent(work.keys[at], own.device) if masked and work.keys is not None else None,
        weights=None if work.weights is None else work.weights[positions].view(*own.shape, 1),
    )
