"""A seeded random projection that keeps cosines: for StoCFL with very many clients (`sketch_dim`)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_cfl.errors import InputError
from lit_cfl.local_work import Sketch


@dataclass(frozen=True, eq=False)
class CountSketch:
    """A projection of rows `[n, d]` -> `[n, sketch_dim]`: each column is added, with a random sign, to one bucket.

    Args:
        buckets: Bucket of each column, int64 `[d]`, as equal in size as can be.
        signs: Sign of each column, int8 `[d]`.
        sketch_dim: number of buckets.
    """

    buckets: Tensor
    signs: Tensor
    sketch_dim: int

    def __call__(self, rows: Tensor) -> Tensor:
        if rows.shape[1] != len(self.buckets):
            raise InputError(f"rows have {rows.shape[1]} columns, but this projection was made for {len(self.buckets)}")
        sketches = rows.new_zeros(len(rows), self.sketch_dim)
        for row, sketch in zip(rows, sketches, strict=True):  # row by row: no copy of all, and the same bits
            sketch.scatter_add_(0, self.buckets, row * self.signs)
        return sketches


def random_projection(num_columns: int, sketch_dim: int, rng: torch.Generator | int) -> Sketch:
    """Draws a count sketch: a random projection in one pass over a row, without storing a matrix.

    Charikar, Chen, Farach-Colton, 2002; with buckets of equal size. Measured by `benchmarks/clustering.py` at
    d = 1,628,170, on columns of one scale and of very different ones: the error of a cosine is .034 near 0 and .019
    near .7 to 1,024 columns (root mean square; the greatest of 25,000: .14), .010 and .006 to 8,192 (.04).

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
    buckets = torch.randperm(num_columns, generator=rng) % sketch_dim
    signs = torch.randint(2, (num_columns,), generator=rng, dtype=torch.int8) * 2 - 1
    return CountSketch(buckets, signs, sketch_dim)
