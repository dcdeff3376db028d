"""What is drawn is what the data say: heights, bases, both edges of bands, each line under its own name."""

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from quadratic import ids

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.pictures import example_images, histogram, label_distribution, layer_scores, learning_curve, size_histogram
from lit_cfl.pictures.cells import CellGrid, Frame, Matrix, draw_grid, draw_matrix, in_8_bits
from lit_cfl.pictures.panels import Bars, Curve, Panel, Points, Style, draw_panels
from lit_cfl.report.blocks import Figure
from lit_cfl.report.interactive import described
from lit_cfl.scores import ACCURACY

STYLES = {"a": Style("#112233", "--"), "b": Style("#445566", marker="s"), "c": Style("#778899")}
PANEL = Panel(
    "",
    "round",
    "score",
    curves=[Curve("a", [1, 2, 4], [0.5, 0.25, 0.75], [0.25, 0.125, 0.5], [0.625, 0.5, 0.875])],
    points=[Points("b", [1.5, 3.0], [0.375, 0.0625], ["left", "right"], ["one\n<1>", "two"])],
    bars=[Bars("c", [0.5, 1.5], 1.0, [3.0, 2.0], [1.0, 4.0])],
)


def corners(axes: Axes) -> list[tuple[float, float, float]]:
    """Left edges, lower edges and heights of the bars."""
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


def test_the_page_gets_the_same_numbers_as_the_picture():
    low, high, line, bars, points = described(Figure("x", "x", PANEL, "", "", STYLES))["traces"]
    assert (low["y"], high["y"], line["y"]) == ([0.25, 0.125, 0.5], [0.625, 0.5, 0.875], [0.5, 0.25, 0.75])
    assert low["x"] == high["x"] == line["x"] == [1, 2, 4]
    assert high["fill"] == "tonexty"  # the trace before it
    assert (bars["x"], bars["y"], bars["base"], bars["width"]) == ([0.5, 1.5], [3.0, 2.0], [1.0, 4.0], 1.0)
    assert bars["customdata"] == ["0.5 to 1.5", "1.5 to 2.5"]
    assert (points["x"], points["y"], points["text"]) == ([1.5, 3.0], [0.375, 0.0625], ["left", "right"])
    assert points["customdata"] == ["one<br>&lt;1&gt;", "two"]
    colours = [line["line"]["color"], bars["marker"]["color"], points["marker"]["color"]]
    assert colours == ["#112233", "#778899", "#445566"]


def test_a_matrix_and_a_grid_are_drawn_cell_by_cell():
    values = np.array([[1.0, 0.5, -0.25], [0.5, 1.0, np.nan], [-0.25, np.nan, 1.0]], dtype=np.float32)
    frame = Frame("round 2", in_8_bits(values, -0.25, 1.0), ["x", "y", "z"], ["0", "0", "1"])
    figure = draw_matrix(Matrix([frame, frame], -0.25, 1.0, (0.0, 0.75), "cosine", "clients"))
    drawn = figure.axes[0].images[0]
    assert np.ma.filled(drawn.get_array(), np.nan) == pytest.approx(values, abs=0.005, nan_ok=True)
    assert drawn.get_clim() == (0.0, 0.75)
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["0", "1"]
    assert list(figure.axes[0].get_yticks()) == [0.5, 2.0]  # the middles of their stretches
    cells, side = np.array([[0, 1], [1, 1], [1, 0]], dtype=np.uint8), np.array([2, 2, 1], dtype=np.uint8)
    colours = ["#ff0000", "#00ff00", "#0000ff"]
    grid = CellGrid(cells, side, ["a", "b", "c"], colours, ["0", "1", "2"], ["r"] * 3, ["1", "9"], "round", "clients")
    true, found = draw_grid(grid).axes
    rgb = np.array([to_rgb(colour) for colour in colours])
    assert np.array_equal(found.images[0].get_array(), rgb[cells])
    assert np.array_equal(true.images[0].get_array()[:, 0], rgb[side])
    assert [tick.get_text() for tick in found.get_xticklabels()] == ["1", "9"]
    assert [text.get_text() for text in found.texts] == ["1", "0"]  # the last column's stretches


