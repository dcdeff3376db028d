"""Computes the numbers in experiments/docs/reproduction/README.md that no table shows: differences by seed, and counts.

A difference has half its 95 % interval in the column `margin`.
"""

from collections.abc import Iterator
from pathlib import Path

from experiments.cells import PaperTable, load_table
from experiments.files import Row
from experiments.ledger import Ledger
from experiments.plan import group_keys, list_runs
from experiments.results import RecordedResults
from experiments.verdicts import ACCURACY_POINTS
from lit_cfl.statistics import paired_difference
from lit_cfl.storage import read_table, write_rows

SCORE = "max_weighted_test_accuracy"
COLUMNS = ("what", "value", "margin", "of")
DIFFERENCES = [  # table; a cell and its variant; the cell that is subtracted and its variant
    ("flexcfl-3", "flexcfl-t3-mnist-mclr-ifca", "default", "flexcfl-t3-mnist-mclr-flexcfl", "default"),
    ("flexcfl-3", "flexcfl-t3-mnist-mclr-ifca", "published", "flexcfl-t3-mnist-mclr-flexcfl", "default"),
    ("flexcfl-3", "flexcfl-t3-mnist-mlp-ifca", "default", "flexcfl-t3-mnist-mlp-flexcfl", "default"),
    ("flexcfl-3", "flexcfl-t3-mnist-mlp-ifca", "published", "flexcfl-t3-mnist-mlp-flexcfl", "default"),
    ("fedgroup-3", "fedgroup-tiii-mnist-mclr-ifca", "default", "fedgroup-tiii-mnist-mclr-fedgroup_edc", "default"),
]
BASELINES = ("IFCA", "FeSEM")


def compute_differences(ledger: Ledger) -> Iterator[Row]:
    """Yields each difference in `DIFFERENCES`, paired by seed, with its interval."""
    for name, first, variant, second, other in DIFFERENCES:
        table = load_table(name)
        mine, theirs = collect_scores(ledger, table, first, variant), collect_scores(ledger, table, second, other)
        found = paired_difference(mine, theirs)
        what = f"{first} ({variant}) minus {second} ({other})"
        yield {"what": what, "value": found.mean, "margin": found.margin, "of": found.count}


def collect_scores(ledger: Ledger, table: PaperTable, cell_id: str, variant: str) -> dict[int, float]:
    """Returns the scores of a cell's variant, by seed."""
    (cell,) = (cell for cell in table.cells if cell.id == f"{cell_id}-{SCORE}")
    (setting,) = (setting for setting in table.settings(cell) if setting.variant == variant)
    results = RecordedResults([table], ledger, group_keys(list_runs(setting, setting.seeds)))
    return {row["seed"]: row[SCORE] for row in results.rows(table, cell, variant)}


def count_cells(folder: Path) -> Iterator[Row]:
    """Yields counts of the tables' cells, such as those that match or lie within 1.5 points."""
    rows = {name: select_judged(folder, name) for name in ("flexcfl-3", "flexcfl-4", "fedgroup-3")}
    synthetic = [row for found in rows.values() for row in found if "synthetic" in row["id"]]
    near = [row for row in synthetic if abs(row["ours_mean"] - row["paper_value"]) <= ACCURACY_POINTS]
    matches = [row for row in synthetic if row["verdict"] == "matches"]
    yield {"what": "cells of Synthetic that match", "value": len(matches), "of": len(synthetic)}
    yield {"what": "cells of Synthetic within 1.5 points", "value": len(near), "of": len(synthetic)}
    drops = [row["ours_mean"] - row["last_round_mean"] for found in rows.values() for row in found]
    yield {"what": "points from the best round to the last, least", "value": min(drops), "of": len(drops)}
    yield {"what": "points from the best round to the last, greatest", "value": max(drops), "of": len(drops)}
    more = sum(drop > 2 for drop in drops)
    yield {"what": "cells with more than 2 points from the best round to the last", "value": more, "of": len(drops)}
    best = [row for found in rows.values() for row in found if row["verdict"] == "matches" and row["metric"] == SCORE]
    last = [row for row in best if abs(row["last_round_mean"] - row["paper_value"]) <= ACCURACY_POINTS]
    yield {
        "what": "cells that match by the best round, within 1.5 points by the last",
        "value": len(last),
        "of": len(best),
    }
    baselines = [
        row
        for name in ("flexcfl-3", "flexcfl-4")
        for row in rows[name]
        if row["method"] in BASELINES and "-mnist-" in row["id"] and "-cnn-" not in row["id"]
    ]
    above = [row for row in baselines if row["ours_mean"] > row["paper_value"] + 1]
    what = "cells of IFCA and FeSEM on MNIST (linear, MLP) more than a point above the paper's"
    yield {"what": what, "value": len(above), "of": len(baselines)}


def select_judged(folder: Path, name: str) -> list[Row]:
    """Returns the rows of a table that have both the paper's value and ours."""
    rows = read_table(folder / f"{name}.csv")
    return [row for row in rows if row["ours_mean"] is not None and row["paper_value"] is not None]


def write_numbers(folder: Path, ledger: Ledger) -> None:
    """Writes `numbers.csv`, from the recorded runs and the tables in the folder."""
    write_rows(folder / "numbers.csv", COLUMNS, [*compute_differences(ledger), *count_cells(folder)], digits=3)
