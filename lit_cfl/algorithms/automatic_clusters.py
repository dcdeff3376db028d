"""`num_clusters: auto`: decides the number of clusters from the clients' updates.

The rule is in docs/automatic_clusters.md; its alternatives and its results are in experiments/studies/.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from lit_cfl.algorithms.base import Info, Unused, clients_with_data, require_clients, require_positive
from lit_cfl.clustering.number_of_clusters import CLIENTS_PER_CLUSTER, number_of_clusters
from lit_cfl.errors import InputError, Notice, count_noun
from lit_cfl.local_work import LocalWork

NumClusters = int | Literal["auto"]
"""A number of clusters, or `auto`: the algorithm decides it."""


@dataclass(frozen=True, kw_only=True)
class ClusterNumberOptions:
    """The options of an algorithm whose number of clusters can be decided automatically.

    Args:
        max_clusters: Maximum number of clusters with `num_clusters: auto`, 1 or more; never above a quarter of the
            clients.
    """

    max_clusters: int = 10
    unused_if: ClassVar[Unused] = {"max_clusters": ("num_clusters", lambda number: number != "auto")}

    def __post_init__(self) -> None:
        number = vars(self)["num_clusters"]
        if isinstance(number, str) and not self.is_automatic:
            raise InputError(f"num_clusters is {number!r}; give a number, or auto")
        require_positive(num_clusters=self.known_clusters, max_clusters=self.max_clusters)

    @property
    def known_clusters(self) -> int:
        """The number of clusters; 1 until it has been decided."""
        # each algorithm declares this field itself, at its own place in the order of its options
        number: NumClusters | None = vars(self)["num_clusters"]
        return number if isinstance(number, int) else 1

    @property
    def is_automatic(self) -> bool:
        """Whether the number of clusters is still to be decided."""
        return chooses_number(self)

    def decide_number(self, work: LocalWork, rng: torch.Generator) -> tuple[Self, Info]:
        """Returns the algorithm with a fixed number of clusters, which replaces `auto`.

        For `auto`, all clients in training train once from w_0, for as long as in a round, and send their updates.

        Raises:
            InputError: no client could train.
        """
        if not self.is_automatic:
            return self, Info()
        w0, clients = work.initial(0), clients_with_data(work)
        fitted = work.fit(w0[None], clients, purpose="count")
        rows = fitted.collect()
        require_clients(1, len(rows))
        updates = rows.sub_(w0)[:, : work.layout.num_parameters]  # in place, since the rows may be in a large file
        info = Info(fitted.loss, len(clients), len(rows), fitted.skipped)
        return self.with_number_from(updates, rng), info

    def with_number_from(self, updates: Tensor, rng: torch.Generator) -> Self:
        """Returns the algorithm with `auto` replaced by the number of clusters found in updates `[n, parameters]`."""
        if not self.is_automatic:
            return self
        found = number_of_clusters(updates, self.max_clusters, rng)
        note_number(type(self).__name__, found, len(updates), self.max_clusters)
        number: Any = {"num_clusters": found}
        return replace(self, **number)


def chooses_number(algorithm: object) -> bool:
    """Returns whether the algorithm itself chooses its number of clusters (`num_clusters: auto`)."""
    return bool(vars(algorithm).get("num_clusters") == "auto")


def note_number(name: str, number: int, clients: int, max_clusters: int) -> None:
    """Notifies the user of the chosen number of clusters and of the reason for it.

    Args:
        name: Name of the algorithm.
        number: Number of clusters.
        clients: Number of clients whose updates were compared.
        max_clusters: Largest number allowed.
    """
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
