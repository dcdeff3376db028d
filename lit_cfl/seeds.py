"""Independent random streams, one per purpose.

No stream depends on how many numbers another one drew: adding an evaluation, a client or a worker
never changes what the others draw.
"""

from collections.abc import Sequence
from hashlib import blake2b

import torch


def derive(seed: int, purpose: str, *ids: int) -> int:
    """Derives a 63-bit seed for one purpose, e.g. `derive(7, "train", round, client)`. The same on every platform."""
    text = "/".join([str(int(seed)), purpose, *(str(int(i)) for i in ids)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def derive_each(seed: int, purpose: str, *prefix: int, ids: Sequence[int]) -> list[int]:
    """Computes `derive(seed, purpose, *prefix, id)` for each id, faster than by single calls."""
    text = "/".join([str(int(seed)), purpose, *(str(int(i)) for i in prefix), ""])
    before, found = blake2b(text.encode(), digest_size=8), []
    for number in ids:
        one = before.copy()
        one.update(str(number).encode())
        found.append(int.from_bytes(one.digest(), "big") >> 1)
    return found


def generator(seed: int, purpose: str, *ids: int) -> torch.Generator:
    """Makes a random generator on the CPU for one purpose."""
    return torch.Generator().manual_seed(derive(seed, purpose, *ids))
