"""Tests every value of a comparison, on invented runs whose columns all differ."""

import json
from pathlib import Path
from typing import Any

import pytest
from digits_experiment import digits
from made_runs import config, write_table

from lit_cfl.algorithms import IFCA, FedAvg
from lit_cfl.compare.command import describe_outcome
from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.from_python import ComparisonTables
from lit_cfl.compare.results import Results, collect, verdict
from lit_cfl.compare.tables import as_markdown, cells
from lit_cfl.evaluation import EvaluationPlan
from lit_cfl.metric_names import CLIENTS, METRICS
from lit_cfl.pictures.curves import mean_curves
from lit_cfl.runs.many import Job
from lit_cfl.storage.config_file import write_config
from lit_cfl.storage.csv_log import read_table

pytestmark = pytest.mark.nightly  # a table of tests states these facts

TARGET = 0.5
ACCURACIES = {  # by round, for each seed; one of B's runs never reaches the target, and stopped early
    "A": ((0.5, 0.375, 0.5), (0.25, 0.5, 0.625), (0.25, 0.375, 0.75)),
    "B": ((0.25, 0.5, 0.75), (0.25, 0.3125, 0.375), (0.125, 0.625, 0.9375)),
}
MIB = {"A": (0.5, 1.0, 2.5), "B": (4.0, 5.0, 9.0)}  # MiB per round, for each seed
OTHERS = {  # from each seed's summary: validation, ARI, seconds, clusters
    "A": ((0.25, 0.0, 10.0, 1), (0.5, 0.25, 20.0, 1), (0.75, 0.5, 60.0, 1)),
    "B": ((0.125, 0.625, 100.0, 2), (0.25, 0.75, 200.0, 3), (0.375, 0.875, 600.0, 2)),
}
T = 4.302653  # 97.5 % quantile of Student's t with two degrees of freedom


def made(path: Path, name: str, seed: int) -> None:
    accuracies, mib, (validation, ari, elapsed, clusters) = (part[name][seed] for part in (ACCURACIES, MIB, OTHERS))
    folder = path / name / f"seed-{seed}"
    folder.mkdir(parents=True)
    write_config(folder, config())
    everyone: dict[str, Any] = {"clusters/unobserved": 0, "clusters/assigned": 12, "clients/evaluated": 12}
    rows = [
        dict.fromkeys(METRICS)
        | everyone
        | {"round": number, "test/weighted_accuracy": accuracy, "traffic/mib": mib * number, "traffic/round_mib": mib}
        | {"local/steps": round(100 * mib * number), "local/examples": round(900 * mib * number)}
        | {"local/scored_examples": round(70 * mib)}
        for number, accuracy in enumerate(accuracies, 1)
    ]
    rows[-1] |= {"val/weighted_accuracy": validation, "clusters/ari": ari, "clusters/count": clusters}
    rows[-1] |= {"time/elapsed_seconds": elapsed, "time/training_seconds": 1.0, "clusters/ami": 0.5}
    write_table(folder / "metrics.csv", METRICS, rows)
    stopped = "enough" if (name, seed) == ("B", 1) else None
    summary = {"algorithm": name, "seed": seed, "stopped": stopped, "test/max_weighted_accuracy": max(accuracies)}
    summary |= {"clusters/chosen": clusters + 1} if name == "B" else {}
    (folder / "summary.json").write_text(json.dumps(rows[-1] | summary))


@pytest.fixture
def results(tmp_path: Path) -> Results:
    experiments = {"A": digits(algorithm=FedAvg()), "B": digits(algorithm=IFCA(2))}
    for name in experiments:
        for seed in range(3):
            made(tmp_path, name, seed)
    return collect(Comparison("x", experiments, [0, 1, 2], TARGET), tmp_path, {})


