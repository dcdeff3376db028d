"""Makes a comparison from a command line and checks it: what cannot run is refused before anything is trained."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.options import CompareArguments
from lit_cfl.config import catalogue
from lit_cfl.config.files import append_to_path, read_config, valid_anywhere
from lit_cfl.config.named_configs import config_path
from lit_cfl.config.parser import experiment_parser
from lit_cfl.config.variants import base_config, build
from lit_cfl.engines.plan import PlanOptions
from lit_cfl.errors import InputError, nearest
from lit_cfl.experiment import Experiment
from lit_cfl.scores import ACCURACY, Score

_CLUSTERS = "num_clusters"
Section = Mapping[str, Any]  # class_path, init_args
RESERVED = ("pictures", "compare.yaml", "results.md", "results.csv", "results.tex", "runs.csv")


@dataclass(frozen=True)
class ComparedAlgorithm:
    """Describes one algorithm of a comparison.

    Args:
        name: of its folder, its options and its row of the table.
        section: class and arguments, as under `algorithm:` in a configuration.
        words: further options, as `--algorithm.<option> VALUE`.
        code: folders of the user's own classes.
    """

    name: str
    section: Section
    words: tuple[str, ...] = ()
    code: tuple[str, ...] = ()

    def given(self, option: str) -> bool:
        """Tells whether the user has set this option."""
        flag = f"--algorithm.{option}"
        return option in self.section.get("init_args", {}) or any(w.partition("=")[0] == flag for w in self.words)


def plan_comparison(given: CompareArguments) -> tuple[Comparison, list[str]]:
    """Makes the comparison that a command line asks for, and notices for the user. Raises InputError."""
    base = base_config(given.config)
    own = section(base["algorithm"], given.config) if base.get("algorithm") else None
    entries, rest = with_options(read_entries(given.algorithms, own), given.rest)
    _require_known(entries, rest)
    if given.seeds:
        base["seeds"] = given.seeds
    base["code"] = list(dict.fromkeys([*base["code"], *(folder for entry in entries for folder in entry.code)]))
    plain = _plain(base, rest, entries[-1].name)
    notices: list[str] = []
    built = {entry.name: _experiment(entry, base, rest, own, notices) for entry in entries}
    seeds = list(plain.described()["seeds"])
    return _checked(Comparison(plain.name, built, seeds, given.target)), notices


def _plain(base: Mapping[str, Any], rest: Sequence[str], name: str) -> Experiment:
    """Builds the experiment with FedAvg, so that its errors are not reported as an algorithm's."""
    try:
        return build(dict(base) | {"algorithm": "FedAvg"}, rest)
    except InputError as error:
        own = f"Those of an algorithm begin with its name (--{name}.OPTION), all others are in lit-cfl run --help"
        raise InputError(str(error).replace("See lit-cfl run --help", own)) from error


def _require_known(entries: Sequence[ComparedAlgorithm], rest: Sequence[str]) -> None:
    names = [entry.name for entry in entries]
    options = [option for option in experiment_parser("lit-cfl compare")._option_string_actions if option[:2] == "--"]
    heads = {option.removeprefix("--").partition(".")[0] for option in options}
    taken = [name for name in names if name in heads]
    if taken:
        raise InputError(f"{taken[0]!r} is an option of experiments; give the algorithm another name, NAME=...")
    for word in rest:
        unknown = unknown_owner(word, names, options) if word.startswith("--") else None
        if unknown:
            raise InputError(unknown)


def _experiment(
    entry: ComparedAlgorithm,
    base: Mapping[str, Any],
    rest: Sequence[str],
    own: Mapping[str, Any] | None,
    notices: list[str],
) -> Experiment:
    config = dict(base) | {"algorithm": dict(entry.section)}
    try:
        experiment = build(config, [*rest, *entry.words])
        if hasattr(experiment.algorithm, _CLUSTERS) and not entry.given(_CLUSTERS):
            number = _number_of_clusters(entry, own)
            notices.append(f"{entry.name} runs with {_CLUSTERS} {number}, as the file's algorithm")
            experiment = build(config, [*rest, *entry.words, f"--algorithm.{_CLUSTERS}", str(number)])
    except InputError as error:
        raise InputError(_about(entry.name, str(error))) from error
    return _of_comparison(experiment, entry.name)


def _about(name: str, message: str) -> str:
    """Rewords a message of the parser for the options of `compare`."""
    message = re.sub(r"needs (\w+)(.*); give it under init_args", rf"needs \1\2; give --{name}.\1 VALUE", message)
    return message.replace("algorithm", name, 1) if re.match(r"algorithm[.:]", message) else f"{name}: {message}"


def _number_of_clusters(entry: ComparedAlgorithm, own: Mapping[str, Any] | None) -> int:
    """Returns the file's number of clusters: with a default one the comparison would not be fair."""
    number = (own or {}).get("init_args", {}).get(_CLUSTERS)
    if number is None:
        raise InputError(f"no number of clusters is given; give it: --{entry.name}.{_CLUSTERS} 4")
    return int(number)


