"""Tests what a terminal shows, and the files of comparisons and searches, against recorded text (`helpers/golden.py`).

Numbers are those of invented runs. Of the commands that train, the scores are replaced, too.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden_cases as cases
import pytest
from golden import check_golden
from inside_shown import compare_on_new_seeds, lines_of_rounds, printed, results_of

from lit_cfl.cli.main import main
from lit_cfl.compare.tables import show_table
from lit_cfl.metric_names import client_columns
from lit_cfl.progress.summary_table import closing_table
from lit_cfl.runs.run import FinishedRun
from lit_cfl.scores import ACCURACY, Score, describe_scores
from lit_cfl.tune.command import closing_table as end_of_search

GOLDEN = Path(__file__).with_name("golden")
TINY = "--config quickstart --data.num_clients 8 --cohort_size 4 --local.epochs 1 --rounds 3"
COMPARED = "--algorithms FedAvg mine=IFCA Ditto --mine.weights examples --Ditto.personal.length 3 --num_cpus 1"
COMMANDS = {
    "run": f"run {TINY} --algorithm.pretrain_scale 2 --run_dir here",
    "dry_run": f"run {TINY} --dry-run",
    "dry_run_of_comparison": f"compare {TINY} {COMPARED} --dry-run",
}


def without_machine(text: str) -> str:
    """Replaces what depends on the machine: times, scores, and the way of training."""
    text = re.sub(r"\d+(\.\d+)?(e-\d+)? s\b", "TIME s", text)
    text = re.sub(r"[ \t]{3,}", "  ", text)  # columns of blanks, whose widths follow from the times
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    text = re.sub(r"-?\d+\.\d+\b", "#", text)
    return re.sub(r"plan  engine .*|module  .*|memory  .*", lambda found: f"{found[0].split()[0]}  PLAN", text)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_was_recorded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(COMMANDS[name].split()) == 0
    check_golden(GOLDEN / f"{name}.txt", without_machine(capsys.readouterr().out), tmp_path)


CLIENTS = [(0, 0, 4), (1, 0, 2), (2, 2, 9), (3, 2, 8), (4, 2, 2)]  # client, cluster, test examples
MINE = (0.5, 1.0, 0.375, 0.75, 0.25)


def ended(
    path: Path, algorithm: str, values: Sequence[float | None], score: Score = ACCURACY, **summary: Any
) -> FinishedRun:
    """Makes a finished run of five clients and two newcomers, the best score of which is not the last."""
    path.mkdir(parents=True)
    rows = [
        {"client": client, "cluster": cluster, "n_test": size, score.name: value, "newcomer": 0}
        for (client, cluster, size), value in zip(CLIENTS, values, strict=True)
    ]
    rows += [{"client": k, "cluster": 1, "n_test": k, score.name: 0.125, "newcomer": 1} for k in (5, 6)]
    cases.write_table(path / "clients.csv", client_columns((score,)), rows)
    known = [(size, value) for (*_, size), value in zip(CLIENTS, values, strict=True) if value is not None]
    mean = {f"test/weighted_{score.name}": sum(size * value for size, value in known) / sum(size for size, _ in known)}
    mean |= {f"test/mean_{score.name}": sum(value for _, value in known) / len(known), score.best_column: 0.96875}
    mean |= {f"test/worst10_{score.name}": 0.25, "clusters/ari": None, "clusters/silhouette": 0.375}
    counts = {"clusters/unobserved": 0, "clusters/assigned": 5, "clients/evaluated": len(known)}
    costs = {"traffic/mib": 12.5, "traffic/round_mib": 2.5, "time/elapsed_seconds": 31.5, "time/training_seconds": 9.0}
    return FinishedRun(
        path, {"algorithm": algorithm, "seed": 0, "scores": describe_scores((score,))} | mean | counts | costs | summary
    )


def with_truth(path: Path) -> FinishedRun:
    """Makes a run and a baseline of which two clients of five have no model."""
    baseline = ended(path / "baseline", "FedAvg", (0.25, 0.5, None, None, 0.75), **{"clusters/ari": 0.0})
    baseline.summary |= {"clusters/unobserved": 2, "clusters/assigned": 3}
    run = ended(path / "run", "IFCA", MINE, **{"clusters/ari": 0.25, "test/newcomers_accuracy": 0.125})
    return FinishedRun(run.path, run.summary, baseline)


def without_truth(path: Path, values: Sequence[float], score: Score = ACCURACY) -> FinishedRun:
    run = ended(path / "run", "FedGroup", MINE, score)
    return FinishedRun(run.path, run.summary, ended(path / "baseline", "FedAvg", values, score))


def of_seeds(path: Path) -> FinishedRun:
    parts = [ended(path / f"seed-{seed}", "IFCA", MINE, seed=seed) for seed in (3, 7)]
    values = [(0.25, 0.5, 0.75, 0.75, 0.5), (0.25, 0.5, 0.5, 0.5, 0.0)]
    baselines = [ended(path / f"b-{k}", "FedAvg", own, seed=k) for k, own in zip((3, 7), values, strict=True)]
    first, other = (one.summary | {"seeds": 2} for one in (parts[0], baselines[0]))
    return FinishedRun(path, first, FinishedRun(path, other, None, baselines), parts)


ENDS = {
    "with_truth": with_truth,
    "gain": lambda path: without_truth(path, (0.25, 0.5, 0.5, 0.875, 0.0)),
    "loss": lambda path: without_truth(path, (0.5, 1.0, 0.875, 0.75, 0.375)),
    "error": lambda path: without_truth(path, (0.75, 1.5, 0.25, 0.75, 0.5), Score("mae", higher_is_better=False)),
    "alone": lambda path: ended(path / "run", "FedAvg", MINE),
    "seeds": of_seeds,
}


def test_a_run_ends_with_what_was_recorded(tmp_path: Path):
    found = {name: printed(closing_table, make(tmp_path / name)).splitlines() for name, make in ENDS.items()}
    # errors fall by 0.25, 0.5, -0.125, 0 and 0.25: 0.875 in all, and one of five clients loses; newcomers have no part
    expected = ["Cluster sizes: 2, 3.", "Gain per client over FedAvg: +0.175 on average; 20% of clients lose."]
    assert [line for line in found["error"] if line in expected] == expected
    assert found["error"][1].split()[:3] == ["FedGroup", "0.555", "0.575"]  # of the last round: 13.875 / 25, 2.875 / 5
    check_golden(GOLDEN / "ends_of_runs.json", found, tmp_path)


def test_lines_of_rounds_are_as_recorded():
    rows = [cases.usual_row(1 + number % 4) | {"round": number} for number in range(1, 8)]
    rows[2] |= {"val/weighted_accuracy": None, "clusters/ari": None, "clusters/unobserved": 4}
    found = lines_of_rounds(rows, [0.5, 3.0, 3.5, 5.5, 6.0, 6.5, 7.0], 8)
    check_golden(GOLDEN / "rounds.txt", found)


def test_a_comparison_prints_and_writes_what_was_recorded(tmp_path: Path):
    left = [("IFCA", 2)]
    cases.compared_runs(tmp_path, left)
    cases.change_summary(tmp_path / "Oracle" / "seed-1", **{"test/newcomers_accuracy": 0.40625})
    errors = {("IFCA", 2): "ValueError: 50 % of a_b & c"}
    results = results_of(tmp_path, cases.compared_experiments(), None, errors)
    found = {"terminal": printed(show_table, results).splitlines()}
    found |= {name: (tmp_path / name).read_text().splitlines() for name in ("results.md", "results.tex")}
    found |= {name: columns_of(tmp_path / name) for name in ("results.csv", "runs.csv")}
    check_golden(GOLDEN / "comparison.json", found, tmp_path)


def test_a_search_prints_and_writes_what_was_recorded(tmp_path: Path):
    path = cases.searched_study(tmp_path / "study")
    files = cases.study_files(path)
    result = replace(files.write(), repeated=compare_on_new_seeds(path))
    found = {"terminal": printed(end_of_search, files.prepared.study, result).splitlines()}
    found |= {"trials.csv": columns_of(path / "trials.csv")}
    check_golden(GOLDEN / "search.json", found | {"best.yaml": (path / "best.yaml").read_text().splitlines()}, tmp_path)


def columns_of(file: Path) -> dict[str, Any]:
    head, *rows = [line.split(",") for line in file.read_text().splitlines()]
    assert {len(row) for row in rows} == {len(head)}
    return {name: [_cell(row[k]) for row in rows] for k, name in enumerate(head)}


def _cell(text: str) -> str:
    try:
        return f"{float(text):.6g}"
    except ValueError:
        return json.dumps(text)[1:-1]
