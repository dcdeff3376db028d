"""From a command line to a comparison that was checked: whatever cannot run is said before anything does."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.entries import Entry, read_entries, section, unknown_owner, with_options
from lit_cfl.compare.options import Words
from lit_cfl.config.files import with_absolute_paths
from lit_cfl.config.parser import experiment_parser
from lit_cfl.config.variants import base_config, build
from lit_cfl.engines.plan import PlanOptions
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.scores import ACCURACY, Score

_CLUSTERS = "num_clusters"


def plan_comparison(words: Words) -> tuple[Comparison, list[str]]:
    """The comparison that a command line asks for, and what the user should know. Raises InputError."""
    base = base_config(words.config)
    own = section(base["algorithm"], words.config) if base.get("algorithm") else None
    entries, rest = with_options(read_entries(words.algorithms, own), words.rest)
    _require_known(entries, rest)
    if words.seeds:
        base["seeds"] = words.seeds
    base["code"] = list(dict.fromkeys([*base["code"], *(folder for entry in entries for folder in entry.code)]))
    plain = _plain(base, rest, entries[-1].name)
    notices: list[str] = []
    built = {entry.name: _experiment(entry, base, rest, own, notices) for entry in entries}
    seeds = list(plain.described()["seeds"])
    return _checked(Comparison(plain.name, built, seeds, words.target)), notices


def _plain(base: Mapping[str, Any], rest: Sequence[str], name: str) -> Experiment:
    """The experiment with FedAvg, for what is wrong with it is no algorithm's fault."""
    try:
        return build(dict(base) | {"algorithm": "FedAvg"}, rest)
    except InputError as error:
        own = f"Those of an algorithm go by its name (--{name}.OPTION), all others are in lit-cfl run --help"
        raise InputError(str(error).replace("See lit-cfl run --help", own)) from error


def _require_known(entries: Sequence[Entry], rest: Sequence[str]) -> None:
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
    entry: Entry, base: Mapping[str, Any], rest: Sequence[str], own: Mapping[str, Any] | None, notices: list[str]
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
    """A message of the parser, in the words of `--algorithms`."""
    message = re.sub(r"needs (\w+)(.*); give it under init_args", rf"needs \1\2; give --{name}.\1 VALUE", message)
    return message.replace("algorithm", name, 1) if re.match(r"algorithm[.:]", message) else f"{name}: {message}"


def _number_of_clusters(entry: Entry, own: Mapping[str, Any] | None) -> int:
    """A default number of clusters would be no fair comparison: it is the file's, or the user's."""
    number = (own or {}).get("init_args", {}).get(_CLUSTERS)
    if number is None:
        raise InputError(f"no number of clusters is given; give it: --{entry.name}.{_CLUSTERS} 4")
    return int(number)


def _of_comparison(experiment: Experiment, name: str) -> Experiment:
    """The experiment under the algorithm's name, with what it reads by absolute paths, in one thread unless asked."""
    plan = experiment.plan or PlanOptions()
    plan = replace(plan, threads=plan.threads or 1)
    config = dict(experiment.described())
    config |= {"name": f"{experiment.name}-{name}", "data": with_absolute_paths(config["data"]), "plan": vars(plan)}
    return replace(experiment, name=str(config["name"]), plan=plan, config=config)


def _checked(comparison: Comparison) -> Comparison:
    """The comparison with its plan filled in. Raises InputError where one of the runs could not begin."""
    plan = None
    for seed in comparison.seeds:
        prepared = comparison.first.for_seed(seed).prepare(seed)
        plan = plan or asdict(prepared.engine.plan)
        _require_target(comparison.target, prepared.engine.scores[0])
        for name, experiment in comparison.experiments.items():
            try:
                if experiment.described().get("tiny"):  # its data depend on the number of clusters
                    experiment.prepare(seed).engine.close()
                experiment.algorithm.check(prepared.engine.at(0, prepared.data))
            except InputError as error:
                raise InputError(f"{name}, seed {seed}: {error}") from error
        prepared.engine.close()
    return replace(comparison, experiments={k: _under(e, plan or {}) for k, e in comparison.experiments.items()})


def _require_target(target: float | None, score: Score) -> None:
    if target is not None and score == ACCURACY and not 0 < target <= 1:
        raise InputError(f"--target is {target:g}; it is a test accuracy, so give a number above 0, 1 at most")


def _under(experiment: Experiment, plan: Mapping[str, Any]) -> Experiment:
    return replace(experiment, plan=PlanOptions(**plan), config=dict(experiment.described()) | {"plan": dict(plan)})
