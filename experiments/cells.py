"""Reads the cells of the papers' tables, and the experiments that compute our numbers for them."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any

from experiments.changed_options import reword
from experiments.files import read_yaml
from lit_cfl import load_experiment
from lit_cfl.experiment import Experiment

CONFIGS = Path(__file__).parent / "configs"
_FOLDER = Path(__file__).parent / "tables"
DEFAULT, PUBLISHED = "default", "published"
EXTRA_METRIC = "max_weighted_test_accuracy"


@dataclass(frozen=True)
class Cell:
    """One number of a paper's table.

    Args:
        id: Id that is unique among all tables.
        experiment, method: Keys of the table's experiments and methods.
        metric: Column of `scores.SCORES` with which the cell is compared.
        value: Printed value, accuracies in percent; None if the paper's cell is empty.
        std: Printed deviation; None if the paper gives none.
        extra: True if it is not a cell of the paper, but needed by figures or claims.
    """

    id: str
    experiment: str
    method: str
    metric: str
    value: float | None
    std: float | None = None
    extra: bool = False


@dataclass(frozen=True)
class Setting:
    """An experiment whose runs provide our numbers for cells; it runs once under each seed.

    Args:
        table, experiment, method: Table, experiment and method to which it belongs.
        variant: `default`; `published`, the published code's options; or the name of options tried later.
        config: Name of a configuration in `experiments/configs`, or else of a packaged one.
        words: Options added to the configuration.
        seeds: Seeds under which it runs.
        redraw: Option `--data.<name>` that also receives the seed, and draws the population; None if not needed.
        core_hours: Approximate core-hours of a run, if it takes hours; see experiments/docs/reproduction/README.md.
    """

    table: str
    experiment: str
    method: str
    variant: str
    config: str
    words: tuple[str, ...]
    seeds: tuple[int, ...]
    redraw: str | None = None
    core_hours: float | None = None

    def words_of(self, seed: int) -> list[str]:
        """Returns the setting's command-line options for a run with this seed."""
        return [*self.words, "--seed", str(seed), *([self.redraw, str(seed)] if self.redraw else [])]

    def command(self, seed: int) -> str:
        """Returns the command by which a run with this seed is recorded.

        In a terminal, the name of a configuration in `experiments/configs` is replaced by the path of its file.
        """
        return shlex.join(["lit-cfl", "run", "--config", self.config, *self.words_of(seed)])

    def build(self, seed: int, more: Sequence[str] = ()) -> Experiment:
        """Builds the setting's experiment with this seed.

        Args:
            more: Further options, which the setting's own may override.

        Raises:
            InputError: If the parser raises it.
        """
        words = reword(self.words_of(seed), read_algorithm(self.config))
        return load_experiment(locate_config(self.config), [*more, *words])

    def configs(self, seeds: Sequence[int]) -> dict[int, Mapping[str, Any]]:
        """Returns the configuration for each seed; parses the options only once, since that is slow."""
        if not seeds:
            return {}
        first = self.build(seeds[0]).to_dict()
        return {seed: self._under(first, seed) for seed in seeds}

    def _under(self, config: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
        changed = {**config, "seeds": [seed]}
        if self.redraw:
            data, option = config["data"], self.redraw.removeprefix("--data.")
            changed["data"] = data | {"init_args": data["init_args"] | {option: seed}}
        return changed

    @property
    def slug(self) -> str:
        """Returns the setting's name in a form suitable for folders."""
        return re.sub(r"[^a-z0-9.]+", "_", str(self).lower()).strip("_")

    def __str__(self) -> str:
        variant = "" if self.variant == DEFAULT else f" ({self.variant})"
        return f"{self.experiment}, {self.method}{variant}"


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper.

    Args:
        name: Our name of the table, such as `flexcfl-3`.
        paper, number: The paper's key, and the number of its table.
        seeds: Seeds of our runs, fixed before the first of them.
        populations: Seeds of the runs of experiments that draw their population; see `verdicts`.
        experiments, methods: Contents of the file, by key.
        cells: Cells in the paper's order.
        extras: Further experiments, for figures and claims.
    """

    name: str
    paper: str
    number: str
    seeds: tuple[int, ...]
    populations: tuple[int, ...]
    experiments: Mapping[str, Mapping[str, Any]]
    methods: Mapping[str, Mapping[str, Any]]
    cells: tuple[Cell, ...]
    extras: tuple[Cell, ...] = ()

    def not_run(self, cell: Cell) -> str | None:
        """Returns the reason why a cell cannot be run, or None if it can."""
        reason: str | None = self.experiments[cell.experiment].get("not_run")
        return reason

    def core_hours(self, cell: Cell) -> float | None:
        """Returns the approximate core-hours of a cell's run; None for short runs.

        The file gives them for clients that train one model per round, and for other methods their number of models.
        """
        hours: float | None = self.experiments[cell.experiment].get("core_hours")
        return None if hours is None else hours * self.methods[cell.method].get("models", 1)

    def why(self, cell: Cell) -> str:
        """Lists the disputed points, such as `C1`, in which the published code differs from our default."""
        reasons = (part.get("why") for part in (self.experiments[cell.experiment], self.methods[cell.method]))
        return ", ".join(reason for reason in reasons if reason)

    def settings(self, cell: Cell) -> list[Setting]:
        """Returns the settings of a cell: with default options, then the published code's, then options tried later."""
        experiment, method = self.experiments[cell.experiment], self.methods[cell.method]
        if self.not_run(cell) is not None or (cell.value is None and not cell.extra):
            return []
        common = [experiment.get("options", ""), method.get("options", "")]
        code = [part[PUBLISHED] for part in (experiment, method) if part.get(PUBLISHED)]
        variants = {DEFAULT: common} | ({PUBLISHED: [*common, *code]} if code else {})
        tried = [experiment, *([method] if cell.experiment in method.get("tried_on", self.experiments) else [])]
        for part in tried:
            variants |= {name: [*common, words] for name, words in part.get("tried", {}).items()}
        fill, redraw = experiment.get("fill", {}), experiment.get("redraw")
        return [
            Setting(
                self.name,
                cell.experiment,
                cell.method,
                variant,
                experiment["config"],
                tuple(shlex.split(_fill_placeholders(" ".join(words), fill))),
                self.populations if redraw else self.seeds,
                redraw,
                self.core_hours(cell),
            )
            for variant, words in variants.items()
        ]

    def redraws(self, cell: Cell) -> bool:
        """Returns whether each seed of a cell draws a different population."""
        return "redraw" in self.experiments[cell.experiment]

    def metric(self, cell: Cell, variant: str) -> str:
        """Returns the name of the score that a cell takes from a variant's runs, one of `scores.SCORES`."""
        metric: str = self.methods[cell.method].get("published_metric", cell.metric)
        return metric if variant == PUBLISHED else cell.metric


def locate_config(name: str) -> str:
    """Returns the path of a configuration in `experiments/configs`; the name itself for a packaged one."""
    file = CONFIGS / f"{name}.yaml"
    return str(file) if file.exists() else name


@cache
def read_algorithm(config: str) -> str:
    """Returns the class name of a configuration's algorithm."""
    return type(load_experiment(locate_config(config)).algorithm).__name__


def _fill_placeholders(words: str, fill: Mapping[str, Any]) -> str:
    """Replaces a method's placeholders with an experiment's values; other braces stay unchanged."""
    return reduce(lambda text, name: text.replace(f"{{{name}}}", str(fill[name])), fill, words)


def table_names() -> list[str]:
    """Returns the names of all tables."""
    return sorted(file.stem for file in _FOLDER.glob("*.yaml"))


def load_table(name: str) -> PaperTable:
    """Reads a table by its name."""
    content = read_yaml(_FOLDER / f"{name}.yaml")
    cells = tuple(Cell(**cell) for cell in content["cells"])
    of_extras = {"metric": EXTRA_METRIC, "value": None, "extra": True}
    extras = tuple(Cell(**(of_extras | cell)) for cell in content.get("extras", []))
    return PaperTable(
        name,
        content["paper"],
        content["table"],
        tuple(content["seeds"]),
        tuple(content.get("populations", content["seeds"])),
        content["experiments"],
        content["methods"],
        cells,
        extras,
    )
