"""Checks that matrix products on a CPU are independent of memory alignment; see `reproducible_products`."""

import warnings

import torch

from lit_cfl.errors import Notice
from lit_cfl.reproducible_products import SETTING, STRICT

_PLACES = 16  # number of float32 values in a cache line


def warn_of_irreproducible_products() -> None:
    """Warns if the last bits of matrix products depend on memory alignment."""
    if not all(_adds_in_one_order(dtype) for dtype in (torch.float32, torch.float64)):
        warnings.warn(
            "on this processor, products of matrices depend on where the matrices lie in memory, so the last bits of "
            f"a client's model depend on the other clients; set {SETTING}={STRICT} before Python starts",
            Notice,
            stacklevel=2,
        )


def _adds_in_one_order(dtype: torch.dtype) -> bool:
    """Returns whether a product has the same bits wherever its result lies in memory."""
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, dtype=dtype, generator=rng) for shape in ((1, 10, 64), (1, 64, 8)))
    room = torch.empty(_PLACES - 1 + 10 * 8, dtype=dtype)
    found = [torch.bmm(a, b, out=room[place : place + 10 * 8].view(1, 10, 8)).clone() for place in range(_PLACES)]
    return all(torch.equal(found[0], other) for other in found[1:])
