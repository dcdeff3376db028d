"""Random numbers from keys: the same for the same key, in any order and on any device."""

from math import pi

import torch
from torch import Tensor

__all__ = ["draw_keyed_normal", "draw_keyed_uniform"]

_MASK = 0xFFFFFFFF
_NOT_ZERO = 0x27D4EB2F  # 0 is hashed to 0, which would be an outlier


def hash_keys(keys: Tensor) -> Tensor:
    """Hashes 32-bit keys, int64 of any shape, to [0, 2^32) with the finaliser of MurmurHash3 (Appleby, 2011)."""
    mixed = keys & _MASK
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = ((mixed ^ (mixed >> shift)) * factor) & _MASK
    return mixed ^ (mixed >> 16)


def draw_keyed_uniform(keys: Tensor, size: int) -> Tensor:
    """Draws uniform numbers in (0, 1), `size` for each key: float64 `[n, size]`.

    Args:
        keys: Keys, int64 `[n]`; all 64 bits are used.
        size: Number of draws per key.
    """
    rows = hash_keys(hash_keys(keys ^ _NOT_ZERO) + 0x9E3779B9 * hash_keys(keys >> 32))
    positions = torch.arange(size, device=keys.device) * 0x9E3779B9
    return (hash_keys(rows[:, None] + positions).double() + 0.5) / 2**32


def draw_keyed_normal(keys: Tensor, size: int) -> Tensor:
    """Draws standard normal numbers, `size` for each key: float64 `[n, size]` (Box and Muller, 1958)."""
    uniform = draw_keyed_uniform(keys, 2 * size)
    normal: Tensor = (-2 * uniform[:, :size].log()).sqrt() * (2 * pi * uniform[:, size:]).cos()
    return normal
