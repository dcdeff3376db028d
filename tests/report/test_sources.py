"""Tests which directories a page takes, comparisons on different data sets, and incomplete or damaged directories."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from golden_cases import RANKED, ranked_comparison
from inside_shown import figure_on, lines_of, page_of, table_on
from made_runs import config, made_run, metric_row, write_table

from lit_cfl.compare.results import COLUMNS
from lit_cfl.data.partition_file import save_partition
from lit_cfl.datamodules import ArrayData
from lit_cfl.errors import InputError
from lit_cfl.metric_names import METRICS
from lit_cfl.pictures.run_files import read_run
from lit_cfl.report.blocks import Table
from lit_cfl.report.sources import read_source
from lit_cfl.storage import write_rows
from lit_cfl.storage.config_file import write_config


def names(page: Any) -> set[str]:
    return {figure.name for figure in page.figures}


def test_runs_with_equal_options_on_changed_data_are_refused(tmp_path: Path):
    def on(folder: str, examples: float, clients: int, seed: int) -> Path:
        x = np.full((12, 2), examples, dtype=np.float32)
        module = ArrayData(x=x, y=np.arange(12) % 2, client=np.arange(12) % clients)
        save_partition(made_run(tmp_path / folder) / "partition.npz", module.federated(seed))
        return tmp_path / folder

    first = on("first", 1.0, 2, 0)
    page_of(first, on("equal", 1.0, 2, 0), on("other-seed", 1.0, 2, 1))
    for name, changed, what in (
        ("edited", (2.0, 2, 0), "different examples"),
        ("clients", (1.0, 3, 0), "different clients under seed 0"),
    ):
        with pytest.raises(InputError, match=f"first and .*{name} .*{what}"):
            page_of(first, on(name, *changed))


def test_runs_that_differ_in_seeds_and_other_options_are_shown_together(tmp_path: Path):
    data = {"class_path": "lit_cfl.datamodules.Digits", "init_args": {"num_clients": 8, "partition_seed": 5}}
    page = page_of(made_run(tmp_path / "a"), made_run(tmp_path / "b", data=data, rounds=9, seeds=[1]))
    assert [row[0] for row in table_on(page, "After the last round")[1:]] == ["CFL (a)", "CFL (b)"]
    rows = [["seeds", "0", "1"], ["data.init_args.partition_seed", "", "5"], ["rounds", "4", "9"]]
    assert table_on(page, "Options that differ")[1:] == rows


def test_scores_of_two_tasks_are_not_compared(tmp_path: Path):
    first, other = made_run(tmp_path / "first"), made_run(tmp_path / "other", over=False)
    (other / "metrics.csv").write_text((other / "metrics.csv").read_text().replace("_accuracy", "_mae"))
    (other / "environment.json").write_text('{"scores": [{"name": "mae", "higher_is_better": false}]}')
    with pytest.raises(InputError, match=r"first is scored by accuracy, .*other by mae"):
        page_of(first, other)


def test_a_run_is_running_as_long_as_a_process_holds_it(tmp_path: Path):
    run = made_run(tmp_path / "run", over=False)
    with FileLock(run / ".lock"):
        assert read_run(run).status == "running, round 4 of 4"
    assert read_run(run).status == "interrupted, round 4 of 4"
    (run / ".lock").unlink(missing_ok=True)
    (run / ".lock").mkdir()  # a folder of this name cannot be opened, as a file of another user's
    assert read_run(run).status == "interrupted, round 4 of 4"


@pytest.mark.parametrize(
    ("file", "lost"),
    [
        ("memberships.npz", "cfl-memberships"),
        ("clients.csv", "cfl-histogram"),
        ("clusters.csv", "cfl-splits"),
        ("snapshots/2.npz", "cfl-similarity"),
        ("summary.json", None),
        ("config.yaml", None),
        ("metrics.csv", "test-weighted_accuracy"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_shown(file: str, lost: str | None, tmp_path: Path):
    run = made_run(tmp_path / "cfl", snapshots=2)
    (run / "snapshots" / "1.npz").unlink()
    (run / file).write_bytes(b"\xff\x00\xfe damaged\n" * 3)
    page = page_of(run)
    assert any(f"{run / file}" in problem for problem in page.problems)
    shown = {"cfl-memberships", "cfl-histogram", "cfl-splits", "cfl-similarity", "test-weighted_accuracy"}
    assert shown - names(page) == {lost} - {None}


def test_a_table_of_somebody_elses_with_the_same_name_is_left_out_alone(tmp_path: Path):
    run = made_run(tmp_path / "run", over=False)
    write_table(run / "migrations.csv", ("round", "client", "why"), [{"round": 1, "client": 0, "why": "x"}])
    page = page_of(run)
    assert f"{run}: shifts cannot be drawn and is left out (KeyError: 'cluster_before')." in page.problems
    assert "cfl-splits" in names(page)


def test_rows_with_words_and_values_that_are_no_numbers_are_gaps(tmp_path: Path):
    values = [0.25, float("nan"), 0.75, float("inf"), 0.5]
    rows = [metric_row(k, **{"test/weighted_accuracy": value}) for k, value in enumerate(values, 1)]
    rows[4]["test/loss"] = "oops"
    run = made_run(tmp_path / "run", rows, over=False)
    page = page_of(run)
    assert lines_of(figure_on(page, "test-weighted_accuracy")) == {"CFL": ([1, 3], [0.25, 0.75])}
    assert f"{run / 'metrics.csv'} is damaged: 1 of its 5 rows cannot be read." in page.problems


def test_runs_without_a_configuration_with_one_round_and_with_none_are_shown(tmp_path: Path):
    lost = made_run(tmp_path / "lost")
    (lost / "config.yaml").unlink()
    assert f"{lost / 'config.yaml'} is missing." in page_of(lost).problems
    assert "test-weighted_accuracy" in names(page_of(lost))
    one = page_of(made_run(tmp_path / "one", [metric_row(1)], snapshots=1))
    assert {"cfl-similarity", "cfl-map", "cfl-histogram"} <= names(one)
    assert {"test-weighted_accuracy", "traffic", "cfl-memberships", "cfl-splits"}.isdisjoint(names(one))
    assert one.sections[1].blocks[0].text.startswith("Only round 1 was scored")
    empty = made_run(tmp_path / "empty", [], snapshots=0, over=False)
    assert f"{empty} has no round in metrics.csv." in page_of(empty).problems


def test_seeds_and_their_baselines_are_two_groups_and_those_that_did_not_start_are_named(tmp_path: Path):
    for seed in (0, 10, 2):
        made_run(tmp_path / f"seed-{seed}", seeds=[seed])
        made_run(tmp_path / f"seed-{seed}" / "baseline", algorithm={"class_path": "lit_cfl.algorithms.FedAvg"})
    write_config(tmp_path, config(seeds=[0, 1, 2, 10, 7]))
    source = read_source(tmp_path)
    mine, others = source.groups
    assert (mine.name, [run.seed for run in mine.runs]) == ("CFL", [0, 2, 10])
    assert (others.name, len(others.runs)) == ("FedAvg (baseline)", 3)
    assert source.problems == ["seed-1, seed-7 did not start yet."]


def test_a_comparison_names_runs_that_did_not_start_but_not_those_that_failed_at_once(tmp_path: Path):
    made_run(tmp_path / "A" / "seed-0")
    (tmp_path / "A" / "seed-3").mkdir()
    (tmp_path / "A" / "seed-3" / "error.txt").write_text("Traceback")
    (tmp_path / "compare.yaml").write_text("name: x\nalgorithms: [A, B]\nseeds: [0, 3, 4]\ntarget: null\n")
    source = read_source(tmp_path)
    assert (source.kind, [group.name for group in source.groups]) == ("comparison", ["A"])
    assert source.problems == ["A: seed-4 did not start yet.", "B: seed-0, seed-3, seed-4 did not start yet."]


def test_values_are_those_so_far_while_one_has_no_finished_run(tmp_path: Path):
    for name, values, over in (("A", (0.5,), False), ("B", (0.4, 0.9), True)):
        rows = [metric_row(k, **{"test/weighted_accuracy": value}) for k, value in enumerate(values, 1)]
        made_run(tmp_path / name / "seed-0", rows, over=over)
    (tmp_path / "compare.yaml").write_text("name: x\nalgorithms: [A, B]\nseeds: [0]\ntarget: null\n")
    assert page_of(tmp_path).lines[0] == "Test accuracy so far: A 0.500, B 0.900."


DIGITS, LETTERS = RANKED["digits"], RANKED["letters"]


def test_ranks_over_different_numbers_of_clients_are_noted(tmp_path: Path):
    few, others = ranked_comparison(tmp_path / "few", 8, DIGITS), ranked_comparison(tmp_path / "all", 9, LETTERS)
    for run in (few / "IFCA").iterdir():
        last = {"test/weighted_accuracy": 0.5, "clients/evaluated": 5.5}
        write_table(run / "metrics.csv", METRICS, [metric_row(1), metric_row(2, **last)])
    (problem,) = page_of(few, others).problems
    assert problem.startswith("few: the ranked figures are over different numbers of clients (FedAvg on 8, IFCA on 5.5")


def test_methods_that_are_not_everywhere_are_left_out_and_fewer_than_three_are_refused(tmp_path: Path):
    first = ranked_comparison(tmp_path / "first", 8, DIGITS)
    page = page_of(first, ranked_comparison(tmp_path / "more", 9, LETTERS | {"Ditto": (0.125, 0.25)}))
    assert page.problems == ["Not in every comparison, and left out of the ranks: Ditto."]
    unfinished = ranked_comparison(tmp_path / "unfinished", 10, DIGITS)
    for file in (*unfinished.glob("*/*/summary.json"), *unfinished.glob("*/*/SHA256SUMS")):
        file.unlink()
    with pytest.raises(InputError, match="with 0 finished methods in common"):
        page_of(first, unfinished)


def results(path: Path) -> Path:
    row = dict.fromkeys(COLUMNS) | {"class": "FedAvg", "runs": 2, "failed": 0, "test_mean": 0.5, "reached": 0}
    gain = {"algorithm": "IFCA", "pairs": 2, "difference": 0.25, "difference_low": 0.125, "difference_high": 0.375}
    write_rows(path / "results.csv", COLUMNS, [row | {"algorithm": "FedAvg"}, row | gain])
    return path


def test_verdicts_and_tables_of_comparisons_have_their_names(tmp_path: Path):
    first, same = (results(ranked_comparison(tmp_path / name, 8, DIGITS)) for name in ("first", "same"))

    def titles(section: Any) -> list[str]:
        return [block.title for block in section.blocks if isinstance(block, Table)]

    one, two = page_of(first), page_of(first, same)  # on equal data, there is one table of all
    assert titles(one.sections[0]) == ["After the last round", "Compared seed by seed"]
    assert titles(two.sections[0])[-2:] == ["Compared seed by seed: first", "Compared seed by seed: same"]
    assert one.lines[0].startswith("Test accuracy: IFCA is better than FedAvg (")
    assert two.lines[:2] == [f"{name}: {one.lines[0]}" for name in ("first", "same")]
    ranked = page_of(first, ranked_comparison(tmp_path / "letters", 9, LETTERS))
    text, table = {section.title: section.blocks for section in ranked.sections}["first"]
    assert (text.text, table.title) == (one.lines[0], "Compared seed by seed")
