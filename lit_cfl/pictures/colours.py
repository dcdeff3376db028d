"""Colours of algorithms, and of clusters: each cluster takes the colour of the true cluster of most of its clients."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, product

import numpy as np

from lit_cfl.pictures.panels import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION, Style

# The first seven colours are Okabe and Ito's; the others were found by a search (tests/pictures/test_colours.py).
# Any two of the twenty differ by more than 12 in CIELAB, also for people without red, green or blue cones.
CLUSTER_COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#892727", "#C4EBC4", "#3B4E62",
    "#C4A5A5", "#3B00EB", "#8976FF", "#76EBFF", "#624E4E", "#627676", "#C40000", "#89624E", "#B1C476", "#4E3B89",
)  # fmt: skip
MAX_COLOURS = len(CLUSTER_COLOURS)
NOT_ASSIGNED = "not assigned"
_NONE = "#dddddd"  # colour of clients without a cluster
_MARKERS = ("o", "^", "s", "D", "v", "P", "X")
_MAX_NAME = 24  # maximum number of letters of a name on an axis or in a legend
_DASHES = ((0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
_LOOKS = {  # colour and marker of each algorithm, the same in every figure
    "IFCA": (BLUE, "o"), "FeSEM": (ORANGE, "^"), "CFL": (GREEN, "^"), "StoCFL": (VERMILLION, "*"),
    "FedGroup": ("#892727", "X"), "FlexCFL": (PURPLE, "D"), "FedAvg": (BLACK, "s"), "FLHC": (SKY, "v"),
    "PACFL": ("#3B00EB", ">"), "FedEM": ("#8976FF", "p"), "FLUX": ("#89624E", "d"), "FedDrift": ("#C40000", "<"),
    "AdaCFL": ("#4E3B89", "h"), "LayerCFL": ("#B1C476", "s"), "Ditto": ("#624E4E", "P"), "FedProx": ("#627676", "P"),
    "Oracle": ("#3B4E62", "D"), "Local": ("#C4A5A5", "v"), "FedGrouProx": ("#892727", "P"),
}  # fmt: skip


def hex_of(cluster: int) -> str:
    """Returns the colour of a cluster number as #rrggbb: grey for -1, else one of twenty in turn."""
    return _NONE if cluster < 0 else CLUSTER_COLOURS[cluster % MAX_COLOURS]


def line_styles(names: Sequence[str]) -> dict[str, Style]:
    """Chooses a colour, a marker and a line for each name, no two of them alike.

    The first name of an algorithm, such as `IFCA` or `IFCA (baseline)`, has the colour and the marker of the algorithm;
    others have those of algorithms that are not shown, then dashed lines.
    """
    own: dict[str, tuple[str, str]] = {}  # colour and marker of the first name of each algorithm
    for name in names:
        look = _LOOKS.get(name.partition(" (")[0])
        if look is not None and look not in own.values():
            own[name] = look
    lines = product(("-", *_DASHES), _LOOKS.values())
    free = ((line, look) for line, look in lines if line != "-" or look not in own.values())
    chosen = {name: ("-", own[name]) if name in own else next(free) for name in dict.fromkeys(names)}
    return {name: Style(colour, line, marker, marked=True) for name, (line, (colour, marker)) in chosen.items()}


def match_colours(found: np.ndarray, true: np.ndarray) -> dict[int, int]:
    """Chooses a colour number for each found cluster: that of a true cluster which has more than half of its clients.

    The clients of a cluster are those of the last round in which it has any. If several found clusters lie in one true
    cluster, the largest has its number; clusters that are left over take numbers that no true cluster has. If no true
    cluster is known, each keeps its own number.

    Args:
        found: Found clusters, int `[..., clients]`, -1 = none.
        true: True clusters, int `[clients]`, -1 = unknown.

    Returns:
        A different number for each found cluster.
    """
    numbers = np.unique(found[found >= 0])
    if not len(numbers) or (true < 0).all():
        return {int(number): int(number) for number in numbers}
    places, truths = [], []  # of the clients in the last round of their cluster
    seen = np.zeros(len(numbers), dtype=bool)
    for clusters in found.reshape(-1, found.shape[-1])[::-1]:
        place = np.searchsorted(numbers, clusters)
        new = (clusters >= 0) & ~seen[place]
        places.append(place[new & (true >= 0)])
        truths.append(true[new & (true >= 0)])
        seen[place[new]] = True
    place, width = np.concatenate(places), int(true.max()) + 1
    pairs, counts = np.unique(place * width + np.concatenate(truths), return_counts=True)
    own, truth = np.divmod(pairs, width)
    most = 2 * counts > np.bincount(place, minlength=len(numbers))[own]
    claims: dict[int, int] = {}  # found cluster by true cluster; the largest one comes last
    for k in np.flatnonzero(most)[np.lexsort((-own[most], counts[most]))]:
        claims[int(truth[k])] = int(numbers[own[k]])
    taken = {number: truth for truth, number in claims.items()}
    others = [int(number) for number in numbers if int(number) not in taken]
    return taken | {number: width + k for k, number in enumerate(others)}


