"""Tests a run's figures, captions and tables, on data for which each definition of a metric gives a different value.

Found clusters are not the true ones, clients have numbers that are not their places, one moves twice, a drift is
detected twice, and the rounds that are scored differ between groups and seeds.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import made_run, metric_row, write_table
from test_report_figures import figure

from lit_cfl.metric_names import CLIENTS, CLUSTERS
from lit_cfl.pictures.colours import add_colours, hex_of
from lit_cfl.pictures.curves import limits_of
from lit_cfl.pictures.figure import Figure
from lit_cfl.pictures.figures import shifts
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.run_files import RunFiles, read_run
from lit_cfl.report import over_rounds, overview
from lit_cfl.report.assemble import figures_of
from lit_cfl.report.sources import Group
from lit_cfl.scores import ACCURACY, Score

pytestmark = pytest.mark.nightly  # a table of tests states these facts

# sizes by round and cluster; cluster 1 ends after round 3
SIZES = {1: {0: 10}, 2: {0: 6, 1: 4}, 3: {0: 4, 1: 3, 2: 3}, 4: {0: 2, 2: 5}}
PARENTS = {0: 0, 1: 0, 2: 0}
SHIFTS = [(2, 0), (6, 0), (3, 1), (5, 2), (7, 3), (7, 4), (7, 5)]  # round, client
# round, client, cluster before, cluster after
DETECTED = [(2, 0, 0, 0), (4, 0, 0, 1), (9, 0, 1, 1), (1, 1, 0, 0), (8, 2, 1, 0)]


def unfinished(folder: Path, rounds: int = 4) -> Path:
    """Writes an unfinished run without snapshots."""
    return made_run(folder / "run", [metric_row(k) for k in range(1, rounds + 1)], snapshots=0, over=False)


def split_run(folder: Path) -> RunFiles:
    run = unfinished(folder)
    rows = [
        {"round": number, "cluster": cluster, "parent": PARENTS[cluster], "size": size}
        for number, found in SIZES.items()
        for cluster, size in found.items()
    ]
    write_table(run / "clusters.csv", CLUSTERS, rows)
    return read_run(run)


def of_run(run: RunFiles, name: str) -> Figure:
    """Returns the figure with this name from the page of a single run."""
    found = figure(figures_of(run, "x", 1), f"x-{name}")
    assert run.problems == []
    return found


# What happened


def test_a_tree_shows_when_each_cluster_started_and_ended_and_with_how_many_clients(tmp_path: Path):
    found = of_run(split_run(tmp_path), "splits")
    assert {curve.name: (list(curve.x), list(curve.y)) for curve in found.first_panel.curves} == {
        "cluster 0": ([1, 4], [0, 0]),
        "cluster 1": ([2, 2, 3], [0, 2, 2]),
        "cluster 2": ([3, 3, 4], [0, 1, 1]),
    }
    assert found.first_panel.y_ticks == {0.0: "0", 1.0: "2", 2.0: "1"}
    assert {dots.name: (*dots.x, *dots.y, *dots.labels) for dots in found.first_panel.points} == {
        "cluster 0": (4, 0, "2"),
        "cluster 1": (3, 2, "3 (ended)"),
        "cluster 2": (4, 1, "5"),
    }
    assert found.alt == (
        "Tree of 3 clusters over the rounds: cluster 1 from cluster 0 in round 2; cluster 2 from cluster 0 in round 3."
    )


def test_a_cluster_between_two_records_of_the_memberships_has_a_colour_of_its_own(tmp_path: Path):
    run, found = split_run(tmp_path), np.array([[0, 2, 2]])
    np.savez(run.path / "memberships.npz", rounds=np.array([4]), cluster=found, true_cluster=np.array([1, 0, 0]))
    styles = of_run(run, "splits").styles
    assert {name: style.colour for name, style in styles.items()} == {
        "cluster 0": hex_of(1),
        "cluster 1": hex_of(2),
        "cluster 2": hex_of(0),
    }
    assert add_colours({}, [3, 0]) == {0: 0, 3: 3}
    assert add_colours({0: 2, 4: 0}, [0, 2, 3]) == {0: 2, 4: 0, 2: 4, 3: 3}


@pytest.fixture
def drifting(tmp_path: Path) -> RunFiles:
    """Writes a run of twelve rounds with shifts and detections."""
    run = unfinished(tmp_path / "drifting", rounds=12)
    write_table(run / "shift.csv", ("round", "client"), [{"round": r, "client": c} for r, c in SHIFTS])
    columns = ("round", "client", "cluster_before", "cluster_after")
    write_table(run / "migrations.csv", columns, [dict(zip(columns, row, strict=True)) for row in DETECTED])
    return read_run(run)


def test_a_change_of_cluster_without_detection_is_not_drawn_as_one():
    columns = ("round", "client", "cluster_before", "cluster_after", "detected")
    rows = [dict(zip(columns, row, strict=True)) for row in ((6, 0, 0, 2, 0), (6, 1, 1, 2, 0), (11, 2, 2, 3, 1))]
    assert shifts([], rows[:2], 15) is None  # neither a shift nor a detection
    found = shifts([{"round": 4, "client": 0}, {"round": 9, "client": 2}], rows, 15)
    assert found is not None
    assert found.alt.startswith(
        "Bars over rounds 1 to 15, clients: data shifted 2, drift detected 1, cluster changed 3."
    )
    assert found.first_panel.x_limits == (0.5, 15.5)


def test_a_timeline_counts_shifts_detections_and_moves_by_round_up_to_the_last_one(drifting: RunFiles):
    found = of_run(drifting, "shifts")
    shifted, detected, moved = found.first_panel.bars
    assert list(shifted.height) == [1, 1, 1, 1, 3]  # shifted clients in rounds 2, 3, 5, 6 and 7
    assert list(shifted.x) == pytest.approx([number - 0.4 for number in (2, 3, 5, 6, 7)])
    assert list(detected.x) == pytest.approx([number - 0.4 + 0.8 / 3 for number in (1, 2, 4, 8, 9)])
    assert list(moved.x) == pytest.approx([number - 0.4 + 1.6 / 3 for number in (4, 8)])
    assert [bars.width for bars in found.first_panel.bars] == pytest.approx([0.8 / 3] * 3)
    assert found.alt == "Bars over rounds 1 to 12, clients: data shifted 7, drift detected 5, cluster changed 2."


# Over the rounds

SCORES = {  # by group and seed: test accuracy by round
    "A": ({2: 0.25, 3: 0.5, 4: 0.25}, {1: 0.5, 2: 0.5, 3: 0.5, 4: 0.75}, {1: 0.9, 2: 0.9, 3: 0.9}),
    "B": ({3: 0.125, 4: 0.875, 5: 0.25, 6: 0.375},),
}
MIB = {"A": (1.5, 3.0, 7.0), "B": (2.0,)}  # MiB per round


@pytest.fixture
def groups(tmp_path: Path) -> list[Group]:
    """Makes the runs of algorithm A, whose third run is unfinished, and of B, which has no validation data."""
    found = []
    for name, seeds in SCORES.items():
        for seed, scores in enumerate(seeds):
            rows = []
            for number in range(1, max(scores) + 1):
                known = {f"{split}/weighted_accuracy": scores.get(number) for split in ("test", "val")}
                known |= {"val/weighted_accuracy": None} if name == "B" else {}
                mib = {"traffic/mib": MIB[name][seed] * number, "traffic/round_mib": MIB[name][seed]}
                mib |= {"local/steps": 8 * number, "local/examples": 100 * MIB[name][seed] * number}
                rows.append(metric_row(number, **known, **mib, **{"test/loss": 4.0 - number / 2 - seed}))
            made_run(tmp_path / name / f"seed-{seed}", rows, snapshots=0, over=seed < 2, seeds=[seed])
        runs = [read_run(tmp_path / name / f"seed-{seed}") for seed in range(len(seeds))]
        found.append(Group(name, runs, tmp_path / name))
    return found


def over_the_rounds(groups: list[Group], name: str) -> Figure:
    return figure(over_rounds.section(groups, ACCURACY, DrawingGuard(pytest.fail)).figures, name)


def test_a_band_lies_on_both_sides_of_the_mean_of_the_runs_that_are_over(groups: list[Group]):
    one, other = over_the_rounds(groups, "test-weighted_accuracy").first_panel.curves
    half, whole = 0.125 * 2**0.5, 0.25 * 2**0.5  # standard deviations of two values
    assert (list(one.x), list(one.y)) == ([2, 3, 4], [0.375, 0.5, 0.5])
    assert one.low == pytest.approx([0.375 - half, 0.5, 0.5 - whole])
    assert one.high == pytest.approx([0.375 + half, 0.5, 0.5 + whole])
    assert (list(other.x), list(other.y), list(other.low)) == ([3, 4, 5, 6], [0.125, 0.875, 0.25, 0.375], [])


def test_a_metric_is_described_by_its_first_and_last_values(groups: list[Group]):
    found = over_the_rounds(groups, "test-weighted_accuracy")
    assert found.alt == ("Line chart. Accuracy on test data, from round 2 to 6: A 0.375 to 0.5; B 0.125 to 0.375.")


def test_captions_say_what_is_better_and_for_whom_a_metric_is_not_known(groups: list[Group]):
    bands = "Lines are means over the seeds, bands one standard deviation."
    assert over_the_rounds(groups, "test-weighted_accuracy").caption == f"Over the examples of all clients. {bands}"
    assert over_the_rounds(groups, "test-loss").caption == (
        f"Mean over the examples of all clients. Lower is better. {bands}"
    )
    assert over_the_rounds(groups, "val-weighted_accuracy").caption == (
        f"Over the validation examples of all clients. {bands} Not known for B."
    )


def test_captions_say_until_when_not_all_clients_are_scored(tmp_path: Path):
    groups = []
    for name, scored in {"FedAvg": (5, 5, 5), "Local": (2, 4, 5)}.items():
        rows = [metric_row(number, **{"clients/evaluated": count}) for number, count in enumerate(scored, 1)]
        made_run(tmp_path / name, rows, snapshots=0)
        groups.append(Group(name, [read_run(tmp_path / name)], tmp_path / name))
    assert over_the_rounds(groups, "test-weighted_accuracy").caption == (
        "Over the examples of the clients that have a model. Some clients have no model up to and including round 2 "
        "of Local (evaluation.clients: all scores these, too). The line of Local covers FedAvg, with the same values."
    )
    assert over_the_rounds(groups[:1], "test-weighted_accuracy").caption == "Over the examples of all clients."
    rows = [metric_row(number, **{"clients/evaluated": count}) for number, count in enumerate((4, 5, 5), 1)]
    made_run(tmp_path / "IFCA", rows, snapshots=0)
    groups.append(Group("IFCA", [read_run(tmp_path / "IFCA")], tmp_path / "IFCA"))
    both = over_the_rounds(groups, "test-weighted_accuracy").caption
    assert "Some clients have no model up to and including round 2 of Local and 1 of IFCA (" in both


@pytest.mark.parametrize(
    ("asked", "scored", "expected"),
    [
        (3, (3, 3, 3), "Over the examples of a fixed sample of 3 of the 5 clients."),
        (
            3,
            (2, 3, 3),
            "of the clients in a fixed sample of 3 of the 5 clients that have a model. Some clients have no ",
        ),
        ("assigned", (4, 4, 4), "have no model up to and including round 3 ("),
        ("all", (5, 5, 5), "Over the examples of all clients."),
    ],
)
def test_captions_count_clients_that_are_never_scored(
    asked: int | str, scored: tuple[int, ...], expected: str, tmp_path: Path
):
    known = {"clusters/assigned": 4, "clusters/unobserved": 1}
    rows = [metric_row(k, **known, **{"clients/evaluated": number}) for k, number in enumerate(scored, 1)]
    run = made_run(tmp_path / "run", rows, snapshots=0, evaluation={"clients": asked})
    assert expected in over_the_rounds([Group("A", [read_run(run)], run)], "test-weighted_accuracy").caption


def test_a_score_stands_at_what_was_sent_until_its_own_round(groups: list[Group]):
    found = over_the_rounds(groups, "traffic")
    assert [(curve.name, list(curve.x), list(curve.y)) for curve in found.first_panel.curves] == [
        ("A", [4.5, 6.75, 9.0], [0.375, 0.5, 0.5]),  # 2.25 MiB per round; round 1 was not scored
        ("B", [6.0, 8.0, 10.0, 12.0], [0.125, 0.875, 0.25, 0.375]),
    ]
    assert found.alt == "Line chart. Accuracy against traffic: A 0.5 after 9 MiB; B 0.375 after 12 MiB."


def test_a_score_stands_at_the_examples_that_clients_had_trained_on_by_its_round(groups: list[Group]):
    found = over_the_rounds(groups, "local-work")
    assert [list(curve.x) for curve in found.first_panel.curves] == [[450, 675, 900], [600, 800, 1000, 1200]]
    assert (
        found.alt == "Line chart. Accuracy against local work: A 0.5 after 900 examples; B 0.375 after 1200 examples."
    )


# Clusters and clients


def test_memberships_count_clients_that_moved_and_clusters_that_are_left(tmp_path: Path):
    run = unfinished(tmp_path)
    cluster = np.array([[0, 0, 0, 1, 1, 2], [0, 1, 0, 1, 1, -1], [1, 0, 0, 1, 1, 0]])
    true = np.array([0, 0, 1, 1, 2, -1])
    np.savez(run / "memberships.npz", rounds=np.array([1, 3, 7]), cluster=cluster, true_cluster=true)
    found = of_run(read_run(run), "memberships")
    assert found.alt == (
        "Coloured cells, one row per client, rounds 1 to 7: 6 clients in 2 clusters at the "
        # the cluster of client 1 changed its number twice; client 5's was lost, which is not a change
        "end; 2 clients changed to a cluster of another number in between."
    )
    cells, order = found.first_panel.cells, [5, 1, 0, 2, 3, 4]
    names = {-1: "not assigned"} | {k: f"cluster {k}" for k in range(3)}
    assert [[cells.names[cell] for cell in row] for row in cells.places] == [
        [names[k] for k in cluster[:, client]] for client in order
    ]
    assert [cells.names[cell] for cell in cells.side] == ["unknown", *(f"true cluster {k}" for k in (0, 0, 1, 1, 2))]
    assert list(cells.edges) == [0.5, 2.5, 6.5, 7.5]  # columns begin with their rounds, 1, 3 and 7, to scale
    assert found.first_panel.x == "round"
    colours = {name: found.styles[name].colour for name in cells.names}
    # at the end, no cluster has most of its clients in one true cluster
    assert len({colours[f"{kind}cluster {k}"] for kind in ("", "true ") for k in range(3)}) == 6
    assert [name for name in found.styles if found.styles[name].named] == [
        *("cluster 0", "cluster 1", "cluster 2", "not assigned"),
        *("true cluster 0", "true cluster 1", "true cluster 2", "unknown"),
    ]


def clients_csv(run: Path, rows: list[tuple[int, int, int, float | None]]) -> None:
    known = ("client", "cluster", "true_cluster", "accuracy")
    written = [dict(zip(known, row, strict=True)) | {"n_train": 10 + row[0], "newcomer": 0} for row in rows]
    write_table(run / "clients.csv", CLIENTS, written)


def test_a_histogram_stacks_the_clients_of_found_clusters(tmp_path: Path):
    run = unfinished(tmp_path)
    scores = [(0, 0, 1, 0.15), (1, 0, 1, 0.25), (2, 0, 0, 0.65), (3, 1, 0, 0.95), (4, 1, 0, 0.25), (5, 1, 0, None)]
    clients_csv(run, scores)
    found = of_run(read_run(run), "histogram")
    zero, one = found.first_panel.bars
    assert (zero.name, list(zero.height), list(zero.base)) == ("cluster 0", [0, 1, 1, 0, 0, 0, 1, 0, 0, 0], [0] * 10)
    assert (one.name, list(one.height)) == ("cluster 1", [0, 0, 1, 0, 0, 0, 0, 0, 0, 1])
    assert list(one.base) == list(zero.height)
    assert list(one.x) == pytest.approx([0.1 * k for k in range(10)])
    assert one.width == pytest.approx(0.1)
    assert found.alt == "Histogram of the test accuracy of 5 clients: from 0.150 to 0.950, median 0.250."


def test_newcomers_have_no_place_in_the_histogram(tmp_path: Path):
    run = unfinished(tmp_path)
    rows = [{"client": k, "cluster": k, "accuracy": 0.25, "newcomer": int(k == 2)} for k in range(3)]
    write_table(run / "clients.csv", CLIENTS, rows)
    assert of_run(read_run(run), "histogram").alt.startswith("Histogram of the test accuracy of 2 clients")


def test_a_histogram_of_models_of_single_clients_is_not_stacked(tmp_path: Path):
    run = unfinished(tmp_path)
    clients_csv(run, [(client, client, 0, 0.15) for client in range(6)])
    (bars,) = of_run(read_run(run), "histogram").first_panel.bars
    assert (bars.name, sum(bars.height)) == ("clients", 6)


COSINES = {(0, 1): -0.25, (0, 2): 0.75, (0, 3): 0.125, (1, 2): 0.0, (1, 3): 0.375, (2, 3): -0.5}


@pytest.fixture
def compared(tmp_path: Path) -> RunFiles:
    """Writes a run with snapshots of clients 3, 5, 8 and 9 in rounds 2 and 7."""
    run = unfinished(tmp_path)
    last, first = np.eye(4, dtype=np.float16), np.full((4, 4), 0.9375, dtype=np.float16)
    for (one, other), cosine in COSINES.items():
        last[one, other] = last[other, one] = cosine
    plane = np.array([[1.0, 0.25], [-1.0, 0.5], [0.75, -0.25], [-0.75, -0.5]], dtype=np.float16)
    known = {"clients": np.array([3, 5, 8, 9]), "compared": np.array(8), "true_cluster": np.array([1, 1, 0, 2])}
    for number, matrix, cluster, points in ((2, first, [0, 0, 0, 0], -plane), (7, last, [1, 0, 1, 0], plane)):
        arrays = {"similarity": matrix, "projection": points, "cluster": np.array(cluster)}
        np.savez(run / "snapshots" / f"{number}.npz", **known, **arrays)
    clients_csv(run, [(3, 0, 1, 0.5), (5, 0, 1, 0.625), (8, 0, 0, None), (9, 0, 2, 0.375)])
    return read_run(run)


def test_similarity_within_and_between_is_that_of_the_found_clusters_in_the_last_snapshot(compared: RunFiles):
    found = of_run(compared, "similarity")
    matrix = found.first_panel.matrix
    # clients 5, 9, 8, 3: sorted by found cluster, then by true cluster
    assert list(matrix.groups) == ["0", "0", "1", "1"]
    assert matrix.values[0, 1:].tolist() == [0.375, 0.0, -0.25]
    assert matrix.values[2, 3] == 0.75
    assert found.title == "How alike clients are in round 7"
    assert found.alt == (  # (3, 8) and (5, 9) are in one cluster: (0.75 + 0.375) / 2; the other four pairs: -0.625 / 4
        "Matrix of similarities between 4 clients in round 7. Mean cosine within clusters 0.56, between them -0.16."
    )
    assert "4 of 8 clients" in found.caption


def test_a_map_places_the_clients_of_the_last_snapshot_under_their_numbers(compared: RunFiles):
    found = of_run(compared, "map")
    assert {dots.name: (list(dots.x), list(dots.y)) for dots in found.first_panel.points} == {
        "cluster 0": ([-1.0, -0.75], [0.5, -0.5]),
        "cluster 1": ([1.0, 0.75], [0.25, -0.25]),
    }
    ((_, true),) = found.rows
    assert {dots.name: (list(dots.x), list(dots.y)) for dots in true.points} == {
        "true cluster 0": ([0.75], [-0.25]),
        "true cluster 1": ([1.0, -1.0], [0.25, 0.5]),
        "true cluster 2": ([-0.75], [-0.5]),
    }
    assert [note["client"] for dots in true.points for note in dots.notes] == [8, 3, 5, 9]
    facts = {"client": 5, "cluster": 0, "true cluster": 1, "name": None, "training examples": 15, "accuracy": "0.625"}
    assert found.first_panel.points[0].notes[0] == facts
    last = {"client": 8, "cluster": 1, "true cluster": 0, "name": None, "training examples": 18, "accuracy": None}
    assert found.first_panel.points[1].notes[1] == last
    assert found.alt == "Scatter plot of 4 clients in 2 clusters by their similarity in round 7."
    assert "4 of 8 clients" in found.caption
    assert "in round 7)" in found.caption


def test_a_map_of_some_clients_says_how_many_were_compared(compared: RunFiles):
    clients_csv(compared.path, [(client, 0, 1, 0.5) for client in range(12)])
    run = read_run(compared.path)
    for name in ("map", "similarity"):
        assert of_run(run, name).caption.endswith(" In round 7 the algorithm compared 8 of the run's 12 clients.")
    clients_csv(compared.path, [(client, 0, 1, 0.5) for client in range(8)])
    assert "of the run's" not in of_run(read_run(compared.path), "map").caption


def test_a_map_names_its_clients_if_they_have_names(compared: RunFiles):
    head, *lines = (compared.path / "clients.csv").read_text().splitlines()
    named = [f"{head},name", *(f"{line},00{line.partition(',')[0]}" for line in lines)]
    (compared.path / "clients.csv").write_text("\n".join(named) + "\n")
    found = of_run(read_run(compared.path), "map")
    notes = [note for dots in found.first_panel.points for note in dots.notes]
    assert {note["client"]: note["name"] for note in notes} == {5: "005", 9: "009", 3: "003", 8: "008"}


def test_colours_of_a_matrix_leave_the_rarest_similarities_out(tmp_path: Path):
    run = made_run(tmp_path / "run", clients=20, snapshots=1, over=False)
    file = run / "snapshots" / "1.npz"
    with np.load(file) as arrays:
        kept = dict(arrays)
    kept["similarity"][0, 1] = kept["similarity"][1, 0] = -1.0  # 2 of 380 values
    np.savez(file, **kept)
    drawn = of_run(read_run(run), "similarity").first_panel.matrix
    assert (drawn.low, drawn.high) == (-0.25, 0.5)
    assert drawn.values.min() == -1.0


# The table of results, and the first lines

RESULTS = {  # values of the last rounds of two seeds, all different
    "round": (4, 6),
    "test/weighted_accuracy": (0.5, 0.75),
    "test/mean_accuracy": (0.25, 0.35),
    "test/worst10_accuracy": (0.1, 0.15),
    "val/weighted_accuracy": (0.6, 0.8),
    "test/loss": (1.5, 2.0),
    "train/loss": (0.5, 0.6),
    "clusters/count": (3, 5),
    "clusters/assigned": (38, 40),
    "clusters/unobserved": (2, 1),
    "clusters/ari": (0.25, 0.75),
    "clusters/ami": (0.9, 0.95),
    "clusters/purity": (0.85, 0.95),
    "traffic/mib": (10.0, 20.5),
    "traffic/round_mib": (2.5, 3.5),
    "local/steps": (120, 160),
    "local/examples": (1100, 1500),
    "time/training_seconds": (7.0, 8.0),
    "time/elapsed_seconds": (100.0, 130.0),
}
SUMMARY = {"test/max_weighted_accuracy": (0.9, 0.95), "test/newcomers_accuracy": (0.3, 0.45)}


def ended_group(folder: Path, name: str, *seeds: dict[str, Any], score: str = "accuracy", **summary: Any) -> Group:
    """Makes a group of runs, one per seed, whose last rows have these values."""
    runs = []
    for seed, values in enumerate(seeds):
        run = made_run(folder / name / f"seed-{seed}", [metric_row(4) | values], snapshots=0, over=False)
        text = (run / "metrics.csv").read_text().replace("_accuracy", f"_{score}")
        (run / "metrics.csv").write_text(text)
        own = {key: value[seed] for key, value in summary.items()}
        own |= {"scores": [{"name": score, "higher_is_better": score != "mae"}]}
        (run / "summary.json").write_text(json.dumps({"algorithm": name, "seed": seed, "stopped": None} | own))
        runs.append(read_run(run))
    return Group(name, runs, folder / name)


def results_group(folder: Path, name: str = "A") -> Group:
    rows = [{key: value[seed] for key, value in RESULTS.items()} for seed in (0, 1)]
    return ended_group(folder, name, *rows, **SUMMARY)


def test_every_column_of_the_results_is_the_mean_and_the_deviation_of_its_own_metric(tmp_path: Path):
    found = overview.section([results_group(tmp_path)], ACCURACY).blocks[0]
    (row,) = found.rows
    assert dict(zip(found.head, row, strict=True)) == {
        "algorithm": "A",
        "seeds": 2,
        "accuracy": "0.625 ± 0.177",  # standard deviation of two values: their distance divided by the root of two
        "mean": "0.300 ± 0.071",
        "worst tenth": "0.125 ± 0.035",
        "validation accuracy": "0.700 ± 0.141",
        "at best": "0.925 ± 0.035",
        "loss": "1.750 ± 0.354",
        "newcomers": "0.375 ± 0.106",
        "clusters": "4.0 ± 1.4",
        "ARI": "0.50 ± 0.35",
        "without a model": "1.5 ± 0.7",
        "traffic, MiB": "15.2 ± 7.4",
        "local steps": "140 ± 28",
        "time, s": "115.0 ± 21.2",
        "round": "5.0 ± 1.4",
    }


def test_a_count_that_all_runs_share_has_all_its_digits(tmp_path: Path):
    group = ended_group(tmp_path, "A", *[{"local/steps": 1234567, "clusters/count": 3}] * 2)
    found = overview.section([group], ACCURACY).blocks[0]
    row = dict(zip(found.head, found.rows[0], strict=True))
    assert (row["local steps"], row["clusters"]) == ("1234567", "3")


def test_clients_with_few_test_examples_are_counted_below_the_results(tmp_path: Path):
    group = results_group(tmp_path)
    written = [{"client": k, "n_test": size, "newcomer": int(k == 3)} for k, size in enumerate((2, 30, 30, 1))]
    write_table(group.runs[0].path / "clients.csv", CLIENTS, written)
    group = Group("A", [read_run(run.path) for run in group.runs], tmp_path / "A")
    note = overview.section([group], ACCURACY).blocks[0].note
    assert " 1 of 3 clients has fewer than 5 test examples: in means" in note


def test_agreement_is_explained_where_true_clusters_are_known(tmp_path: Path):
    unknown = ended_group(tmp_path, "B", {"test/weighted_accuracy": 0.5, "clusters/ari": None})
    for groups, known in (([results_group(tmp_path), unknown], True), ([unknown], False)):
        table = overview.section(groups, ACCURACY).blocks[0]
        assert ("ARI" in table.head, "ARI" in table.note) == (known, known)


def test_the_first_lines_name_ten_and_what_the_first_run_of_the_best_found(tmp_path: Path):
    others = [ended_group(tmp_path, name, {"test/weighted_accuracy": k / 10}) for k, name in enumerate("BCDEFG", 1)]
    others += [ended_group(tmp_path, name, {"test/weighted_accuracy": 0.01 * k}) for k, name in enumerate("HIJKL", 1)]
    first, second = overview.headline([*others, results_group(tmp_path)], ACCURACY)
    assert first == (
        "Test accuracy after the last round: B 0.100, C 0.200, D 0.300, E 0.400, F 0.500, G 0.600, H 0.010, I 0.020, "
        "J 0.030, K 0.040 and 2 more."
    )
    assert second == (
        "Under the first seed, A divides the clients into 3 clusters. "
        "Their agreement with the true clusters is 0.25 (1 = equal)."
    )


def test_the_first_lines_count_the_clusters_of_the_best_and_none_of_one_client_each(tmp_path: Path):
    local = {
        "test/weighted_accuracy": 0.5,
        "clusters/count": 23.0,
        "clusters/assigned": 30.0,
        "clients/evaluated": 23.0,
    }
    ifca = {"test/weighted_accuracy": 0.6, "clusters/count": 2.0, "clusters/assigned": 30.0, "clients/evaluated": 23.0}
    groups = [ended_group(tmp_path, name, row) for name, row in {"Local": local, "IFCA": ifca}.items()]
    assert overview.headline(groups, ACCURACY)[1:] == [
        "IFCA divides the clients into 2 clusters. Their agreement with the true clusters is 1.00 (1 = equal)."
    ]
    assert overview.headline(groups[:1], ACCURACY)[1:] == []


def test_the_first_lines_do_not_praise_the_clusters_of_oracle(tmp_path: Path):
    oracle = {"test/weighted_accuracy": 0.9, "clusters/count": 3.0}
    ifca = {"test/weighted_accuracy": 0.6, "clusters/count": 2.0}
    groups = [ended_group(tmp_path, name, row) for name, row in {"Oracle": oracle, "IFCA": ifca}.items()]
    # without a configuration, the summary names the algorithm
    groups[0] = replace(groups[0], runs=[replace(run, config={}) for run in groups[0].runs])
    assert overview.headline(groups, ACCURACY)[1].startswith("IFCA divides the clients into 2 clusters.")
    assert overview.headline(groups[:1], ACCURACY)[1:] == []


def test_groups_scored_on_different_numbers_of_clients_are_named(tmp_path: Path):
    found = {"A": (0.5, 19.0), "B": (0.75, 40.0), "C": (0.7, None)}
    groups = [
        ended_group(tmp_path, name, {"test/weighted_accuracy": value, "clients/evaluated": number})
        for name, (value, number) in found.items()
    ]
    assert overview.headline(groups, ACCURACY)[:2] == [
        "Test accuracy after the last round: A 0.500, B 0.750, C 0.700.",
        "These are over different numbers of clients (A on 19, B on 40): a client without a model is "
        "not scored (evaluation.clients: all scores it, too).",
    ]
    assert overview.headline(groups[1:], ACCURACY)[:1] == ["Test accuracy after the last round: B 0.750, C 0.700."]


def test_the_best_of_an_error_is_the_lowest(tmp_path: Path):
    error = Score("mae", higher_is_better=False)
    groups = [
        ended_group(tmp_path, name, row, score="mae", **{error.best_column: (row["test/weighted_accuracy"],)})
        for name, value, count in (("A", 0.5, 2.0), ("B", 0.25, 3.0), ("C", 0.75, 4.0))
        if (row := {"test/weighted_accuracy": value, "clusters/count": count})
    ]
    values, clusters = overview.headline(groups, error)
    assert values == "Test MAE after the last round: A 0.500, B 0.250, C 0.750."
    assert clusters.startswith("B divides the clients into 3 clusters.")


def test_headings_and_notes_of_an_error_write_it_in_capitals(tmp_path: Path):
    error, rows = Score("mae", higher_is_better=False), [metric_row(k) for k in (1, 2, 3, 4)]
    run = made_run(tmp_path / "run", rows, snapshots=0, over=False)
    (run / "metrics.csv").write_text((run / "metrics.csv").read_text().replace("_accuracy", "_mae"))
    (run / "environment.json").write_text(json.dumps({"scores": [{"name": "mae", "higher_is_better": False}]}))
    groups = [Group("A", [read_run(run)], run)]
    assert groups[0].score == error
    figures = over_rounds.section(groups, error, DrawingGuard(pytest.fail)).figures
    titles = [found.title for found in figures if "mae" in found.title.lower()]
    assert titles == ["MAE on test data", "MAE on validation data", "MAE against traffic"]
    results = overview.section(groups, error).blocks[0]
    assert "MAE" in results.head
    assert results.note.startswith("MAE: on test data")


def test_a_band_ends_with_the_scale_and_the_line_is_unchanged(tmp_path: Path):
    column, values = "test/weighted_accuracy", ((0.5, 0.75), (1.0, 1.0))
    for seed, own in enumerate(values):
        made_run(tmp_path / f"seed-{seed}", [metric_row(k, **{column: v}) for k, v in enumerate(own, 1)], seeds=[seed])
    group = Group("A", [read_run(tmp_path / f"seed-{seed}") for seed in (0, 1)], tmp_path)
    found = over_the_rounds([group], "test-weighted_accuracy")
    (curve,) = found.first_panel.curves
    assert (list(curve.y), list(curve.high)) == ([0.75, 0.875], [1.0, 1.0])  # cut off at 1: 1.10 and 1.05
    assert curve.low == pytest.approx([0.75 - 0.25 * 2**0.5, 0.875 - 0.125 * 2**0.5])
    assert limits_of("clusters/ari", ACCURACY) == (-0.5, 1.0)
    assert limits_of("test/weighted_f1_3", Score("f1_3", is_share=True)) == (0.0, 1.0)
    assert limits_of("test/weighted_mae", Score("mae", higher_is_better=False)) == (-math.inf, math.inf)
