"""Tests that colours of clusters can be distinguished, also with colour-vision deficiencies."""

from collections.abc import Iterable

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from lit_cfl import algorithms
from lit_cfl.pictures.colours import MAX_COLOURS, add_colours, hex_of, line_styles

LEAST = 12.0  # minimum distance in CIELAB; a distance of about 2 is just visible side by side
# Machado, Oliveira and Fernandes 2009, severity 1: matrices for linear RGB as seen without one kind of cones.
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def colours(numbers: Iterable[int]) -> np.ndarray:
    """Returns the colours of clusters as sRGB in [0, 1], `[n, 3]`."""
    return np.array([to_rgb(hex_of(number)) for number in numbers])


def linear(rgb: np.ndarray) -> np.ndarray:
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray, sight: str) -> np.ndarray:
    """Converts sRGB `[n, 3]` to CIELAB under D65, as a person with this kind of colour vision sees it."""
    seen = (linear(rgb) @ np.array(SIGHTS[sight]).T).clip(0, 1)
    xyz = seen @ TO_XYZ.T / TO_XYZ.sum(1)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], 1)


@pytest.mark.parametrize("sight", SIGHTS)
def test_any_two_of_twenty_clusters_have_distinguishable_colours(sight: str):
    numbers = range(-1, MAX_COLOURS)  # -1 is the grey of clients without a cluster
    seen = lab(colours(numbers), sight)
    distances = np.linalg.norm(seen[:, None] - seen, axis=2) + np.diag(np.full(len(numbers), np.inf))
    one, other = np.unravel_index(distances.argmin(), distances.shape)
    assert MAX_COLOURS == 20
    assert distances.min() > LEAST, (numbers[one], numbers[other])


@pytest.mark.parametrize(("paper", "least"), [("#ffffff", 1.2), ("#f6f7f9", 1.2), ("#191e26", 1.5)])
def test_each_colour_stands_out_from_the_page_in_light_and_in_dark(paper: str, least: float):
    ground, *found = linear(np.vstack([to_rgb(paper), colours(range(MAX_COLOURS))])) @ TO_XYZ[1]
    contrasts = [(max(ground, one) + 0.05) / (min(ground, one) + 0.05) for one in found]  # contrast as defined by WCAG
    assert min(contrasts) > least


def test_a_cluster_between_two_records_of_the_memberships_has_a_colour_of_its_own():
    assert add_colours({}, [3, 0]) == {0: 0, 3: 3}
    assert add_colours({0: 2, 4: 0}, [0, 2, 3]) == {0: 2, 4: 0, 2: 4, 3: 3}


def test_algorithms_have_one_look_in_every_figure_and_no_two_share_it():
    names = sorted(set(algorithms.__all__) - {"Algorithm", "Assignment", "Info", "Similarity"})
    looks = {name: (style.colour, style.marker) for name, style in line_styles(names).items()}
    assert len(set(looks.values())) == len(looks) == 19
    for shown in (["FedAvg (baseline)", "IFCA"], ["mine.Own", "IFCA (one)", "IFCA (other)", "CFL"]):
        styles = line_styles(shown)
        own = {name: looks.get(name.partition(" (")[0]) for name in shown if name != "IFCA (other)"}
        assert all(look in (None, (styles[name].colour, styles[name].marker)) for name, look in own.items())
        assert len({(style.colour, style.marker) for style in styles.values()}) == len(shown)


@pytest.mark.parametrize("sight", SIGHTS)
def test_fedgroup_stands_out_from_the_methods_that_it_is_compared_with(sight: str):
    names = ["FedGroup", "IFCA", "FedAvg", "StoCFL", "FeSEM", "CFL", "FlexCFL", "Local"]
    seen = lab(np.array([to_rgb(style.colour) for style in line_styles(names).values()]), sight)
    assert np.linalg.norm(seen[:1] - seen[1:], axis=1).min() > 2 * LEAST
