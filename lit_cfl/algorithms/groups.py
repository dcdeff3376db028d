"""What algorithms with a given number of clusters share: are there enough clients, and how much does each count."""

from typing import Literal

import torch
from torch import Tensor

from lit_cfl.aggregation import client_weights
from lit_cfl.errors import InputError
from lit_cfl.local.work import LocalWork

GroupWeights = Literal["equal", "examples", "first"]


def group_weights(num_examples: Tensor, clients: Tensor, labels: Tensor, kind: GroupWeights) -> Tensor:
    """Weight of each client in the mean over its cluster, with the published code's mistake to choose (C1).

    FlexCFL's code means to average IFCA's and FeSEM's groups simply, but its list of weights has one element, so that
    the group takes the update of its first client (times K / (K + 1e-5), which is left out here).

    Args:
        num_examples: n_i of these clients `[n]`.
        clients: ids int64 `[n]`, in any order.
        labels: cluster of each, int64 `[n]`, 0 or more.
        kind: `equal`; `examples` = n_i; `first` = 1 for the lowest id in the cluster that has data, 0 for the others.

    Returns:
        float64 `[n]`.
    """
    if kind != "first":
        return client_weights(num_examples, kind)
    nobody = torch.iinfo(torch.int64).max
    able = torch.where(num_examples > 0, clients, nobody)
    groups, group = labels.unique(return_inverse=True)
    first = torch.full((len(groups),), nobody).scatter_reduce(0, group, able, "amin")
    return ((num_examples > 0) & (clients == first[group])).double()


def require_clients(num_clusters: int, work: LocalWork) -> None:
    """Raises InputError where fewer clients have training data than there are to be clusters."""
    able = int((work.num_examples[work.population] > 0).sum())
    if num_clusters > able:
        raise InputError(
            f"num_clusters is {num_clusters}, but only {able} clients have training data; "
            f"lower it to {able} or less, or use more clients"
        )