def add_colours(match: Mapping[int, int], clusters: Iterable[int]) -> dict[int, int]:
    """Adds colour numbers for clusters that have none: their own number, or the next one if that is taken.

    Args:
        match: Colour number of each matched cluster, see `match_colours`.
        clusters: Numbers of clusters, 0 or more.
    """
    found, others = dict(match), sorted(set(clusters) - match.keys())
    free = count(max([*match.values(), *others], default=-1) + 1)
    for number in others:
        found[number] = next(free) if number in match.values() else number
    return found


def name_of(cluster: object) -> str:
    """Names a cluster by its number; "not assigned" if there is no number, or a negative one."""
    return f"cluster {cluster:g}" if isinstance(cluster, int | float | np.integer) and cluster >= 0 else NOT_ASSIGNED


def true_name_of(cluster: int) -> str:
    """Names a true cluster by its number."""
    return "unknown" if cluster < 0 else f"true cluster {cluster}"


def cluster_styles(
    found: Iterable[int],
    match: Mapping[int, int],
    true: Iterable[int] = (),
    true_names: Sequence[str] = (),
    size: float = 4.2,
    same: Mapping[int, int] | None = None,
) -> dict[str, Style]:
    """Returns the styles of clusters by name, in the order of their numbers, "not assigned" last.

    Above 20 clusters no cluster is in the legend, since colours repeat. The legend adds the true cluster of the same
    colour to a found one, such as `cluster 0 (true 1)`, or `cluster 0 (true 1, Zurich)` if it has a name; other true
    clusters have entries of their own.

    Args:
        found: Numbers of found clusters; -1 = not assigned.
        match: Colour number of each cluster, see `match_colours`; a cluster without one gets one by `add_colours`.
        true: Numbers of true clusters; -1 = unknown.
        true_names: Names of the true clusters 0, 1, ...; empty = none.
        size: Size of markers.
        same: True cluster that a figure names next to a found one; None = all of `match`.
    """
    same = match if same is None else same
    numbers = sorted({int(number) for number in found}, key=lambda number: (number < 0, number))
    taken = add_colours(match, numbers)
    few = sum(number >= 0 for number in numbers) <= MAX_COLOURS
    truths = {int(number) for number in true}
    styles = {}
    for number in numbers:
        true_name = _with_name(taken[number], true_names)
        label = f"{name_of(number)} (true {true_name})" if same.get(number) in truths else ""
        styles[name_of(number)] = replace(_style(taken[number], few or number < 0, size), label=label)
    for number in sorted(truths, key=lambda number: (number < 0, number)):
        style = _style(number, number < 0 or (few and number not in same.values()), size)
        label = "" if number < 0 else f"true cluster {_with_name(number, true_names)}"
        styles[true_name_of(number)] = replace(style, label=label)
    return styles


def _with_name(cluster: int, names: Sequence[str]) -> str:
    return f"{cluster}, {shorten(names[cluster])}" if 0 <= cluster < len(names) else str(cluster)


def shorten(name: str) -> str:
    """Returns a name for an axis or a legend, cut off if it is long."""
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 3]}..."


def _style(number: int, named: bool, size: float) -> Style:
    marker = "o" if number < 0 else _MARKERS[number % len(_MARKERS)]
    return Style(hex_of(number), marker=marker, size=size, named=named)
