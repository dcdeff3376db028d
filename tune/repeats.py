"""Repeats the best trial and the default setting on new seeds: the only use of test metrics in a study."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from ray.exceptions import RayError

from lit_cfl.config.own_code import no_code_from
from lit_cfl.config.variants import Config, build
from lit_cfl.engines.ray.tasks import run_tasks
from lit_cfl.errors import InputError, SaveError
from lit_cfl.experiment import Experiment
from lit_cfl.metric_names import Row
from lit_cfl.runs.resume import read_agreeing_summary
from lit_cfl.runs.run import RunCallbacks, run
from lit_cfl.statistics import Interval, interval
from lit_cfl.storage.atomic_writes import is_full_disk, write_text
from lit_cfl.storage.config_file import stored_config
from lit_cfl.storage.yaml_files import parse_yaml
from lit_cfl.tune.callbacks import stop_if_requested
from lit_cfl.tune.check import PreparedStudy
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.record import DEFAULT, REPEATS
from lit_cfl.tune.trial import TrialJob, limit_time

BEST = "best"
_WORKER_DEATHS = 3  # worker deaths that one run survives


@dataclass(frozen=True)
class Repeated:
    """Results of the best and the default setting on new seeds.

    Args:
        seeds: New seeds.
        figures: Means with intervals, by setting (`best`, `default`) and metric.
        gain: Gain of the best over the default on test data, seed by seed; positive = better; None = unknown.
        failed: Settings that could not be repeated, with the reason.
    """

    seeds: list[int]
    figures: dict[str, dict[str, Interval]]
    gain: Interval | None
    failed: list[str]


def new_seeds(used: Sequence[int], count: int) -> list[int]:
    """Returns `count` seeds that no trial used."""
    first = max(used) + 1
    return list(range(first, first + count))


def repeat(prepared: PreparedStudy, best: Row, path: Path, say: Callable[[str], None]) -> Repeated | None:
    """Trains the best and the default setting on new seeds, in parallel in Ray; finished runs are not repeated.

    Args:
        prepared: Checked study.
        best: Row of the best trial, which may be the default setting itself.
        path: Path of the study.
        say: Prints a line.
    """
    study, job = prepared.study, prepared.job
    seeds = new_seeds(job.seeds, study.num_repeats)
    if not seeds:
        return None
    say(f"training the best and the default setting on {len(seeds)} new seeds")
    configs = _settings(job, best, path)
    # absolute, since workers have another current folder
    done, failed = _train_settings(prepared, configs, seeds, path.absolute() / REPEATS)
    return _summarise(job, best, path, done, failed)


def read_repeated(prepared: PreparedStudy, best: Row, path: Path) -> Repeated | None:
    """Reads the results on new seeds from finished runs, without Ray; None unless all runs are finished and intact.

    Arguments as for `repeat`.
    """
    job, folder = prepared.job, path.absolute() / REPEATS
    done: dict[str, dict[int, Mapping[str, Any]]] = {}
    for setting, config in _settings(job, best, path).items():
        done[setting] = {}
        for seed in new_seeds(job.seeds, prepared.study.num_repeats):
            experiment = _experiment(config, setting, seed, job)
            stored = stored_config(folder / setting / f"seed-{seed}")
            summary = None if stored is None else _read(experiment, folder / setting / f"seed-{seed}", stored)
            if summary is None:
                return None
            done[setting][seed] = summary
    return _summarise(job, best, path, done, [])


def _read(experiment: Experiment, path: Path, stored: Mapping[str, Any]) -> Mapping[str, Any] | None:
    try:
        return read_agreeing_summary(experiment, path, stored)
    except InputError:
        return None


def _settings(job: TrialJob, best: Row, path: Path) -> dict[str, Config]:
    """Returns the configurations to repeat, by setting: the default's, and the best trial's if it differs."""
    configs: dict[str, Config] = {DEFAULT: job.of_trial(build(job.study.whole_base), DEFAULT).to_dict()}
    if best["origin"] != DEFAULT:
        configs[best["trial_id"]] = parse_yaml((path / "best.yaml").read_text("utf-8"))
    return configs


def _summarise(
    job: TrialJob, best: Row, path: Path, done: Mapping[str, Mapping[int, Mapping[str, Any]]], failed: list[str]
) -> Repeated:
    """Computes the results from the summaries by setting and seed, and writes `repeats.json`."""
    seeds = new_seeds(job.seeds, job.study.num_repeats)
    found = {BEST: done.get(best["trial_id"], done[DEFAULT]), DEFAULT: done[DEFAULT]}
    figures = {name: _figures(job.objective, own) for name, own in found.items()}
    write_text(path / REPEATS / "repeats.json", json.dumps(found, indent=2) + "\n")
    return Repeated(seeds, figures, _gain(job.objective, found), failed)


def _train_settings(
    prepared: PreparedStudy, configs: Mapping[str, Config], seeds: Sequence[int], path: Path
) -> tuple[dict[str, dict[int, Mapping[str, Any]]], list[str]]:
    """Trains all settings on all seeds in Ray; returns the summaries by setting and seed, and a line per failure."""
    resources, most = prepared.study.resources, prepared.study.limits.concurrent or inf
    arguments = {
        (setting, seed): (config, setting, seed, path, prepared.job)
        for setting, config in configs.items()
        for seed in seeds
    }
    summaries: dict[tuple[str, int], Mapping[str, Any]] = {}
    failed: dict[tuple[str, int], str] = {}
    share = {"CPU": resources.cpus, "GPU": resources.gpus}
    for name, result in run_tasks(_summary, arguments, share, _WORKER_DEATHS, stop_if_requested, most):
        if isinstance(result, RayError):
            cause: Exception = getattr(result, "cause", result)  # the run's own error
            if is_full_disk(cause):
                raise SaveError(str(cause)) from result
            failed[name] = str(result).strip().splitlines()[-1]
        else:
            summaries[name] = result
    path.mkdir(exist_ok=True)  # missing if all runs failed
    found = {
        setting: {seed: summaries[setting, seed] for seed in seeds if (setting, seed) in summaries}
        for setting in configs
    }
    return found, [f"{setting}, seed {seed}: {why}" for (setting, seed), why in sorted(failed.items())]


def _summary(config: Config, setting: str, seed: int, path: Path, job: TrialJob) -> Mapping[str, Any]:
    callbacks = RunCallbacks(notice=lambda line: None)  # the study itself prints each notice once
    with limit_time(path / setting / f"seed-{seed}", job.study.limits.trial_minutes), no_code_from(job.folder.parent):
        job.limit_gpu_memory()
        experiment = _experiment(config, setting, seed, job)
        if job.data is not None:
            job.data.give_to(experiment)
        return run(experiment, path / setting / f"seed-{seed}", callbacks, mode="resume").summary


def _experiment(config: Config, setting: str, seed: int, job: TrialJob) -> Experiment:
    """Builds the experiment of a setting on a new seed."""
    return build(dict(config) | {"name": f"{job.study.name}-{setting}-seed-{seed}", "seeds": [seed]})


def _figures(objective: Objective, own: Mapping[int, Mapping[str, Any]]) -> dict[str, Interval]:
    names = (objective.metric, objective.test)
    values = {name: [summary[name] for summary in own.values()] for name in names}
    return {name: interval(known) for name, known in values.items() if known and None not in known}


def _gain(objective: Objective, found: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> Interval | None:
    best, default = (
        {seed: summary.get(objective.test) for seed, summary in found[setting].items()} for setting in (BEST, DEFAULT)
    )
    gain = objective.gain(best, default)
    return gain if gain.count else None
