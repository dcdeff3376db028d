"""Natural partition: one client per writer or user in the data set."""

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex, Division
from lit_cfl.datamodules.partition.base import Partition, Pool, split_each
from lit_cfl.errors import InputError, Notice
from lit_cfl.options import FROM_1, PART, bounded


@dataclass(frozen=True)
class Natural(Partition):
    """One client for each owner that the source names, as in LEAF (FEMNIST by writer, Sent140 by user).

    Clients have the order of the owners' numbers. Examples without an owner are left out. True clusters are unknown.
    Caldas et al. LEAF: A Benchmark for Federated Settings. arXiv:1812.01097.

    Args:
        min_examples: Minimum number of examples of an owner, for training and testing together; others are left out
            (LEAF's -k), and so is everyone without a training example. 1 or more.
        max_clients: Maximum number of clients, 1 or more, drawn at random from the remaining owners; null: all of them.
        test: Share of each client's examples (0 to below 1), with the source's training and test part taken together;
            `own`: the source's test part, by owner; null: `own` if a client that trains owns some of the source's test
            part, otherwise 0.1 (LEAF trains on 0.9).
    """

    min_examples: int = bounded(1, FROM_1)
    max_clients: int | None = bounded(None, FROM_1)
    test: float | Literal["own"] | None = bounded(None, PART)

    def divide(self, pool: Pool, rng: np.random.Generator) -> Division:
        if pool.owner is None:
            raise InputError(
                "this source does not say which client owns an example; name its client column, or use IID"
            )
        train, test = by_owner(pool.owner, pool.num_train)
        both = bool(train.sizes.minimum(test.sizes).any())
        if self.test == "own" and not both:
            raise InputError("test is 'own', but no client that trains owns a test example; give a share: test: 0.1")
        share = (None if both else 0.1) if self.test is None else self.test
        if isinstance(share, float | int):
            train, test = by_owner(pool.owner, len(pool.owner))
        clients = draw_owners(train.sizes, test.sizes, self.min_examples, self.max_clients, rng)
        train, test = train.select(clients).pack(), test.select(clients).pack()
        if isinstance(share, float | int):
            train, test = split_each(train, float(share), rng, last=pool.is_ordered)
        names = tuple(np.array(pool.names)[clients.numpy()].tolist()) if pool.names else ()
        return Division(train, test, torch.full((len(clients),), -1), self.skew, names)


def by_owner(owner: Tensor, num_train: int) -> tuple[ClientIndex, ClientIndex]:
    """Lists each owner's examples among the first `num_train` examples, and among the remaining examples.

    Args:
        owner: Owner of each example, int64 `[N]`, -1 = no owner.
    """
    num_owners = int(owner.max()) + 1
    test = ClientIndex.from_owners(owner[num_train:], num_owners)
    after = ClientIndex(test.values + num_train, test.starts, test.sizes)
    return ClientIndex.from_owners(owner[:num_train], num_owners), after


def draw_owners(
    train: Tensor, test: Tensor, min_examples: int, max_clients: int | None, rng: np.random.Generator
) -> Tensor:
    """Draws the owners that become clients; returns their numbers in ascending order, int64 `[clients]`.

    Warns of owners that are left out because they have too few examples.

    Args:
        train, test: Training and test examples of every owner, int64 `[owners]`.

    Raises:
        InputError: no owner has enough examples.
    """
    sizes = train + test
    clients = ((train > 0) & (sizes >= min_examples)).nonzero().flatten()
    if not len(clients):
        most = int(sizes[train > 0].max()) if train.any() else 0
        raise InputError(f"no client has {min_examples} examples, the largest has {most}; lower min_examples")
    owners = int((sizes > 0).sum())
    if len(clients) < owners:
        warnings.warn(
            f"{owners - len(clients)} of {owners} clients have fewer than {min_examples} examples (min_examples) or "
            "none for training, and are left out",
            Notice,
            stacklevel=3,
        )
    if max_clients is not None and max_clients < len(clients):
        clients = torch.from_numpy(rng.permutation(clients.numpy())[:max_clients]).sort().values
    return clients
