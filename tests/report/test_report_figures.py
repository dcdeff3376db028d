"""Tests the figures of a report: samples of clients and rounds, digits, colours, labels and captions."""

import json
from pathlib import Path

import numpy as np
import pytest
from made_runs import add_own_tables, made_run, metric_row, write_table
from test_sources import page_of

from lit_cfl import algorithms
from lit_cfl.pictures.colours import hex_of, line_styles
from lit_cfl.pictures.curves import Means, over_rounds
from lit_cfl.pictures.figure import Figure, draw, thin
from lit_cfl.pictures.panels import Panel, draw_panels, stretches
from lit_cfl.pictures.run_files import read_run
from lit_cfl.pictures.sample import describe_sample, sample
from lit_cfl.report.assemble import figures_of
from lit_cfl.scores import ACCURACY

ALGORITHMS = sorted(set(algorithms.__all__) - {"Algorithm", "Assignment", "Info", "Similarity"})


def figure(figures: list[Figure], name: str) -> Figure:
    (found,) = [one for one in figures if one.name == name]
    return found


def test_bands_end_at_the_range_of_the_metric():
    def curve(column: str, *about: list[float]) -> Figure:
        found = over_rounds(column, "x", "y", "It.", {"A": Means([1, 2], *about)}, ACCURACY)
        assert found is not None
        return found

    (ari,) = curve("clusters/ari", [-0.25, 0.9], [0.5, 0.3]).first_panel.curves
    assert (list(ari.low), list(ari.high)) == ([-0.5, pytest.approx(0.6)], [0.25, 1.0])
    assert curve("test/loss", [0.1, 0.9], [0.2, 0.3]).first_panel.curves[0].high == pytest.approx([0.3, 1.2])


def test_a_curve_has_at_most_500_points_and_keeps_its_ends(tmp_path: Path):
    rows = [metric_row(number, **{"test/weighted_accuracy": number / 4000}) for number in range(1, 2001)]
    page = page_of(made_run(tmp_path / "run", rows, snapshots=0))
    (curve,) = figure(page.figures, "test-weighted_accuracy").first_panel.curves
    assert len(curve.x) == 500
    assert (curve.x[0], curve.x[-1], curve.y[-1]) == (1, 2000, 0.5)
    assert thin(3, 5) == [0, 1, 2]
    assert thin(0, 5) == []


@pytest.mark.parametrize("sizes", [(1900, 90, 9, 1), (1000, 1000), tuple([4] * 250)])
def test_a_sample_has_each_cluster_by_its_size_and_is_always_the_same(sizes: tuple[int, ...]):
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    drawn = sample(clusters)
    assert len(drawn) == len(set(drawn.tolist())) == 500
    counts = np.bincount(clusters[drawn], minlength=len(sizes))
    shares = np.array(sizes) * 500 / sum(sizes)
    assert (counts >= 1).all()
    assert (np.abs(counts - shares) <= np.maximum(2, len(sizes) / 100)).all()
    assert np.array_equal(drawn, sample(clusters))


def test_all_are_shown_where_they_are_few_and_a_caption_says_where_they_are_not():
    assert sample(np.zeros(500, int)).tolist() == list(range(500))
    assert describe_sample(500, 500) == ""
    assert describe_sample(500, 2000) == " 500 of 2,000 clients, drawn from each cluster by its size."


def test_stretches_of_equal_groups_have_their_edges_and_names():
    assert stretches(["a", "a", "b", "a"]) == ([0, 2, 3, 4], ["a", "b", "a"])
    assert stretches([]) == ([0], [])


def test_a_large_run_shows_500_clients_200_in_a_matrix_and_fewer_next_to_others(tmp_path: Path):
    run = read_run(made_run(tmp_path / "run", clients=600, snapshots=22))

    def similarity(runs: int) -> Figure:
        return figure(figures_of(run, "x", runs), "x-similarity")

    found = similarity(1)
    assert found.first_panel.matrix.values.shape == (200, 200)
    assert found.title == "How alike clients are in round 22"
    assert "200 of 600 clients" in found.caption
    assert len(set(found.first_panel.matrix.groups)) == 2
    assert similarity(40).first_panel.matrix.values.shape == (60, 60)
    assert "500 of 600 clients" in figure(figures_of(run, "x", 1), "x-map").caption
    assert "150 of 600 clients" in figure(figures_of(run, "x", 10), "x-map").caption


def test_a_cluster_has_one_colour_in_all_figures_that_of_the_true_cluster_it_matches(tmp_path: Path):
    run = made_run(tmp_path / "run", over=False)
    found = np.array([[1, 0, 1, 0, 1, 0, 1, 0]] * 2)
    np.savez(run / "memberships.npz", rounds=np.array([1, 2]), cluster=found, true_cluster=1 - found[0])
    names = ("cfl-map", "cfl-splits", "cfl-memberships")
    figures = [one for one in page_of(run).figures if one.name in names]
    assert len(figures) == 3
    assert {one.styles["cluster 0"].colour for one in figures} == {hex_of(1)}
    assert {one.styles["cluster 1"].colour for one in figures} == {hex_of(0)}
    shown = figures[names.index("cfl-memberships") - 2].styles  # the first figure of the page
    assert [name for name, style in shown.items() if style.named] == ["cluster 0", "cluster 1"]
    assert [shown[f"true cluster {k}"].colour for k in (0, 1)] == [hex_of(0), hex_of(1)]


