"""scikit-learn's handwritten digits: small, real, and there without a network."""

from collections.abc import Sequence
from typing import Any

import torch

from datamodules.partition import IID, Partition, Pool
from datamodules.pooled import PooledDataModule
from datamodules.skew import Rotations, Skew
from lit_cfl.data import Examples


class Digits(PooledDataModule):
    """1,797 grey images of handwritten digits, 8 x 8 (Alpaydin and Kaynak, 1998; part of scikit-learn).

    Every image belongs to exactly one client. Client i sees its images under the i-th rotation, in turn, and that is
    its true cluster. `partition` and `skew` make other clients of the same images.

    Args:
        num_clients: 1 to 1,797; shares are equal.
        rotations: degrees, multiples of 90, one a true cluster.
        test: share of each client's images kept for testing, 0 to below 1.
        partition: in place of `num_clients` and `test`.
        skew: in place of `rotations`.
        options: of `PooledDataModule`.
    """

    def __init__(
        self,
        num_clients: int = 40,
        rotations: Sequence[int] = (0, 90, 180, 270),
        test: float = 0.2,
        partition: Partition | None = None,
        skew: Sequence[Skew] | None = None,
        **options: Any,
    ) -> None:
        partition = IID(num_clients, test) if partition is None else partition
        super().__init__(partition, (Rotations(rotations),) if skew is None else skew, **options)

    def pool(self) -> Pool:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = torch.from_numpy(bunch.images).to(torch.uint8)[:, None]  # [1797, 1, 8, 8], 0 to 16
        return Pool(Examples(images, torch.from_numpy(bunch.target).long(), 10, 1 / 16), len(images))
