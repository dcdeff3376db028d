"""Skews: clusters of clients see the examples in different ways, which makes the true clusters known."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex, Division, View
from lit_cfl.errors import InputError, prefix_errors
from lit_cfl.options import FROM_0, FROM_1, bounded, require_options


@dataclass(frozen=True)
class Skew(ABC):
    """A rule that gives each cluster its view of the examples."""

    kind: ClassVar[str]  # kind of skew: feature, label or other

    def __post_init__(self) -> None:
        require_options(self, f"{type(self).__name__}: ")

    @abstractmethod
    def views(self, num_labels: int) -> tuple[View, ...]:
        """Lists the view of each cluster. Raises InputError if a view does not fit the labels."""


@dataclass(frozen=True)
class SkewByCluster(Skew, ABC):
    """A skew whose first option lists one value for each cluster."""

    kind: ClassVar[str] = "feature"

    def __post_init__(self) -> None:
        name = fields(self)[0].name
        values = getattr(self, name)
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise InputError(f"{type(self).__name__}: {name} is {values!r}; give a list with one value per cluster")
        if self.kind == "feature":
            self.views(0)  # needs no labels, so wrong values are refused before data are loaded

    @abstractmethod
    def view(self, value: Any, num_labels: int) -> View:
        """Makes the view of a cluster from its value."""

    def views(self, num_labels: int) -> tuple[View, ...]:
        values = getattr(self, fields(self)[0].name)
        with prefix_errors(type(self).__name__):
            views = tuple(self.view(value, num_labels) for value in values)
            if len(set(views)) < len(views):
                raise InputError(f"{values} gives two clusters the same view; give distinct values")
        return views


@dataclass(frozen=True)
class Rotations(SkewByCluster):
    """Each cluster sees its images rotated.

    Args:
        degrees: Rotation of each cluster in degrees, multiples of 90, counter-clockwise.
    """

    degrees: Sequence[int] = (0, 90, 180, 270)

    def view(self, value: Any, num_labels: int) -> View:
        if not isinstance(value, int | np.integer) or int(value) % 90:
            raise InputError(f"{value!r} degrees would blur the images; give whole multiples of 90, or FreeRotations")
        return View(quarter_turns=int(value) // 90 % 4)


@dataclass(frozen=True)
class LabelShifts(SkewByCluster):
    """Each cluster sees label y as (y + s) mod C, with a separate shift s; the defaults are StoCFL's.

    Args:
        shifts: Shift s of each cluster.
    """

    shifts: Sequence[int] = (0, 3, 6, 9)
    kind: ClassVar[str] = "label"

    def view(self, value: int, num_labels: int) -> View:
        return View().then(View(label_map=shift_labels(num_labels, value)))


@dataclass(frozen=True)
class LabelPermutations(Skew):
    """Each cluster sees the labels in another random permutation; the first cluster sees them unchanged.

    Args:
        num_clusters: Number of clusters, 1 or more.
        seed: Seed of the permutations.
    """

    num_clusters: int = bounded(4, FROM_1)
    seed: int = bounded(0, FROM_0)
    kind: ClassVar[str] = "label"

    def views(self, num_labels: int) -> tuple[View, ...]:
        rng = np.random.default_rng(self.seed)
        orders = [tuple(range(num_labels))]
        for _ in range(100 * self.num_clusters):
            if len(orders) >= self.num_clusters:
                return tuple(View(label_map=order) for order in orders)
            order = tuple(rng.permutation(num_labels).tolist())
            orders += [order] if order not in orders else []
        raise InputError(
            f"{num_labels} labels have too few different permutations for {self.num_clusters} clusters; lower "
            "num_clusters"
        )


@dataclass(frozen=True)
class NoiseLevels(SkewByCluster):
    """Each cluster sees its inputs with Gaussian noise of a given strength; an input always has the same noise.

    Args:
        levels: Standard deviation for each cluster, in units of the scaled input (images: 0 to 1), 0 or more.
    """

    levels: Sequence[float] = (0.0, 0.5)

    def view(self, value: float, num_labels: int) -> View:
        return View(noise=value)


@dataclass(frozen=True)
class LabelSwaps(SkewByCluster):
    """Each cluster sees the labels of its list swapped in a cycle, and all other labels unchanged.

    Args:
        labels: Labels to swap, for each cluster: each label is replaced by the next one in the list, and the last by
            the first. `[[], [0, 1]]` swaps 0 and 1 in the second of two clusters, and nothing in the first.
    """

    labels: Sequence[Sequence[int]] = ((), (0, 1))
    kind: ClassVar[str] = "label"

    def view(self, value: Sequence[int], num_labels: int) -> View:
        if not isinstance(value, Sequence) or len(value) == 1 or len(set(value)) < len(value):
            raise InputError(f"labels to swap are {value!r}; give a list of two or more different ones, or of none")
        if any(label not in range(num_labels) for label in value):
            raise InputError(f"labels to swap are {value!r}; give labels of the data, 0 to {num_labels - 1}")
        names = list(range(num_labels))
        for label, name in zip(value, [*value[1:], *value[:1]], strict=True):
            names[int(label)] = name
        return View().then(View(label_map=tuple(names)))


@dataclass(frozen=True)
class FreeRotations(SkewByCluster):
    """Each cluster sees its images rotated by any angle, with bilinear interpolation; pixels from outside are 0.

    Args:
        degrees: Rotation of each cluster in degrees, counter-clockwise. Multiples of 90 are exact, as in Rotations.
    """

    degrees: Sequence[float] = (0.0, 15.0, 30.0, 45.0)

    def view(self, value: float, num_labels: int) -> View:
        return View().then(View(angle=value))


@dataclass(frozen=True)
class Blurs(SkewByCluster):
    """Each cluster sees its images with a Gaussian blur of a given strength.

    Args:
        sigmas: Standard deviation of each cluster's blur in pixels, 0 (no blur) or more.
    """

    sigmas: Sequence[float] = (0.0, 1.0)

    def view(self, value: float, num_labels: int) -> View:
        return View(blur=value)


@dataclass(frozen=True)
class Brightnesses(SkewByCluster):
    """Each cluster sees its scaled inputs multiplied by a given factor.

    Args:
        factors: Factor of each cluster, 0 or more; 1 = no change.
    """

    factors: Sequence[float] = (1.0, 0.5)

    def view(self, value: float, num_labels: int) -> View:
        return View(brightness=value)


@dataclass(frozen=True)
class Colours(SkewByCluster):
    """Each cluster sees its images in another colour: every channel is multiplied by a factor.

    Args:
        factors: Factors of each cluster, one factor for each channel, 0 or more: `[[1, 0, 0], [0, 1, 0]]` shows red
            and green.
    """

    factors: Sequence[Sequence[float]] = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))

    def view(self, value: Sequence[float], num_labels: int) -> View:
        if not isinstance(value, Sequence) or not value:
            raise InputError(f"a colour is {value!r}; give one factor for each channel, such as [1, 0, 0]")
        return View(colour=tuple(value))


def shift_labels(num_labels: int, shift: int) -> tuple[int, ...]:
    """Computes (y + shift) mod C for each label y."""
    return tuple((label + shift) % num_labels for label in range(num_labels))


def all_views(skews: Sequence[Skew], num_labels: int) -> tuple[View, ...]:
    """Lists one view for each combination of the skews' clusters; the last skew changes fastest."""
    views = tuple(reduce(View.then, views, View()) for views in product(*[skew.views(num_labels) for skew in skews]))
    if len(set(views)) < len(views):
        raise InputError(
            "two combinations of these skews give the same data, so their clusters would be one; choose others"
        )
    return views


