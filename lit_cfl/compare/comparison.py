"""Plans a comparison from a command line and checks it before any training, or reads one from a directory."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from lit_cfl.compare.arguments import (
    OWN,
    RECORD,
    CompareArguments,
    ComparedAlgorithm,
    read_entries,
    section,
    with_options,
)
from lit_cfl.config.files import code_folders, valid_anywhere
from lit_cfl.config.own_code import announce_own_code
from lit_cfl.config.parser import merge_files
from lit_cfl.config.variants import base_config, build
from lit_cfl.devices import release_gpu_memory
from lit_cfl.engines.choose_plan import require_first_gpu
from lit_cfl.engines.plan import Plan, PlanOptions
from lit_cfl.errors import InputError, prefix_errors, suggest_share
from lit_cfl.experiment import Experiment, PreparedRun
from lit_cfl.rounds import note_late_clustering
from lit_cfl.runs.many import Job, read_experiment, with_threads, write_experiment
from lit_cfl.runs.resume import NOT_SET, differences
from lit_cfl.scores import Score
from lit_cfl.storage.atomic_writes import write_text
from lit_cfl.storage.config_file import as_yaml, stored_config
from lit_cfl.storage.given_paths import require_own_kind, suggest_directory
from lit_cfl.storage.yaml_files import parse_yaml

_CLUSTERS = "num_clusters"


@dataclass(frozen=True)
class Comparison:
    """The experiments to compare, and the seeds of their runs.

    Args:
        name: Name of the experiment.
        experiments: Experiment of each algorithm by name, under one plan unless an algorithm has training of its own;
            the others are compared with the first.
        seeds: Seeds of each algorithm's runs.
        target: Value of the first test score to reach, at costs that are compared; None = a value that all runs reach.
        search: How every algorithm's options are searched before its runs, as plain values; None = they are not.
        searched: Notes on these searches, whose best settings then are the experiments; None = they have not ended.
        open_clusters: Names of the algorithms whose number of clusters the search is to choose; not recorded.
    """

    name: str
    experiments: Mapping[str, Experiment]
    seeds: Sequence[int]
    target: float | None = None
    search: Mapping[str, Any] | None = None
    searched: Sequence[str] | None = None
    open_clusters: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """The names of the algorithms, in order."""
        return list(self.experiments)

    @property
    def first(self) -> Experiment:
        """The experiment with which all others are compared."""
        return self.experiments[self.names[0]]

    def rounds_with_all(self, name: str) -> int:
        """Counts the rounds in which an algorithm trains every client, regardless of the cohort size."""
        experiment = self.experiments[name]
        return sum(experiment.algorithm.needs_all(round) for round in range(experiment.rounds))

    def jobs(self, path: Path) -> list[Job]:
        """Lists all runs, seed by seed, so that an interrupted comparison has complete pairs."""
        experiments = self.experiments.items()
        return [Job(path, name, seed, one.rounds) for seed in self.seeds for name, one in experiments]

    def write(self, path: Path) -> None:
        """Writes a configuration for each algorithm, and then the record that marks the directory as a comparison."""
        for name, experiment in self.experiments.items():
            write_experiment(path / name, experiment)
        record = {"name": self.name, "algorithms": self.names, "seeds": list(self.seeds), "target": self.target}
        searches = {} if self.search is None else {"search": self.search, "searched": self.searched}
        write_text(path / RECORD, as_yaml(record | searches))


def read_comparison(path: Path) -> Comparison:
    """Reads the comparison in a directory. Raises InputError if there is none, or its record is damaged."""
    file = path / RECORD
    if not file.is_file():
        require_own_kind(path, "compare")
        near = suggest_directory(path, RECORD)
        raise InputError(f"{path} holds no comparison to resume (no {RECORD}){near}; give the directory of one")
    try:
        record = parse_yaml(file.read_text("utf-8"))
        name, names, seeds, target = (record[key] for key in ("name", "algorithms", "seeds", "target"))
        parts = [path / str(own) for own in names]
        folders = [one for part in parts for one in code_folders(["--config", str(part / "config.yaml")], path)]
        announce_own_code(path, map(stored_config, parts), folders)
        experiments = {part.name: read_experiment(part) for part in parts}
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{file} is damaged ({error}); put the original back, or start another comparison") from error
    return Comparison(name, experiments, seeds, target, record.get("search"), record.get("searched"))


def require_unused(path: Path) -> None:
    """Raises InputError if a directory already contains a comparison, a study or a run."""
    for file, what in ((RECORD, "a comparison"), ("study.yaml", "a study"), ("config.yaml", "a run")):
        if (path / file).exists():
            more = f", or resume with --resume {quote(str(path))}" if file == RECORD else ""
            raise InputError(f"{path} already holds {what}; choose another --compare_dir{more}")


def plan_comparison(given: CompareArguments) -> tuple[Comparison, list[str]]:
    """Returns the comparison that a command line requests, and notices for the user. Raises InputError."""
    base = base_config(merge_files(given.files) if given.content is None else given.content)
    base.pop("search", None)
    own = section(base["algorithm"], "the experiment") if base.get("algorithm") else None
    entries, rest = with_options(read_entries(given.algorithms, own), given.rest)
    if given.seeds:
        base = {option: value for option, value in base.items() if option != "seed"} | {"seeds": given.seeds}
    base["code"] = list(dict.fromkeys([*base["code"], *(folder for entry in entries for folder in entry.code)]))
    number = ((own or {}).get("init_args") or {}).get(_CLUSTERS)
    without = [entry for entry in entries if _CLUSTERS in entry.options and not entry.given(_CLUSTERS)]
    if number is not None:
        words = (f"--algorithm.{_CLUSTERS}", str(number))
        entries = [replace(one, words=(*one.words, *words)) if one in without else one for one in entries]
    plain = _plain(base, rest, entries[-1].name)
    built = {entry.name: _experiment(entry, base, rest, plain) for entry in entries}
    # a default number, which nobody gave, would make the comparison unfair
    defaults = {one.name: getattr(built[one.name].algorithm, _CLUSTERS, None) for one in without if number is None}
    unset = [name for name, default in defaults.items() if isinstance(default, int)]
    if unset and given.search_groups is None:
        raise InputError(f"{unset[0]}: no number of clusters is given; give it: --{unset[0]}.{_CLUSTERS} 4")
    for name, experiment in built.items():
        if given.num_cpus != 1:
            _require_first_gpu(name, experiment)
    seeds = list(plain.to_dict()["seeds"])
    planned = _check_and_plan(Comparison(plain.name, built, seeds, given.target, open_clusters=unset))
    noted = [] if number is None else without
    return planned, [f"{one.name} runs with {_CLUSTERS} {number}, like the file's algorithm" for one in noted]


def _plain(base: Mapping[str, Any], rest: Sequence[str], name: str) -> Experiment:
    """Builds the experiment with FedAvg, so that errors in its other options are not blamed on a compared algorithm."""
    try:
        return build(dict(base) | {"algorithm": "FedAvg"}, rest)
    except InputError as error:
        own = f"Options of an algorithm begin with its name (--{name}.OPTION); see lit-cfl run --help for all others"
        raise InputError(str(error).replace("See lit-cfl run --help", own)) from error


def _experiment(
    entry: ComparedAlgorithm, base: Mapping[str, Any], rest: Sequence[str], plain: Experiment
) -> Experiment:
    """Builds an algorithm's experiment, named after it, with paths that are valid in any folder.

    It shares the data of the experiment with FedAvg, so that they are loaded once.
    """
    try:
        experiment = build(dict(base) | {"algorithm": dict(entry.section)}, [*rest, *entry.words])
    except InputError as error:
        raise InputError(_about(entry.name, str(error))) from error
    own = {"name": f"{experiment.name}-{entry.name}"}
    content = valid_anywhere(experiment.to_dict()) | own
    # tiny data are not shared: they depend on the number of clusters
    like = experiment if content.get("tiny") else plain
    return with_threads(like.with_options(**content))


def training_differences(first: Experiment, other: Experiment) -> list[str]:
    """Lists the options of training in which an algorithm differs from the first one, as `local.epochs 5 (1)`.

    Two classes are listed by their names alone, without the options that only one of them has.
    """
    found = []
    both = (other.to_dict(), first.to_dict())
    for line in differences(*({part: options.get(part) for part in ("task", "local")} for options in both)):
        its, _, there = line.replace(".init_args.", ".").rpartition(" -> ")
        option, _, value = its.partition(": ")
        if option.endswith(".class_path"):
            mine, theirs = ("null" if name == NOT_SET else name for name in (value, there))
            found.append(f"{option.removesuffix('.class_path')} {mine} ({theirs})")
        elif NOT_SET not in (value, there):
            found.append(f"{option} {value} ({there})")
    return found


def _about(name: str, message: str) -> str:
    """Rewrites an error message of the parser in terms of the options of `lit-cfl compare`."""
    message = re.sub(r"needs (\w+)(.*); give it under init_args", rf"needs \1\2; give --{name}.\1 VALUE", message)
    parts = "|".join(map(re.escape, OWN))  # these are given by the algorithm's name: --IFCA.task.optimizer.lr
    message = re.sub(rf"\(did you mean --({parts})\.", rf"(did you mean --{name}.\1.", message)
    if re.match(r"algorithm\b", message):
        return re.sub("^algorithm", name, message)
    return message if message.startswith(f"{name}: ") else f"{name}: {message}"


def _require_first_gpu(name: str, experiment: Experiment) -> None:
    """Raises InputError if runs request a GPU with an index above 0, as each process of Ray sees only one GPU."""
    plan = experiment.plan or PlanOptions()
    if "ray" not in (experiment.engine, plan.engine):
        require_first_gpu(plan.device or experiment.device, f"without --num_cpus 1, each run of a comparison ({name})")


def _check_and_plan(comparison: Comparison) -> Comparison:
    """Prepares all runs and fills in their plans. Raises InputError if one of them could not start."""
    plans: dict[str, dict[str, Any]] = {}
    for seed in comparison.seeds:
        prepared, common = comparison.first.for_seed(seed).try_out(seed)
        require_target(comparison.target, prepared.engine.scores[0])
        for name, experiment in comparison.experiments.items():
            with prefix_errors(f"{name}, seed {seed}"):
                plan = common if experiment is comparison.first else _check_run(experiment, prepared, common)
            plans.setdefault(name, asdict(plan))
        prepared.engine.close()
        del prepared
        release_gpu_memory()  # the runs train in other processes
    planned = {name: one.with_options(plan=plans[name]) for name, one in comparison.experiments.items()}
    return replace(comparison, experiments=planned)


def _check_run(experiment: Experiment, first: PreparedRun, common: Plan) -> Plan:
    """Checks that a run of another algorithm than the first can start. Returns its plan.

    Args:
        experiment: Experiment of the algorithm.
        first: Run of the first algorithm under the same seed, whose data it shares unless they are tiny.
        common: Plan of the first run, which is used unless the algorithm has training of its own.
    """
    # tiny data depend on the algorithm's number of clusters
    if experiment.to_dict().get("tiny") or training_differences(first.experiment, experiment):
        own, plan = experiment.try_out(first.seed)
        own.engine.close()
        return plan
    experiment.algorithm.check(first.engine.at(0, first.data))
    note_late_clustering(experiment.algorithm, experiment.rounds)
    return common


def require_target(target: float | None, score: Score) -> None:
    """Raises InputError if the score is a share, such as accuracy, and the target is not above 0 and at most 1."""
    if target is not None and score.is_share and not 0 < target <= 1:
        raise InputError(
            f"--target is {target:g}; it is a test {score.title}, so give a number above 0 and at most 1"
            f"{suggest_share(target)}"
        )