def test_every_figure_has_a_caption_and_an_alt_text(tmp_path: Path):
    run = made_run(tmp_path / "run", over=False)
    add_own_tables(run)
    page = page_of(run)
    assert {"cfl-shifts", "cfl-splits"} <= {f.name for f in page.figures}
    names = [one.name for one in page.figures]
    assert len(names) == len(set(names))
    for one in page.figures:
        assert one.caption.endswith("."), one.name
        assert len(one.alt) > 30, one.name
        assert one.title, one.name


def test_algorithms_have_one_look_in_every_figure_and_no_two_share_it():
    looks = {name: (style.colour, style.marker) for name, style in line_styles(ALGORITHMS).items()}
    assert len(set(looks.values())) == len(looks) == 19
    for shown in (["Local", "IFCA"], ["FedAvg (baseline)", "IFCA"], ["mine.Own", "IFCA (one)", "IFCA (other)", "CFL"]):
        styles = line_styles(shown)
        own = {name: looks.get(name.partition(" (")[0]) for name in shown if name != "IFCA (other)"}
        assert all(look in (None, (styles[name].colour, styles[name].marker)) for name, look in own.items())
        assert len({(style.colour, style.marker) for style in styles.values()}) == len(shown)
    many = line_styles([str(k) for k in range(60)]).values()
    assert len({(style.colour, style.marker, str(style.line)) for style in many}) == 60


def test_a_series_of_48_clusters_does_not_flatten_the_others():
    def panel(*last: float) -> Panel:
        groups = {f"{k}": Means([1, 2], [2.0, value]) for k, value in enumerate(last)}
        found = over_rounds("clusters/count", "x", "clusters", "It.", groups, ACCURACY)
        assert found is not None
        return found.first_panel

    assert panel(3.0, 48.0).log_y
    assert not panel(3.0, 7.0).log_y
    (axes,) = draw_panels([[panel(3.0, 48.0)]], line_styles(["0", "1"])).axes
    axes.figure.draw_without_rendering()
    low, high = (axes.transData.transform((0, value))[1] for value in (2.0, 3.0))
    assert high - low > 0.1 * axes.bbox.height
    ticks = [text.get_text() for text in axes.get_yticklabels()]
    assert {"2", "5", "10", "20", "50"} <= set(ticks)


@pytest.mark.parametrize("values", [[3.0, 3.0], [2.0, 3.0], [2.5, 3.25]])
def test_counts_of_clusters_have_whole_ticks(values: list[float]):
    groups = {"A": Means([1, 2], values), "B": Means([1, 2], [3.0, 2.0])}
    found = over_rounds("clusters/count", "x", "clusters", "It.", groups, ACCURACY)
    assert found is not None
    (axes,) = draw(found).axes
    low, high = axes.get_ylim()
    shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert shown
    assert all(float(tick).is_integer() for tick in shown)


def test_long_stretches_of_a_cluster_are_labelled_with_its_number(tmp_path: Path):
    run = made_run(tmp_path / "run", clients=100, over=False)
    true = np.repeat([0, 1, 2], [50, 48, 2])
    np.savez(
        run / "memberships.npz", rounds=np.array([1]), cluster=np.where(true == 1, 17, true)[None], true_cluster=true
    )
    found = figure(page_of(run).figures, "cfl-memberships")
    # groups of two clients among a hundred get no label
    assert found.first_panel.cells.row_labels == [(24.5, "0"), (73.5, "17")]


def test_a_timeline_of_many_rounds_has_bars_that_can_be_seen(tmp_path: Path):
    run = made_run(tmp_path / "run", over=False)
    add_own_tables(run)
    rows = [{"round": number, "client": 0} for number in range(1, 301)]
    write_table(run / "shift.csv", ("round", "client"), rows)
    found = figure(page_of(run).figures, "cfl-shifts")
    assert len(found.first_panel.bars) == 3
    assert max(len(bars.x) for bars in found.first_panel.bars) == 30
    assert sum(found.first_panel.bars[0].height) == 300
    assert "A bar counts 10 rounds." in found.caption


def test_legends_have_the_names_of_true_clusters_in_the_partition_file(tmp_path: Path):
    run = made_run(tmp_path / "run")

    np.savez(run / "partition.npz", about=np.array(json.dumps({"cluster_names": ["north", "south"]})))
    labels = {style.label for one in figures_of(read_run(run), "a", 1) for style in one.styles.values()}
    assert {"cluster 0 (true 0, north)", "cluster 1 (true 1, south)"} <= labels
