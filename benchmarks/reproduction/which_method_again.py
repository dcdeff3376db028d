"""Repeats recorded runs of `which_method.py`, and writes into `again.csv` whether their results still hold.

    LITCFL_DATA=DIR python -m benchmarks.reproduction.which_method_again [--out DIR]

Ten of the runs reported by the first edition are drawn. A run holds if its accuracy differs from the recorded one by at
most the standard deviation over the five seeds. Rows that the file already contains are not trained again.
"""

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.reproduction.cells import Setting
from benchmarks.reproduction.command import ANSWER
from benchmarks.reproduction.files import Row
from benchmarks.reproduction.ledger import Ledger
from benchmarks.reproduction.plan import list_runs
from benchmarks.reproduction.recorder import LedgerRecorder
from benchmarks.reproduction.which_method import BEST, FIRST, TABLE, Protocol, find_run
from benchmarks.reproduction.which_method_results import SCORE
from lit_cfl.statistics import spread
from lit_cfl.storage import read_table, write_rows

FILE, DRAW, NUMBER = "again.csv", 2611, 10
COLUMNS = ("data", "system", "seed", "recorded", "again", "deviation", "holds", "processor")


def list_reported_runs(protocol: Protocol, ledger: Ledger) -> Iterator[tuple[Setting, int, Row, float]]:
    """Yields the runs behind the first edition's results, each with its score's standard deviation over the seeds."""
    first = [cell for cell in product(protocol.data, protocol.systems) if protocol.in_first_edition(*cell)]
    for data, system in sorted(first, key=lambda cell: "now" not in protocol.systems[cell[1]]):
        for setting, options in protocol.list_reported(data, system, ledger):
            if setting.variant in (BEST, FIRST) and options == protocol.first_choice(data, system, ledger):
                rows = {seed: find_run(ledger, setting, seed) for seed in setting.seeds}
                known = {seed: row for seed, row in rows.items() if row}
                deviation = spread([row[SCORE] for row in known.values()]).deviation or 0.0
                yield from ((setting, seed, row, deviation) for seed, row in known.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(ANSWER), help="folder of runs.csv")
    out = parser.parse_args().out
    runs = list(list_reported_runs(Protocol.read(), Ledger.read(out)))
    rows = read_table(out / FILE) if (out / FILE).exists() else []
    for number in np.random.default_rng(DRAW).permutation(len(runs))[:NUMBER]:
        setting, seed, before, deviation = runs[number]
        place = {"data": setting.experiment, "system": setting.method, "seed": seed}
        if any(place.items() <= row.items() for row in rows):
            continue
        with TemporaryDirectory() as folder:
            empty = Ledger(Path(folder) / "ledger", {})
            recorder = LedgerRecorder(TABLE, empty, Path(folder), lambda ledger: "", curves=False)
            recorder.run(list_runs(setting, [seed]), None, 1)
            (after,) = recorder.ledger.rows.values()
        scores = {"recorded": before[SCORE], "again": after[SCORE], "deviation": deviation}
        holds = abs(after[SCORE] - before[SCORE]) <= deviation
        rows.append(place | scores | {"holds": holds, "processor": after["processor"]})
        write_rows(out / FILE, COLUMNS, rows, digits=6)


if __name__ == "__main__":
    main()
