"""scikit-learn's handwritten digits: small, real, and available without a network."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lit_cfl.data import Examples
from lit_cfl.datamodules.partition import IID, Partition, Pool
from lit_cfl.datamodules.pooled import PooledDataModule
from lit_cfl.datamodules.skew import Rotations, Skew
from lit_cfl.errors import InputError, prefix_errors


class Digits(PooledDataModule):
    """1,797 grey images of handwritten digits, 8 x 8 (Alpaydin and Kaynak, 1998; part of scikit-learn).

    Every image belongs to exactly one client. Rotations are assigned to the clients in turn, and are their true
    clusters. `partition` and `skew` divide or change the same images in other ways.

    Args:
        num_clients: Number of clients with equal shares, 1 to 1,797. null = 40.
        rotations: Rotation of each true cluster in degrees, multiples of 90. null = 0, 90, 180, 270.
        test: Share of each client's images kept for testing, 0 to below 1. null = 0.2.
        partition: Rule that divides the images among clients; cannot be combined with `num_clients` or `test`.
        skew: Differences between clusters; cannot be combined with `rotations`.
        options: Options of `PooledDataModule`.
    """

    def __init__(
        self,
        num_clients: int | None = None,
        rotations: Sequence[int] | None = None,
        test: float | None = None,
        partition: Partition | None = None,
        skew: Skew | Sequence[Skew] | None = None,
        **options: Any,
    ) -> None:
        _require_one_of("partition", partition, num_clients=num_clients, test=test)
        _require_one_of("skew", skew, rotations=rotations)
        if partition is None:
            partition = IID(40 if num_clients is None else num_clients, 0.2 if test is None else test)
        if skew is None:
            with prefix_errors("rotations"):
                skew = [Rotations() if rotations is None else Rotations(rotations)]
        super().__init__(partition, skew, **options)

    def pool(self) -> Pool:
        images, labels = (values.clone() for values in _load_digits())
        return Pool(Examples(images, labels, 10, 1 / 16), len(images))


@cache  # the runs of a comparison or of a study load them once
def _load_digits() -> tuple[Tensor, Tensor]:
    """Returns the images, uint8 from 0 to 16 `[1797, 1, 8, 8]`, and their labels `[1797]`."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return torch.from_numpy(bunch.images).to(torch.uint8)[:, None], torch.from_numpy(bunch.target).long()


def _require_one_of(name: str, value: object, **short: object) -> None:
    """Raises InputError if both an option, such as `partition`, and an option that it replaces are given."""
    for other, given in short.items():
        if value is not None and given is not None:
            raise InputError(
                f"{other} is {given}, but {name} is given, too, which replaces it; leave one out, or set it to null"
            )