def test_a_run_has_its_last_figures_and_what_the_target_cost_it(results: Results):
    columns = ("algorithm", "seed", "status", "rounds", "test_accuracy", "val_accuracy", "clusters", "ari", "unplaced")
    columns += ("mib", "seconds", "stopped", "rounds_to_target", "mib_to_target")
    assert [tuple(row[column] for column in columns) for row in results.runs] == [
        ("A", 0, "finished", 3, 0.5, 0.25, 1, 0.0, 0, 1.5, 10.0, None, 1, 0.5),
        ("A", 1, "finished", 3, 0.625, 0.5, 1, 0.25, 0, 3.0, 20.0, None, 2, 2.0),
        ("A", 2, "finished", 3, 0.75, 0.75, 1, 0.5, 0, 7.5, 60.0, None, 3, 7.5),
        ("B", 0, "finished", 3, 0.75, 0.125, 2, 0.625, 0, 12.0, 100.0, None, 2, 8.0),
        ("B", 1, "finished", 3, 0.375, 0.25, 3, 0.75, 0, 15.0, 200.0, "enough", None, None),
        ("B", 2, "finished", 3, 0.9375, 0.375, 2, 0.875, 0, 27.0, 600.0, None, 2, 18.0),
    ]


def test_the_number_that_auto_chose_is_a_figure_of_each_run_and_a_note(results: Results):
    assert [row["clusters_chosen"] for row in results.runs] == [None, None, None, 3, 4, 3]
    assert "B: num_clusters: auto chose 3, 4, 3 (seeds 0, 1, 2)." in results.notes


def test_local_work_is_that_of_the_whole_run_and_of_the_rounds_to_the_target(results: Results):
    columns = ("local_steps", "local_examples", "local_scored_examples")
    columns += ("local_steps_to_target", "local_examples_to_target")
    assert [tuple(row[column] for column in columns) for row in results.runs[2:5]] == [
        (750, 6750, 175, 750, 6750),
        (1200, 10800, 280, 800, 7200),
        (1500, 13500, 350, None, None),
    ]
    first, second = ([row[column] for column in columns] for row in results.rows)
    assert first == pytest.approx([400, 3600, 280 / 3, 1000 / 3, 3000])
    assert second == pytest.approx([1800, 16200, 420, None, None])


def test_a_row_has_means_deviations_and_the_cost_only_where_every_run_reached_the_target(results: Results):
    first, second = results.rows
    gain = 0.0625  # mean of 0.25, -0.25 and 0.1875
    half = T * ((0.1875**2 + 0.3125**2 + 0.125**2) / 2 / 3) ** 0.5
    shared = {"runs": 3, "failed": 0, "target": 0.5, "rounds_with_all_clients": 0}
    a = {"algorithm": "A", "class": "FedAvg", "test_mean": 0.625, "test_sd": 0.125, "val_mean": 0.5, "val_sd": 0.25}
    a |= {"ari_mean": 0.25, "ari_sd": 0.25, "reached": 3, "rounds_to_target": 2, "mib_to_target": 10 / 3}
    assert {key: first[key] for key in (*shared, *a)} == pytest.approx(shared | a)
    assert (first["mib"], first["seconds"]) == (4.0, 30.0)
    b = {"algorithm": "B", "class": "IFCA", "test_mean": 0.6875, "test_sd": (0.1640625 / 2) ** 0.5, "val_mean": 0.25}
    b |= {"val_sd": 0.125, "ari_mean": 0.75, "ari_sd": 0.125, "reached": 2}
    b |= {"rounds_to_target": None, "mib_to_target": None, "mib": 18.0, "seconds": 300.0}
    b |= {"pairs": 3, "pairs_over_shared_clients": 0, "difference": gain}
    assert {key: second[key] for key in (*shared, *b)} == pytest.approx(shared | b)
    assert [second["difference_low"], second["difference_high"]] == pytest.approx([gain - half, gain + half], rel=1e-6)


