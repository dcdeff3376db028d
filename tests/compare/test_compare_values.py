"""Tests notes and sums of a comparison, on invented runs whose columns all differ (see also test_definitions.py)."""

from pathlib import Path

import pytest
from golden_cases import change_summary, compared_experiments, compared_runs
from made_runs import write_table

from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.results import Results, _difference, _paired_gain, collect, mark_best
from lit_cfl.metric_names import METRICS
from lit_cfl.runs.many import Job
from lit_cfl.scores import CLASSIFIER, Score
from lit_cfl.statistics import seeds_needed
from lit_cfl.storage.csv_log import read_table


def results(path: Path, *seeds: int) -> Results:
    """Reads the results of FedAvg and IFCA; a run without a directory has failed."""
    experiments = {name: one for name, one in compared_experiments().items() if name != "Oracle"}
    jobs = [Job(path, name, seed, 3) for name in experiments for seed in seeds]
    failed = {job: "too warm" for job in jobs if not job.folder.exists()}
    return collect(Comparison("x", experiments, list(seeds), 0.5), path, failed)


def test_the_number_that_auto_chose_is_a_figure_of_each_run_and_a_note(tmp_path: Path):
    compared_runs(tmp_path)
    for seed, number in enumerate((3, 4, 3)):
        change_summary(tmp_path / "IFCA" / f"seed-{seed}", **{"clusters/chosen": number})
    found = results(tmp_path, 0, 1, 2)
    chosen = [(row["algorithm"], row["clusters_chosen"]) for row in found.runs]
    assert sorted(chosen, key=str) == [*[("FedAvg", None)] * 3, ("IFCA", 3), ("IFCA", 3), ("IFCA", 4)]
    assert "IFCA: num_clusters: auto chose 3, 4, 3 (seeds 0, 1, 2)." in found.notes


def test_local_work_is_that_of_the_whole_run_and_of_the_rounds_to_the_target(tmp_path: Path):
    """Per MiB, there are 100 steps on 900 examples; IFCA's second run does not reach the target."""
    found = results(compared_runs(tmp_path), 0, 1, 2)
    columns = ("local_steps", "local_examples", "local_steps_to_target", "local_examples_to_target")
    runs = {(row["algorithm"], row["seed"]): tuple(row[column] for column in columns) for row in found.runs}
    assert runs["FedAvg", 1] == (300, 2700, 200, 1800)
    assert runs["IFCA", 0] == (1200, 10800, 800, 7200)
    assert runs["IFCA", 1] == (1500, 13500, None, None)
    _, row = found.rows
    assert [row[column] for column in columns] == pytest.approx([1800, 16200, None, None])


def test_a_note_names_algorithms_that_reach_the_target_with_models_for_the_score_alone(tmp_path: Path):
    table = compared_runs(tmp_path) / "IFCA/seed-0/metrics.csv"
    rows = read_table(table)
    rows[1] |= {"clusters/unobserved": 5, "clusters/assigned": 7}  # all 12 are scored in round 2, with 0.5
    write_table(table, METRICS, rows)
    notes = results(tmp_path, 0).notes
    assert "IFCA reached the target with models for the score alone, whose cost does not count." in notes
    assert not any(note.startswith("FedAvg reached") for note in notes)


def test_a_failed_run_counts_as_failed_and_its_pair_in_no_difference(tmp_path: Path):
    found = results(compared_runs(tmp_path, [("IFCA", 1)]), 0, 1, 2)
    _, row = found.rows
    assert (row["runs"], row["failed"], row["pairs"]) == (2, 1, 2)
    assert row["difference"] == pytest.approx((0.25 + 0.5) / 2)
    assert (row["reached"], row["rounds_to_target"], row["mib_to_target"]) == (2, 2, 13.0)
    assert "IFCA, seed 1, failed: too warm" in found.notes


def test_the_seeds_needed_are_those_for_a_point_of_a_share_or_1_percent_of_the_first_ones_mean(tmp_path: Path):
    """The gains of IFCA are 0.25, -0.25 and 0.5, of deviation 0.382; FedAvg's mean is 0.520833."""
    compared_runs(tmp_path)
    row = results(tmp_path, 0, 1, 2).rows[1]
    deviation = (((0.25 - 1 / 6) ** 2 + (0.25 + 1 / 6) ** 2 + (0.5 - 1 / 6) ** 2) / 2) ** 0.5
    assert (row["point"], row["seeds_needed"]) == (0.01, seeds_needed(0.01, deviation))
    for run in tmp_path.glob("*/seed-*"):
        change_summary(run, scores=[{"name": "accuracy", "higher_is_better": True, "is_share": False}])
    row = results(tmp_path, 0, 1, 2).rows[1]
    assert row["point"] == pytest.approx((0.5 + 0.625 + 0.4375) / 300)
    assert row["seeds_needed"] == seeds_needed(row["point"], deviation)
    assert results(tmp_path, 0).rows[1]["seeds_needed"] is None


def test_pair_whose_shared_clients_have_no_known_figure_is_not_counted(tmp_path: Path):
    """A perplexity over some of the clients cannot be computed from the perplexity of each client."""
    score = Score("perplexity", higher_is_better=False, transform="exp")
    summary = {"clients/evaluated": 2, "clusters/assigned": 2, "clusters/unobserved": 1}
    summaries = {}
    for name, clients in (("A", (0, 1)), ("B", (1, 2))):
        job = Job(tmp_path, name, 0, 1)
        job.folder.mkdir(parents=True)
        rows = [{"client": k, "n_test": 1, "newcomer": 0, score.name: 2.0 + k} for k in clients]
        write_table(job.folder / "clients.csv", list(rows[0]), rows)
        summaries[job] = summary | {"test/weighted_perplexity": 9.0}
    found = _difference(summaries, "B", "A", score, 0.01)
    assert (found["pairs"], found["pairs_unknown"], found["difference"]) == (0, 1, None)


@pytest.mark.parametrize(
    ("shared", "is_best"), [((0.5, 0.625, 0.375), True), ((0.5, 0.625), False), ((0.25, 0.25, 0.25), False)]
)
def test_what_is_not_told_from_the_best_on_the_clients_that_both_score_is_marked(
    tmp_path: Path, shared: tuple[float, ...], is_best: bool
):
    """B has client 1, too, with 0.5 under all seeds; on the client of its own it is better. Two seeds tell nothing."""
    score, summaries = CLASSIFIER[0], {}
    summary = {"clients/evaluated": 2, "clusters/assigned": 2, "clusters/unobserved": 1}
    for seed, value in enumerate(shared):
        for name, clients in (("A", {0: 0.25, 1: value}), ("B", {1: 0.5, 2: 1.0})):
            job = Job(tmp_path, name, seed, 1)
            job.folder.mkdir(parents=True)
            rows = [{"client": k, "n_test": 1, "newcomer": 0, score.name: own} for k, own in clients.items()]
            write_table(job.folder / "clients.csv", list(rows[0]), rows)
            summaries[job] = summary | {"test/weighted_accuracy": sum(clients.values()) / 2}
    rows = [{"algorithm": "A", "test_mean": 0.4}, {"algorithm": "B", "test_mean": 0.75}]
    mark_best(rows, score, lambda name, best: _paired_gain(summaries, name, best, score)[0])
    assert [row["is_best"] for row in rows] == [is_best, True]
