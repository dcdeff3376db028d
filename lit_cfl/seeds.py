"""Random streams, one for each purpose.

No stream depends on how many numbers another one drew: adding an evaluation, a client or a worker
never changes what the others see.
"""

from hashlib import blake2b

import torch


def derive(seed: int, purpose: str, *ids: int) -> int:
    """Derives a 63-bit seed for one purpose, e.g. `derive(7, "train", round, client)`. Equal on every platform."""
    text = "/".join([str(int(seed)), purpose, *(str(int(i)) for i in ids)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, *ids: int) -> torch.Generator:
    """Makes a CPU generator for one purpose alone."""
    return torch.Generator().manual_seed(derive(seed, purpose, *ids))
