"""Tests what is drawn of a figure's data, pictures of data sets, and that texts do not touch or leave the picture."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from quadratic import ids

from lit_cfl.data import ClientIndex, Examples, FederatedData, View
from lit_cfl.pictures.curves import Means, over_rounds
from lit_cfl.pictures.data import example_images, label_distribution, size_histogram
from lit_cfl.pictures.figure import Figure, draw, short, thin
from lit_cfl.pictures.panels import (
    BLUE,
    COLUMN,
    ORANGE,
    SKY,
    Bars,
    Cells,
    Curve,
    HeatMap,
    Panel,
    Points,
    Style,
    draw_panels,
)
from lit_cfl.pictures.ranks import draw_ranks
from lit_cfl.pictures.svg import as_svg
from lit_cfl.scores import ACCURACY
from lit_cfl.statistics import Ranking

ONE = {"one": Style(BLUE)}


def texts(labels: Any) -> list[str]:
    return [label.get_text() for label in labels]


def test_marks_are_drawn_where_their_data_are_in_the_look_of_their_style():
    styles = {"a": Style(BLUE, "--"), "b": Style(ORANGE, marker="^", label="second"), "c": Style(SKY, named=False)}
    curves = [Curve("a", [1, 2, 4], [3, 5, 4], [2, 4.5, 3], [3.5, 7, 4.25])]
    points, bars = Points("b", [1.5, 3], [2, 6], ["left", "right"]), Bars("c", [0, 1], 1, [2, 3], [0.5, 1])
    panel = Panel("", "x", "y", curves, [points], (0, 8), (0.5, 4.5), bars=[bars])
    figure = draw_panels([[panel, None]], styles)
    axes, empty = figure.axes
    line, dots = axes.lines
    assert (line.get_xydata().tolist(), dots.get_xydata().tolist()) == ([[1, 3], [2, 5], [4, 4]], [[1.5, 2], [3, 6]])
    looks = [(mark.get_color(), mark.get_linestyle(), mark.get_marker()) for mark in axes.lines]
    assert looks == [(BLUE, "--", "None"), (ORANGE, "None", "^")]
    (band,) = axes.collections
    low_and_high = {(1, 2), (2, 4.5), (4, 3), (1, 3.5), (2, 7), (4, 4.25)}
    assert set(map(tuple, band.get_paths()[0].vertices.tolist())) == low_and_high
    found = [(bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height()) for bar in axes.patches]
    assert found == [(0, 0.5, 1, 2), (1, 1, 1, 3)]
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("left", (1.5, 2)), ("right", (3, 6))]
    assert (axes.get_xlim(), axes.get_ylim(), empty.axison) == ((0.5, 4.5), (0, 8), False)
    (legend,) = figure.legends
    assert texts(legend.get_texts()) == ["a", "second"]


def test_cells_and_matrices_have_the_colours_of_their_values():
    def colours(mesh: Any) -> list[list[str]]:
        return [[to_hex(one).upper() for one in row] for row in mesh.to_rgba(mesh.get_array())]

    styles = {"zero": Style(BLUE), "one": Style(ORANGE), "two": Style(SKY)}
    places, side = np.array([[0, 2], [1, 1], [2, 1]]), np.array([1, 0, 0])
    cells = Cells(places, [*styles], [0.5, 2.5, 3.5], ["0", "1", "2"], side, "true")
    matrix = HeatMap(np.array([[1, 0.25, 0.5], [0.25, 1, 0.75], [0.5, 0.75, 1]]), 0.25, 0.5, "cosine", ["a", "a", "b"])
    panels: list[Panel | None] = [Panel("", "x", "y", cells=cells), Panel("", "x", "y", matrix=matrix)]
    left, right, bar = draw_panels([panels], styles).axes
    (mesh,), (narrow,) = left.collections, left.child_axes
    assert (colours(mesh), mesh.get_coordinates()[0, :, 0].tolist()) == (
        [[BLUE, SKY], [ORANGE, ORANGE], [SKY, ORANGE]],
        [0.5, 2.5, 3.5],
    )
    assert (colours(narrow.collections[0]), narrow.get_ylim()) == ([[ORANGE], [BLUE], [BLUE]], (2.5, -0.5))
    assert [(text.get_text(), text.xy[1]) for text in left.texts] == [("2", 0), ("1", 1.5)]
    (image,) = right.images
    assert (image.get_array().tolist(), image.get_clim()) == (matrix.values.tolist(), (0.25, 0.5))
    assert [set(line.get_data()[k]) for k, line in zip((1, 0), right.lines, strict=True)] == [{1.5}, {1.5}]
    assert (texts(right.get_yticklabels()), [*right.get_yticks()], bar.get_ylabel()) == (["a", "b"], [0.5, 2], "cosine")


def test_points_of_the_page_have_their_notes_and_no_group_an_id():
    notes = [{"one": "<1>"}, {"one": None, "two": 0.123456}]
    panel = Panel("", "x", "y", points=[Points("one", [1.5, 3.0], [0.375, 0.0625], ["left", "right"], notes)])
    svg = as_svg(Figure("x", "x", [[None, panel]], "", "", ONE))
    root = ElementTree.fromstring(svg)  # noqa: S314  # our own
    assert [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")] == ["one <1>", "two 0.1235"]
    assert "#000000" not in svg  # text and axes take the page's colour, which is light in dark mode
    assert not re.search("<g [^>]*id=", svg)


def test_labels_of_narrow_panels_do_not_touch_and_are_not_cut_off():
    values = {"algorithm.\npretrain_scale": [0.3871, 0.395], "rate": [0.02, 0.1]}
    y = "val/weighted_balanced_accuracy"
    row = [Panel("", name, y, points=[Points("one", x, [0.1, 0.2])]) for name, x in values.items()]
    figure = draw_panels([row], ONE, COLUMN, height=0.9)
    figure.canvas.draw()
    assert figure.axes[0].yaxis.label.get_window_extent().y1 < figure.bbox.y1
    for axes in figure.axes[:2]:
        low, high = axes.get_window_extent().intervalx
        boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        boxes = [box for box in boxes if low - 1 <= (box.x0 + box.x1) / 2 <= high + 1]
        assert len(boxes) >= 2
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


@pytest.mark.parametrize(("last", "log"), [((2.5, 3.25), False), ((3.0, 48.0), True)])
def test_counts_have_whole_ticks_and_a_high_one_does_not_flatten_the_others(last: tuple[float, ...], log: bool):
    groups = {str(k): Means([1, 2], [2.0, value]) for k, value in enumerate(last)}
    (axes,) = draw(over_rounds("clusters/count", "x", "clusters", "It.", groups, ACCURACY)).axes
    axes.figure.draw_without_rendering()
    shown = [tick for tick in axes.get_yticks() if min(axes.get_ylim()) <= tick <= max(axes.get_ylim())]
    assert (axes.get_yscale() == "log") is log
    assert shown
    assert all(float(tick).is_integer() for tick in shown)
    low, high = (axes.transData.transform((0, value))[1] for value in (2.0, 3.0))
    assert high - low > 0.1 * axes.bbox.height


def test_numbers_are_short_and_many_points_keep_their_ends():
    assert [short(value) for value in (227963.33, 1234.56, 0.00012345, 2e9, 5.0, "a")] == [
        *("227963", "1235", "0.0001234", "2e+09", "5", "a")
    ]
    kept = thin(2000, 500)
    assert (len(kept), kept[0], kept[-1], thin(3, 5), thin(0, 5)) == (500, 0, 1999, [0, 1, 2], [])


def held(*labels: tuple[int, ...], **more: Any) -> FederatedData:
    names = ("cat", "dog", "a name of 24 letters or more")
    pool = Examples(torch.rand(3, 1, 2, 2), torch.arange(3), 3, label_names=names)
    train = ClientIndex.from_lists([ids(*own) for own in labels])
    none = ClientIndex.from_lists([ids()] * len(labels))
    return FederatedData(pool, train, none, none, **more)


def test_label_shares_are_those_of_each_client_in_the_order_of_the_true_clusters():
    named = {"names": ("Kew", "", "Ryde"), "cluster_names": ("N", "S"), "true_clusters": ids(1, -1, 0)}
    axes, bar = label_distribution(held((0, 1, 2, 2), (1,), (0, 2, 0), **named)).axes
    assert np.allclose(axes.images[0].get_array().T, [[0, 1, 0], [2 / 3, 0, 1 / 3], [1 / 4, 1 / 4, 1 / 2]])
    assert (texts(axes.get_xticklabels()), bar.get_ylabel()) == (["1", "Ryde", "Kew"], "share of the client's examples")
    assert texts(axes.get_yticklabels()) == ["cat", "dog", "a name of 24 letters ..."]
    assert texts(axes.child_axes[0].get_xticklabels()) == ["?", "N", "S"]
    several = Examples(torch.rand(3, 2), torch.tensor([[1, 1, 0], [0, 1, 0], [1, 1, 1]]).bool(), 0)
    axes, bar = label_distribution(replace(held((0, 1), (2,), true_clusters=ids(-1, -1)), examples=several)).axes
    assert np.allclose(axes.images[0].get_array().T, [[1 / 3, 2 / 3, 0], [1 / 3, 1 / 3, 1 / 3]])
    assert bar.get_ylabel() == "share of the client's labels"
    many = label_distribution(held(*[(0, 1)] * 1000, true_clusters=torch.arange(1000) % 10)).axes[0]
    assert (many.get_xlabel(), list(many.get_xticks())) == ("clients (500 of 1000 shown)", [])
    assert texts(many.child_axes[0].get_xticklabels()) == [*map(str, range(10))]  # each cluster has some


@pytest.mark.parametrize(
    ("sizes", "label", "median", "counted"),
    [
        ((1, 2, 3, 9, 10), "", "median 3", 5),  # the mean is 5
        ((0, 400, 0, 2), "; 2 clients without any", "median 1", 2),  # on a logarithmic axis
    ],
)
def test_sizes_are_counted_around_their_median(sizes: tuple[int, ...], label: str, median: str, counted: int):
    (axes,) = size_histogram(held(*[(0,) * size for size in sizes], true_clusters=ids(*[0] * len(sizes)))).axes
    assert axes.get_xlabel() == f"training examples of a client{label}"
    assert texts(axes.get_legend().get_texts()) == [median]
    assert sum(bar.get_height() for bar in axes.patches) == counted
    axes.figure.draw_without_rendering()
    if label:  # plain numbers instead of small exponents
        assert {"1", "10", "100", "200"} <= set(texts(axes.get_xticklabels()))


def test_images_of_clusters_have_one_scale_and_names_of_their_clusters_and_labels():
    def titles(data: FederatedData) -> list[str]:
        return texts(axes.title for axes in example_images(data).axes)

    found = titles(held((0, 1, 1), (1,), (2,), true_clusters=ids(4, -1, 2)))
    assert found == ["cluster ?\nlabel dog", "cluster 2\nlabel a name of 24 letters ...", "cluster 4\nlabel cat"]
    named = held((0, 1, 1), (1,), (), true_clusters=ids(1, 0, 2), cluster_names=("north", "south", "empty"))
    unlabelled = replace(named, examples=named.examples.without_labels())
    assert titles(unlabelled) == ["cluster north", "cluster south"]
    assert titles(held((0, 1, 1), (1,), true_clusters=ids(-1, -1))) == ["label dog"]
    assert example_images(held((), (), true_clusters=ids(0, 1))) is None
    data = held((0,), (3,), true_clusters=ids(0, 1))  # example 0 under the first and under the second view
    views = (View(), View(brightness=0.5))
    dim = replace(data, examples=replace(data.examples, inputs=torch.tensor([[[[0, 0.5], [1, 0]]]] * 3), views=views))
    shown = [axes.images[0].get_array().tolist() for axes in example_images(dim).axes]
    assert shown == [[[0, 0.5], [1, 0]], [[0, 0.25], [0.5, 0]]]


@pytest.mark.parametrize("number", [3, 19])
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
