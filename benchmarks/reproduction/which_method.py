"""Searches each system's options on each data set under one protocol, and runs the best under new seeds."""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reproduction.cells import Setting
from benchmarks.reproduction.files import Row, read_yaml
from benchmarks.reproduction.ledger import Ledger

_FILE = Path(__file__).with_name("which_method.yaml")
TABLE = "which-method"
BEST, NEWCOMERS = "best", "newcomers"


@dataclass(frozen=True)
class Protocol:
    """What runs, and how the best setting is chosen; fixed in `which_method.yaml` before any run.

    Args:
        search_seed: of the trials.
        trials: settings that are tried of each system on each data set; fewer where the grid has fewer.
        draw: seed under which they are drawn.
        seeds: of the runs that are reported.
        common: values of the options that all systems share, the default first.
        systems, data: content of the file, by name.
    """

    search_seed: int
    trials: int
    draw: int
    seeds: tuple[int, ...]
    common: Mapping[str, Sequence[Any]]
    systems: Mapping[str, Mapping[str, Any]]
    data: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls) -> "Protocol":
        """Reads the packaged protocol."""
        content = read_yaml(_FILE)
        return cls(**(content | {"seeds": tuple(content["seeds"])}))

    def drawn(self, system: str) -> list[dict[str, Any]]:
        """Returns the options of a system's trials: its default, then others of its grid; the same on all data."""
        grid = {**self.common, **self.systems[system]["options"]}
        points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
        rng = np.random.default_rng([self.draw, list(self.systems).index(system)])
        others = rng.permutation(np.arange(1, len(points)))[: self.trials - 1]
        return [points[0], *(points[number] for number in others)]

    def searched(self, data: str, system: str) -> list[Setting]:
        """Returns the trials of a system on a data set."""
        return [
            self._setting(data, system, f"trial {number}", options, (self.search_seed,))
            for number, options in enumerate(self.drawn(system))
        ]

    def chosen(self, data: str, system: str, ledger: Ledger) -> dict[str, Any] | None:
        """Returns the options of the trial with the best validation accuracy; None where trials are missing."""
        rows = [recorded(ledger, setting, self.search_seed) for setting in self.searched(data, system)]
        known = [row for row in rows if row is not None]
        if len(known) < len(rows):
            return None
        scores = [row["validation_accuracy"] for row in known]
        best = max(range(len(scores)), key=lambda number: -1.0 if scores[number] is None else scores[number])
        return self.drawn(system)[best]

    def reported(self, data: str, system: str, ledger: Ledger) -> list[Setting]:
        """Returns the settings that run under the new seeds once the trials are over: none before.

        The first is the best setting. On data sets that ask for it there follow the same with clients held out
        (`newcomers`), with other numbers of clusters (`clusters 2`), and with options tried afterwards.
        """
        options = self.chosen(data, system, ledger)
        if options is None:
            return []
        variants = self._variants(data, system).items()
        return [self._setting(data, system, name, options | more, self.seeds) for name, more in variants]

    def _variants(self, data: str, system: str) -> dict[str, dict[str, Any]]:
        """Returns what the reported settings have besides the chosen options, by their names."""
        found: dict[str, dict[str, Any]] = {BEST: {}}
        if self.data[data].get("newcomers"):
            found[NEWCOMERS] = {"data.newcomers": 0.3}
        if self.systems[system].get("needs_clusters"):
            others = self.data[data].get("other_clusters", [])
            found |= {f"clusters {number}": {"algorithm.num_clusters": number} for number in others}
        tried: dict[str, dict[str, Any]] = self.data[data].get("tried", {}).get(system, {})
        return found | tried

    def _setting(
        self, data: str, system: str, variant: str, options: Mapping[str, Any], seeds: tuple[int, ...]
    ) -> Setting:
        clusters = {"algorithm.num_clusters": self.data[data]["clusters"]}
        all_options = (clusters if self.systems[system].get("needs_clusters") else {}) | dict(options)
        words = [word for name, value in all_options.items() for word in (f"--{name}", str(value))]
        config = self.data[data]["config"]
        return Setting(TABLE, data, system, variant, config, ("--algorithm", system, *words), seeds)

    def settings(self, ledger: Ledger, data: Sequence[str]) -> Iterator[Setting]:
        """Yields the settings that can run by now, data set by data set."""
        for name in data:
            for system in self.systems:
                yield from self.searched(name, system)
                yield from self.reported(name, system, ledger)

    def num_runs(self, data: str) -> int:
        """Counts the runs on a data set."""
        return sum(
            len(self.drawn(system)) + len(self._variants(data, system)) * len(self.seeds) for system in self.systems
        )


def recorded(ledger: Ledger, setting: Setting, seed: int) -> Row | None:
    """Returns the fresh row of a run, which is known by its command; None where it has not run."""
    return ledger.by_command.get(setting.command(seed))


def open_seeds(ledger: Ledger, setting: Setting, seeds: Collection[int]) -> list[int]:
    """Returns those of some seeds under which a setting is to run and has not."""
    return [seed for seed in setting.seeds if seed in seeds and recorded(ledger, setting, seed) is None]


def options_told(options: Mapping[str, Any]) -> str:
    """Describes chosen options by their last names: `lr 0.03, mu 1.0`."""
    return ", ".join(f"{name.rpartition('.')[2]} {shlex.quote(str(value))}" for name, value in options.items())
