"""MNIST-1000: 1,000 clients with few digits each and log-normal sizes.

arXiv:1812.06127 (FedProx); data/mnist/generate_niid.py of the released code.

Where this differs from the released code:
* the draw has a seed, so clients follow the same distribution, but are not the same clients as in a paper: about 69,060
  images are used.
* numbers of digits other than 2 are possible.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex, Division
from lit_cfl.datamodules.partition.base import Partition, Pool, shuffle_lists
from lit_cfl.datamodules.partition.checks import require_labels
from lit_cfl.datamodules.partition.labels import consecutive_starts, cyclic_labels, join_pieces
from lit_cfl.errors import InputError

NUM_CLIENTS, NUM_LABELS, FIRST = 1000, 10, 10


@dataclass(frozen=True)
class MNIST1000(Partition):
    """1,000 clients with few digits each and log-normal sizes, as for MNIST in FedProx, FedGroup and FlexCFL.

    Client u has the digits u, u + 1, ... modulo 10: first 10 images (5 + 5), then shares of the rest drawn from
    lognormal(0, 2^2). No image goes to two clients. The source's training and test part are used together; int(0.9 n)
    of a client's n images are for training. The true cluster is u mod 10, the type of client.

    Args:
        classes: Number of digits of each client, 1 to 10. The released code has 2. FlexCFL's Table 1 has 1, 3, 5 and 10
            by code that was not released; the rule for these is ours: the same distribution, and the first 10 images
            are split as evenly as possible, lower digits of the client first. With 10 there is one true cluster, but
            clients still have different numbers of images of each digit: a label skew without clusters.
    """

    paper: ClassVar[str] = (
        "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020. "
        "arXiv:1812.06127"
    )
    skew: ClassVar[str] = "label"
    classes: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.classes <= NUM_LABELS:
            raise InputError(f"classes of MNIST1000 is {self.classes}; give 1 to {NUM_LABELS}")

    def divide(self, pool: Pool, rng: np.random.Generator) -> Division:
        pool.examples.require_classes("MNIST1000")
        there = require_labels("MNIST1000", pool.labels, NUM_LABELS, NUM_CLIENTS * FIRST // NUM_LABELS)
        which = cyclic_labels(NUM_CLIENTS, self.classes, NUM_LABELS)
        sizes = draw_sizes(there, which, rng)
        of_label = ClientIndex.from_owners(pool.labels, NUM_LABELS)
        whole = shuffle_lists(join_pieces(of_label, which, consecutive_starts(which, sizes, NUM_LABELS), sizes), rng)
        train = whole.sizes * 9 // 10
        clusters = which[:, 0] if self.classes < NUM_LABELS else torch.zeros_like(train)
        return Division(whole.first(train).pack(), whole.after(train).pack(), clusters, self.skew)


def draw_sizes(there: Tensor, which: Tensor, rng: np.random.Generator) -> Tensor:
    """Draws the number of images per label that each client gets, int64 `[1000, classes]`.

    Args:
        there: Images of each label, int64 `[10]`, 1,000 or more each.
        which: Labels of each client, int64 `[1000, classes]`.
    """
    classes = which.shape[1]
    first = torch.full((classes,), FIRST // classes)
    first[: FIRST % classes] += 1
    rest = (there - NUM_CLIENTS * FIRST // NUM_LABELS).numpy()
    parts = rng.lognormal(0, 2.0, (NUM_LABELS, NUM_CLIENTS // NUM_LABELS, classes))
    parts *= (rest / parts.sum((1, 2)))[:, None, None]
    more = parts[which.numpy(), np.arange(NUM_CLIENTS)[:, None] // NUM_LABELS, np.arange(classes)].astype(np.int64)
    return first + torch.from_numpy(more * grant_in_order(more, which.numpy(), rest))


def grant_in_order(wanted: np.ndarray, which: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Grants requests in client order, as long as an image of the label remains afterwards: bool `[clients, k]`.

    Args:
        wanted: Number of images requested, int64 `[clients, k]`.
        which: Their labels, int64 `[clients, k]`.
        there: Images of each label, int64 `[labels]`.
    """
    left, granted = there.copy(), np.zeros(wanted.shape, bool)
    for place in np.ndindex(wanted.shape):
        granted[place] = wanted[place] < left[which[place]]
        left[which[place]] -= wanted[place] * granted[place]
    return granted
