"""`num_clusters: auto`: chooses the number of clusters from the clients' updates.

The rule is in docs/automatic_clusters.md; its alternatives and its results are in experiments/studies/.
"""

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lit_cfl.algorithms.base import Info, clients_with_data, require_clients
from lit_cfl.clustering.number_of_clusters import CLIENTS_PER_CLUSTER, number_of_clusters
from lit_cfl.errors import Notice, count_noun
from lit_cfl.local_work import LocalWork
from lit_cfl.options import FROM_1, bounded

NumClusters = int | Literal["auto"]
"""A number of clusters, or `auto`: the algorithm chooses it."""


@dataclass(frozen=True, kw_only=True)
class ClusterNumberOptions:
    """The option of an algorithm that can choose its number of clusters by `choose_number`.

    Args:
        max_clusters: Maximum number of clusters with `num_clusters: auto`, 1 or more; never above a quarter of the
            clients.
    """

    max_clusters: int = bounded(10, FROM_1)

    def choose_number(self: Any, work: LocalWork, rng: torch.Generator) -> tuple[int, Info]:
        """Returns the algorithm's `num_clusters`; for `auto`, chooses and reports it.

        For `auto`, all clients in training train once from w_0, for as long as in a round, and send their updates.

        Raises:
            InputError: no client could train.
        """
        if self.num_clusters != "auto":
            return self.num_clusters, Info()
        w0, clients = work.initial(0), clients_with_data(work)
        fitted = work.fit(w0[None], clients, purpose="count")
        rows = fitted.collect()
        require_clients(1, len(rows))
        updates = rows.sub_(w0)[:, : work.layout.num_parameters]  # in place, since the rows may be in a large file
        info = Info(fitted.loss, len(clients), len(rows), fitted.skipped)
        return number_from_updates(type(self).__name__, updates, self.max_clusters, rng), info


def known_number(num_clusters: NumClusters | None) -> int:
    """Returns the number of clusters if it is given, and 1 if it is `auto` or None."""
    return 1 if num_clusters == "auto" or num_clusters is None else int(num_clusters)


def chooses_number(algorithm: object) -> bool:
    """Returns whether the algorithm itself chooses its number of clusters (`num_clusters: auto`)."""
    return bool(getattr(algorithm, "num_clusters", None) == "auto")


def number_from_updates(name: str, updates: Tensor, max_clusters: int, rng: torch.Generator) -> int:
    """Chooses the number of clusters of updates `[n, parameters]`, and notifies the user of it and of the reason."""
    number, clients = number_of_clusters(updates, max_clusters, rng), len(updates)
    most = min(max_clusters, clients // CLIENTS_PER_CLUSTER)
    if number > 1:
        limit = "max_clusters" if most == max_clusters else "a quarter of the clients"
        why = (
            f"the largest number up to {most} ({limit}) with which the clusters of one half of the {clients} clients "
            "agree with those of the other half"
        )
        why += "; since it is the limit, there may be more clusters" if number == most else ""
    elif max_clusters == 1:
        why = "max_clusters is 1"
    elif most < 2:
        why = f"more than one cluster needs {2 * CLIENTS_PER_CLUSTER} clients, and there are {clients}"
    else:
        why = (
            f"with 2 to {most} clusters, those of one half of the {clients} clients do not agree with those of the "
            "other half, so all clients share a model, as in FedAvg"
        )
    warnings.warn(f"num_clusters: auto of {name} chose {count_noun(number, 'cluster')}: {why}", Notice, stacklevel=3)
    return number
