"""A seeded random projection that keeps cosines: for StoCFL with very many clients (`sketch_dim`)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_cfl.errors import InputError
from lit_cfl.local.work import Sketch


@dataclass(frozen=True, eq=False)
class CountSketch:
    """Columns are dealt into equal buckets, each with a random sign, and summed: rows `[n, d]` -> `[n, sketch_dim]`.

    Args:
        order: the columns in the order in which they are dealt, int64 `[d]`.
        signs: of the columns in that order, int8 `[d]`.
        sketch_dim: number of buckets.
    """

    order: Tensor
    signs: Tensor
    sketch_dim: int

    def __call__(self, rows: Tensor) -> Tensor:
        if rows.shape[1] != len(self.order):
            raise InputError(f"rows have {rows.shape[1]} columns, but this projection was made for {len(self.order)}")
        order, signs = self.order.to(rows.device), self.signs.to(rows.device)
        whole = len(order) // self.sketch_dim * self.sketch_dim
        sketches = rows.new_empty(len(rows), self.sketch_dim)
        for row, sketch in zip(rows, sketches, strict=True):  # row by row: no copy of all, and the same bits
            dealt = row[order] * signs
            torch.sum(dealt[:whole].view(-1, self.sketch_dim), 0, out=sketch)
            sketch[: len(dealt) - whole] += dealt[whole:]
        return sketches


def random_projection(num_columns: int, sketch_dim: int, rng: torch.Generator | int) -> Sketch:
    """A count sketch: a random projection in one pass over a row, that never holds a matrix.

    Args:
        num_columns: d of the rows.
        sketch_dim: columns of the result, 1 to d. The standard error of a cosine is about 1 / sqrt(sketch_dim).
        rng: a generator or a seed; equal seeds give equal projections.

    Returns:
        Rows `[n, d]` -> `[n, sketch_dim]` in their dtype; each row's result is its own, however rows are chunked.
    """
    if not 1 <= sketch_dim <= num_columns:
        raise InputError(
            f"sketch_dim {sketch_dim} does not project {num_columns} columns; give 1 to {num_columns}, or none at all"
        )
    rng = torch.Generator().manual_seed(rng) if isinstance(rng, int) else rng
    order = torch.randperm(num_columns, generator=rng)
    signs = torch.randint(2, (num_columns,), generator=rng, dtype=torch.int8) * 2 - 1
    return CountSketch(order, signs, sketch_dim)
