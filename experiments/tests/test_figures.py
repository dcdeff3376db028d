"""Tests the figures drawn from hand-made ledgers: their lines and files, and a table with coloured cells."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from PIL import Image
from recorded import recorded, tables

from experiments.figures import STYLES, PaperFigure, draw_figure, read_figures, write_figures
from experiments.heat_table import heat_table
from experiments.results import RecordedResults
from lit_cfl.pictures.panels import Curve, Panel, Points, Style, draw_panels
from lit_cfl.storage.csv_log import read_table

SCORE = "max_weighted_test_accuracy"
FEDAVG, FLEXCFL = (f"flexcfl-t3-mnist-mclr-{name}-{SCORE}" for name in ("fedavg", "flexcfl"))


def figure(name: str) -> PaperFigure:
    (found,) = (each for each in read_figures() if each.name == name)
    return found


@pytest.fixture
def results(tmp_path: Path) -> RecordedResults:
    runs = {FEDAVG: [{SCORE: 89.0}, {SCORE: 91.0}], FLEXCFL: [{SCORE: 95.0}]}
    return recorded(tmp_path, runs, {FEDAVG: [[0.2, 0.8, 0.9], [0.4, 0.6, 0.7]], FLEXCFL: [[0.5, 0.9, 1.0]]})


def test_every_panel_names_an_experiment_and_methods_of_its_table():
    for each in read_figures():
        (table,) = (table for table in tables() if table.name == each.table)
        known = {(cell.experiment, cell.method) for cell in (*table.cells, *table.extras)}
        for row in each.rows:
            for column in each.columns:
                experiment = column["experiment"] + row.get("suffix", "")
                assert experiment in table.experiments
                for method in column["methods"]:
                    assert method in STYLES
                    sent = row["shows"] == "traffic" and method.endswith("-MIG")
                    assert (experiment, method) in known or sent, (experiment, method)


def test_lines_are_means_over_seeds_between_minimum_and_maximum(results: RecordedResults):
    found = draw_figure(figure("flexcfl-3"), results)
    assert [len(row) for row in found.grid] == [1, 1, 1]  # MLP and CNN were not run
    panel = found.grid[0][0]
    assert panel is not None
    assert (panel.title, panel.y) == ("(a) MCLR", "test accuracy, %")
    assert [curve.name for curve in panel.curves] == ["FedAvg", "FlexCFL"]
    fedavg, flexcfl = panel.curves
    assert fedavg.x == [1, 2, 3]
    assert fedavg.y == pytest.approx([30, 70, 80])
    assert (list(fedavg.low), list(fedavg.high)) == (pytest.approx([20, 60, 70]), pytest.approx([40, 80, 90]))
    assert (list(flexcfl.y), list(flexcfl.low)) == (pytest.approx([50, 90, 100]), [])
    assert {(row["method"], row["seed"]) for row in found.runs} == {
        ("FedAvg", 2077),
        ("FedAvg", 2078),
        ("FlexCFL", 2077),
    }
    assert "(b) MLP (all methods)" in found.missing
    assert "(a) MCLR (FedProx, IFCA, FeSEM, FlexCFL-eta_g0.1)" in found.missing


def test_traffic_is_a_multiple_of_fedavgs(tmp_path: Path):
    cell = f"flexcfl-t4-mnist-mclr-{{}}-{SCORE}-sswap_all"
    mig = "flexcfl-f6-mnist-mclr-ifca_mig-sswap_all"
    runs = {cell.format("fedavg"): [{SCORE: 89.0, "traffic": 12000}], mig: [{SCORE: 92.0, "traffic": 66000}]}
    ((panel,),) = draw_figure(figure("flexcfl-6"), recorded(tmp_path, runs)).grid
    assert panel is not None
    assert [(points.name, points.x, points.y) for points in panel.points] == [
        ("FedAvg", [1.0], [89.0]),
        ("IFCA-MIG", [5.5], [92.0]),
    ]


def test_only_figures_with_a_run_are_drawn_and_the_page_says_which_are_missing(
    tmp_path: Path, results: RecordedResults
):
    names = write_figures(tmp_path, results)
    assert names[:2] == ["flexcfl-3", "fedgroup-5"]  # then those drawn from other measurements
    assert [file.name for file in (tmp_path / "figures").iterdir()] == ["flexcfl-3.png"]
    with Image.open(tmp_path / "figures" / "flexcfl-3.png") as picture:
        # as wide as a page of a paper, although it has one panel
        assert picture.width == pytest.approx(7.16 * 180, abs=2)
    page = (tmp_path / "figures.md").read_text()
    assert page.count("![") == len(names) == 6
    assert page.count("\nNot run yet.\n") == len(read_figures()) - 1
    assert "(b) MLP (all methods); (c) CNN (all methods); (d) MLP, rates (all methods)." in page
    assert {row["run"] for row in read_table(tmp_path / "figures.csv")} == set(results.ledger.rows)


def test_drawn_axes_have_the_lines_the_points_and_one_legend():
    styles = {"a": Style("#000000"), "b": Style("#0072B2", marker="x"), "unused": Style("#0072B2")}
    one = Panel("t", "x", "y", curves=[Curve("a", [1, 2], [3, 4], [2, 3], [4, 5])])
    two = Panel("u", "x", "y", points=[Points("b", [1.0, 2.0], [1.0, 3.0])], diagonal=1.0)
    shown = draw_panels([[one, two], [one, None]], styles)
    first, second, third, empty = shown.axes
    assert [list(line.get_ydata()) for line in first.lines] == [[3, 4]]
    assert len(first.collections) == 1  # the band
    assert list(second.lines[0].get_xdata()) == [1.0, 2.0]
    assert second.get_xlim() == second.get_ylim()
    assert (first.get_title(), third.get_title()) == ("t", "")
    assert (first.get_xlabel(), third.get_xlabel(), second.get_ylabel()) == ("", "x", "")
    assert not empty.axison
    (legend,) = shown.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]


def test_colours_are_white_at_0_and_symmetric_and_numbers_can_be_read_on_them():
    values = np.array([[0.0, 3.0, 60.0], [0.0, -3.0, -60.0]])
    figure = heat_table(10 + values, values, ["up", "down"], ["a b", "c", "d"], "points", linear=5.0)
    axes, bar = figure.axes
    (image,) = axes.images
    shade = np.asarray(image.norm(values))
    assert np.allclose(shade[:, 0], 0.5)
    assert np.allclose(shade[0] + shade[1], 1)
    assert 0.55 < shade[0, 1] < 0.7 < shade[0, 2] == 1  # a difference of 3 points is visible next to one of 60
    orange, purple = (image.cmap(image.norm(value)) for value in (20.0, -20.0))
    assert orange[0] > orange[2]
    assert purple[2] > purple[0]
    texts = {text.get_text(): to_rgba(text.get_color())[0] for text in axes.texts}
    assert texts == {"10.0": 0, "13.0": 0, "70.0": 1, "7.0": 0, "-50.0": 1}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a\nb", "c", "d"]
    ticks = [0, *(sign * size for size in (5, 10, 20, 50) for sign in (1, -1))]
    assert {label.get_text() for label in bar.get_yticklabels()} == set(map(str, ticks))
