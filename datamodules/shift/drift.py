"""Label drift: from a given round on, some clients see different labels for the same inputs."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex, Examples, FederatedData, View
from lit_cfl.data.shift import Shift, ShiftContext, ShiftLog
from lit_cfl.datamodules.skew import shift_labels
from lit_cfl.errors import InputError
from lit_cfl.keyed_random import draw_keyed_uniform
from lit_cfl.options import FROM_0, SHARE, bounded


@dataclass(frozen=True)
class LabelDrift(Shift):
    """From some round on, some clients see label y as (y + labels) mod C: at once or gradually.

    The drifting clients are drawn once from the seed, and drift with all the data that they have; data that they have
    swapped away do not change. A client's true cluster becomes its previous one under the new labels, in a gradual
    drift once half of the examples are to drift.

    Newcomers drift like the other clients, so that their data are current when they join; the log leaves them out, as
    no client trains on their data.

    Args:
        share: Share of all clients that drift, 0 to 1.
        labels: Number by which labels are shifted; not a multiple of C.
        start: Completed rounds before the drift begins; 0 = from the first round on.
        duration: Rounds over which more and more of the examples drift, until all have drifted; 0 or 1 = all at once.
        participants: `all` clients, or only the `warm` ones, which have a model; newcomers then keep their labels.
    """

    share: float = bounded(0.5, SHARE)
    labels: int = 1
    start: int = bounded(50, FROM_0)
    duration: int = bounded(0, FROM_0)
    concepts: ClassVar[int] = 2

    def widen(self, examples: Examples) -> Examples:
        """Appends a copy of each view with the new labels."""
        examples.require_classes(type(self).__name__)
        if self.labels % examples.num_labels == 0:
            raise InputError(
                f"a drift by {self.labels} labels changes nothing with {examples.num_labels} labels; give 1 to "
                f"{examples.num_labels - 1}"
            )
        drift = View(label_map=shift_labels(examples.num_labels, self.labels))
        new_views = tuple(view.then(drift) for view in examples.views)
        if set(new_views) & set(examples.views):
            raise InputError(
                f"a drift by {self.labels} labels turns one cluster's data into another's, but scores would treat them "
                "as two clusters; give another number of labels"
            )
        return replace(examples, views=(*examples.views, *new_views))

    def step(self, data: FederatedData, at: ShiftContext) -> tuple[FederatedData, ShiftLog | None]:
        if at.round < self.start:
            return data, None
        drifts = draw_drifting(data.num_clients, self.share, at.rng("who", round=0))
        clients, degree = (drifts & self.find_drifting(data, at)).nonzero().flatten(), self.degree(at.round)
        lists: dict[str, Any] = {}
        changed = torch.zeros_like(clients)
        for name in ("train", "validation", "test", "withheld"):
            index: ClientIndex | None = getattr(data, name)
            if index is not None:
                lists[name], differs = drift_labels(index, clients, len(data.examples), degree, at)
                changed += differs if name != "withheld" else 0
        before = data.true_clusters[clients]
        after = set_concept(before, at.weight, degree >= 0.5)
        rows = (changed > 0) | (after != before)
        rows = rows if data.newcomers is None else rows & ~data.newcomers[clients]
        partners = torch.full_like(clients, -1)
        columns = (column[rows] for column in (clients, partners, changed, before, after))
        clusters = data.true_clusters.index_copy(0, clients, after)
        return replace(data, true_clusters=clusters, **lists), ShiftLog("label_drift", *columns)

    def find_drifting(self, data: FederatedData, at: ShiftContext) -> Tensor:
        """Finds the clients that are eligible to drift by this round: bool `[clients]`."""
        reached = torch.zeros(data.num_clients, dtype=torch.bool)
        reached[at.participants] = True
        return reached if data.newcomers is None or self.participants == "warm" else reached | data.newcomers

    def degree(self, round: int) -> float:
        """Computes the fraction of a drifting client's examples that have drifted by this round, 0 to 1."""
        return min(1.0, max(0, round - self.start + 1) / max(1, self.duration))


def draw_drifting(num_clients: int, share: float, rng: np.random.Generator) -> Tensor:
    """Draws round(share * num_clients) clients: bool `[num_clients]`."""
    drifts = torch.zeros(num_clients, dtype=torch.bool)
    drifts[torch.from_numpy(rng.permutation(num_clients)[: round(share * num_clients)])] = True
    return drifts


def drift_labels(
    index: ClientIndex, clients: Tensor, num_examples: int, degree: float, at: ShiftContext
) -> tuple[ClientIndex, Tensor]:
    """Gives a share of the clients' examples the new labels, and the remaining examples the old labels.

    Args:
        index: Index of all clients.
        clients: Ids of the clients, int64 `[n]`.
        num_examples: N, the size of the pool.
        degree: Share of drifted examples, 0 to 1; as it grows, examples that have drifted stay drifted.

    Returns:
        the index, and the number of changed entries of each client, int64 `[n]`.
    """
    stretches, stretch_of = index.select(clients).distinct()
    old = stretches.entries
    is_new = old // num_examples // at.stride % 2
    new = old + (_mark_drifting(old % num_examples, degree, at.seed) - is_new) * at.stride * num_examples
    changed = torch.bincount(stretches.owners[new != old], minlength=len(stretches))[stretch_of]
    some = changed > 0
    if not some.any():
        return index, changed
    lists = ClientIndex.from_sizes(new, stretches.sizes).select(stretch_of[some])
    return index.replace_lists(clients[some], lists), changed


def set_concept(clusters: Tensor, weight: int, new: bool) -> Tensor:
    """Renumbers true clusters for the new or for the old labels, int64 `[n]`; -1 stays -1.

    Args:
        clusters: True clusters, int64 `[n]`.
        weight: Factor of the new labels in a cluster's number.
    """
    return clusters.where(clusters < 0, clusters + (int(new) - clusters // weight % 2) * weight)


def _mark_drifting(examples: Tensor, degree: float, seed: int) -> Tensor:
    """Marks the examples that have drifted with 1, and the others with 0, int64 `[n]`."""
    if degree in (0, 1):  # no draws are needed
        return torch.full_like(examples, int(degree))
    return (draw_keyed_uniform(examples ^ seed, 1).flatten() < degree).long()
