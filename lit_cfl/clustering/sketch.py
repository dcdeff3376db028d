"""A seeded random projection that roughly preserves cosines: for StoCFL with very many clients (`sketch_dim`)."""

from functools import partial

import torch
from torch import Tensor

from lit_cfl.errors import InputError
from lit_cfl.local_work import Sketch


def random_projection(num_columns: int, sketch_dim: int, rng: torch.Generator | int) -> Sketch:
    """Draws a count sketch: a random projection in one pass over a row, without storing a matrix.

    Each column is added, with a random sign, to a random bucket. Charikar, Chen, Farach-Colton, 2002; with buckets of
    equal size. The error of cosines was measured at d = 1,628,170, on columns of equal and of very different scales.
    With 1,024 columns it is .034 near 0 and .019 near .7 (root mean square; the maximum of 25,000 is .14), with 8,192
    columns .010 and .006 (.04).

    Args:
        num_columns: Number of columns d of the rows.
        sketch_dim: Number of columns of the result, 1 to d. The standard error of a cosine is about 1 /
            sqrt(sketch_dim).
        rng: Generator or seed; equal seeds give equal projections.

    Returns:
        Function of rows `[n, d]` to `[n, sketch_dim]` in their dtype; rows do not influence each other.
    """
    if not 1 <= sketch_dim <= num_columns:
        raise InputError(
            f"sketch_dim is {sketch_dim}, but there are {num_columns} columns to project; give 1 to {num_columns}, or "
            "leave it out"
        )
    rng = torch.Generator().manual_seed(rng) if isinstance(rng, int) else rng
    buckets = torch.randperm(num_columns, generator=rng) % sketch_dim
    signs = torch.randint(2, (num_columns,), generator=rng, dtype=torch.int8) * 2 - 1
    return partial(_project, buckets=buckets, signs=signs, sketch_dim=sketch_dim)


def _project(rows: Tensor, *, buckets: Tensor, signs: Tensor, sketch_dim: int) -> Tensor:
    if rows.shape[1] != len(buckets):
        raise InputError(
            f"rows have {rows.shape[1]} columns, but this projection was made for {len(buckets)}; give rows of that "
            "length"
        )
    sketches = rows.new_zeros(len(rows), sketch_dim)
    # row by row: needs no copy of all rows, and gives the same bits for any number of rows
    for row, sketch in zip(rows, sketches, strict=True):
        sketch.scatter_add_(0, buckets, row * signs)
    return sketches
