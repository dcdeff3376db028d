"""Tests the page of comparisons on different data sets; `golden/data_sets.json` has its figures."""

from pathlib import Path
from typing import Any

import pytest
from golden_cases import RANKED, ranked_comparison
from inside_shown import page_of
from made_runs import metric_row, write_table

from lit_cfl.compare.results import COLUMNS
from lit_cfl.errors import InputError
from lit_cfl.metric_names import METRICS
from lit_cfl.report.blocks import Table
from lit_cfl.storage import write_rows

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
