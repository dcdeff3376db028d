"""Subspaces of clients' examples, and the angles between them (PACFL)."""

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lit_cfl.errors import InputError, require_word

Angles = Literal["smallest", "sum"]
"""Distance of two subspaces, by their principal angles."""

_PAIRS_AT_ONCE = 2**22  # maximum number of inner products at once


def left_singular_vectors(examples: Tensor, number: int) -> Tensor:
    """Computes the first left singular vectors of the matrix that has the examples as its columns.

    Args:
        examples: Examples `[n, ...]`, flattened here; n of at least 1.
        number: Number p of vectors, 1 or more.

    Returns:
        Orthonormal rows `[min(p, rank), d]`, those of the largest singular values first.

    Raises:
        InputError: examples are tokens, or not finite.
    """
    rows = examples.flatten(1)
    if not rows.is_floating_point():
        raise InputError("token ids do not span a subspace; PACFL needs numeric inputs, such as images")
    if not rows.isfinite().all():
        raise InputError("an example has a value that is not finite; remove the example, or replace the value")
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    first: Tensor = vectors[: min(number, int(_rank(values, rows.shape)))]
    return first


def pad_bases(bases: list[Tensor]) -> Tensor:
    """Stacks bases of subspaces, `[m_i, d]` each, padded with zero rows to `[n, m, d]`; m is at least 1."""
    found = pad_sequence(bases, batch_first=True)
    return found if found.shape[1] else found.new_zeros(len(found), 1, found.shape[2])


def subspace_angles(bases: Tensor, others: Tensor, which: Angles) -> Tensor:
    """Computes the angles between each subspace of the first group and each of the second, in degrees.

    Args:
        bases: Rows that span each subspace `[n, m, d]`; rows of zeros are ignored.
        others: Rows that span the other subspaces `[k, l, d]`.
        which: Measure: `smallest` principal angle (paper, Eq. 2), in [0, 90]; `sum` of the principal angles, of which
            there are as many as the smaller subspace has dimensions.

    Returns:
        float64 `[n, k]`; 90 for a subspace without dimensions.

    Raises:
        InputError: an unknown measure.
    """
    require_word("angles", which, get_args(Angles))
    bases, others = _orthonormal(bases), _orthonormal(others)
    tile = max(1, _PAIRS_AT_ONCE // max(1, bases.shape[1] * others.shape[0] * others.shape[1]))
    return torch.cat([_angles(part, others, which) for part in bases.split(tile)])


def _angles(bases: Tensor, others: Tensor, which: Angles) -> Tensor:
    products = torch.einsum("imd,kld->ikml", bases, others)
    cosines: Tensor = torch.linalg.svdvals(products)
    degrees = cosines.clamp(max=1).arccos().rad2deg()  # ascending, as cosines descend
    if which == "smallest":
        return degrees[:, :, 0]
    smaller = torch.minimum(_dimensions(bases)[:, None], _dimensions(others)).clamp(min=1)
    counted = torch.arange(degrees.shape[2]) < smaller[:, :, None]
    return (degrees * counted).sum(2)


def _orthonormal(bases: Tensor) -> Tensor:
    """Returns orthonormal bases of the same subspaces, float64 `[n, min(m, d), d]`, padded with rows of zeros."""
    _, values, vectors = torch.linalg.svd(bases.double(), full_matrices=False)
    rank = _rank(values.to(bases.dtype), bases.shape[1:])  # a rounding error of the given vectors does not count
    spanning = torch.arange(values.shape[1]) < rank[:, None]
    found: Tensor = vectors * spanning[:, :, None]
    return found


def _dimensions(bases: Tensor) -> Tensor:
    return bases.any(2).sum(1)


def _rank(values: Tensor, shape: torch.Size) -> Tensor:
    """Computes the numerical rank of a matrix of this shape from its singular values `[..., k]`, descending."""
    return (values > max(shape) * torch.finfo(values.dtype).eps * values[..., :1]).sum(-1)
