"""Partitions independent of labels: equal shares, or shares of unequal size."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex
from lit_cfl.datamodules.partition.base import PartitionWithTestRule, apportion
from lit_cfl.datamodules.partition.checks import require_enough
from lit_cfl.options import ABOVE_0, FROM_0, FROM_1, bounded


@dataclass(frozen=True)
class Alike(PartitionWithTestRule, ABC):
    """Clients with examples from the same distribution, all in one true cluster; a subclass draws their sizes."""

    by_label: ClassVar[bool] = False

    def clusters(self, shares: ClientIndex, num_labels: int) -> Tensor:
        return torch.zeros(len(shares), dtype=torch.int64)


@dataclass(frozen=True)
class IID(Alike):
    """Deals every example to exactly one client, at random; sizes differ by at most one."""

    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        return iid(len(labels), self.num_clients, rng)


@dataclass(frozen=True)
class QuantitySkew(Alike):
    """Deals every example to exactly one client, at random; the clients' sizes follow a given distribution.

    Args:
        min_size: Minimum number of examples of each client, 1 or more; the rest is divided by the distribution.
    """

    min_size: int = bounded(10, FROM_1)

    @abstractmethod
    def weights(self, rng: np.random.Generator) -> Tensor:
        """Draws the clients' proportions of the examples beyond the minimum size, float64 `[clients]`."""

    def sizes(self, num_examples: int, rng: np.random.Generator) -> Tensor:
        """Draws the number of examples of each client, int64 `[clients]`, with sum `num_examples`."""
        require_enough(num_examples, self.num_clients, self.min_size)
        return self.min_size + apportion(self.weights(rng), num_examples - self.min_size * self.num_clients)

    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        return deal_at_random(self.sizes(len(labels), rng), rng)


@dataclass(frozen=True)
class LogNormalSizes(QuantitySkew):
    """Sizes from lognormal(0, sigma^2), which FedProx calls a "power law" (Li et al., MLSys 2020, released code).

    Args:
        sigma: Standard deviation of the logarithm, 0 (equal sizes) or more; FedProx's MNIST has 2.
    """

    sigma: float = bounded(2.0, FROM_0)

    def weights(self, rng: np.random.Generator) -> Tensor:
        logs = torch.from_numpy(self.sigma * rng.standard_normal(self.num_clients))
        return (logs - logs.max()).exp()  # so that no weight overflows


@dataclass(frozen=True)
class PowerLawSizes(QuantitySkew):
    """The client of rank k has a size in proportion to k to the power of -exponent; ranks are random.

    Args:
        exponent: Exponent of the power law, 0 (equal sizes) or more.
    """

    exponent: float = bounded(1.0, FROM_0)

    def weights(self, rng: np.random.Generator) -> Tensor:
        ranks = torch.from_numpy(1.0 + rng.permutation(self.num_clients))
        return ranks**-self.exponent


@dataclass(frozen=True)
class DirichletSizes(QuantitySkew):
    """Sizes in proportions drawn from a symmetric Dirichlet (Li, Diao, Chen, He, ICDE 2022, arXiv:2102.02079).

    Args:
        alpha: Concentration, above 0: the larger it is, the more equal are the sizes.
    """

    alpha: float = bounded(0.5, ABOVE_0)

    def weights(self, rng: np.random.Generator) -> Tensor:
        return dirichlet_weights(self.num_clients, self.alpha, rng)


def iid(num_examples: int, num_clients: int, rng: np.random.Generator) -> ClientIndex:
    """Deals every example to exactly one client, at random; sizes differ by at most one.

    Args:
        num_examples: N, the number of examples.
        num_clients: Number of clients, 1 to N.
    """
    require_enough(num_examples, num_clients)
    return deal_at_random(equal_sizes(num_examples, num_clients), rng)


def equal_sizes(num_examples: int, num_clients: int) -> Tensor:
    """Divides a number of examples into sizes that differ by at most one, int64 `[clients]`."""
    return apportion(torch.ones(num_clients, dtype=torch.float64), num_examples)


def deal_at_random(sizes: Tensor, rng: np.random.Generator) -> ClientIndex:
    """Deals the indices 0 to sum(sizes) - 1 at random to clients of the given sizes.

    Args:
        sizes: Number of examples of each client, int64 `[clients]`.
    """
    return ClientIndex.from_sizes(torch.from_numpy(rng.permutation(int(sizes.sum()))), sizes)


def dirichlet_weights(num_clients: int, alpha: float, rng: np.random.Generator) -> Tensor:
    """Draws clients' proportions from a symmetric Dirichlet, float64 `[clients]`, sum 1; alpha is above 0."""
    return torch.from_numpy(rng.dirichlet(np.full(num_clients, alpha)))
