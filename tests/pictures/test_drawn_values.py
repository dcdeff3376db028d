"""Tests that drawings show the data: heights, bases, edges of bands, line styles, weights, ranks."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from quadratic import ids

from lit_cfl.data import ClientIndex, Examples, FederatedData, View
from lit_cfl.pictures.curves import learning_curve
from lit_cfl.pictures.data import example_images, label_distribution, size_histogram
from lit_cfl.pictures.figure import HEIGHT, Figure, draw, short
from lit_cfl.pictures.panels import BLUE, COLUMN, Bars, Cells, Curve, HeatMap, Panel, Points, Style, draw_panels
from lit_cfl.pictures.ranks import draw_ranks, rank_diagram
from lit_cfl.pictures.svg import as_svg
from lit_cfl.scores import ACCURACY
from lit_cfl.statistics import Ranking

pytestmark = pytest.mark.nightly  # a table of tests states these facts

STYLES = {"a": Style("#112233", "--"), "b": Style("#445566", marker="s"), "c": Style("#778899")}
PANEL = Panel(
    "",
    "round",
    "score",
    curves=[Curve("a", [1, 2, 4], [0.5, 0.25, 0.75], [0.25, 0.125, 0.5], [0.625, 0.5, 0.875])],
    points=[Points("b", [1.5, 3.0], [0.375, 0.0625], ["left", "right"], [{"one": "<1>"}, {"one": None, "two": 2}])],
    bars=[Bars("c", [0.5, 1.5], 1.0, [3.0, 2.0], [1.0, 4.0])],
)


def corners(axes: Axes) -> list[tuple[float, float, float]]:
    """Returns left edges, lower edges and heights of the bars."""
    return [(bar.get_x(), bar.get_y(), bar.get_height()) for bar in axes.patches]


def test_a_panel_draws_curves_in_their_bands_bars_on_their_bases_and_points_with_labels():
    axes = draw_panels([[PANEL]], STYLES).axes[0]
    curve, points = axes.lines
    assert (list(curve.get_xdata()), list(curve.get_ydata())) == ([1, 2, 4], [0.5, 0.25, 0.75])
    band = axes.collections[0].get_paths()[0].vertices
    edges = {float(x): {float(y) for number, y in band if number == x} for x in (1, 2, 4)}
    assert edges == {1.0: {0.25, 0.625}, 2.0: {0.125, 0.5}, 4.0: {0.5, 0.875}}
    assert (list(points.get_xdata()), list(points.get_ydata())) == ([1.5, 3.0], [0.375, 0.0625])
    assert corners(axes) == [(0.5, 1.0, 3.0), (1.5, 4.0, 2.0)]
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("left", (1.5, 0.375)), ("right", (3.0, 0.0625))]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "score")


def test_points_of_the_page_have_their_notes_and_no_group_an_id():
    svg = as_svg(Figure("x", "x", [[None, PANEL]], "", "", STYLES))
    root = ElementTree.fromstring(svg)  # noqa: S314  # our own
    assert [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")] == ["one <1>", "two 2"]
    assert all(f"#{colour}" in svg for colour in ("112233", "445566", "778899"))
    assert "#000000" not in svg  # text and axes take the page's colour, which is light in dark mode
    assert not re.search("<g [^>]*id=", svg)
    assert "<script" not in svg


def test_a_matrix_and_cells_are_drawn_one_by_one():
    values = np.array([[1.0, 0.5, -0.25], [0.5, 1.0, np.nan], [-0.25, np.nan, 1.0]], dtype=np.float32)
    panel = Panel("round 2", "clients", "cluster", matrix=HeatMap(values, 0.0, 0.75, "cosine", ["0", "0", "1"]))
    axes = draw(Figure("x", "x", [[panel]], "", "")).axes[0]
    drawn = axes.images[0]
    assert np.ma.filled(drawn.get_array(), np.nan) == pytest.approx(values, nan_ok=True)
    assert drawn.get_clim() == (0.0, 0.75)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "1"]
    assert list(axes.get_yticks()) == [0.5, 2.0]  # labels are in the middle of their groups
    places, side = np.array([[0, 1], [1, 1], [1, 0]]), np.array([2, 2, 1])
    cells = Cells(places, ["a", "b", "c"], [0.5, 1.5, 9.5], ["0", "1", "2"], side, "true")
    found = draw(Figure("x", "x", [[Panel("", "round", "clients", cells=cells)]], "", "", STYLES)).axes[0]
    (true,) = found.child_axes
    rgb = np.array([to_rgb(STYLES[name].colour) for name in "abc"])
    for axes, expected in ((found, places), (true, side[:, None])):
        (mesh,) = axes.collections
        mesh.update_scalarmappable()
        assert np.allclose(mesh.get_facecolors()[:, :3], rgb[expected.ravel()])
    # distances on the axis are proportional to time
    assert found.collections[0].get_coordinates()[0, :, 0].tolist() == [0.5, 1.5, 9.5]
    assert [text.get_text() for text in found.texts] == ["1", "0"]  # names for the groups in the last column
    assert found.get_ylim() == (2.5, -0.5)  # the first row is at the top


def test_each_line_of_a_learning_curve_is_its_own_column():
    rows = [
        {"round": k, "test/weighted_accuracy": k / 4, "test/worst10_accuracy": k / 8, "val/weighted_accuracy": k / 16}
        for k in (1, 2, 3)
    ]
    figure = learning_curve({"IFCA": rows}, ACCURACY)
    assert {curve.name: list(curve.y) for curve in figure.first_panel.curves} == {
        "IFCA, test": [0.25, 0.5, 0.75],
        "IFCA, test, worst tenth of the clients": [0.125, 0.25, 0.375],
        "IFCA, validation": [0.0625, 0.125, 0.1875],
    }
    assert [style.line for style in figure.styles.values()] == ["-", ":", "--"]


def held(*labels: tuple[int, ...], **more: Any) -> FederatedData:
    """Makes clients with these labels in their training data, and test examples of all labels."""
    pool = Examples(torch.rand(3, 1, 2, 2), torch.arange(3), 3)
    train = ClientIndex.from_lists([ids(*own) for own in labels])
    none = ClientIndex.from_lists([ids()] * len(labels))
    test = ClientIndex.from_lists([ids(0, 1, 2)] * len(labels))
    return FederatedData(pool, train, none, test, **more)


def test_labels_are_drawn_as_shares_of_each_clients_training_data_by_true_cluster():
    data = held((0, 0, 0, 1), (2,), (1, 2), (), true_clusters=ids(1, 0, 1, 0))
    figure = label_distribution(data)
    axes = figure.axes[0]
    shares = [[0, 0, 1], [0, 0, 0], [0.75, 0.25, 0], [0, 0.5, 0.5]]  # clients 1, 3, 0, 2
    assert np.array_equal(axes.images[0].get_array(), np.array(shares).T)
    (above,) = axes.child_axes
    assert [tick.get_text() for tick in above.get_xticklabels()] == ["0", "1"]
    assert list(above.get_xticks()) == [0.5, 2.5]
    assert above.get_xlabel() == "true cluster"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "3", "0", "2"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "1", "2"]


def test_clients_are_called_by_their_names_as_long_as_there_is_room():
    data = held((0,), (1,), (2,), true_clusters=ids(1, 0, -1), names=("Kew", "", "Ryde"), cluster_names=("N", "S"))
    (above,) = label_distribution(data).axes[0].child_axes
    assert [tick.get_text() for tick in above.get_xticklabels()] == ["?", "N", "S"]
    assert [tick.get_text() for tick in label_distribution(data).axes[0].get_xticklabels()] == ["Ryde", "1", "Kew"]
    many = held(*[(0, 1)] * 41, true_clusters=ids(*[0] * 41), names=tuple(map(str, range(41))))
    assert list(label_distribution(many).axes[0].get_xticks()) == []


def test_labels_of_many_clients_are_those_of_clients_of_each_true_cluster():
    data = held(*[(0, 1)] * 1000, true_clusters=torch.arange(1000) % 10)
    axes = label_distribution(data).axes[0]
    assert axes.get_xlabel() == "clients (500 of 1000 shown)"
    (above,) = axes.child_axes
    assert [tick.get_text() for tick in above.get_xticklabels()] == [*map(str, range(10))]


def test_colours_of_several_labels_are_shares_of_the_labels():
    several = Examples(torch.rand(3, 2), torch.tensor([[1, 1, 0], [0, 1, 0], [1, 1, 1]]).bool(), 0)
    figure = label_distribution(replace(held((0, 1), (2,), true_clusters=ids(-1, -1)), examples=several))
    assert figure.axes[1].get_ylabel() == "share of the client's labels"
    assert np.allclose(figure.axes[0].images[0].get_array().T, [[1 / 3, 2 / 3, 0], [1 / 3, 1 / 3, 1 / 3]])


def test_labels_are_called_by_their_names():
    data = held((0, 1), (2,), true_clusters=ids(-1, -1))
    named = replace(data, examples=replace(data.examples, label_names=("cat", "dog", "a name of more than 24 letters")))
    axes = label_distribution(named).axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["cat", "dog", "a name of more than 2..."]


@pytest.mark.parametrize("number", [2, 40])
def test_the_name_of_the_colours_fits_next_to_few_labels(number: int):
    data = held((0, 1), (1,), true_clusters=ids(-1, -1))
    data = replace(data, examples=replace(data.examples, num_labels=number))
    figure = label_distribution(data)
    figure.draw_without_rendering()
    shown = figure.axes[1].yaxis.label.get_window_extent()
    assert shown.y0 >= 0
    assert shown.y1 <= figure.bbox.y1


def test_very_different_sizes_have_plain_numbers_on_their_axis():
    data = held((0,), (1,) * 30, (0,) * 400, true_clusters=ids(0, 0, 0))
    figure = size_histogram(data)
    figure.draw_without_rendering()
    axis = figure.axes[0].xaxis
    shown = [
        text.get_text() for text, at in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True) if 1 <= at <= 401
    ]
    assert shown == ["1", "2", "5", "10", "20", "50", "100", "200"]
    assert not axis.get_ticklabels(minor=True)


def test_sizes_are_those_of_the_training_data_and_their_median_is_not_the_mean():
    data = held((0,), (0, 1), (0, 1, 2), (0,) * 9, (1,) * 10, true_clusters=ids(0, 0, 0, 0, 0))
    axes = size_histogram(data).axes[0]
    counted = {round(x + 0.5): height for x, _, height in corners(axes) if height}
    assert counted == {1: 1, 2: 1, 3: 1, 9: 1, 10: 1}
    assert axes.get_legend().get_texts()[0].get_text() == "median 3"
    assert list(axes.lines[0].get_xdata()) == [3, 3]


@pytest.mark.parametrize(("largest", "label"), [(5, ""), (400, "; 2 clients without any")])
def test_clients_without_training_data_are_counted(largest: int, label: str):
    data = held((), (0,) * largest, (), (0, 1), true_clusters=ids(0, 0, 0, 0))
    axes = size_histogram(data).axes[0]
    assert axes.get_xlabel() == f"training examples of a client{label}"
    assert sum(height for _, _, height in corners(axes)) == (2 if label else 4)


def test_an_image_stands_under_its_true_cluster_and_label():
    data = held((0, 1, 1), (1,), (2,), true_clusters=ids(4, -1, 2))
    titles = [axes.get_title() for axes in example_images(data).axes]
    assert titles == ["cluster ?\nlabel 1", "cluster 2\nlabel 2", "cluster 4\nlabel 0"]


def test_images_of_clusters_have_one_scale():
    data = held((0,), (3,), true_clusters=ids(0, 1))  # example 0 under the first and under the second view
    views = (View(), View(brightness=0.5))
    dim = replace(data, examples=replace(data.examples, inputs=torch.tensor([[[[0, 0.5], [1, 0]]]] * 3), views=views))
    shown = [axes.images[0].get_array().tolist() for axes in example_images(dim).axes]
    assert shown == [[[0, 0.5], [1, 0]], [[0, 0.25], [0.5, 0]]]


def test_images_without_labels_have_the_names_of_their_true_clusters_alone():
    data = held((0, 1, 1), (1,), (), true_clusters=ids(1, 0, 2), cluster_names=("north", "south", "empty"))
    unlabelled = replace(data, examples=data.examples.without_labels())
    assert [axes.get_title() for axes in example_images(unlabelled).axes] == ["cluster north", "cluster south"]
    assert example_images(held((), (), true_clusters=ids(0, 1))) is None


def test_an_image_without_any_true_cluster_has_the_name_of_its_label_alone():
    data = held((0, 1, 1), (1,), true_clusters=ids(-1, -1))
    named = replace(data, examples=replace(data.examples, label_names=("beech", "oak", "lime")))
    assert [axes.get_title() for axes in example_images(named).axes] == ["label oak"]


RANKING = Ranking({"a": 1.0, "b": 1.5, "c": 2.5, "d": 4.0}, 10, 9.0, 0.0123, 1.0)


def test_ranks_are_on_an_axis_with_methods_on_both_sides_and_bars_over_those_that_may_be_equal():
    figure = rank_diagram(RANKING)
    axes = draw_ranks(RANKING).axes[0]
    assert (axes.get_xlim(), list(axes.get_xticks())) == ((1.0, 4.0), [1, 2, 3, 4])
    texts = {text.get_text(): (*map(float, text.xy), text.get_ha()) for text in axes.texts}
    lines = [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.lines]
    bars, leaders, (length,) = lines[:2], lines[2:-1], lines[-1:]
    assert [(round(left, 2), round(right, 2)) for (left, _), (right, _) in bars] == [(0.97, 1.53), (1.47, 2.53)]
    assert len({y for bar in bars for _, y in bar}) == 2  # the groups (a, b) and (b, c), one below the other
    assert [leader[0] for leader in leaders] == [(rank, 0) for rank in RANKING.mean_ranks.values()]
    rows = {name: leader[-1] for name, leader in zip(RANKING.mean_ranks, leaders, strict=True)}
    assert {name[0]: place for name, (*place, _) in texts.items() if name[0] in "abcd"} == {
        name: list(end) for name, end in rows.items()
    }
    assert [texts[name][2] for name in ("a 1.00", "b 1.50", "c 2.50", "d 4.00")] == ["right", "right", "left", "left"]
    assert rows["a"][1] < rows["b"][1]  # lines do not cross: on each side, the outermost method is on top
    assert rows["d"][1] < rows["c"][1]
    assert min(y for _, y in rows.values()) > max(y for bar in bars for _, y in bar)
    assert length[1][0] - length[0][0] == RANKING.critical_difference
    assert "CD = 1.00" in texts
    assert "p = 0.012" in figure.caption
    assert "differ by 1.00 (CD) or less" in figure.caption
    assert figure.alt == "Diagram of mean ranks: a 1; b 1.5; c 2.5; d 4. Joined: a, b; b, c."
    assert ">c 2.50<" in as_svg(figure)


@pytest.mark.parametrize("number", [3, 8, 19])
def test_names_of_a_rank_diagram_are_inside_of_it_and_do_not_touch(number: int):
    ranks = {f"a method of a long name {k}": float(k + 1) for k in range(number)}
    figure = draw_ranks(Ranking(ranks, 10, 9.0, 0.0123, 1.0))
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 for box in boxes)
    assert not any(one.overlaps(other) for k, one in enumerate(boxes) for other in boxes[:k])


def test_labels_of_narrow_panels_do_not_touch():
    x = {"tau": [0.3871, 0.395], "rate": [0.02, 0.1]}
    panels = [Panel("", name, "score", points=[Points("b", values, [0.1, 0.2])]) for name, values in x.items()]
    drawn = draw(Figure("slices", "", [panels], "", "", STYLES))
    drawn.canvas.draw()
    for axes in drawn.axes[:2]:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        low, high = axes.get_window_extent().intervalx
        seen = [box for box in boxes if low - 1 <= (box.x0 + box.x1) / 2 <= high + 1]
        assert len(seen) >= 2
        assert all(left.x1 < right.x0 for left, right in pairwise(seen))


def test_large_numbers_are_written_out():
    assert [short(value) for value in (227963.33, 12345.6, 1234.56, 0.00012345, 2e9, 5.0, "a")] == [
        "227963", "12346", "1235", "0.0001234", "2e+09", "5", "a"
    ]  # fmt: skip


def test_names_on_an_axis_are_rotated_where_panels_beside_each_other_leave_no_room():
    ticks = dict(enumerate(["FedAvg", "FedGroup", "IFCA", "StoCFL"]))
    panel = Panel(
        "", "algorithm", "accuracy", points=[Points("finished", [0, 1, 2, 3], [0.4, 0.6, 0.5, 0.7])], x_ticks=ticks
    )
    for panels, rotation in (([panel], 0), ([panel, panel], 45)):
        drawn = draw_panels([panels], {"finished": Style(BLUE)}, COLUMN, HEIGHT)
        assert {label.get_rotation() for axes in drawn.axes for label in axes.get_xticklabels()} == {rotation}


@pytest.mark.parametrize("y", ["accuracy", "val/weighted_accuracy", "val/weighted_balanced_accuracy"])
@pytest.mark.parametrize("x", ["lr", "algorithm.\npretrain_scale"])
def test_the_label_of_a_vertical_axis_is_not_cut_off(x: str, y: str):
    panel = Panel("", x, y, curves=[Curve("finished", [0, 1], [0, 1])])
    figure = draw_panels([[panel], [panel]], {"finished": Style(BLUE)}, COLUMN, height=0.9)
    figure.draw_without_rendering()
    assert figure.axes[0].yaxis.label.get_window_extent().y1 < figure.bbox.y1
