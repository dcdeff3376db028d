"""Makes ledgers of the papers' tables, with runs whose scores and curves a test chooses."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from experiments.cells import DEFAULT, PaperTable, Setting, load_table, table_names
from experiments.ledger import Ledger
from experiments.results import RecordedResults
from experiments.scores import CURVE, SCORES
from lit_cfl.metric_names import Row

Scores = Mapping[str, float | None]


@cache
def tables() -> list[PaperTable]:
    return [load_table(name) for name in table_names()]


def recorded(
    folder: Path,
    scores: Mapping[str, Sequence[Scores]],
    curves: Mapping[str, Sequence[Sequence[float]]] | None = None,
    variant: str = DEFAULT,
    before: RecordedResults | None = None,
) -> RecordedResults:
    """Makes a ledger with runs of these table cells.

    Args:
        scores: Scores of each run, by the cell's id; one run per seed, in the table's order of the seeds.
        curves: Accuracies of each round of the same runs, from 0 to 1.
        variant: Variant of the cells.
        before: Results recorded before, which are kept.
    """
    keys: dict[tuple[Setting, int], str] = defaultdict(str, before.keys if before else {})
    ledger = before.ledger if before else Ledger(folder, {})
    for cell_id, runs in scores.items():
        ((table, cell),) = RecordedResults(tables(), ledger, {}).cells(cell_id)
        (setting,) = (setting for setting in table.settings(cell) if setting.variant == variant)
        for number, (seed, run) in enumerate(zip(setting.seeds, runs, strict=False)):
            keys[setting, seed] = key = f"r{len(keys)}"
            row: Row = dict.fromkeys(SCORES) | {"last_weighted_test_accuracy": 80.0, "traffic": 0}
            row |= {"num_clusters": 1} | dict(run)
            row |= {"run": key, "seed": seed, "algorithm": "FedAvg", "rounds": 300, "results_version": 1}
            row |= {"seconds": 1.0, "device": "cpu", "command": setting.command(seed)}
            curve = (curves or {}).get(cell_id, [[0.5]] * len(runs))[number]
            ledger = ledger.with_run(
                row, table.name, [curve_row(index + 1, value) for index, value in enumerate(curve)]
            )
    return RecordedResults(tables(), ledger, keys)


def curve_row(number: int, accuracy: float) -> Row:
    return dict.fromkeys(CURVE, 0.0) | {"round": number, "test/weighted_accuracy": accuracy}


def by_command(folder: Path) -> RecordedResults:
    """Reads a committed ledger without building experiments: runs are found by their recorded commands."""
    ledger = Ledger.read(folder)
    found = {(row["command"], row["seed"]): key for key, row in ledger.rows.items()}
    keys: dict[tuple[Setting, int], str] = defaultdict(str)
    for table in tables():
        for cell in (*table.cells, *table.extras):
            for setting in table.settings(cell):
                for seed in setting.seeds:
                    keys[setting, seed] = found.get((setting.command(seed), seed), "")
    return RecordedResults(tables(), ledger, keys)
