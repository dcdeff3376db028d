"""scikit-learn's handwritten digits: small, real, and there without a network."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from datamodules.federated import FederatedDataModule
from datamodules.partition import iid, split_each
from datamodules.skew import in_turn, rotations, seen_as
from lit_cfl.data import Examples
from lit_cfl.errors import InputError


class Digits(FederatedDataModule):
    """1,797 grey images of handwritten digits, 8 x 8 (Alpaydin and Kaynak, 1998; part of scikit-learn).

    Every image belongs to exactly one client. Client i sees its images under the i-th rotation, in turn, and that is
    its true cluster.

    Args:
        num_clients: 1 to 1,797; shares are equal.
        rotations: degrees, multiples of 90, one a true cluster.
        test: share of each client's images kept for testing, 0 to below 1.
        validation: share of the rest set aside for validation.
        newcomers: share of the clients held out of training.
        partition_seed: None = the run's seed.
        batch_size: of the centralised loaders.
    """

    def __init__(
        self,
        num_clients: int = 40,
        rotations: Sequence[int] = (0, 90, 180, 270),
        test: float = 0.2,
        validation: float = 0.1,
        newcomers: float = 0.0,
        partition_seed: int | None = None,
        batch_size: int = 32,
    ) -> None:
        super().__init__(validation, newcomers, partition_seed, batch_size)
        if not 0 <= test < 1:
            raise InputError(f"test is {test}; it must be 0 or more and below 1")
        self.num_clients, self.rotations, self.test = num_clients, tuple(rotations), test

    def load(self) -> Examples:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = torch.from_numpy(bunch.images).to(torch.uint8)[:, None]  # [1797, 1, 8, 8], 0 to 16
        return Examples(images, torch.from_numpy(bunch.target).long(), 10, 1 / 16, rotations(self.rotations))

    def partition(self, examples: Examples, rng: np.random.Generator) -> tuple[list[Tensor], list[Tensor], Tensor, str]:
        shares = iid(len(examples), self.num_clients, rng)
        truth = in_turn(len(shares), len(examples.views))
        own = seen_as(shares, truth, len(examples))
        train, test = split_each(own, self.test, rng)
        return train, test, truth, "feature" if len(examples.views) > 1 else "other"