def test_the_table_shows_each_of_them_in_its_column(results: Results):
    head, first, second = cells(results)
    assert head == [
        "algorithm",
        "seeds",
        "test accuracy",
        "val accuracy",
        "difference to A",
        "ARI",
        "rounds to 0.5",
        "MiB to 0.5",
        "local steps to 0.5",
        "traffic MiB",
        "local steps",
        "time s",
    ]
    assert first == [
        "A", "3", "0.625 ± 0.125", "0.500 ± 0.250", "", "0.25 ± 0.25", "2.0", "3.3", "333", "4.0", "400", "30.0",
    ]  # fmt: skip
    difference, reached = "+0.062 [-0.614, +0.739]", "2 of 3 runs"
    assert second == [
        "B", "3", "0.688 ± 0.286", "0.250 ± 0.125", difference, "0.75 ± 0.12", reached, reached, reached,
        "18.0", "1800", "300.0",
    ]  # fmt: skip


def test_the_verdict_is_the_first_note_of_the_tables(results: Results):
    assert results.notes[0] == verdict(results.rows, results.score)[0]
    assert results.notes[0].startswith("Test accuracy: B cannot be told from A (paired t tests")
    text = as_markdown(results, "x", None)
    assert text.partition("\n- ")[2].partition("\n")[0] == results.notes[0]


def test_notes_count_the_runs_that_stopped_early_and_the_target_as_asked(results: Results):
    assert "B: 1 of 3 runs stopped early; their last round counts." in results.notes
    assert not [note for note in results.notes if note.startswith("A: ")]
    assert any(note.endswith("mean ± standard deviation over 3 seeds.") for note in results.notes)
    (costs,) = [note for note in results.notes if note.startswith("Rounds, MiB and local steps")]
    assert costs.endswith("until the test accuracy is 0.5 (as asked) and all clients have a model.")
    assert "stopped early" in as_markdown(results, "x", None)


def test_the_line_of_a_run_that_ended_has_its_last_figures_and_the_time_of_all_of_it(tmp_path: Path):
    made(tmp_path, "A", 1)
    assert describe_outcome(Job(tmp_path, "A", 1, 3)) == "val accuracy 0.50  clusters 1  ARI 0.25  20.0 s"


def test_without_a_target_it_is_the_lowest_end_and_what_it_cost_is_of_the_same_rounds(tmp_path: Path):
    experiments = {"A": digits(algorithm=FedAvg()), "B": digits(algorithm=IFCA(2))}
    for name in experiments:
        for seed in range(3):
            made(tmp_path, name, seed)
    found = collect(Comparison("x", experiments, [0, 1, 2]), tmp_path, {})
    assert [row["target"] for row in found.rows] == [0.375, 0.375]
    assert [row["reached"] for row in found.rows] == [3, 3]
    assert [row["rounds_to_target"] for row in found.rows] == pytest.approx([5 / 3, 7 / 3])
    assert [row["mib_to_target"] for row in found.rows] == pytest.approx([(0.5 + 2 + 5) / 3, (8 + 15 + 18) / 3])
    assert any("is 0.375 (the lowest accuracy that a run ends with)" in note for note in found.notes)


def test_notes_say_that_the_scores_are_of_a_sample(tmp_path: Path):
    made(tmp_path, "A", 0)
    experiments = {"A": digits(algorithm=FedAvg(), evaluation=EvaluationPlan(clients=5))}
    notes = collect(Comparison("x", experiments, [0], TARGET), tmp_path, {}).notes
    assert "Scores are over a fixed sample of 5 clients (evaluation.clients)." in notes
    (costs,) = [note for note in notes if note.startswith("Rounds, MiB and local steps")]
    assert costs.endswith("and all clients have a model.")


def test_a_note_names_algorithms_that_reach_the_target_with_models_for_the_score_alone(tmp_path: Path):
    experiments = {"A": digits(algorithm=FedAvg()), "B": digits(algorithm=IFCA(2))}
    for name in experiments:
        made(tmp_path, name, 0)
    table = tmp_path / "B/seed-0/metrics.csv"
    rows = read_table(table)
    rows[1] |= {"clusters/unobserved": 5, "clusters/assigned": 7}  # all 12 are scored in round 2, with 0.5
    write_table(table, METRICS, rows)
    notes = collect(Comparison("x", experiments, [0], TARGET), tmp_path, {}).notes
    assert "B reached the target with models for the score alone, whose cost does not count." in notes
    assert not any(note.startswith("A reached") for note in notes)