def skew_name(*kinds: str) -> str:
    """Returns the common kind of several skews, ignoring `other`; returns `other` if their kinds differ."""
    different = {kind for kind in kinds if kind != "other"}
    return different.pop() if len(different) == 1 else "other"


def deal_views(clusters: Tensor, num_views: int) -> Tensor:
    """Assigns the views in turn to the clients of each cluster, so that all combinations are about equally frequent.

    Args:
        clusters: Cluster of each client, int64 `[clients]`, -1 = none.
        num_views: Number of views V.

    Returns:
        int64 `[clients]`, 0 to V - 1.
    """
    order = clusters.argsort(stable=True)
    sizes = clusters.unique(return_counts=True)[1]
    ranks = torch.cat([torch.arange(int(size)) for size in sizes])
    return torch.empty_like(clusters).index_copy_(0, order, ranks % num_views)


def apply_views(division: Division, views: Tensor, num_views: int, num_examples: int) -> Division:
    """Gives each client its view of its examples; each pair of cluster and view becomes a true cluster.

    If no true cluster is known, the views are the true clusters; an unknown one among known ones stays unknown.

    Args:
        views: View of each client, int64 `[clients]`.
        num_views: Number of views V.
        num_examples: N, the size of the pool.
    """
    known = division.true_clusters >= 0
    clusters = division.true_clusters.clamp(min=0) * num_views + views
    clusters = clusters.where(known, -1) if known.any() else clusters
    train, test = (view_indices(index, views, num_examples) for index in (division.train, division.test))
    return replace(division, train=train, test=test, true_clusters=clusters, cluster_names=())


def view_indices(index: ClientIndex, views: Tensor, num_examples: int) -> ClientIndex:
    """Converts each client's example numbers to indices of the same examples under its view: view * N + number.

    Clients that share a slice of examples and have the same view share the new slice, too.

    Args:
        index: Example numbers of each client.
        views: View of each client, int64 `[clients]`.
        num_examples: N, the size of the pool.
    """
    stretches, stretch_of = index.distinct()
    shared, seen_of = (stretch_of * (int(views.max()) + 1) + views).unique(return_inverse=True)
    # position of one client for each pair of list and view
    one_each = torch.empty_like(shared).index_copy_(0, seen_of, torch.arange(len(index)))
    seen = stretches.select(stretch_of[one_each])
    entries = seen.entries + views[one_each].repeat_interleave(seen.sizes) * num_examples
    return ClientIndex.from_sizes(entries, seen.sizes).select(seen_of)
