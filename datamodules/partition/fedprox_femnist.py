"""FEMNIST-200: 200 clients with three letters each; clients share many images.

arXiv:1812.06127 (FedProx); data/nist/data/my_sample.py of the released code. The paper says five letters.

Where this differs from the released code:
* the draw has a seed, so clients follow the same distribution, but are not the same clients as in a paper.
* a client that should get more images of a letter than there are gets all of them (that code mixes up labels then).
"""

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from lit_cfl.data import ClientIndex, Division
from lit_cfl.datamodules.partition.base import Partition, Pool, shuffle_lists
from lit_cfl.datamodules.partition.checks import require_labels
from lit_cfl.datamodules.partition.labels import consecutive_starts, cyclic_labels, join_pieces
from lit_cfl.errors import InputError, Notice

NUM_LABELS, CLASSES = 10, 3


@dataclass(frozen=True)
class FedProxFEMNIST(Partition):
    """Clients with three of the letters a to j and log-normal sizes, as in FedProx, FedGroup and FlexCFL.

    Client u has the labels u, u + 1 and u + 2 modulo 10, max(2, int(s / 3)) images of each with s from
    lognormal(4, 1) + 5. The source's training and test part are used together; int(0.9 n) of a client's n images are
    for training. The true cluster is u mod 10.

    The released code reads the images of a letter from the first one on for every client (it resets its index when
    there is room, instead of when there is none). So 200 clients with about 18,000 images have 1,200 to 2,700 distinct
    ones, and most test images are training images of another client: accuracies say little about new images.

    Args:
        num_clients: Number of clients, 1 or more.
        sharing: True: clients may share images, as in the released code; false: no image goes to two clients.
        images_per_label: Maximum number of images of each letter, drawn at random; 1 or more.
    """

    paper: ClassVar[str] = (
        "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020. "
        "arXiv:1812.06127"
    )
    skew: ClassVar[str] = "label"
    num_clients: int = 200
    sharing: bool = True
    images_per_label: int = 4000

    def __post_init__(self) -> None:
        if self.num_clients < 1 or self.images_per_label < 1:
            given = f"num_clients is {self.num_clients} and images_per_label {self.images_per_label}"
            raise InputError(f"{given}; give 1 or more for both")

    def divide(self, pool: Pool, rng: np.random.Generator) -> Division:
        pool.examples.require_classes("FedProxFEMNIST")
        require_labels("FedProxFEMNIST", pool.labels, NUM_LABELS, 1)
        which = cyclic_labels(self.num_clients, CLASSES, NUM_LABELS)
        numbers = ((rng.lognormal(4, 1, self.num_clients) + 5) / CLASSES).astype(np.int64).clip(min=2)
        sizes = torch.from_numpy(numbers)[:, None].expand_as(which)
        of_label = shuffle_lists(ClientIndex.from_owners(pool.labels, NUM_LABELS), rng).first(self.images_per_label)
        there = of_label.sizes[which]
        short = int((sizes > there).any(1).sum())
        if self.sharing and short:
            warnings.warn(
                f"{short} of {self.num_clients} clients should have more images of a letter than exist "
                f"({of_label.sizes.tolist()} of the letters a to j); they get all of them, so they are smaller than "
                "drawn",
                Notice,
                stacklevel=2,
            )
        if self.sharing:
            starts, sizes = torch.zeros_like(which), sizes.minimum(there)
        else:
            starts = consecutive_starts(which, sizes, NUM_LABELS)
        fits = (starts + sizes <= there).all(1)
        if not fits.all():
            raise InputError(
                f"{self.num_clients} clients cannot have separate images, as there are only {of_label.sizes.tolist()} "
                f"images of the labels 0 to 9; give {int(fits.long().argmin())} clients at most, or sharing: true"
            )
        whole = shuffle_lists(join_pieces(of_label, which, starts, sizes), rng)
        train = whole.sizes * 9 // 10
        return Division(whole.first(train).pack(), whole.after(train).pack(), which[:, 0], self.skew)
