"""Comparisons: their experiments and seeds, and their record in a directory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

import yaml

from lit_cfl.compare.options import RECORD, require_comparison
from lit_cfl.config.files import code_folders
from lit_cfl.config.own_code import announce_own_code
from lit_cfl.config.parser import parse_run
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.storage.atomic_writes import name_write_errors
from lit_cfl.storage.config_file import stored_config, write_config
from lit_cfl.storage.digests import read_sealed, write_sealed
from lit_cfl.storage.yaml_files import parse_yaml


@dataclass(frozen=True)
class Comparison:
    """The experiments and seeds to compare.

    Args:
        name: Name of the experiment.
        experiments: one an algorithm, by its name, under one plan; the others are compared with the first.
        seeds: each algorithm runs once under each.
        target: a test figure of the task's first score; None = one that all runs reach.
    """

    name: str
    experiments: Mapping[str, Experiment]
    seeds: Sequence[int]
    target: float | None = None

    @property
    def names(self) -> list[str]:
        """Lists the names of the algorithms, in order."""
        return list(self.experiments)

    @property
    def first(self) -> Experiment:
        """Returns the experiment that the others are compared with."""
        return self.experiments[self.names[0]]

    def rounds_with_all(self, name: str) -> int:
        """Counts the rounds in which an algorithm trains every client, whatever the cohort size."""
        experiment = self.experiments[name]
        return sum(experiment.algorithm.needs_all(round) for round in range(experiment.rounds))

    def write(self, path: Path) -> None:
        """Writes a configuration for each algorithm, and then the record that marks the directory as a comparison."""
        for name, experiment in self.experiments.items():
            with name_write_errors(path / name):
                (path / name).mkdir(exist_ok=True)
            write_config(path / name, experiment.described())
        record = {"name": self.name, "algorithms": self.names, "seeds": list(self.seeds), "target": self.target}
        write_sealed(path / RECORD, yaml.safe_dump(record, sort_keys=False, allow_unicode=True))

    def with_target(self, target: float | None) -> "Comparison":
        """Returns the comparison with another target, if one is given."""
        return self if target is None else replace(self, target=target)


def read_comparison(path: Path) -> Comparison:
    """Reads the comparison in a directory. Raises InputError if there is none, or its record is damaged."""
    require_comparison(path)
    file = path / RECORD
    try:
        record = parse_yaml(read_sealed(file)[0])
        name, names, seeds, target = (record[key] for key in ("name", "algorithms", "seeds", "target"))
        _announce(path, [str(own) for own in names])
        experiments = {str(own): recorded(path, str(own)) for own in names}
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{file} is damaged ({error}); put the original back, or start another comparison") from error
    return Comparison(name, experiments, seeds, target)


def recorded(path: Path, name: str) -> Experiment:
    """Reads the experiment of one algorithm of a comparison."""
    file = path / name / "config.yaml"
    if not file.is_file():
        raise InputError(f"{file} is missing; put the original back, or start another comparison")
    stored_config(path / name)  # refuses one that is damaged, or of another format
    return parse_run(["--config", str(file)], prog="lit-cfl compare", opened=path).experiment


def _announce(path: Path, names: Sequence[str]) -> None:
    parts = [path / name for name in names]
    folders = [folder for part in parts for folder in code_folders(["--config", str(part / "config.yaml")], path)]
    announce_own_code(path, parts, folders)


def require_unused(path: Path) -> None:
    """Raises InputError if a directory already contains a comparison, a study or a run."""
    for file, what in ((RECORD, "a comparison"), ("study.yaml", "a study"), ("config.yaml", "a run")):
        if (path / file).exists():
            more = f", or go on with --resume {quote(str(path))}" if file == RECORD else ""
            raise InputError(f"{path} already holds {what}; choose another --compare_dir{more}")
