"""Reports clients that cannot be told apart."""

import warnings

import torch
from torch import Tensor

from lit_cfl.errors import Notice


def say_if_equal(updates: Tensor) -> None:
    """Adds a notice if all updates `[n, d]` to be clustered are equal."""
    if len(updates) < 2 or not all(torch.equal(row, updates[0]) for row in updates[1:]):  # ends at the first other one
        return
    zero = " to zero" if not updates[0].any() else ""
    warnings.warn(
        f"the updates of all {len(updates)} clients are equal{zero}: clusters made of them mean nothing "
        "(look at the learning rate, and whether all clients have the same data)",
        Notice,
        stacklevel=3,
    )
