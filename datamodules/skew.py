"""Making clients differ, with the truth attached. Pure functions over index lists."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_cfl.data import View
from lit_cfl.errors import InputError


def rotations(degrees: Sequence[int]) -> tuple[View, ...]:
    """One view a rotation.

    Args:
        degrees: multiples of 90, counter-clockwise.
    """
    for angle in degrees:
        if angle % 90:
            raise InputError(f"a rotation by {angle} degrees would blur the images; give multiples of 90")
    if not degrees:
        raise InputError("rotations is empty; give at least one angle, [0] for none")
    if len({angle % 360 for angle in degrees}) < len(degrees):
        raise InputError(f"rotations {list(degrees)} holds one angle twice: those clusters would be the same")
    return tuple(View(quarter_turns=angle // 90 % 4) for angle in degrees)


def in_turn(num_clients: int, num_clusters: int) -> Tensor:
    """True clusters given out in turn: client i is in cluster i mod `num_clusters`. int64 `[clients]`."""
    return torch.arange(num_clients) % num_clusters


def seen_as(lists: list[Tensor], views: Tensor, num_examples: int) -> list[Tensor]:
    """Example numbers as indices of a view.

    Args:
        lists: example numbers int64 of each client.
        views: the view of each client, int64 `[clients]`.
        num_examples: N, size of the pool.
    """
    return [one + view * num_examples for one, view in zip(lists, views.tolist(), strict=True)]
