"""FashionMNIST-500: 500 clients with five labels each and log-normal sizes, exactly as released.

arXiv:2012.04221; data/fmnist/create_dataset.py of the released code.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex, Division
from lit_cfl.datamodules.partition.base import Partition, Pool
from lit_cfl.datamodules.partition.checks import require_labels
from lit_cfl.datamodules.partition.labels import cyclic_labels, join_pieces
from lit_cfl.errors import InputError

NUM_CLIENTS, NUM_LABELS, CLASSES, TOTAL = 500, 10, 5, 60_000


@dataclass(frozen=True)
class Ditto500(Partition):
    """500 clients with five labels each and log-normal sizes, as for Fashion-MNIST in Ditto and FlexCFL.

    This is the released generator, which gives exactly 61,251 images of Fashion-MNIST for training and 11,254 for
    testing. Client u has the labels u to u + 4 modulo 10. The images of a label are dealt in the order of the source,
    separately in the training and the test part, starting over when too few are left. So clients may share images, but
    no client has an image twice. The true cluster is u mod 10.

    Args:
        seed: Seed of the sizes, 0 to 2^32 - 1; the released code has 233. The run's seed has no effect.
    """

    paper: ClassVar[str] = (
        "Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021. "
        "arXiv:2012.04221"
    )
    skew: ClassVar[str] = "label"
    seed: int = 233

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed of Ditto500 is {self.seed}; give 0 to {2**32 - 1}")

    def divide(self, pool: Pool, rng: np.random.Generator) -> Division:
        pool.examples.require_classes("Ditto500")
        if not pool.has_test:
            raise InputError(
                "Ditto500 tests on the source's test part, and this source has none; take another partition"
            )
        which, wanted = cyclic_labels(NUM_CLIENTS, CLASSES, NUM_LABELS), draw_wanted_images(self.seed)
        train = deal_in_cycles(pool.labels[: pool.num_train], which, wanted.long() + 1)
        test = deal_in_cycles(pool.labels[pool.num_train :], which, (wanted / 6).long() + 1)
        after = ClientIndex(test.values + pool.num_train, test.starts, test.sizes)
        return Division(train, after, which[:, 0], self.skew)


def draw_wanted_images(seed: int) -> Tensor:
    """Draws each client's number of training images per label, before rounding, float64 `[500, 5]`."""
    rng = np.random.RandomState(seed)  # the legacy generator, whose numbers are the same in all NumPy versions
    sizes = rng.lognormal(3, 1, NUM_CLIENTS) + 10
    sizes = TOTAL * sizes / sizes.cumsum()[-1]  # summed one by one, as in the released code
    parts = rng.lognormal(1, 1, (NUM_CLIENTS, CLASSES))
    return torch.from_numpy(parts / parts.sum(1, keepdims=True) * sizes[:, None])


def deal_in_cycles(labels: Tensor, which: Tensor, sizes: Tensor) -> ClientIndex:
    """Deals the examples of each label in order, starting over when too few are left.

    Args:
        labels: Labels of the examples, int64 `[n]`.
        which: Labels of each client, int64 `[clients, k]`.
        sizes: Examples that a client gets of each of its labels, int64 `[clients, k]`.

    Raises:
        InputError: a label has fewer examples than one client gets.
    """
    there = require_labels("Ditto500", labels, NUM_LABELS, int(sizes.max())).tolist()
    starts, read = torch.zeros_like(sizes), [0] * NUM_LABELS
    for client, k in np.ndindex(*sizes.shape):
        label, size = int(which[client, k]), int(sizes[client, k])
        start = read[label] if read[label] + size <= there[label] else 0
        starts[client, k], read[label] = start, start + size
    return join_pieces(ClientIndex.from_owners(labels, NUM_LABELS), which, starts, sizes)
