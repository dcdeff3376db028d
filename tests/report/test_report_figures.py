"""Tests the figures of a report: samples of clients and rounds, digits, colours, labels and captions."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from made_runs import add_own_tables, made_run, metric_row, write_table
from test_sources import page_of

from lit_cfl.pictures.colours import hex_of
from lit_cfl.pictures.curves import Means, line_styles, over_rounds
from lit_cfl.pictures.figure import Figure, thin
from lit_cfl.pictures.panels import stretches
from lit_cfl.pictures.sample import describe_sample, sample
from lit_cfl.pictures.svg import as_svg
from lit_cfl.report.run_figures import figures_of
from lit_cfl.report.run_files import read_run
from lit_cfl.scores import ACCURACY


def figure(figures: list[Figure], name: str) -> Figure:
    (found,) = [one for one in figures if one.name == name]
    return found


def test_counts_and_their_spread_have_one_digit_and_bands_end_at_the_range_of_the_metric():
    def curve(column: str, *about: list[float]) -> Figure:
        found = over_rounds(column, "x", "y", "It.", {"A": Means([1, 2], *about)}, ACCURACY)
        assert found is not None
        return found

    counts = curve("clusters/count", [8 / 3, 4.0], [0.57735, 0.0])
    assert [list(row) for row in counts.values.rows] == [["1", "2.7 ± 0.6"], ["2", "4.0 ± 0.0"]]
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


def test_a_large_run_shows_500_clients_200_in_a_matrix_and_8_rounds(tmp_path: Path):
    run = read_run(made_run(tmp_path / "run", clients=600, snapshots=22))

    def similarity(runs: int) -> Figure:
        return figure(figures_of(run, "x", ACCURACY, runs), "x-similarity")

    found = similarity(1)
    assert len(found.frames) == 8
    assert {panel.matrix.values.shape for panel in found.frames.values()} == {(200, 200)}
    assert "200 of 600 clients" in found.caption
    assert "8 of 22 rounds" in found.caption
    assert all(len(set(panel.matrix.groups)) == 2 for panel in found.frames.values())
    assert list(similarity(4).frames) == ["round 1", "round 22"]
    assert similarity(40).frames == {}  # a single frame needs no menu
    assert similarity(40).first_panel.title == "round 1"
    assert similarity(40).first_panel.matrix.values.shape == (60, 60)
    assert "500 of 600 clients" in figure(figures_of(run, "x", ACCURACY, 1), "x-map").caption
    assert "150 of 600 clients" in figure(figures_of(run, "x", ACCURACY, 10), "x-map").caption


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


def test_every_figure_has_a_caption_an_alt_text_and_values(tmp_path: Path):
    run = made_run(tmp_path / "run", over=False)
    add_own_tables(run)
    page = page_of(run)
    assert {"cfl-layers", "cfl-shifts", "cfl-splits"} <= {f.name for f in page.figures}
    names = [one.name for one in page.figures]
    assert len(names) == len(set(names))
    for one in page.figures:
        assert one.caption.endswith("."), one.name
        assert len(one.alt) > 30, one.name
        assert one.title, one.name
        assert one.values.rows, one.name
        assert {len(row) for row in one.values.rows} == {len(one.values.head)}, one.name


def test_groups_beyond_seven_differ_by_their_lines():
    looks = [(style.colour, str(style.line)) for style in line_styles([str(k) for k in range(16)]).values()]
    assert len(set(looks)) == 16
    assert all(one != other for one, other in pairwise(looks))


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
    first, *_, last = found.values.rows
    assert (first[:2], last[:2], len(found.values.rows)) == (["1 to 10", 10], ["291 to 300", 10], 30)
    assert 'data-note="data shifted&#10;round 1 to 10: 10"' in as_svg(found)


def test_legends_have_the_names_of_true_clusters_in_the_partition_file(tmp_path: Path):
    run = made_run(tmp_path / "run")

    np.savez(run / "partition.npz", about=np.array(json.dumps({"cluster_names": ["north", "south"]})))
    labels = {style.label for one in figures_of(read_run(run), "a", ACCURACY, 1) for style in one.styles.values()}
    assert {"cluster 0 (true 0, north)", "cluster 1 (true 1, south)"} <= labels
