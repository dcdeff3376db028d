"""Describes one client's training as tensors, and its result."""

from dataclasses import dataclass

from torch import Tensor

ExamplePool = tuple[Tensor, Tensor]  # inputs [N, ...] and labels [N] of the clients that train together


@dataclass(frozen=True, eq=False)
class ClientFit:
    """One client's training.

    Args:
        position: of the client in its chunk.
        row: its model `[d]`: in the beginning the one it starts from, in the end the trained one.
        table: its mini-batches, positions in the pool int64 `[steps, B]`, -1 = no example; those there are come first.
        keys: of the dropout masks, int64 `[steps]`.
        center: of the proximal term `[d]`, or None.
    """

    position: int
    row: Tensor
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
        loss: mean per example over the whole fit.
        finite: whether the loss and the trained row have no NaN and no infinity.
    """

    position: int
    loss: float
    finite: bool


def finite_rows(rows: Tensor) -> list[bool]:
    """Says which rows `[n, d]` have no NaN and no infinity. A sum is ten times as fast as to look at each number."""
    finite: list[bool] = rows.sum(1).isfinite().tolist()
    return finite if all(finite) else rows.isfinite().all(1).tolist()
