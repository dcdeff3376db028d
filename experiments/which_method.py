"""Searches each system's options on each data set by one protocol, and runs the best options under new seeds."""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells import Setting
from experiments.files import Row, read_yaml
from experiments.ledger import Ledger
from experiments.recorder import TRIAL

_FILE = Path(__file__).with_name("which_method.yaml")
TABLE = "which-method"
BEST, FIRST, NEWCOMERS = "best", "first edition", "newcomers"
RATE = "task.optimizer.lr"


Options = dict[str, Any]


@dataclass(frozen=True)
class Search:
    """The search of a system's options on a data set, as far as recorded runs determine its trials.

    Args:
        trials: Options of each trial, in the order of their stages.
        chosen: Options of the best trial; None until all stages have run.
    """

    trials: Sequence[Options]
    chosen: Options | None


@dataclass(frozen=True)
class Protocol:
    """The protocol of the runs and of the choice of options, read from `which_method.yaml`.

    Args:
        search_seed: Seed of the trials.
        trials: Number of the first edition's trials of each system on each data set.
        draw: Seed under which they were drawn.
        seeds: Seeds of the reported runs.
        common: Values of the options that all systems share, default first.
        edges: Learning rates outside `common` that are tried while the best one is at the edge.
        renewed: Systems whose recorded runs of version 0.2 run again, by data set.
        systems, data: Contents of the file, by name.
    """

    search_seed: int
    trials: int
    draw: int
    seeds: tuple[int, ...]
    common: Mapping[str, Sequence[Any]]
    edges: Sequence[float]
    renewed: Mapping[str, Sequence[str]]
    systems: Mapping[str, Mapping[str, Any]]
    data: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls) -> "Protocol":
        """Reads the packaged protocol."""
        content = read_yaml(_FILE)
        return cls(**(content | {"seeds": tuple(content["seeds"])}))

    def cells(self) -> list[tuple[str, str]]:
        """Returns the pairs (data set, system) to run, in order.

        New data sets come first, then new systems, then systems whose first search had options that are no longer
        allowed or whose runs are renewed, then the others.
        """

        def stage(cell: tuple[str, str]) -> int:
            what = self.systems[cell[1]]
            if "since" in self.data[cell[0]]:
                return 0
            return 1 if "since" in what else 2 if "now" in what or self._is_renewed(*cell) else 3

        cells = product(self.data, self.systems)
        return sorted((c for c in cells if c[0] not in self.systems[c[1]].get("not_on", ())), key=stage)

    def _is_renewed(self, data: str, system: str) -> bool:
        return system in self.renewed.get(data, ())

    def open_seeds(self, ledger: Ledger, setting: Setting, seeds: Collection[int]) -> list[int]:
        """Returns the seeds under which a setting still has to run, or must run again."""
        rows = {seed: find_run(ledger, setting, seed) for seed in setting.seeds if seed in seeds}
        old = "0.3" if self._is_renewed(setting.experiment, setting.method) else ""
        return [seed for seed, row in rows.items() if row is None or str(row["version"]) < old]

    def in_first_edition(self, data: str, system: str) -> bool:
        """Returns whether the page's first edition had this system on this data set."""
        return "since" not in self.data[data] and "since" not in self.systems[system]

    def draw_trials(self, system: str) -> list[Options]:
        """Draws the first edition's trials, the same for all data sets: the default, and random points of the grid."""
        grid = {**self.common, **self.systems[system]["options"]}
        points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
        rng = np.random.default_rng([self.draw, list(self.systems).index(system)])
        others = rng.permutation(np.arange(1, len(points)))[: self.trials - 1]
        return [points[0], *(points[number] for number in others)]

    def options(self, system: str) -> dict[str, Sequence[Any]]:
        """Returns the candidate values of each of a system's options, default first."""
        return {**self.systems[system]["options"], **self.systems[system].get("now", {})}

    def search(self, data: str, system: str, ledger: Ledger) -> Search:
        """Returns the trials of all stages reached so far, and the best trial after the last stage."""
        trials = self.draw_trials(system) if self.in_first_edition(data, system) else []
        for stage in (self._rates, self._one_option, *[self._edge] * len(self.edges)):
            best = self._best(data, system, trials, ledger)
            if trials and best is None:
                return Search(trials, None)
            trials += [options for options in stage(system, trials, best or {}) if options not in trials]
        return Search(trials, self._best(data, system, trials, ledger))

    def first_choice(self, data: str, system: str, ledger: Ledger) -> Options | None:
        """Returns the options that the first edition chose; None if it lacked this system or data set."""
        known = self.in_first_edition(data, system)
        return self._best(data, system, self.draw_trials(system), ledger, every=True) if known else None

    def _best(
        self, data: str, system: str, trials: Sequence[Options], ledger: Ledger, every: bool = False
    ) -> Options | None:
        """Returns the first trial with the best validation accuracy; None if a trial has not run."""
        scores = []
        for number, options in enumerate(trials):
            row = find_run(ledger, self._trial(data, system, number, options), self.search_seed)
            if row is None:
                return None
            score = row["validation_accuracy"]
            scores.append(-1.0 if score is None or not (every or self._choosable(system, options)) else score)
        return trials[scores.index(max(scores))] if scores else None

    def _choosable(self, system: str, options: Options) -> bool:
        return all(options[name] in values for name, values in self.options(system).items())

    def _rates(self, system: str, trials: Sequence[Options], best: Options) -> list[Options]:
        """Lists the trials of stage 1: all untried learning rates, with the best options so far or the default."""
        tried = {options[RATE] for options in trials if self._choosable(system, options)}
        start = best or {RATE: None} | {name: values[0] for name, values in self.options(system).items()}
        return [start | {RATE: rate} for rate in self.common[RATE] if rate not in tried]

    def _one_option(self, system: str, trials: Sequence[Options], best: Options) -> list[Options]:
        """Lists the trials of stage 2: one option other than the learning rate differs from the best trial."""
        return [best | {name: value} for name, values in self.options(system).items() for value in values]

    def _edge(self, system: str, trials: Sequence[Options], best: Options) -> list[Options]:
        """Lists the trials of stage 3: the next learning rate if the best one is the largest or smallest tried."""
        tried = {options[RATE] for options in trials}
        above = [rate for rate in sorted(self.edges) if rate > max(tried)][:1]
        below = [rate for rate in sorted(self.edges) if rate < min(tried)][-1:]
        following = {max(tried): above, min(tried): below}.get(best[RATE], [])
        return [best | {RATE: rate} for rate in following]

    def list_reported(self, data: str, system: str, ledger: Ledger) -> list[tuple[Setting, Options]]:
        """Returns the settings that run under the new seeds, each with its chosen options.

        `best` has the best options of the completed search; until then those of the first edition, if they can still be
        chosen. `first edition` follows if its options differ. Some data sets also hold out clients (`newcomers`), use
        other numbers of clusters (`clusters 2`), or have options tried afterwards; these keep the first edition's
        choice for the systems that it had.
        """
        first, chosen = self.first_choice(data, system, ledger), self.search(data, system, ledger).chosen
        usable = first if first and self._choosable(system, first) else None
        best = chosen or usable
        found: list[tuple[str, Options, Options]] = [(BEST, best, {})] if best else []
        if first and first != best:
            found.append((FIRST, first, {}))
        if base := usable or chosen:
            found += [(name, base, more) for name, more in self._variants(data, system).items()]
        return [
            (self._setting(data, system, name, options | more, self.seeds), options) for name, options, more in found
        ]

    def _variants(self, data: str, system: str) -> dict[str, Options]:
        """Maps the name of each further reported setting to the options that it adds to the chosen ones."""
        what, found = self.systems[system], dict[str, Options]()
        if self.data[data].get("newcomers") and not what.get("tuned"):
            found[NEWCOMERS] = {"data.newcomers": 0.3}
        if what.get("needs_clusters") and "since" not in what:
            others = self.data[data].get("other_clusters", [])
            found |= {f"clusters {number}": {"algorithm.num_clusters": number} for number in others}
        tried: dict[str, Options] = self.data[data].get("tried", {}).get(system, {})
        return found | tried

    def _trial(self, data: str, system: str, number: int, options: Options) -> Setting:
        return self._setting(data, system, f"{TRIAL} {number}", options, (self.search_seed,))

    def _setting(self, data: str, system: str, variant: str, options: Options, seeds: tuple[int, ...]) -> Setting:
        what = self.systems[system]
        clusters = {"algorithm.num_clusters": self.data[data]["clusters"]} if what.get("needs_clusters") else {}
        all_options = clusters | what.get("always", {}) | options
        words = [word for name, value in all_options.items() for word in (f"--{name}", str(value))]
        config, algorithm = self.data[data]["config"], what.get("algorithm", system)
        return Setting(TABLE, data, system, variant, config, ("--algorithm", algorithm, *words), seeds)

    def settings(self, ledger: Ledger, data: str, system: str) -> Iterator[Setting]:
        """Yields the settings of a system on a data set that can run so far."""
        search = self.search(data, system, ledger)
        yield from (self._trial(data, system, number, options) for number, options in enumerate(search.trials))
        if search.chosen:
            yield from (setting for setting, _ in self.list_reported(data, system, ledger))


def find_run(ledger: Ledger, setting: Setting, seed: int) -> Row | None:
    """Returns the row of a run, identified by its command; None if it has not run or is stale.

    For a system that fine-tunes its clients, the accuracies are those after fine-tuning.
    """
    row = ledger.by_command.get(setting.command(seed))
    if row is None or not any(word.startswith("--evaluation.fine_tune") for word in setting.words):
        return row
    tuned = ("tuned_accuracy", "worst10_tuned_accuracy", "tuned_validation_accuracy")
    names = ("test_accuracy", "worst10_accuracy", "validation_accuracy")
    return row | {name: row[score] for name, score in zip(names, tuned, strict=True)}


def format_options(options: Mapping[str, Any]) -> str:
    """Formats chosen options, each by the last component of its name: `lr 0.03, mu 1.0`."""
    return ", ".join(f"{name.rpartition('.')[2]} {shlex.quote(str(value))}" for name, value in options.items())
