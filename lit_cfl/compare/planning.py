"""Makes a comparison from a command line and checks it, so that invalid runs are refused before any training."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from lit_cfl.algorithms.base import Algorithm
from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.entries import ComparedAlgorithm, read_entries, require_names, section, with_options
from lit_cfl.compare.options import CompareArguments
from lit_cfl.config.files import valid_anywhere
from lit_cfl.config.option_tree import experiment_tree
from lit_cfl.config.variants import base_config, build
from lit_cfl.devices import release_gpu_memory
from lit_cfl.engines.choose_device import require_first_gpu
from lit_cfl.engines.plan import PlanOptions
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.scores import ACCURACY, Score

_CLUSTERS = "num_clusters"


def plan_comparison(given: CompareArguments) -> tuple[Comparison, list[str]]:
    """Makes the comparison requested by a command line, and notices for the user. Raises InputError."""
    base = base_config(given.content or given.config)
    own = section(base["algorithm"], given.config) if base.get("algorithm") else None
    entries, rest = with_options(read_entries(given.algorithms, own), given.rest)
    require_names(entries, rest, [*experiment_tree([], []).names()])
    if given.seeds:
        base["seeds"] = given.seeds
    base["code"] = list(dict.fromkeys([*base["code"], *(folder for entry in entries for folder in entry.code)]))
    plain = _plain(base, rest, entries[-1].name)
    notices: list[str] = []
    built = {entry.name: _experiment(entry, base, rest, own, notices) for entry in entries}
    for name, experiment in built.items():
        if given.num_cpus != 1:
            _require_first_gpu(name, experiment)
    seeds = list(plain.described()["seeds"])
    return _checked(Comparison(plain.name, built, seeds, given.target)), notices


def _plain(base: Mapping[str, Any], rest: Sequence[str], name: str) -> Experiment:
    """Builds the experiment with FedAvg, so that its errors are not attributed to a compared algorithm."""
    try:
        return build(dict(base) | {"algorithm": "FedAvg"}, rest)
    except InputError as error:
        own = f"Those of an algorithm begin with its name (--{name}.OPTION), all others are in lit-cfl run --help"
        raise InputError(str(error).replace("See lit-cfl run --help", own)) from error


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
        number = None if entry.given(_CLUSTERS) else _number_of_clusters(entry, experiment.algorithm, own)
        if number is not None:
            notices.append(f"{entry.name} runs with {_CLUSTERS} {number}, as the file's algorithm")
            experiment = build(config, [*rest, *entry.words, f"--algorithm.{_CLUSTERS}", str(number)])
    except InputError as error:
        raise InputError(_about(entry.name, str(error))) from error
    return _of_comparison(experiment, entry.name)


def _about(name: str, message: str) -> str:
    """Rewrites a message of the parser for the options of `compare`."""
    message = re.sub(r"needs (\w+)(.*); give it under init_args", rf"needs \1\2; give --{name}.\1 VALUE", message)
    return message.replace("algorithm", name, 1) if re.match(r"algorithm[.:]", message) else f"{name}: {message}"


def _number_of_clusters(
    entry: ComparedAlgorithm, algorithm: Algorithm, own: Mapping[str, Any] | None
) -> int | str | None:
    """Returns the file's number of clusters; None if the algorithm has no such option, or finds the number by default.

    Raises:
        InputError: the file has no number, and the algorithm's default is one, which would make the comparison unfair.
    """
    number = (own or {}).get("init_args", {}).get(_CLUSTERS)
    if number is None and isinstance(getattr(algorithm, _CLUSTERS, None), int):
        raise InputError(f"no number of clusters is given; give it: --{entry.name}.{_CLUSTERS} 4")
    if number is None or not hasattr(algorithm, _CLUSTERS):
        return None
    return "auto" if number == "auto" else int(number)


def _of_comparison(experiment: Experiment, name: str) -> Experiment:
    """Names the experiment after the algorithm, makes its paths absolute, and sets one thread by default."""
    plan = experiment.plan or PlanOptions()
    own = {"name": f"{experiment.name}-{name}", "plan": {"threads": plan.threads or 1}}
    return experiment.changed(**(valid_anywhere(experiment.described()) | own))


def _require_first_gpu(name: str, experiment: Experiment) -> None:
    """Raises InputError if runs in Ray processes, with a GPU each, request a GPU by number."""
    plan = experiment.plan or PlanOptions()
    if "ray" not in (experiment.engine, plan.engine):
        require_first_gpu(plan.device or experiment.device, f"each run of a comparison ({name}; but for --num_cpus 1)")


def _checked(comparison: Comparison) -> Comparison:
    """Prepares all runs and fills in their plan. Raises InputError if one of them could not start."""
    plan = None
    for seed in comparison.seeds:
        prepared, chosen = comparison.first.for_seed(seed).try_out(seed)
        plan = plan or asdict(chosen)
        require_target(comparison.target, prepared.engine.scores[0])
        for name, experiment in comparison.experiments.items():
            try:
                if experiment.described().get("tiny"):  # its data depend on the number of clusters
                    experiment.try_out(seed)[0].engine.close()
                experiment.algorithm.check(prepared.engine.at(0, prepared.data))
            except InputError as error:
                raise InputError(f"{name}, seed {seed}: {error}") from error
        prepared.engine.close()
        del prepared
        release_gpu_memory()  # the runs are in other processes
    return replace(comparison, experiments={k: e.changed(plan=plan) for k, e in comparison.experiments.items()})


def require_target(target: float | None, score: Score) -> None:
    """Raises InputError if the target is an impossible accuracy."""
    if target is not None and score == ACCURACY and not 0 < target <= 1:
        raise InputError(f"--target is {target:g}; it is a test accuracy, so give a number above 0, 1 at most")
