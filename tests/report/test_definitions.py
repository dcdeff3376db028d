"""Tests, by hand, the definitions behind what is shown that were once wrong: what a band, a delay, a gap or a front is.

Each expectation is arithmetic on a few numbers, in which the wrong rule gives another number. Golden files hold the
rest of what is shown.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import golden_cases as cases
import numpy as np
import pytest
import torch
from digits_experiment import digits
from golden_cases import ETA, METRIC, rows_of
from inside_shown import figure_on, lines_of, lines_of_rounds, page_of, printed, results_of, table_on
from made_runs import finish, made_run, metric_row, write_table
from studies import STUDY

from lit_cfl import run_totals
from lit_cfl.algorithms import IFCA
from lit_cfl.algorithms.base import Assignment
from lit_cfl.client_scores import SplitScores
from lit_cfl.metric_names import CLIENTS, CLUSTERS
from lit_cfl.pictures.colours import match_colours
from lit_cfl.pictures.figure import Figure
from lit_cfl.pictures.sample import sample
from lit_cfl.progress import tables
from lit_cfl.runs.newcomers import PlacedNewcomers
from lit_cfl.runs.run import run as train
from lit_cfl.scores import CLASSIFIER
from lit_cfl.tracking.options import Tracking
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.pictures import importance
from lit_cfl.tune.space_file import parse_space
from lit_cfl.tune.study import Study

SCORE = "test/weighted_accuracy"
MAE = {"name": "mae", "higher_is_better": False}  # a score as in summary.json
# 97.5 % quantiles of Student's t with one and two degrees of freedom; that of a normal distribution is 1.96
T1, T2 = 12.706205, 4.302653


def seeds_page(folder: Path, groups: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], open_runs: int = 0) -> Any:
    """Makes the page of a comparison: `groups[name][seed]` are changes of the rows; the last runs did not finish."""
    for name, seeds in groups.items():
        for seed, changes in enumerate(seeds):
            rows = [metric_row(k, **own) for k, own in enumerate(changes, 1)]
            run = made_run(folder / name / f"seed-{seed}", rows, snapshots=0, over=False, seeds=[seed])
            (run / "clusters.csv").unlink()
            if seed < len(seeds) - open_runs:
                finish(run, rows, algorithm=name, seed=seed)
    numbers = list(range(max(map(len, groups.values()))))
    (folder / "compare.yaml").write_text(f"name: x\nalgorithms: {list(groups)}\nseeds: {numbers}\ntarget: null\n")
    return page_of(folder)


def scores(*values: float | None, **more: Sequence[Any]) -> list[dict[str, Any]]:
    """Makes the rows of a run with these accuracies, and further columns, in which `__` stands for `/`."""
    others = [{key.replace("__", "/"): own[k] for key, own in more.items()} for k in range(len(values))]
    return [{SCORE: value} | other for value, other in zip(values, others, strict=True)]


def one_run(folder: Path, rounds: int = 4) -> Path:
    return made_run(folder / "run", [metric_row(k) for k in range(1, rounds + 1)], snapshots=0, over=False)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes the page of A with three finished runs and one that is not, whose rounds differ, and of B with one."""
    runs = {
        "A": [
            scores(None, 0.25, 0.5, 0.75, traffic__mib=(1, 2, 3, 4), local__examples=(10, 20, 30, 40)),
            scores(0.5, 0.25, 1.0, 0.5, traffic__mib=(2, 4, 6, 8), local__examples=(20, 40, 60, 80)),
            scores(0.125, 0.625, 0.9375, 0.5, 0.875, traffic__mib=(6, 9, 12, 15, 18), local__examples=(1, 2, 3, 5, 6)),
            scores(1.0, 1.0, 1.0, 1.0, traffic__mib=(9, 9, 9, 9), local__examples=(9, 9, 9, 9)),
        ],
        "B": [scores(None, None, 0.125, 0.9375, 0.25, 0.375, traffic__mib=(2, 4, 6, 8, 10, 12)), scores(0.5)],
    }
    return seeds_page(tmp_path_factory.mktemp("seeds"), runs, open_runs=1)


