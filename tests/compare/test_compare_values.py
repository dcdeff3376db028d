"""Tests notes and sums of a comparison, on invented runs whose columns all differ."""

import json
from pathlib import Path
from typing import Any

import pytest
from digits_experiment import digits
from made_runs import config, write_table

from lit_cfl.algorithms import IFCA, FedAvg
from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.results import Results, _difference, collect
from lit_cfl.metric_names import METRICS
from lit_cfl.runs.many import Job
from lit_cfl.scores import Score
from lit_cfl.storage.config_file import write_config
from lit_cfl.storage.csv_log import read_table

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


EXPERIMENTS = {"A": digits(algorithm=FedAvg()), "B": digits(algorithm=IFCA(2))}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    for name in "AB":
        for seed in range(3):
            made(tmp_path, name, seed)
    return collect(Comparison("x", EXPERIMENTS, [0, 1, 2], TARGET), tmp_path, {})


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


def test_a_note_names_algorithms_that_reach_the_target_with_models_for_the_score_alone(tmp_path: Path):
    for name in "AB":
        made(tmp_path, name, 0)
    table = tmp_path / "B/seed-0/metrics.csv"
    rows = read_table(table)
    rows[1] |= {"clusters/unobserved": 5, "clusters/assigned": 7}  # all 12 are scored in round 2, with 0.5
    write_table(table, METRICS, rows)
    notes = collect(Comparison("x", EXPERIMENTS, [0], TARGET), tmp_path, {}).notes
    assert "B reached the target with models for the score alone, whose cost does not count." in notes
    assert not any(note.startswith("A reached") for note in notes)


def test_a_failed_run_counts_as_failed_and_its_pair_in_no_difference(tmp_path: Path):
    for name, seed in (("A", 0), ("A", 1), ("A", 2), ("B", 0), ("B", 2)):
        made(tmp_path, name, seed)
    failed = Job(tmp_path, "B", 1, 3)
    found = collect(Comparison("x", EXPERIMENTS, [0, 1, 2], TARGET), tmp_path, {failed: "too warm"})
    _, row = found.rows
    assert (row["runs"], row["failed"], row["pairs"]) == (2, 1, 2)
    assert row["difference"] == pytest.approx((0.25 + 0.1875) / 2)
    assert (row["reached"], row["rounds_to_target"], row["mib_to_target"]) == (2, 2, 13.0)
    assert "B, seed 1, failed: too warm" in found.notes


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
    found = _difference(summaries, "B", "A", score)
    assert (found["pairs"], found["pairs_unknown"], found["difference"]) == (0, 1, None)
