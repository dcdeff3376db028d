"""What the systems of `which_method.py` came to on each data set, and the tests across the data sets."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.reproduction.files import Row
from benchmarks.reproduction.ledger import Ledger
from benchmarks.reproduction.which_method import BEST, Protocol, recorded
from lit_cfl.statistics import Interval, Ranking, friedman, paired_difference, spread

SCORE = "test_accuracy"


@dataclass(frozen=True)
class Entry:
    """What one variant of a system came to on a data set.

    Args:
        data, system, variant: which one.
        options: chosen on validation data.
        rows: of its runs, by seed.
    """

    data: str
    system: str
    variant: str
    options: Mapping[str, Any]
    rows: Mapping[int, Row]

    def mean(self, score: str) -> float | None:
        """The mean of a score over the seeds; None where a run lacks it."""
        return spread([row[score] for row in self.rows.values()]).mean

    @property
    def accuracy(self) -> float:
        """The mean accuracy in %."""
        return self.mean(SCORE) or 0.0

    @property
    def seconds(self) -> float:
        """Those of the fastest run: other programs may have slowed down the others."""
        return min(float(row["seconds"]) for row in self.rows.values())

    @property
    def compiled(self) -> bool:
        """Whether a run trained in compiled stacks, as all did before `plan.fused`."""
        return any(json.loads(row["plan"]).get("compile") for row in self.rows.values() if row.get("plan"))

    def minus(self, other: "Entry") -> Interval:
        """The paired difference of the accuracies, in points, with its 95 % interval."""
        mine, its = ({seed: row[SCORE] for seed, row in entry.rows.items()} for entry in (self, other))
        return paired_difference(mine, its)


def entries(protocol: Protocol, ledger: Ledger) -> list[Entry]:
    """Returns every variant all of whose seeds have run."""
    found = []
    for data in protocol.data:
        for system in protocol.systems:
            for setting, options in protocol.reported(data, system, ledger):
                rows = {seed: recorded(ledger, setting, seed) for seed in setting.seeds}
                known = {seed: row for seed, row in rows.items() if row is not None}
                if len(known) == len(rows):
                    found.append(Entry(data, system, setting.variant, options, known))
    return found


def complete_data(protocol: Protocol, found: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Returns the best settings of each data set on which all systems have run, the most accurate system first."""
    groups = {data: [e for e in found if e.data == data and e.variant == BEST] for data in protocol.data}
    return {
        data: sorted(group, key=lambda entry: -entry.accuracy)
        for data, group in groups.items()
        if len(group) == len(protocol.systems)
    }


def ranking(groups: Mapping[str, Sequence[Entry]]) -> Ranking:
    """Ranks the systems over the data sets by their accuracy."""
    return friedman(
        {
            data: {entry.system: entry.accuracy for entry in sorted(group, key=lambda entry: entry.system)}
            for data, group in groups.items()
        }
    )
