"""Tests each rule for verdicts on both sides of its threshold, with hand-made numbers."""

from dataclasses import replace
from math import inf

import pytest

from experiments.cells import Cell, load_table
from experiments.pages import NOT_YET, Judged, _order, _section, explain_open
from experiments.verdicts import Measured, agrees, agrees_with_populations, judge_cell

CELL = Cell("a", "MNIST MCLR", "IFCA", "max_weighted_test_accuracy", 94.2)


def runs(*values: float | None) -> Measured:
    return Measured(values, (80.0,) * len(values), 300, 60.0, clusters=1.0, ari=None)


@pytest.mark.parametrize(
    ("metric", "paper", "ours", "expected"),
    [
        ("max_weighted_test_accuracy", 94.3, 92.8, True),  # 1.5 points, which are not exact in floating point
        ("max_weighted_test_accuracy", 94.3, 92.79, False),
        ("accuracy_median", 79.3, 80.8, True),
        ("accuracy_median", 79.3, 80.81, False),
        ("discrepancy_mean", 0.7, 0.77, True),
        ("discrepancy_mean", 0.7, 0.78, False),
        ("discrepancy_variance", 0.02, 0.03, True),
        ("discrepancy_variance", 0.03, 0.02, True),
        ("discrepancy_variance", 0.02, 0.031, False),
        ("discrepancy_variance", 0.031, 0.02, False),
        ("rounds_to_85", 4, 5, True),  # one round
        ("rounds_to_85", 4, 5.5, False),
        ("rounds_to_85", 40, 48, True),  # 20 %
        ("rounds_to_85", 40, 49, False),
        ("rounds_to_85", 4, None, False),
        ("max_weighted_test_accuracy", 94.3, inf, False),
    ],
)
def test_each_metric_has_its_rule(metric: str, paper: float, ours: float | None, expected: bool):
    assert agrees(metric, paper, ours) is expected


@pytest.mark.parametrize(
    ("paper", "values", "expected"),
    [
        (13.6, (0, 2, 4, 6, 8), True),  # 4 + 2.7764 * 3.1623 * sqrt(1.2) = 13.617
        (13.63, (0, 2, 4, 6, 8), False),
        (-5.6, (0, 2, 4, 6, 8), True),
        (4.0, (0, 2, 4, 6), False),  # too few populations
        (4.0, (0, 2, 4, 6, 8, None), False),
    ],
)
def test_population_of_the_paper_counts_as_one_more(paper: float, values: tuple[float | None, ...], expected: bool):
    assert agrees_with_populations(paper, values) is expected


def test_drawn_populations_are_judged_by_their_spread_and_not_before_five_have_run():
    values = (80.0, 84.0, 88.0, 92.0, 96.0)
    assert judge_cell(CELL, None, runs(*values), None, redraws=True) == "matches"
    assert judge_cell(CELL, None, runs(*values), None) == "not reproduced"
    assert judge_cell(CELL, None, runs(*values[:4]), None, redraws=True) == "not run"
    far = runs(60.0, 60.1, 60.2, 60.3, 60.4)
    assert judge_cell(CELL, None, far, runs(*values), redraws=True) == "explained"
    assert judge_cell(CELL, None, far, runs(*values[:4]), redraws=True) == "not reproduced"


def test_default_that_agrees_matches_whatever_the_published_options_give():
    assert judge_cell(CELL, None, runs(94.0, 95.0, 96.0), runs(10.0, 10.0, 10.0)) == "matches"


def test_published_options_explain_on_three_seeds_and_on_no_fewer():
    default = runs(96.3, 96.5, 96.5)
    assert judge_cell(CELL, None, default, runs(94.0, 93.9, 94.1)) == "explained"
    assert judge_cell(CELL, None, default, runs(94.0, 93.9)) == "not reproduced"
    assert judge_cell(CELL, None, default, runs(90.0, 90.0, 90.0)) == "not reproduced"
    assert judge_cell(CELL, None, default, None) == "not reproduced"


def test_mean_counts_and_not_the_best_seed():
    assert judge_cell(CELL, None, runs(94.2, 97.0, 98.0), None) == "not reproduced"


def test_target_that_one_seed_never_reached_has_no_mean():
    assert runs(10, None, 12).mean is None
    assert runs(10, None, 12).std is None
    assert runs(10, 14).mean == 12


def test_cell_without_runs_or_without_a_value_is_not_judged():
    assert judge_cell(CELL, "no data", runs(94.2), None) == "not run"
    assert judge_cell(CELL, None, None, runs(94.2, 94.2, 94.2)) == "not run"
    assert judge_cell(Cell("b", "x", "y", "accuracy_max", None), None, runs(94.2), None) == "no value"


def test_pairs_in_another_order_than_the_papers_are_named_and_equal_ones_are_not():
    printed = {"FedAvg": 80.0, "IFCA": 90.0, "FeSEM": 91.0, "FlexCFL": 95.0}
    ours = {"FedAvg": 85.0, "IFCA": 84.0, "FeSEM": 84.0, "FlexCFL": 96.0}
    cells = [
        Judged(replace(CELL, method=name, value=value), {"default": runs(ours[name])}, "matches", "", False)
        for name, value in printed.items()
    ]
    (line, _) = _order(cells)
    assert line == (
        "* Under our default options, the order of the methods differs from the paper's in 2 of 6 pairs: `FedAvg` and "
        "`IFCA`, `FedAvg` and `FeSEM`."
    )
    (line, _) = _order(cells[1:])
    assert line.endswith("the order of the methods differs from the paper's in none of 3 pairs.")


def test_a_section_says_how_long_a_run_takes_where_that_is_why_it_has_not_run():
    table = load_table("stocfl-2")
    cells = [cell for cell in table.cells if cell.experiment == table.cells[0].experiment]
    assert len(cells) == 4
    open_cells = [Judged(cell, {}, "not run", explain_open(table, cell), False) for cell in cells]
    # clients of StoCFL train two models, so a run takes twice the time
    assert _section(table, cells[0].experiment, open_cells)[-2] == (
        "Not run: a run takes about 1 core-hours without a GPU (FedAvg, IFCA, CFL); "
        "a run takes about 2 core-hours without a GPU (StoCFL)."
    )
    one = [judged for judged in open_cells if judged.cell.method != "StoCFL"]
    assert _section(table, cells[0].experiment, one)[-2] == "Not run: a run takes about 1 core-hours without a GPU."
    soon = [replace(judged, reason=NOT_YET) for judged in open_cells]
    assert not any(line.startswith("Not run") for line in _section(table, cells[0].experiment, soon))