def test_a_histogram_stacks_clusters_from_the_bottom_up():
    values, cluster = np.array([0.0, 0.1, 0.9, 1.0, 0.05, 0.95]), np.array([0, 0, 0, 0, 1, 1])
    axes = histogram(values, cluster, np.full(6, -1), ACCURACY, 3).axes[0]
    half = len(axes.patches) // 2
    below, above = corners(axes)[:half], corners(axes)[half:]
    assert {base for _, base, _ in below} == {0}
    assert [base for _, base, _ in above] == [height for *_, height in below]
    assert (sum(height for *_, height in below), sum(height for *_, height in above)) == (4, 2)


def test_each_line_of_a_learning_curve_is_its_own_column():
    rows = [
        {"round": k, "test/weighted_accuracy": k / 4, "test/worst10_accuracy": k / 8, "val/weighted_accuracy": k / 16}
        for k in (1, 2, 3)
    ]
    axes = learning_curve({"IFCA": rows}, ACCURACY).axes[0]
    found = {line.get_linestyle(): list(line.get_ydata()) for line in axes.lines if len(line.get_ydata())}
    assert found == {"-": [0.25, 0.5, 0.75], ":": [0.125, 0.25, 0.375], "--": [0.0625, 0.125, 0.1875]}
    legend = {text.get_text(): line.get_linestyle() for text, line in zip(
        axes.get_legend().get_texts(), axes.get_legend().get_lines(), strict=True
    )}  # fmt: skip
    assert legend == {"IFCA": "-", "test": "-", "test, worst tenth of the clients": ":", "validation": "--"}


def test_layers_have_a_panel_for_the_silhouette_and_one_for_the_gap_and_large_dots_where_chosen():
    columns = ("round", "cluster", "layer", "silhouette", "gap", "chosen")
    rows = [(2, 0, "conv", 0.25, 0.5, 0), (2, 0, "fc", 0.75, None, 1), (4, 1, "conv", 0.375, 0.125, 1)]
    above, below = layer_scores([dict(zip(columns, row, strict=True)) for row in rows]).axes
    for axes, (first, second), chosen in (
        (above, ([0.25, 0.75], [0.375]), ([0.75], [0.375])),
        (below, ([0.5, np.nan], [0.125]), ([np.nan], [0.125])),
    ):
        lines = [line for line in axes.lines if line.get_marker() == "o"]
        small, large = ([line for line in lines if line.get_markersize() == size] for size in (3, 9))
        assert [list(line.get_ydata()) for line in small] == [pytest.approx(y, nan_ok=True) for y in (first, second)]
        assert [list(line.get_ydata()) for line in large] == [pytest.approx(y, nan_ok=True) for y in chosen]
        assert [list(line.get_xdata()) for line in large] == [[1], [0]]
    assert (above.get_ylabel(), below.get_ylabel()) == ("silhouette", "gap")
    assert [tick.get_text() for tick in below.get_xticklabels()] == ["conv", "fc"]


def held(*labels: tuple[int, ...], **more: Any) -> FederatedData:
    """Clients with these labels in their training data, of which they have test examples, too."""
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
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1"]
    assert list(axes.get_xticks()) == [0.5, 2.5]
    assert axes.get_xlabel() == "clients, in their true clusters"


def test_sizes_are_those_of_the_training_data_and_their_median_is_no_mean():
    data = held((0,), (0, 1), (0, 1, 2), (0,) * 9, (1,) * 10, true_clusters=ids(0, 0, 0, 0, 0))
    axes = size_histogram(data).axes[0]
    counted = {round(x + 0.5): height for x, _, height in corners(axes) if height}
    assert counted == {1: 1, 2: 1, 3: 1, 9: 1, 10: 1}
    assert axes.get_legend().get_texts()[0].get_text() == "median 3"
    assert list(axes.lines[0].get_xdata()) == [3, 3]


def test_an_image_stands_under_its_true_cluster_and_label():
    data = held((0, 1, 1), (1,), (2,), true_clusters=ids(4, -1, 2))
    titles = [axes.get_title() for axes in example_images(data).axes]
    assert titles == ["cluster ?\nlabel 1", "cluster 2\nlabel 2", "cluster 4\nlabel 0"]