def test_a_band_is_one_deviation_of_a_sample_on_both_sides_of_the_mean_of_finished_runs(seeds: Any):
    figure = figure_on(seeds, "test-weighted_accuracy")
    # round 1 lacks a score, round 5 is that of one run; the fourth run did not finish
    assert lines_of(figure) == {
        "A": ([2, 3, 4], pytest.approx([1.125 / 3, 2.4375 / 3, 1.75 / 3])),
        "B": ([3, 4, 5, 6], [0.125, 0.9375, 0.25, 0.375]),
    }
    band, none = figure.first_panel.curves
    # round 2: 0.25, 0.25, 0.625 lie -0.125, -0.125 and 0.25 from their mean; a population's deviation divides by 3
    deviation = sqrt((0.125**2 + 0.125**2 + 0.25**2) / 2)
    assert (band.low[0], band.high[0]) == pytest.approx((0.375 - deviation, 0.375 + deviation))
    # round 3: the band ends with the scale, 1, but not its lower half
    third = 2.4375 / 3
    deviation = sqrt(sum((value - third) ** 2 for value in (0.5, 1.0, 0.9375)) / 2)
    assert (band.low[1], band.high[1]) == pytest.approx((third - deviation, 1.0))
    assert third + deviation > 1
    assert not none.low
    assert figure.alt == "Line chart. Accuracy on test data, from round 2 to 6: A 0.375 to 0.5833; B 0.125 to 0.375."


def test_a_score_stands_at_what_was_sent_and_trained_on_until_its_own_round(seeds: Any):
    # the mean traffic of the three runs is 3, 5, 7, 9 in rounds 1 to 4, and round 1 has no score
    assert lines_of(figure_on(seeds, "traffic")) == {
        "A": (pytest.approx([5, 7, 9]), pytest.approx([1.125 / 3, 2.4375 / 3, 1.75 / 3])),
        "B": ([6, 8, 10, 12], [0.125, 0.9375, 0.25, 0.375]),
    }
    assert lines_of(figure_on(seeds, "local-work"))["A"][0] == pytest.approx([62 / 3, 93 / 3, 125 / 3])


def test_a_column_of_the_results_is_the_last_value_its_mean_and_its_deviation(tmp_path: Path):
    columns = {"test/mean_accuracy": (0.25, 0.35), "val/weighted_accuracy": (0.6, 0.8), "test/loss": (1.5, 2.0)}
    columns |= {"clusters/count": (3, 5), "clusters/ari": (0.25, 0.75), "clusters/ami": (0.9, 0.95)}
    columns |= {"traffic/mib": (10.0, 20.5), "traffic/round_mib": (2.5, 3.5), "local/steps": (120, 160)}
    columns |= {"time/elapsed_seconds": (100.0, 130.0), "time/training_seconds": (7.0, 8.0)}
    first = dict.fromkeys((SCORE, *columns), 0.9375)  # the best round of both runs
    last = [{SCORE: (0.5, 0.75)[seed]} | {key: own[seed] for key, own in columns.items()} for seed in (0, 1)]
    head, row = table_on(seeds_page(tmp_path, {"A": [[first, own] for own in last]}), "After the last round")
    # the deviation of two values is their distance divided by the root of two
    expected = {"accuracy": "0.625 ± 0.177", "mean": "0.300 ± 0.071", "validation accuracy": "0.700 ± 0.141"}
    expected |= {"at best": "0.938 ± 0.000", "loss": "1.750 ± 0.354", "clusters": "4.0 ± 1.4", "ARI": "0.50 ± 0.35"}
    expected |= {"traffic, MiB": "15.2 ± 7.4", "local steps": "140 ± 28", "time, s": "115.0 ± 21.2", "round": "2"}
    found = dict(zip(head, row, strict=True))
    assert {key: found[key] for key in expected} == expected