def _of_comparison(experiment: Experiment, name: str) -> Experiment:
    """Names the experiment after the algorithm, makes its paths absolute, and gives it one thread unless asked."""
    plan = experiment.plan or PlanOptions()
    plan = replace(plan, threads=plan.threads or 1)
    config = valid_anywhere(experiment.described())
    config |= {"name": f"{experiment.name}-{name}", "plan": vars(plan)}
    return replace(experiment, name=str(config["name"]), plan=plan, config=config)


def _checked(comparison: Comparison) -> Comparison:
    """Prepares all runs and fills in their plan. Raises InputError if one of them could not begin."""
    plan = None
    for seed in comparison.seeds:
        prepared = comparison.first.for_seed(seed).prepare(seed)
        plan = plan or asdict(prepared.engine.plan)
        require_target(comparison.target, prepared.engine.scores[0])
        for name, experiment in comparison.experiments.items():
            try:
                if experiment.described().get("tiny"):  # its data depend on the number of clusters
                    experiment.prepare(seed).engine.close()
                experiment.algorithm.check(prepared.engine.at(0, prepared.data))
            except InputError as error:
                raise InputError(f"{name}, seed {seed}: {error}") from error
        prepared.engine.close()
    return replace(comparison, experiments={k: _under(e, plan or {}) for k, e in comparison.experiments.items()})


def require_target(target: float | None, score: Score) -> None:
    """Raises InputError if the target is an accuracy that no run can have."""
    if target is not None and score == ACCURACY and not 0 < target <= 1:
        raise InputError(f"--target is {target:g}; it is a test accuracy, so give a number above 0, 1 at most")


def _under(experiment: Experiment, plan: Mapping[str, Any]) -> Experiment:
    return replace(experiment, plan=PlanOptions(**plan), config=dict(experiment.described()) | {"plan": dict(plan)})


def read_entries(words: Sequence[str], own: Section | None) -> list[ComparedAlgorithm]:
    """Reads the entries of `--algorithms`.

    Args:
        words: each `[NAME=]WHAT`: a class, a packaged configuration, or a file that has an `algorithm:`, or is one.
        own: the experiment's own algorithm; its class alone stands for it with its arguments.

    Raises:
        InputError: an unknown file, a name twice, or one that names no folder.
    """
    entries = [_entry(word, own) for word in words]
    for number, entry in enumerate(entries):
        _require_name(entry.name)
        if entry.name.lower() in [other.name.lower() for other in entries[:number]]:
            raise InputError(
                f"--algorithms has {entry.name} twice; give each a name of its own: A={words[number]} B={words[number]}"
            )
    return entries


def with_options(
    entries: Sequence[ComparedAlgorithm], words: Sequence[str]
) -> tuple[list[ComparedAlgorithm], list[str]]:
    """Gives each entry its options `--NAME.option VALUE`.

    Returns:
        the entries with their options, and the words that are left.
    """
    own: dict[str, list[str]] = {entry.name: [] for entry in entries}
    left: list[str] = []
    target = left
    for word in words:
        if word.startswith("--"):
            name = max((name for name in own if word.startswith(f"--{name}.")), key=len, default=None)
            target = left if name is None else own[name]
            word = word if name is None else f"--algorithm.{word.removeprefix(f'--{name}.')}"
        target.append(word)
    return [replace(entry, words=tuple(own[entry.name])) for entry in entries], left


def section(written: Any, where: str) -> Section:
    """Reads an algorithm of a configuration: its class alone, or with arguments."""
    if isinstance(written, str):
        return {"class_path": written}
    if not isinstance(written, dict) or not isinstance(written.get("class_path"), str):
        raise InputError(f"{where} names no algorithm; it needs algorithm: with class_path: (and init_args:)")
    return written


def _entry(word: str, own: Section | None) -> ComparedAlgorithm:
    name, what = "", word
    if "=" in word and not Path(word).is_file():
        name, _, what = word.partition("=")
    if "," in what and not Path(what).is_file():
        raise InputError(f"--algorithms: {what!r} is one word; put blanks between: {what.replace(',', ' ')}")
    if Path(what).is_file() or what in catalogue.configs() or "/" in what or what.endswith(".yaml"):
        file = config_path(what)
        found, code = _section_of_file(file), tuple(append_to_path(["--config", file]))
    else:
        mine = own is not None and what in (own["class_path"], _short(own["class_path"]))
        found, code = own if mine and own is not None else {"class_path": what}, ()
    return ComparedAlgorithm(name or _short(found["class_path"]), found, code=code)


def _section_of_file(file: str) -> Section:
    whole = read_config(file)
    return section(whole.get("algorithm", whole), file)


def _short(class_path: str) -> str:
    return class_path.rpartition(".")[2]


def _require_name(name: str) -> None:
    plain = name and Path(name).name == name and name[0] not in ".-" and name.isprintable()
    if not plain or name.lower() in RESERVED:
        raise InputError(f"{name!r} cannot be a name of an algorithm here: it is to be a folder; choose another NAME=")


def unknown_owner(option: str, names: Sequence[str], options: Sequence[str]) -> str | None:
    """Says why `--Foo.bar` is no option of any algorithm; None if it may be one of the experiment."""
    head, dot, _ = option.removeprefix("--").partition(".")
    heads = {name.removeprefix("--").partition(".")[0] for name in options}
    if not dot or head in heads:
        return None
    return f"{option}: no algorithm here is called {head!r}{nearest(head, names)}; there are {', '.join(names)}"
