"""Tests what drawings show where golden figures have no such case: labels, sizes and images of data, ranks, axes."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from quadratic import ids

from lit_cfl.data import ClientIndex, Examples, FederatedData, View
from lit_cfl.pictures.curves import Means, over_rounds
from lit_cfl.pictures.data import example_images, label_distribution, size_histogram
from lit_cfl.pictures.figure import HEIGHT, Figure, draw, short, thin
from lit_cfl.pictures.panels import BLUE, COLUMN, Curve, Panel, Points, Style, draw_panels
from lit_cfl.pictures.ranks import draw_ranks
from lit_cfl.pictures.svg import as_svg
from lit_cfl.scores import ACCURACY
from lit_cfl.statistics import Ranking

pytestmark = pytest.mark.nightly  # golden figures and definitions state most of what is drawn
ONE = {"one": Style(BLUE)}


def held(*labels: tuple[int, ...], **more: Any) -> FederatedData:
    """Makes clients with these labels in their training data."""
    pool = Examples(torch.rand(3, 1, 2, 2), torch.arange(3), 3)
    train = ClientIndex.from_lists([ids(*own) for own in labels])
    none = ClientIndex.from_lists([ids()] * len(labels))
    return FederatedData(pool, train, none, none, **more)


def texts(labels: Any) -> list[str]:
    return [label.get_text() for label in labels]


def test_colours_of_several_labels_are_shares_of_the_labels():
    several = Examples(torch.rand(3, 2), torch.tensor([[1, 1, 0], [0, 1, 0], [1, 1, 1]]).bool(), 0)
    figure = label_distribution(replace(held((0, 1), (2,), true_clusters=ids(-1, -1)), examples=several))
    assert figure.axes[1].get_ylabel() == "share of the client's labels"
    assert np.allclose(figure.axes[0].images[0].get_array().T, [[1 / 3, 2 / 3, 0], [1 / 3, 1 / 3, 1 / 3]])


def test_many_clients_are_a_sample_of_each_true_cluster_without_names():
    axes = label_distribution(held(*[(0, 1)] * 1000, true_clusters=torch.arange(1000) % 10)).axes[0]
    assert (axes.get_xlabel(), list(axes.get_xticks())) == ("clients (500 of 1000 shown)", [])
    (above,) = axes.child_axes
    assert texts(above.get_xticklabels()) == [*map(str, range(10))]


@pytest.mark.parametrize("number", [2, 40])
def test_the_name_of_the_colours_fits_next_to_few_labels(number: int):
    data = held((0, 1), (1,), true_clusters=ids(-1, -1))
    figure = label_distribution(replace(data, examples=replace(data.examples, num_labels=number)))
    figure.draw_without_rendering()
    shown = figure.axes[1].yaxis.label.get_window_extent()
    assert shown.y0 >= 0
    assert shown.y1 <= figure.bbox.y1


@pytest.mark.parametrize(
    ("sizes", "label", "median", "counted"),
    [
        ((1, 2, 3, 9, 10), "", "median 3", 5),  # the mean is 5
        ((0, 5, 0, 2), "", "median 1", 4),
        ((0, 400, 0, 2), "; 2 clients without any", "median 1", 2),  # on a logarithmic axis
    ],
)
def test_sizes_are_counted_around_their_median(sizes: tuple[int, ...], label: str, median: str, counted: int):
    figure = size_histogram(held(*[(0,) * size for size in sizes], true_clusters=ids(*[0] * len(sizes))))
    axes = figure.axes[0]
    assert axes.get_xlabel() == f"training examples of a client{label}"
    assert texts(axes.get_legend().get_texts()) == [median]
    assert sum(bar.get_height() for bar in axes.patches) == counted
    figure.draw_without_rendering()
    if label:  # plain numbers instead of small exponents
        assert {"1", "10", "100", "200"} <= set(texts(axes.get_xticklabels()))


def test_images_of_clusters_have_one_scale_and_names_of_their_clusters_and_labels():
    def titles(data: FederatedData) -> list[str]:
        return [axes.get_title() for axes in example_images(data).axes]

    assert titles(held((0, 1, 1), (1,), (2,), true_clusters=ids(4, -1, 2))) == [
        *("cluster ?\nlabel 1", "cluster 2\nlabel 2", "cluster 4\nlabel 0")
    ]
    named = held((0, 1, 1), (1,), (), true_clusters=ids(1, 0, 2), cluster_names=("north", "south", "empty"))
    unlabelled = replace(named, examples=named.examples.without_labels())
    assert titles(unlabelled) == ["cluster north", "cluster south"]
    unknown = held((0, 1, 1), (1,), true_clusters=ids(-1, -1))
    assert titles(unknown) == ["label 1"]
    assert example_images(held((), (), true_clusters=ids(0, 1))) is None
    data = held((0,), (3,), true_clusters=ids(0, 1))  # example 0 under the first and under the second view
    views = (View(), View(brightness=0.5))
    dim = replace(data, examples=replace(data.examples, inputs=torch.tensor([[[[0, 0.5], [1, 0]]]] * 3), views=views))
    shown = [axes.images[0].get_array().tolist() for axes in example_images(dim).axes]
    assert shown == [[[0, 0.5], [1, 0]], [[0, 0.25], [0.5, 0]]]


# Pages and papers


def test_points_of_the_page_have_their_notes_and_no_group_an_id():
    notes = [{"one": "<1>"}, {"one": None, "two": 0.123456}]
    panel = Panel("", "x", "y", points=[Points("one", [1.5, 3.0], [0.375, 0.0625], ["left", "right"], notes)])
    svg = as_svg(Figure("x", "x", [[None, panel]], "", "", ONE))
    root = ElementTree.fromstring(svg)  # noqa: S314  # our own
    assert [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")] == ["one <1>", "two 0.1235"]
    assert "#000000" not in svg  # text and axes take the page's colour, which is light in dark mode
    assert not re.search("<g [^>]*id=", svg)


@pytest.mark.parametrize("number", [3, 8, 19])
def test_names_of_a_rank_diagram_are_inside_of_it_and_do_not_touch(number: int):
    ranks = {f"a method of a long name {k}": float(k + 1) for k in range(number)}
    figure = draw_ranks(Ranking(ranks, 10, 9.0, 0.0123, 1.0))
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 for box in boxes)
    assert not any(one.overlaps(other) for k, one in enumerate(boxes) for other in boxes[:k])


def test_bars_of_overlapping_groups_of_ranks_are_below_each_other():
    axes = draw_ranks(Ranking({"a": 1.0, "b": 1.5, "c": 2.5, "d": 4.0}, 10, 9.0, 0.0123, 1.0)).axes[0]
    bars = [(line.get_xdata(), line.get_ydata()[0]) for line in axes.lines[:2]]
    assert [(round(left, 2), round(right, 2)) for (left, right), _ in bars] == [(0.97, 1.53), (1.47, 2.53)]
    assert bars[0][1] < bars[1][1]


def seen_labels(axes: Axes) -> list[Any]:
    axes.figure.canvas.draw()
    low, high = axes.get_window_extent().intervalx
    boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    return [box for box in boxes if low - 1 <= (box.x0 + box.x1) / 2 <= high + 1]


def test_labels_of_narrow_panels_do_not_touch():
    values = {"tau": [0.3871, 0.395], "rate": [0.02, 0.1]}
    panels = [Panel("", name, "score", points=[Points("one", x, [0.1, 0.2])]) for name, x in values.items()]
    for axes in draw(Figure("slices", "", [panels], "", "", ONE)).axes[:2]:
        boxes = seen_labels(axes)
        assert len(boxes) >= 2
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_names_on_an_axis_are_rotated_where_panels_beside_each_other_leave_no_room():
    ticks = dict(enumerate(["FedAvg", "FedGroup", "IFCA", "StoCFL"]))
    panel = Panel("", "algorithm", "accuracy", points=[Points("one", [0, 1, 2, 3], [0.4, 0.6, 0.5, 0.7])])
    for across, rotation in ((1, 0), (2, 45)):
        drawn = draw_panels([[replace(panel, x_ticks=ticks)] * across], ONE, COLUMN, HEIGHT)
        assert {label.get_rotation() for axes in drawn.axes for label in axes.get_xticklabels()} == {rotation}


@pytest.mark.parametrize("y", ["accuracy", "val/weighted_balanced_accuracy"])
@pytest.mark.parametrize("x", ["lr", "algorithm.\npretrain_scale"])
def test_the_label_of_a_vertical_axis_is_not_cut_off(x: str, y: str):
    panel = Panel("", x, y, curves=[Curve("one", [0, 1], [0, 1])])
    figure = draw_panels([[panel], [panel]], ONE, COLUMN, height=0.9)
    figure.draw_without_rendering()
    assert figure.axes[0].yaxis.label.get_window_extent().y1 < figure.bbox.y1


@pytest.mark.parametrize(("last", "log"), [((2.5, 3.25), False), ((3.0, 48.0), True)])
def test_counts_have_whole_ticks_and_a_high_one_does_not_flatten_the_others(last: tuple[float, ...], log: bool):
    groups = {str(k): Means([1, 2], [2.0, value]) for k, value in enumerate(last)}
    figure = over_rounds("clusters/count", "x", "clusters", "It.", groups, ACCURACY)
    assert figure.first_panel.log_y == log
    (axes,) = draw(figure).axes
    axes.figure.draw_without_rendering()
    shown = [tick for tick in axes.get_yticks() if min(axes.get_ylim()) <= tick <= max(axes.get_ylim())]
    assert shown
    assert all(float(tick).is_integer() for tick in shown)
    low, high = (axes.transData.transform((0, value))[1] for value in (2.0, 3.0))
    assert high - low > 0.1 * axes.bbox.height


def test_numbers_are_short_and_many_points_keep_their_ends():
    assert [short(value) for value in (227963.33, 12345.6, 1234.56, 0.00012345, 2e9, 5.0, "a")] == [
        *("227963", "12346", "1235", "0.0001234", "2e+09", "5", "a")
    ]
    kept = thin(2000, 500)
    assert (len(kept), kept[0], kept[-1], thin(3, 5), thin(0, 5)) == (500, 0, 1999, [0, 1, 2], [])