def test_the_first_line_has_means_of_seeds_that_are_all_known_and_names_different_numbers_of_clients(tmp_path: Path):
    def first_lines(name: str, **runs: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
        return [line.partition(" (")[0] for line in seeds_page(tmp_path / name, runs).lines[:2]]

    known = {"A": [scores(0.5), scores(0.25)], "B": [scores(0.25), scores(0.625)], "C": [scores(0.375), scores(0.125)]}
    assert first_lines("all", **known)[0] == "Test accuracy after the last round: A 0.375, B 0.438, C 0.250."
    assert first_lines("partly", **known, D=[scores(0.9375), scores(None)]) == [
        "Test accuracy after the last round: A 0.375, B 0.438, C 0.250.",
        "Test accuracy is unknown under some seeds of D.",
    ]
    counted = {"A": [scores(0.5, clients__evaluated=[19])], "B": [scores(0.75, clients__evaluated=[40])]}
    assert first_lines("uneven", **counted) == [
        "Test accuracy after the last round: A 0.500, B 0.750.",
        "These are over different numbers of clients",
    ]


def test_the_best_of_an_error_is_the_lowest(tmp_path: Path):
    paths = []
    for name, values in {"A": (0.375, 0.5), "B": (0.9375, 0.25), "C": (0.125, 0.75)}.items():
        rows = [metric_row(k, **{SCORE: value}) for k, value in enumerate(values, 1)]
        run = made_run(tmp_path / name, rows, snapshots=0, over=False)
        table = run / "metrics.csv"
        table.write_text(table.read_text().replace("_accuracy", "_mae"))
        best = {"test/min_weighted_mae": min(values), "algorithm": "CFL", "seed": 0, "stopped": None, "scores": [MAE]}
        (run / "summary.json").write_text(json.dumps(best))
        paths.append(run)
    page = page_of(*paths)
    assert page.lines[0] == "Test MAE after the last round: CFL (A) 0.500, CFL (B) 0.250, CFL (C) 0.750."
    head, *rows = table_on(page, "After the last round")
    assert [row[head.index("at best")] for row in rows] == ["0.375", "0.250", "0.125"]


@pytest.mark.parametrize(
    ("found", "true", "expected"),
    [
        ([0, 0, 0, 1, 1, 2], [1, 1, 1, 2, 2, 0], {0: 1, 1: 2, 2: 0}),  # a cycle: the inverse is 1: 0, 2: 1, 0: 2
        ([0, 0, 0, 1, 1, 1], [0, 0, 1, 0, 0, 0], {0: 2, 1: 0}),  # both lie in true cluster 0: it is that of the largest
        ([0, 0, 0, 0, 1], [0, 0, 1, 2, 1], {0: 3, 1: 1}),  # half of the clients are not a majority
        ([[0, 0, 0, 0, 0], [0, 0, 3, 3, 3]], [1, 1, 0, 0, 0], {0: 1, 3: 0}),  # of all rounds together
        ([5, 5, 7, 7, 9], [0, 0, 1, 1, 1], {5: 0, 7: 1, 9: 2}),  # one that is left over has a colour of its own
        ([-1, 3, 3, 2], [0, -1, 1, -1], {3: 1, 2: 2}),
    ],
)
def test_a_found_cluster_has_the_colour_of_the_true_one_that_most_of_its_clients_are_in(
    found: Any, true: list[int], expected: dict[int, int]
):
    assert match_colours(np.array(found), np.array(true)) == expected


def memberships(path: Path, rounds: Sequence[int], cluster: Any, true: Any) -> Figure:
    run = one_run(path)
    np.savez(run / "memberships.npz", rounds=np.array(rounds), cluster=np.array(cluster), true_cluster=np.array(true))
    return figure_on(page_of(run), "memberships")


def test_memberships_are_drawn_from_their_round_on_and_count_clients_that_moved_once(tmp_path: Path):
    clusters = [[0, 0, 0, 1, 1, 2], [0, 1, 0, 1, 1, -1], [1, 0, 0, 1, 1, 0]]
    figure = memberships(tmp_path, [1, 3, 7], clusters, [0, 0, 1, 1, 2, -1])
    cells = figure.first_panel.cells
    assert cells.edges == [0.5, 2.5, 6.5, 7.5]  # to scale: rounds 1, 3, 7, and half a round more
    # true clusters of clients 5, 1, 0, 2, 3, 4
    assert [cells.names[k] for k in cells.side] == [
        *("unknown", "true cluster 0", "true cluster 0", "true cluster 1", "true cluster 1", "true cluster 2")
    ]
    # client 1 moved twice; client 5 lost its cluster, which no client has at the end
    assert "6 clients in 2 clusters at the end; 2 clients changed" in figure.alt


def test_a_cluster_has_no_name_of_a_true_cluster_below_a_majority(tmp_path: Path):
    figure = memberships(tmp_path, [1], [[0] * 8 + [1]], [0, 0, 1, 1, 2, 2, 2, 3, 3])
    # 3 of 8 clients are not most of them, nor has the cluster the colour of one
    assert [style.label for style in figure.styles.values()][:2] == ["", "cluster 1 (true 3)"]
    named = [style.colour for style in figure.styles.values() if style.named]
    assert len(set(named)) == len(named) == 5


# clients join in rounds 2 and 3; round 4 is due; 5 is the last
@pytest.mark.parametrize(("most", "expected"), [(2**24, [1, 2, 3, 4, 5]), (20, [1, 2, 4, 5])])
def test_memberships_are_recorded_when_they_change_unless_there_are_too_many(
    most: int, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_totals, "_MOST_KEPT", most)  # 20: of twelve clients, two records
    train(digits(algorithm=IFCA(2), rounds=5, tracking=Tracking(snapshots_every=3)), tmp_path)
    with np.load(tmp_path / "memberships.npz") as arrays:
        rounds, cluster = arrays["rounds"].tolist(), arrays["cluster"]
    assert rounds == expected
    assert ((cluster[1] >= 0) & (cluster[0] < 0)).any()


def test_a_branch_of_the_tree_ends_with_its_last_round_and_its_last_number_of_clients(tmp_path: Path):
    run = one_run(tmp_path)
    rows = [(1, 0, 0, 10), (2, 0, 0, 6), (2, 1, 0, 4), (3, 0, 0, 4), (3, 1, 0, 3), (3, 2, 0, 3), (4, 0, 0, 2)]
    columns = ("round", "cluster", "parent", "size")
    write_table(run / "clusters.csv", CLUSTERS, rows_of(columns, [*rows, (4, 2, 0, 5)]))
    figure = figure_on(page_of(run), "splits")
    ends = [(points.labels, points.x, points.y) for points in figure.first_panel.points]
    assert ends == [(["2"], [4], [0]), (["3 (ended)"], [3], [2]), (["5"], [4], [1])]  # from the bottom: 0, 2, 1
    assert list(lines_of(figure).values()) == [([1, 4], [0, 0]), ([2, 2, 3], [0, 2, 2]), ([3, 3, 4], [0, 1, 1])]


def test_bars_of_a_histogram_stand_on_those_of_other_clusters(tmp_path: Path):
    run = one_run(tmp_path)
    values = [(0, 0.15), (0, 0.25), (0, 0.65), (1, 0.95), (1, 0.25), (2, 0.25), (2, 0.675), (1, None)]
    rows = [{"client": k, "cluster": c, "accuracy": v, "newcomer": 0} for k, (c, v) in enumerate(values)]
    write_table(run / "clients.csv", CLIENTS, rows)
    bars = figure_on(page_of(run), "histogram").first_panel.bars
    assert [list(own.height) for own in bars] == [
        [0, 1, 1, 0, 0, 0, 1, 0, 0, 0],
        [0, 0, 1, 0, 0, 0, 0, 0, 0, 1],
        [0, 0, 1, 0, 0, 0, 1, 0, 0, 0],
    ]
    assert [(own.base[2], own.base[6]) for own in bars] == [(0, 0), (1, 1), (2, 1)]


CLIENT_IDS, FOUND, TRUE = [3, 5, 8, 9, 12, 20], [1, 0, 1, 2, 0, 1], [1, 1, 0, 2, 0, 2]
COSINES = {  # of places, all different: two clusters of three and of two clients, and one of a single client
    **{(0, 1): -0.25, (0, 2): 0.75, (0, 3): 0.125, (0, 4): -0.75, (0, 5): 0.5, (1, 2): 0.0625, (1, 3): 0.375},
    **{(1, 4): 0.875, (1, 5): -0.125, (2, 3): -0.5, (2, 4): -0.0625, (2, 5): 0.25, (3, 4): 0.3125, (3, 5): -0.375},
    (4, 5): -0.625,
}


@pytest.fixture
def compared(tmp_path: Path) -> Any:
    """Makes the page of a run with snapshots of six clients in rounds 2 and 7, in which all differ."""
    run, last = one_run(tmp_path), np.eye(6, dtype=np.float16)
    for (one, other), cosine in COSINES.items():
        last[one, other] = last[other, one] = cosine
    plane = np.array([[1, 0.25], [-1, 0.5], [0.75, -0.25], [-0.75, -0.5], [0.5, 0.75], [-0.25, 1.5]], dtype=np.float16)
    known = {"clients": np.array(CLIENT_IDS), "compared": np.array(8), "true_cluster": np.array(TRUE)}
    for number, matrix, cluster, points in ((2, last / 2, [0] * 6, -plane), (7, last, FOUND, plane)):
        arrays = {"similarity": matrix, "projection": points, "cluster": np.array(cluster)}
        np.savez(run / "snapshots" / f"{number}.npz", **known, **arrays)
    rows = [{"client": k, "cluster": 0, "n_train": 10 + k, "accuracy": k / 32, "newcomer": 0} for k in CLIENT_IDS]
    write_table(run / "clients.csv", CLIENTS, rows)
    return page_of(run)


def test_similarity_is_that_of_pairs_in_found_clusters_of_the_last_snapshot_without_oneself(compared: Any):
    figure = figure_on(compared, "similarity")
    # within: places (0, 2), (0, 5), (2, 5) and (1, 4); a mean of clusters would be (0.5 + 0.875) / 2
    within = (0.75 + 0.5 + 0.25 + 0.875) / 4
    between = (sum(COSINES.values()) - 4 * within) / 11
    assert figure.alt.endswith(f"Mean cosine within clusters {within:.2f}, between them {between:.2f}.")
    # rows: places 4, 1 (cluster 0), 2, 0, 5 (cluster 1) and 3 (cluster 2), in each by the true cluster
    order = [4, 1, 2, 0, 5, 3]
    expected = [[1 if a == b else COSINES[min(a, b), max(a, b)] for b in order] for a in order]
    assert figure.first_panel.matrix.values.tolist() == expected


def test_colours_of_a_matrix_leave_out_the_rarest_hundredth_at_each_end(tmp_path: Path):
    run, upper = one_run(tmp_path), np.zeros((12, 12), dtype=np.float16)
    upper[np.triu_indices(12, 1)] = np.arange(66) / 128 - 0.25  # 66 pairs, each twice: places 0 to 131
    matrix = upper + upper.T + np.eye(12, dtype=np.float16)
    known = {"clients": np.arange(12), "compared": np.array(12), "true_cluster": np.arange(12) % 3}
    arrays = {"similarity": matrix, "projection": np.zeros((12, 2), np.float16), "cluster": np.arange(12) % 2}
    np.savez(run / "snapshots" / "4.npz", **known, **arrays)
    shown = figure_on(page_of(run), "similarity").first_panel.matrix
    # places 1.31 and 129.69: 0.31 of the way from the lowest value to the next one, and the same from above
    assert (shown.low, shown.high) == pytest.approx((-0.25 + 0.31 / 128, -0.25 + 64.69 / 128), abs=1e-6)


def test_a_map_places_the_clients_of_the_last_snapshot_under_their_own_numbers(compared: Any):
    figure = figure_on(compared, "map")
    found, true = ([(points.x, points.y) for points in panel.points] for panel in figure.panels)
    assert found == [([-1, 0.5], [0.5, 0.75]), ([1, 0.75, -0.25], [0.25, -0.25, 1.5]), ([-0.75], [-0.5])]
    assert [x for x, _ in true] == [[0.75, 0.5], [1, -1], [-0.75, -0.25]]
    assert [dict(note) for note in figure.first_panel.points[0].notes] == [
        {"client": 5, "cluster": 0, "true cluster": 1, "name": None, "n_train": 15, "accuracy": 5 / 32},
        {"client": 12, "cluster": 0, "true cluster": 0, "name": None, "n_train": 22, "accuracy": 12 / 32},
    ]
    assert "by their similarity in round 7" in figure.alt


def test_a_sample_has_clients_of_each_cluster_by_its_size():
    sizes = (1900, 90, 9, 1)
    counts = np.bincount(np.repeat(range(4), sizes)[sample(np.repeat(range(4), sizes))])
    assert counts.tolist() == [475, 22, 2, 1]  # of 500: 475, 22.5, 2.25, and 1 instead of 0.25


SHIFTED = [(2, 0), (6, 0), (3, 1), (5, 2), (8, 2), (7, 3), (7, 4)]  # round, client
DETECTED = [(2, 0, 0, 0), (4, 0, 0, 1), (11, 0, 1, 1), (1, 1, 0, 0), (9, 2, 1, 0), (10, 3, 0, 2)]


def drifting(folder: Path, detected: Sequence[Sequence[int]], *more: str) -> Figure:
    run = one_run(folder, 12)
    write_table(run / "shift.csv", ("round", "client"), rows_of(("round", "client"), SHIFTED))
    columns = ("round", "client", "cluster_before", "cluster_after", *more)
    write_table(run / "migrations.csv", columns, rows_of(columns, detected))
    return figure_on(page_of(run), "shifts")


def test_a_timeline_counts_clients_by_round_until_the_last_round_of_the_run(tmp_path: Path):
    figure = drifting(tmp_path, DETECTED)
    assert figure.first_panel.x_limits == (0.5, 12.5)
    shifted, _, changed = figure.first_panel.bars
    assert (shifted.name, changed.name, shifted.height) == ("data shifted", "cluster changed", [1, 1, 1, 1, 2, 1])
    assert shifted.x == pytest.approx([k - 0.4 for k in (2, 3, 5, 6, 7, 8)])
    assert changed.x == pytest.approx([k - 0.4 + 2 * 0.8 / 3 for k in (4, 9, 10)])
    assert "rounds 1 to 12, clients: data shifted 7, drift detected 6, cluster changed 3." in figure.alt


def test_a_change_of_cluster_without_a_detection_is_no_detection(tmp_path: Path):
    figure = drifting(tmp_path, [(9, 0, 0, 2, 0), (6, 1, 1, 2, 0), (7, 2, 2, 3, 1)], "detected")
    assert "clients: data shifted 7, drift detected 1, cluster changed 3." in figure.alt


@pytest.fixture
def comparison(tmp_path: Path) -> Any:
    path = cases.compared_runs(tmp_path)
    return lambda target: results_of(path, cases.compared_experiments(), target)


def test_a_difference_is_paired_by_seed_with_an_interval_by_students_t(comparison: Callable[..., Any]):
    _, row, oracle = comparison(0.5).rows
    # IFCA minus FedAvg: 0.25, -0.25, 0.5
    mean, margin = 0.5 / 3, T2 * sqrt((((0.25 - 0.5 / 3) ** 2 + (-0.25 - 0.5 / 3) ** 2 + (1 / 3) ** 2) / 2) / 3)
    assert (row["pairs"], row["difference"]) == (3, pytest.approx(mean))
    assert (row["difference_low"], row["difference_high"]) == pytest.approx((mean - margin, mean + margin), rel=1e-6)
    assert oracle["difference"] == pytest.approx((0.375 + 0.125 + 0.5625) / 3)


def test_a_row_has_the_means_and_deviations_of_its_own_columns(comparison: Callable[..., Any]):
    _, row, _ = comparison(0.5).rows
    # test 0.75, 0.375, 0.9375; validation less 0.0625, 0.125, 0.1875; 4, 5 and 9 MiB in each of three rounds
    assert (row["test_mean"], row["val_mean"]) == pytest.approx((2.0625 / 3, 1.6875 / 3))
    assert row["test_sd"] == pytest.approx(sqrt(sum((x - 0.6875) ** 2 for x in (0.75, 0.375, 0.9375)) / 2))
    assert row["val_sd"] == pytest.approx(sqrt(sum((x - 0.5625) ** 2 for x in (0.6875, 0.25, 0.75)) / 2))
    assert (row["mib"], row["seconds"], row["clusters_mean"]) == pytest.approx((18.0, 280 / 3, 7 / 3))


def test_the_cost_of_a_target_is_known_if_every_run_reaches_it_and_counts_until_its_first_round(comparison: Any):
    average, ifca, oracle = comparison(0.5).rows
    assert [row["reached"] for row in (average, ifca, oracle)] == [2, 2, 3]
    assert (average["mib_to_target"], ifca["rounds_to_target"]) == (None, None)
    # Oracle: rounds 1, 1 and 2 with 0.25, 0.375 and 0.75 MiB each
    assert (oracle["rounds_to_target"], oracle["mib_to_target"]) == pytest.approx((4 / 3, (0.25 + 0.375 + 1.5) / 3))
    lowest = comparison(None).rows  # the lowest score at the end is 0.375, of IFCA under seed 1
    assert [row["target"] for row in lowest] == [0.375] * 3
    assert [row["rounds_to_target"] for row in lowest] == pytest.approx([2, 7 / 3, 4 / 3])


def test_only_rounds_in_which_all_clients_are_scored_reach_a_target_and_all_of_those_do(tmp_path: Path):
    path = cases.compared_runs(tmp_path)
    for name, counted in (("IFCA", 12), ("Oracle", 10)):  # two of twelve clients have no model in round 2
        for seed in range(3):
            rows = list(map(cases.usual_row, (1, 2, 3)))
            for row, score in zip(rows, (0.25, 0.5, 0.75), strict=True):
                row |= {SCORE: score, "clusters/assigned": 12, "clients/evaluated": 12}
            rows[1] |= {"clusters/unobserved": 2, "clusters/assigned": 10, "clients/evaluated": counted}
            write_table(path / name / f"seed-{seed}" / "metrics.csv", tuple(rows[0]), rows)
            cases.seal(path / name / f"seed-{seed}")
    _, ifca, oracle = results_of(path, cases.compared_experiments(), 0.5).rows
    assert (ifca["rounds_to_target"], oracle["rounds_to_target"]) == (2, 3)


TRIALS = [  # status, repeats, score, MiB, eta_g
    *(("finished", None, 0.5, 3.0, 0.05), ("stopped", None, 0.9375, 0.25, 0.2), ("finished", None, 0.75, 2.0, 0.1)),
    *(("failed", None, None, None, 0.25), ("finished", None, 0.625, 1.0, 0.15), ("finished", 2, None, None, 0.1)),
    *(("finished", None, 0.5625, 2.5, 0.0), ("finished", None, 0.75, 2.25, 0.3)),
]


def write_study(path: Path, trials: Sequence[Mapping[str, Any]]) -> Path:
    path.mkdir(exist_ok=True)
    Study(**(STUDY | {"limits": {}})).write(path / "study.yaml")
    usual = {"status": "finished", "origin": "search", "rounds": 4, "seconds": 1.0, "traffic/mib": 1.0}
    rows = [usual | {"trial_id": f"{number:04d}"} | dict(own) for number, own in enumerate(trials)]
    columns = ("trial_id", "status", "origin", "repeats", "rounds", "seconds", "traffic/mib", ETA, cases.CLUSTERS_OF)
    write_table(path / "trials.csv", (*columns, METRIC, "error"), rows)
    return path


@pytest.fixture
def study(tmp_path: Path) -> Path:
    trials = [
        {"status": status, "repeats": None if repeats is None else f"{repeats:04d}", METRIC: score}
        | {"traffic/mib": mib, ETA: eta, cases.CLUSTERS_OF: 2 + k % 2, "error": "gone" if status == "failed" else None}
        for k, (status, repeats, score, mib, eta) in enumerate(TRIALS)
    ]
    return write_study(tmp_path / "study", trials)


def points(figure: Figure, number: int = 0) -> dict[str, list[tuple[float, float]]]:
    parts = figure.panels[number].points
    return {figure.styles[part.name].label: list(zip(part.x, part.y, strict=True)) for part in parts}


def test_the_best_so_far_is_that_of_finished_trials_and_a_failed_one_is_at_the_lower_edge(study: Path):
    figure = figure_on(page_of(study), "history")
    x, y = lines_of(figure)["best so far"]
    assert sorted(set(zip(x, y, strict=True))) == [
        *((0, 0.5), (1, 0.5), (2, 0.5), (2, 0.75), (3, 0.75), (4, 0.75), (6, 0.75), (7, 0.75))
    ]
    found = points(figure)
    assert found["finished"] == [(0, 0.5), (2, 0.75), (4, 0.625), (6, 0.5625), (7, 0.75)]
    assert (found["stopped"], found["failed"]) == ([(1, 0.9375)], [(3, 0.5)])


def test_the_front_is_of_finished_trials_that_none_beats_in_both(study: Path):
    figure = figure_on(page_of(study), "pareto")
    # 0.75 for 2.25 MiB costs more than 0.75 for 2 MiB, which is therefore the best, too
    assert points(figure) == {"finished": [(3.0, 0.5), (2.0, 0.75), (1.0, 0.625), (2.5, 0.5625), (2.25, 0.75)]}
    assert lines_of(figure) == {"Pareto front": ([1.0, 2.0, 2.0], [0.625, 0.625, 0.75])}


def test_a_slice_has_the_trials_that_have_its_parameter(tmp_path: Path):
    values = [{cases.CLUSTERS_OF: 2}, {ETA: 0.25}, {ETA: 0.125}, {cases.CLUSTERS_OF: 3}, {ETA: 0.0625}]
    write_study(tmp_path, [own | {METRIC: 0.125 * (5 - number)} for number, own in enumerate(values)])
    figure = figure_on(page_of(tmp_path), "slices")
    assert points(figure)["finished"] == [(0.25, 0.5), (0.125, 0.375), (0.0625, 0.125)]
    assert points(figure, 1)["finished"] == [(2, 0.625), (3, 0.25)]


def test_a_slice_over_decades_is_logarithmic_and_words_are_in_their_order(tmp_path: Path):
    values = enumerate([(0.25, "b"), (0.001, "c"), (0.02, "a")])
    write_study(tmp_path, [{ETA: eta, cases.CLUSTERS_OF: word, METRIC: 0.125 * (5 - k)} for k, (eta, word) in values])
    figure = figure_on(page_of(tmp_path), "slices")
    assert [panel.log_x for panel in figure.panels] == [True, False]
    assert figure.panels[1].x_ticks == {0: "a", 1: "b", 2: "c"}
    assert points(figure, 1)["finished"] == [(1, 0.625), (2, 0.5), (0, 0.375)]


def test_a_trial_that_repeats_a_setting_is_not_counted_among_the_finished_ones(study: Path):
    page = page_of(study)
    assert page.lines[0].startswith(f"7 trials, 5 of them finished. The best, 0002, has {METRIC} 0.7500: ")
    text = page.sections[0].blocks[0].text
    assert text.startswith("7 trials: 5 finished, 1 stopped, 1 failed; 1 setting had been tried before.")


def test_importance_is_known_from_the_tenth_finished_trial_on():
    usual = {"status": "finished", "origin": "search", "repeats": "", "error": None, "traffic/mib": 1.0}
    rows = [usual | {"trial_id": str(k), METRIC: k / 50, "x": k / 50} for k in range(10)]
    space = parse_space({"x": {"uniform": [0.0, 1.0]}})
    assert [bool(importance(rows[:count], space, Objective())) for count in (9, 10)] == [False, True]


def test_the_time_left_of_a_resumed_run_is_that_of_its_own_rounds():
    # rounds 5 and 6 took 3 s, and four are left; by all six rounds it would be 2 s
    line = lines_of_rounds([cases.usual_row(4) | {"round": 6}], [3.0], rounds=10, completed=4)
    assert line == "CFL  round 6/10  val accuracy 0.62  clusters 3  ARI 0.69  6 s left\n"


def test_each_split_has_its_own_loss_and_each_newcomer_its_own_closeness():
    splits = {
        "validation": {"right": [1, 3, 0], "count": [2, 4, 0], "loss": [1.0, 2.0, 0.0]},
        "test": {"right": [1, 6, 4], "count": [2, 8, 4], "loss": [1.0, 2.5, 7.0]},
    }
    found = {}
    for name, own in splits.items():
        sums, weights, loss = (torch.tensor([own[key]], dtype=torch.float64) for key in ("right", "count", "loss"))
        found[name] = SplitScores(CLASSIFIER, torch.tensor(own["count"]), loss[0], sums, weights)
    rows = [line.split() for line in printed(tables.score_table, found).splitlines()[1:]]
    assert rows[0] == ["validation", "2", "0.667", "0.625", "0.500", "0.500"]  # 4 of 6; 1/2 and 3/4; 3 of 6
    assert rows[1] == ["test", "3", "0.786", "0.750", "0.500", "0.750"]  # 11 of 14; 1/2, 3/4 and 1; 10.5 of 14
    closeness = torch.tensor([[0.25, 0.125, 0.75], [0.5, 0.0625, 0.375], [-0.5, 0.3125, -0.25]])
    placed = Assignment(torch.zeros(3, 1), torch.tensor([2, 0, 1]))
    newcomers = PlacedNewcomers(placed, torch.tensor([False] * 3), closeness, None, None)
    text = printed(tables.assignment_table, Path("run"), newcomers, "cosine")
    assert [line.split() for line in text.splitlines()[1:4]] == [
        ["0", "2", "0.750", "0", "(0.250)"],
        ["1", "0", "0.500", "2", "(0.375)"],
        ["2", "1", "0.312", "2", "(-0.250)"],
    ]
