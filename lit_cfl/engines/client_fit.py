"""Describes one client's training as tensors, and its result."""

from dataclasses import dataclass
from math import isfinite

from torch import Tensor

ExamplePool = tuple[Tensor, Tensor]  # inputs [N, ...] and labels [N] of the clients that train together


@dataclass(frozen=True, eq=False)
class ClientFit:
    """One client's training.

    Args:
        position: of the client in its chunk.
        start: the row it starts from `[d]`.
        table: its mini-batches, positions in the pool int64 `[steps, B]`, -1 = no example; those there are come first.
        keys: of the dropout masks, int64 `[steps]`.
        center: of the proximal term `[d]`, or None.
    """

    position: int
    start: Tensor
    table: Tensor
    keys: Tensor
    center: Tensor | None = None

    @property
    def num_steps(self) -> int:
        return len(self.table)

    @property
    def num_examples(self) -> int:
        """Examples seen, repeats counted."""
        return int((self.table >= 0).sum())


@dataclass(frozen=True, eq=False)
class FitResult:
    """The result of a client's training.

    Args:
        position: of the client in its chunk.
        row: `[d]`, on the CPU.
        loss: mean per example over the whole fit.
    """

    position: int
    row: Tensor
    loss: float

    @property
    def finite(self) -> bool:
        """Whether loss and row have no NaN and no infinity. A sum is ten times as fast as to look at each number."""
        return isfinite(self.loss) and (isfinite(self.row.sum()) or bool(self.row.isfinite().all()))
