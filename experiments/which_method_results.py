"""Collects the results of `which_method.py` on each data set, and ranks the systems across the data sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.files import Row
from experiments.ledger import Ledger
from experiments.which_method import BEST, Options, Protocol, find_run
from lit_cfl.statistics import Interval, Ranking, friedman, interval, paired_difference

SCORE = "test_accuracy"
BASELINE, BOUND = "FedAvg", "Oracle"
_ONE_MODEL = (BASELINE, "FedProx", "FedAvg + FT")  # systems with one model for all clients


@dataclass(frozen=True)
class Entry:
    """Results of one variant of a system on a data set.

    Args:
        data, system, variant: Names of the data set, the system and the variant.
        options: Options chosen on validation data.
        completed: True if the system's search on this data set has run all stages of the second edition.
        rows: Rows of its runs, by seed.
    """

    data: str
    system: str
    variant: str
    options: Options
    completed: bool
    rows: Mapping[int, Row]

    def mean(self, score: str) -> float | None:
        """Returns the mean of a score over the seeds; None if a run lacks it."""
        return interval([row.get(score) for row in self.rows.values()]).mean

    @property
    def accuracy(self) -> float:
        """Returns the mean accuracy in %."""
        return self.mean(SCORE) or 0.0

    @property
    def clusters(self) -> list[int]:
        """Returns each run's number of clusters in the last round."""
        return [int(row["num_clusters"]) for row in self.rows.values() if row.get("num_clusters") is not None]

    @property
    def num_degenerate(self) -> int:
        """Returns how many runs ended with one cluster, for a system that could have several."""
        return 0 if self.system in _ONE_MODEL else self.clusters.count(1)

    @property
    def seconds(self) -> float:
        """Returns the seconds of the fastest run, since other programs may have slowed down the other runs."""
        return min(float(row["seconds"]) for row in self.rows.values())

    def minus(self, other: "Entry") -> Interval:
        """Returns the paired difference in accuracy from another entry, in points, with its 95 % interval."""
        mine, its = ({seed: row[SCORE] for seed, row in entry.rows.items()} for entry in (self, other))
        return paired_difference(mine, its)


def collect_entries(protocol: Protocol, ledger: Ledger) -> list[Entry]:
    """Returns every variant that has run under all of its seeds, in the order of the protocol."""
    found = []
    for data in protocol.data:
        for system in (system for of_data, system in protocol.cells() if of_data == data):
            completed = protocol.search(data, system, ledger).chosen is not None
            for setting, options in protocol.list_reported(data, system, ledger):
                rows = {seed: find_run(ledger, setting, seed) for seed in setting.seeds}
                known = {seed: row for seed, row in rows.items() if row is not None}
                if len(known) == len(rows):
                    found.append(Entry(data, system, setting.variant, options, completed, known))
    order = list(protocol.systems)
    return sorted(found, key=lambda entry: (list(protocol.data).index(entry.data), order.index(entry.system)))


def best_of_data(protocol: Protocol, found: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Returns the systems' best settings on each data set that the baseline has run on, most accurate first."""
    groups = {data: [e for e in found if e.data == data and e.variant == BEST] for data in protocol.data}
    return {
        data: sorted(group, key=lambda entry: -entry.accuracy)
        for data, group in groups.items()
        if any(entry.system == BASELINE for entry in group)
    }


def select_ranked_data(protocol: Protocol, groups: Mapping[str, Sequence[Entry]]) -> dict[str, Sequence[Entry]]:
    """Returns the data sets on which all first-edition systems with unchanged options have run."""
    needed = {system for system, what in protocol.systems.items() if not {"since", "now"} & what.keys()}
    return {data: group for data, group in groups.items() if needed <= {entry.system for entry in group}}


def rank_systems(groups: Mapping[str, Sequence[Entry]]) -> Ranking:
    """Ranks by accuracy the systems that ran on all of these data sets."""
    common = set.intersection(*({entry.system for entry in group} for group in groups.values()))
    return friedman(
        {
            data: {e.system: e.accuracy for e in sorted(group, key=lambda entry: entry.system) if e.system in common}
            for data, group in groups.items()
        }
    )
