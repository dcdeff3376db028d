"""Skews: clusters of clients see the examples in different ways, which makes the true clusters known."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from math import isfinite
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex, Division, View
from lit_cfl.errors import InputError


@dataclass(frozen=True)
class Skew(ABC):
    """A rule that gives each cluster its view of the examples."""

    kind: ClassVar[str]  # kind of skew: feature, label or other

    @abstractmethod
    def views(self, num_labels: int) -> tuple[View, ...]:
        """Lists the view of each cluster. Raises InputError if a view does not fit the labels."""


@dataclass(frozen=True)
class Rotations(Skew):
    """Each cluster sees its images rotated.

    Args:
        degrees: Rotation of each cluster in degrees, multiples of 90, counter-clockwise.
    """

    degrees: Sequence[int] = (0, 90, 180, 270)
    kind: ClassVar[str] = "feature"

    def __post_init__(self) -> None:
        _require_list("rotations", self.degrees, Integral, "[0, 90]")
        for angle in self.degrees:
            if angle % 90:
                raise InputError(
                    f"a rotation by {angle} degrees would blur the images; give multiples of 90, or take FreeRotations"
                )
        _require_different("rotations", [angle % 360 for angle in self.degrees])

    def views(self, num_labels: int) -> tuple[View, ...]:
        return tuple(View(quarter_turns=angle // 90 % 4) for angle in self.degrees)


@dataclass(frozen=True)
class LabelShifts(Skew):
    """Each cluster sees label y as (y + s) mod C, with a separate shift s; the defaults are StoCFL's.

    Args:
        shifts: Shift s of each cluster.
    """

    shifts: Sequence[int] = (0, 3, 6, 9)
    kind: ClassVar[str] = "label"

    def __post_init__(self) -> None:
        _require_list("label shifts", self.shifts, Integral, "[0, 3]")

    def views(self, num_labels: int) -> tuple[View, ...]:
        _require_different("label shifts", [s % num_labels for s in self.shifts])
        return tuple(View(label_map=shift_labels(num_labels, s) if s % num_labels else None) for s in self.shifts)


@dataclass(frozen=True)
class LabelPermutations(Skew):
    """Each cluster sees the labels in another random permutation; the first cluster sees them unchanged.

    Args:
        num_clusters: Number of clusters, 1 or more.
        seed: Seed of the permutations.
    """

    num_clusters: int = 4
    seed: int = 0
    kind: ClassVar[str] = "label"

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InputError(f"seed of label permutations is {self.seed}; give 0 or more")
        if self.num_clusters < 1:
            raise InputError(f"num_clusters of label permutations is {self.num_clusters}; give 1 or more")

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
class NoiseLevels(Skew):
    """Each cluster sees its inputs with Gaussian noise of a given strength; an input always has the same noise.

    Args:
        levels: Standard deviation for each cluster, in units of the scaled input (images: 0 to 1), 0 or more.
    """

    levels: Sequence[float] = (0.0, 0.5)
    kind: ClassVar[str] = "feature"

    def __post_init__(self) -> None:
        _require_list("noise levels", self.levels, Real, "[0, 0.5]")
        for level in self.levels:
            if not 0 <= level < float("inf"):
                raise InputError(f"a noise level is {level}; it must be 0 or more")
        _require_different("noise levels", list(self.levels))

    def views(self, num_labels: int) -> tuple[View, ...]:
        return tuple(View(noise=level) for level in self.levels)


@dataclass(frozen=True)
class LabelSwaps(Skew):
    """Each cluster sees the labels of its list swapped in a cycle, and all other labels unchanged.

    Args:
        labels: Labels to swap, for each cluster: each label is replaced by the next one in the list, and the last by
            the first. `[[], [0, 1]]` swaps 0 and 1 in the second of two clusters, and nothing in the first.
    """

    labels: Sequence[Sequence[int]] = ((), (0, 1))
    kind: ClassVar[str] = "label"

    def __post_init__(self) -> None:
        for swapped in self.labels:
            if not isinstance(swapped, Sequence) or not all(isinstance(label, Integral) for label in swapped):
                raise InputError(f"labels to swap are {swapped!r}; give a list of labels, such as [0, 1]")
            if len(set(swapped)) < len(swapped) or len(swapped) == 1:
                raise InputError(f"labels to swap are {list(swapped)}; give two or more different ones, or none")

    def views(self, num_labels: int) -> tuple[View, ...]:
        found = []
        for swapped in self.labels:
            if any(not 0 <= label < num_labels for label in swapped):
                raise InputError(f"labels to swap are {list(swapped)}; give labels of the data, 0 to {num_labels - 1}")
            names = list(range(num_labels))
            for label, name in zip(swapped, [*swapped[1:], *swapped[:1]], strict=True):
                names[label] = name
            found.append(View(label_map=tuple(names) if swapped else None))
        if not found or len(set(found)) < len(found):
            raise InputError(
                f"labels to swap are {self.labels}; give one list per cluster, each with a different result"
            )
        return tuple(found)


@dataclass(frozen=True)
class FreeRotations(Skew):
    """Each cluster sees its images rotated by any angle, with bilinear interpolation; pixels from outside are 0.

    Args:
        degrees: Rotation of each cluster in degrees, counter-clockwise. Multiples of 90 are exact, as in Rotations.
    """

    degrees: Sequence[float] = (0.0, 15.0, 30.0, 45.0)
    kind: ClassVar[str] = "feature"

    def __post_init__(self) -> None:
        _require_list("rotations", self.degrees, Real, "[0, 30]")
        _require_finite("rotation", self.degrees)
        _require_different("rotations", [angle % 360 for angle in self.degrees])

    def views(self, num_labels: int) -> tuple[View, ...]:
        return tuple(View(quarter_turns=int(angle // 90) % 4, angle=float(angle % 90)) for angle in self.degrees)


@dataclass(frozen=True)
class Blurs(Skew):
    """Each cluster sees its images with a Gaussian blur of a given strength.

    Args:
        sigmas: Standard deviation of each cluster's blur in pixels, 0 (no blur) or more.
    """

    sigmas: Sequence[float] = (0.0, 1.0)
    kind: ClassVar[str] = "feature"

    def __post_init__(self) -> None:
        _require_list("blurs", self.sigmas, Real, "[0, 1]")
        _require_finite("blur", self.sigmas, least=0.0)
        _require_different("blurs", list(self.sigmas))

    def views(self, num_labels: int) -> tuple[View, ...]:
        return tuple(View(blur=float(sigma)) for sigma in self.sigmas)


@dataclass(frozen=True)
class Brightnesses(Skew):
    """Each cluster sees its scaled inputs multiplied by a given factor.

    Args:
        factors: Factor of each cluster, 0 or more; 1 = no change.
    """

    factors: Sequence[float] = (1.0, 0.5)
    kind: ClassVar[str] = "feature"

    def __post_init__(self) -> None:
        _require_list("brightnesses", self.factors, Real, "[1, 0.5]")
        _require_finite("brightness", self.factors, least=0.0)
        _require_different("brightnesses", list(self.factors))

    def views(self, num_labels: int) -> tuple[View, ...]:
        return tuple(View(brightness=float(factor)) for factor in self.factors)


@dataclass(frozen=True)
class Colours(Skew):
    """Each cluster sees its images in another colour: every channel is multiplied by a factor.

    Args:
        factors: Factors of each cluster, one factor for each channel, 0 or more: `[[1, 0, 0], [0, 1, 0]]` shows red
            and green.
    """

    factors: Sequence[Sequence[float]] = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    kind: ClassVar[str] = "feature"

    def __post_init__(self) -> None:
        if not isinstance(self.factors, Sequence) or not self.factors:
            raise InputError(f"colours are {self.factors!r}; give one list per cluster, such as [[1, 0, 0], [0, 1, 0]]")
        for colour in self.factors:
            _require_list("a colour", colour, Real, "[1, 0, 0]", "channel")
            _require_finite("factor of a colour", colour, least=0.0)
        _require_different("colours", [tuple(colour) for colour in self.factors])

    def views(self, num_labels: int) -> tuple[View, ...]:
        return tuple(View(colour=tuple(map(float, colour))) for colour in self.factors)


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


def _require_finite(what: str, values: Sequence[float], least: float = float("-inf")) -> None:
    for value in values:
        if not (isfinite(value) and value >= least):
            wanted = "a number" if least < 0 else f"{least:g} or more"
            raise InputError(f"a {what} is {value}; give {wanted}")


def _require_list(what: str, values: object, kind: type, example: str, each: str = "cluster") -> None:
    """Raises InputError unless `values` is a non-empty list of numbers of a kind (Integral or Real)."""
    wanted = "whole numbers" if kind is Integral else "numbers"
    if not isinstance(values, Sequence) or not all(isinstance(value, kind) for value in values):
        raise InputError(f"{what} is {values!r}; give a list of {wanted}, one per {each}, such as {example}")
    if not values:
        raise InputError(f"{what} is empty; give at least one, [0] for no change")


def _require_different(what: str, values: Sequence[object]) -> None:
    if len(set(values)) < len(values):
        raise InputError(
            f"{what} {values} contains a value twice, so two clusters would be the same; give distinct values"
        )
