"""Trains recorded runs of `which_method.py` again, to see whether they still hold: `again.csv`.

    LITCFL_DATA=DIR python -m benchmarks.reproduction.which_method_again [--draw 2611] [--number 10] [--out DIR]

The runs are drawn among those that the first edition reports. A run holds if its accuracy differs from the recorded one
by no more than the standard deviation of the five seeds. Rows that are in the file are not trained again.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.reproduction.cells import Setting
from benchmarks.reproduction.command import ANSWER
from benchmarks.reproduction.files import Row
from benchmarks.reproduction.ledger import Ledger
from benchmarks.reproduction.plan import runs_of
from benchmarks.reproduction.recorder import LedgerRecorder
from benchmarks.reproduction.which_method import BEST, FIRST, TABLE, Protocol, recorded
from benchmarks.reproduction.which_method_results import SCORE
from lit_cfl.statistics import spread
from lit_cfl.storage import read_table, write_rows

FILE = "again.csv"
COLUMNS = ("data", "system", "seed", "recorded", "again", "deviation", "holds", "processor")
_SINCE = "0.3"  # runs of this version need no check


def reported_runs(protocol: Protocol, ledger: Ledger) -> Iterator[tuple[Setting, int, Row, float]]:
    """Yields the recorded runs of version 0.2 that the first edition reports, with the deviation over their seeds."""
    for data, system in protocol.cells():
        for setting, options in protocol.reported(data, system, ledger):
            if setting.variant in (BEST, FIRST) and options == protocol.first_choice(data, system, ledger):
                rows = {seed: recorded(ledger, setting, seed) for seed in setting.seeds}
                known = {seed: row for seed, row in rows.items() if row and str(row["version"]) < _SINCE}
                deviation = spread([row[SCORE] for row in known.values()]).deviation or 0.0
                yield from ((setting, seed, row, deviation) for seed, row in known.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=int, default=2611, help="seed of the draw")
    parser.add_argument("--number", type=int, default=10, help="how many runs")
    parser.add_argument("--out", type=Path, default=Path(ANSWER), help="folder of runs.csv")
    given = parser.parse_args()
    runs = list(reported_runs(Protocol.read(), Ledger.read(given.out)))
    drawn = np.random.default_rng(given.draw).permutation(len(runs))[: given.number]
    file = given.out / FILE
    rows = read_table(file) if file.exists() else []
    for setting, seed, before, deviation in (runs[number] for number in drawn):
        if any((row["data"], row["system"], row["seed"]) == (setting.experiment, setting.method, seed) for row in rows):
            continue
        with TemporaryDirectory() as folder:
            empty = Ledger(Path(folder) / "ledger", {})
            recorder = LedgerRecorder(TABLE, empty, Path(folder), lambda ledger: "", curves=False)
            recorder.run(runs_of(setting, [seed]), None, 1)
            (after,) = recorder.ledger.rows.values()
        change = abs(after[SCORE] - before[SCORE])
        values = (setting.experiment, setting.method, seed, before[SCORE], after[SCORE], deviation)
        rows.append(dict(zip(COLUMNS, (*values, change <= deviation, after["processor"]), strict=True)))
        write_rows(file, COLUMNS, rows, digits=6)


if __name__ == "__main__":
    main()
