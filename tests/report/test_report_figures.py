"""What figures hold: means and bands, samples, 8 bits, delays, trees, searches, papers' numbers."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from made_runs import add_own_tables, made_run, metric_row, write_table
from test_sources import page_of

from lit_cfl.pictures.cells import Matrix, in_8_bits, stretches
from lit_cfl.pictures.panels import Curve, Panel, Points, Style
from lit_cfl.report.blocks import Figure
from lit_cfl.report.clusters import hex_of
from lit_cfl.report.events import _delays, delays, timeline, tree
from lit_cfl.report.interactive import described
from lit_cfl.report.over_rounds import means, thin
from lit_cfl.report.page import legend
from lit_cfl.report.run_files import read_run
from lit_cfl.report.sample import said, sample
from lit_cfl.report.similar_clients import similarity
from lit_cfl.report.sources import Group, read_source


def figure(figures: list[Figure], name: str) -> Figure:
    (found,) = [one for one in figures if one.name == name]
    return found


def test_means_and_bands_are_over_the_seeds_that_share_a_round(tmp_path: Path):
    column = "test/weighted_accuracy"
    for seed, values in enumerate([(0.25, 0.5, 0.75), (0.75, None, 0.25)]):
        rows = [metric_row(k + 1, **{column: value}) for k, value in enumerate(values)]
        made_run(tmp_path / "run" / f"seed-{seed}", rows, seeds=[seed], over=False)
    (group,) = read_source(tmp_path / "run").groups
    found = means(group, column)
    assert (found.rounds, found.mean) == ([1, 3], [0.5, 0.5])
    assert found.deviation == pytest.approx([0.125**0.5, 0.125**0.5])  # of a sample: n - 1
    drawn = figure(page_of(tmp_path / "run").figures, "test-weighted_accuracy")
    (curve,) = drawn.drawing.curves
    assert curve.low == pytest.approx([0.5 - 0.125**0.5] * 2)
    assert "bands one standard deviation" in drawn.caption
    assert [list(row) for row in drawn.table.rows] == [[1, "0.5 ± 0.3536"], [3, "0.5 ± 0.3536"]]


def test_a_curve_has_at_most_500_points_and_keeps_its_ends(tmp_path: Path):
    rows = [metric_row(number, **{"test/weighted_accuracy": number / 4000}) for number in range(1, 2001)]
    page = page_of(made_run(tmp_path / "run", rows, snapshots=0))
    (curve,) = figure(page.figures, "test-weighted_accuracy").drawing.curves
    assert len(curve.x) == 500
    assert (curve.x[0], curve.x[-1], curve.y[-1]) == (1, 2000, 0.5)
    assert thin(3) == [0, 1, 2]
    assert thin(0) == []


@pytest.mark.parametrize("sizes", [(1900, 90, 9, 1), (1000, 1000), tuple([4] * 250)])
def test_a_sample_has_each_cluster_by_its_size_and_is_the_same_under_one_seed(sizes: tuple[int, ...]):
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    drawn = sample(clusters, seed=3)
    assert len(drawn) == len(set(drawn.tolist())) == 500
    counts = np.bincount(clusters[drawn], minlength=len(sizes))
    shares = np.array(sizes) * 500 / sum(sizes)
    assert (counts >= 1).all()
    assert (np.abs(counts - shares) <= np.maximum(2, len(sizes) / 100)).all()
    assert np.array_equal(drawn, sample(clusters, seed=3))
    assert not np.array_equal(drawn, sample(clusters, seed=4))


def test_all_are_shown_where_they_are_few_and_a_caption_says_where_they_are_not():
    assert sample(np.zeros(500, int), 0).tolist() == list(range(500))
    assert said(500, 500) == ""
    assert said(500, 2000) == " 500 of 2,000 clients, drawn by the run's seed from each cluster by its size."


def test_a_matrix_in_8_bits_is_within_half_a_step():
    values = np.array([[1.0, np.nan, -0.3], [0.123, 0.9, 0.0]], dtype=np.float32)
    bits = in_8_bits(values, -0.5, 1.0)
    assert bits[0, 1] == 255
    back = Matrix([], -0.5, 1.0, (-0.5, 1.0), "", "").values(type("Frame", (), {"cells": bits}))
    assert np.isnan(back[0, 1])
    assert np.nanmax(np.abs(back - values)) <= 1.5 / 254 / 2 + 1e-6
    assert stretches(["a", "a", "b", "a"]) == ([0, 2, 3, 4], ["a", "b", "a"])


def test_a_large_run_shows_500_clients_and_20_rounds(tmp_path: Path):
    run = read_run(made_run(tmp_path / "run", clients=600, snapshots=22))
    found = similarity(run, "x", 1)
    assert len(found.drawing.frames) == 20
    assert {len(frame.labels) for frame in found.drawing.frames} == {500}
    assert "500 of 600 clients" in found.caption
    assert "20 of 22 rounds" in found.caption
    assert all(len(set(frame.groups)) == 2 for frame in found.drawing.frames)
    sent = described(found)["frames"][0]["cells"]
    assert len(sent) == pytest.approx(500 * 501 / 2 * 4 / 3, abs=4)  # a byte a pair, in base64
    assert len(similarity(run, "x", 10).drawing.frames) == 2
    assert len(similarity(run, "x", 40).drawing.frames) == 1


def test_similarity_is_ordered_by_cluster_and_its_table_has_the_means(tmp_path: Path):
    found = similarity(read_run(made_run(tmp_path / "run", clients=4, snapshots=1)), "x", 1)
    (frame,) = found.drawing.frames
    assert frame.labels == ["client 0", "client 2", "client 1", "client 3"]
    assert frame.groups == ["0", "0", "1", "1"]
    values = found.drawing.values(frame)
    assert values[0, 1:] == pytest.approx([0.5, -0.25, -0.25], abs=0.01)
    assert [list(row) for row in found.table.rows] == [
        ["cluster 0", "0.500", "-0.250"],
        ["cluster 1", "-0.250", "0.500"],
    ]
    assert "within clusters 0.50, between them -0.25" in found.alt


def test_map_says_of_each_client_what_the_table_says(tmp_path: Path):
    found = figure(page_of(made_run(tmp_path / "run")).figures, "cfl-map")
    one = next(points for points in found.drawing.points if points.name == "cluster 1")
    assert one.notes[0] == "client 1\ncluster 1\ntrue cluster 1\ntraining examples 11\naccuracy 0.750"
    assert found.table.head == ["client", "cluster", "true cluster", "training examples", "accuracy"]
    assert [1, 1, 1, 11, "0.750"] in [list(row) for row in found.table.rows]


def test_a_cluster_has_one_colour_in_all_figures_that_of_the_true_cluster_it_matches(tmp_path: Path):
    run = made_run(tmp_path / "run", over=False)
    found = np.array([[1, 0, 1, 0, 1, 0, 1, 0]] * 2)
    np.savez(run / "memberships.npz", rounds=np.array([1, 2]), cluster=found, true_cluster=1 - found[0])
    figures = [one for one in page_of(run).figures if one.name in ("cfl-map", "cfl-splits", "cfl-sizes")]
    assert len(figures) == 3
    assert {one.styles["cluster 0"].colour for one in figures} == {hex_of(1)}
    assert {one.styles["cluster 1"].colour for one in figures} == {hex_of(0)}
    grid = figure(page_of(run).figures, "cfl-memberships").drawing
    assert grid.looks == {"cluster 0": hex_of(1), "cluster 1": hex_of(0)}


def test_tree_begins_each_cluster_at_its_parent(tmp_path: Path):
    found = tree(read_run(made_run(tmp_path / "run")), "x")
    root, child = found.drawing.curves
    assert (list(root.x), list(root.y)) == ([1, 4], [0, 0])
    assert (list(child.x), list(child.y)) == ([2, 2, 4], [0, 1, 1])
    assert found.drawing.y_ticks == {0.0: "0", 1.0: "1"}
    assert "cluster 1 from cluster 0 in round 2" in found.alt


def test_delay_counts_from_a_shift_to_the_next_detection_before_the_next_shift(tmp_path: Path):
    run = made_run(tmp_path / "run", over=False)
    add_own_tables(run)
    found, late = timeline(read_run(run), "x"), delays(read_run(run), "x")
    assert [bars.name for bars in found.drawing.bars] == ["data shifted", "drift detected", "cluster changed"]
    assert [sum(bars.height) for bars in found.drawing.bars] == [3, 2, 1]
    assert [list(row) for row in late.table.rows] == [["0", 1], ["1", 1], ["not detected", 1]]
    assert "0.50 rounds on average; 1 of 3 shifts were not detected" in late.caption
    moved = [{"round": 2, "client": 7}, {"round": 5, "client": 7}]
    assert _delays(moved, [{"round": 6, "client": 7}]) == [None, 1]


def test_every_figure_has_a_caption_an_alt_text_and_values(tmp_path: Path):
    run = made_run(tmp_path / "run", over=False)
    add_own_tables(run)
    page = page_of(run)
    assert {"cfl-layers", "cfl-shifts", "cfl-delays", "cfl-sizes", "cfl-splits"} <= {f.name for f in page.figures}
    names = [one.name for one in page.figures]
    assert len(names) == len(set(names))
    for one in page.figures:
        assert one.caption.endswith("."), one.name
        assert len(one.alt) > 30, one.name
        assert one.title, one.name
        assert one.table is not None, one.name
        assert one.table.rows, one.name


def test_groups_beyond_seven_differ_by_their_lines():
    from lit_cfl.report.over_rounds import styles_of

    groups = [Group(str(k), [], Path()) for k in range(16)]
    looks = [(style.colour, str(style.line)) for style in styles_of(groups).values()]
    assert len(set(looks)) == 16
    assert all(one != other for one, other in pairwise(looks))


def test_long_stretches_of_a_cluster_have_its_number_beside_them(tmp_path: Path):
    run = made_run(tmp_path / "run", clients=100, over=False)
    true = np.repeat([0, 1, 2], [50, 48, 2])
    np.savez(
        run / "memberships.npz", rounds=np.array([1]), cluster=np.where(true == 1, 17, true)[None], true_cluster=true
    )
    found = figure(page_of(run).figures, "cfl-memberships")
    assert found.drawing.ends == [(24.5, "0"), (73.5, "17")]  # two clients of a hundred have no room
    assert described(found)["ends"] == [[24.5, "0"], [73.5, "17"]]


def test_the_looks_of_a_figure_are_named_where_there_could_be_others(tmp_path: Path):
    styles = {"matches": Style("#000000"), "explained": Style("#111111")}
    shown = Figure("x", "x", Panel("", "x", "y", points=[Points("matches", [1], [1])]), "", "", styles)
    assert [entry["name"] for entry in legend(shown)] == ["matches"]
    assert legend(replace(shown, styles={"matches": Style("#000000")})) == []


def test_an_axis_with_names_has_room_for_the_first_and_the_last():
    panel = Panel("", "layer", "silhouette", [Curve("x", [0, 1], [0.5, 0.75])], x_ticks={0.0: "first", 1.0: "last"})
    axis = described(Figure("x", "x", panel, "", ""))["axes"]["x"]
    assert (axis["ticktext"], axis["range"]) == (["first", "last"], [-0.5, 1.5])


def test_a_timeline_of_many_rounds_has_bars_that_can_be_seen(tmp_path: Path):
    run = made_run(tmp_path / "run", over=False)
    add_own_tables(run)
    rows = [{"round": number, "client": 0} for number in range(1, 301)]
    write_table(run / "shift.csv", ("round", "client"), rows)
    found = timeline(read_run(run), "x")
    assert len(found.drawing.bars) == 3
    assert max(len(bars.x) for bars in found.drawing.bars) == 30
    assert sum(found.drawing.bars[0].height) == 300
    assert "A bar counts 10 rounds." in found.caption