def test_tables_keep_names_that_pandas_takes_for_missing_values(tmp_path: Path):
    write_table(tmp_path / "results.csv", ["algorithm", "difference"], [{"algorithm": "NA", "difference": None}])
    found = ComparisonTables(tmp_path).results
    assert found["algorithm"].tolist() == ["NA"]
    assert found["difference"].isna().all()


def test_a_failed_run_counts_as_failed_and_its_pair_in_no_difference(tmp_path: Path):
    experiments = {"A": digits(algorithm=FedAvg()), "B": digits(algorithm=IFCA(2))}
    for name, seed in (("A", 0), ("A", 1), ("A", 2), ("B", 0), ("B", 2)):
        made(tmp_path, name, seed)
    failed = Job(tmp_path, "B", 1, 3)
    found = collect(Comparison("x", experiments, [0, 1, 2], TARGET), tmp_path, {failed: "too warm"})
    _, row = found.rows
    assert (row["runs"], row["failed"], row["pairs"]) == (2, 1, 2)
    assert row["difference"] == pytest.approx((0.25 + 0.1875) / 2)
    assert (row["reached"], row["rounds_to_target"], row["mib_to_target"]) == (2, 2, 13.0)
    assert "B, seed 1, failed: too warm" in found.notes


def test_notes_count_the_seeds_under_which_the_two_score_different_clients(tmp_path: Path):
    experiments = {"A": digits(algorithm=FedAvg()), "B": digits(algorithm=IFCA(2))}
    for name in experiments:
        for seed in range(3):
            made(tmp_path, name, seed)
    scores = {"A": ((0, 2, 0.5), (1, 2, 0.0), (2, 4, 0.75)), "B": ((0, 2, 1.0), (1, 2, 0.5))}  # client, examples, score
    for name, found in scores.items():
        rows = [{"client": client, "n_test": size, "accuracy": score, "newcomer": 0} for client, size, score in found]
        write_table(tmp_path / name / "seed-0" / "clients.csv", CLIENTS, rows)
    file = tmp_path / "B" / "seed-0" / "summary.json"
    counts = {"clusters/unobserved": 2, "clusters/assigned": 10, "clients/evaluated": 10}
    file.write_text(json.dumps(json.loads(file.read_text()) | counts))
    found = collect(Comparison("x", experiments, [0, 1, 2], TARGET), tmp_path, {})
    _, row = found.rows
    assert (row["pairs"], row["pairs_over_shared_clients"]) == (3, 1)
    # under seed 0, only clients 0 and 1 are shared
    assert row["difference"] == pytest.approx(((0.75 - 0.25) - 0.25 + 0.1875) / 3)
    assert "B: under 1 of 3 seeds the difference is over clients scored in both runs." in found.notes
    assert "B: in 1 of 3 runs clients have no model at the end and are not scored." in found.notes


def test_the_curve_of_an_algorithm_is_the_mean_of_its_runs_in_a_band_of_one_deviation(results: Results):
    figure = mean_curves(results.tables, TARGET)
    assert figure is not None
    a, b, target = figure.first_panel.curves
    assert (list(a.x), list(a.y)) == ([1, 2, 3], pytest.approx([1 / 3, 1.25 / 3, 0.625]))
    assert list(b.y) == pytest.approx([0.625 / 3, 1.4375 / 3, 0.6875])
    assert (target.name, list(target.y)) == (f"target {TARGET:g}", [TARGET] * 2)
    # 0.625 plus and minus the standard deviation of the sample
    assert (a.low[-1], a.high[-1]) == pytest.approx((0.5, 0.75))
