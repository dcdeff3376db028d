"""Checks a study before it starts: builds the base, and the experiments at the corners of the space."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray.tune.schedulers import TrialScheduler

from lit_cfl.config.variants import build
from lit_cfl.devices import release_gpu_memory
from lit_cfl.early_stopping import require_possible_target
from lit_cfl.engines.choose_plan import require_first_gpu, resolve_device
from lit_cfl.engines.plan import PlanOptions
from lit_cfl.errors import InputError, count_noun, prefix_errors
from lit_cfl.experiment import Experiment, PreparedRun
from lit_cfl.tune.objective import Objective, require_validation
from lit_cfl.tune.record import TRIALS
from lit_cfl.tune.searchers import sampler_of, scheduler_of
from lit_cfl.tune.spaces import format_values
from lit_cfl.tune.stopping import StoppingRule
from lit_cfl.tune.study import Study
from lit_cfl.tune.trial import TrialJob


@dataclass(frozen=True)
class PreparedStudy:
    """A checked study, with all that its run needs.

    Args:
        job: Inputs that the trials share, including the study with its seeds.
        default: Experiment of the base.
        corners: Experiments at the corners of the space and at the study's points, by their values in words.
        rule: Rule of early stopping; None = it stops no trial.
        scheduler: Scheduler of Ray Tune that stops trials; None = none.
    """

    job: TrialJob
    default: Experiment
    corners: Mapping[str, Experiment]
    rule: StoppingRule | None
    scheduler: TrialScheduler | None

    @property
    def study(self) -> Study:
        """The study with its seeds."""
        return self.job.study

    @property
    def settings(self) -> list[dict[str, Any]]:
        """The settings that are tried first: the base's own, the study's points, and all points of a grid."""
        grid = self.study.search_space.combinations() if self.study.search_space.grid else []
        return [{}, *self.study.own_settings, *grid]

    @property
    def limit(self) -> int | None:
        """The number of trials to train; None for a grid, which runs whole."""
        return None if self.study.search_space.grid else self.study.num_trials

    @property
    def size(self) -> str:
        """The number of trials, their rounds and their seeds, in words."""
        seeds = self.job.seeds
        under = f"seed {seeds[0]}" if len(seeds) == 1 else f"the seeds {', '.join(map(str, seeds))} each"
        trials = count_noun(self.limit or len(self.settings), "trial")
        return f"{trials} of {count_noun(self.default.rounds, 'round')} under {under}"

    @property
    def notices(self) -> list[str]:
        """What the user should know before the trials start."""
        space, lines = self.study.search_space, []
        if space.changes_data:
            lines.append(
                f"{', '.join(space.changes_data)} may change who the clients are and what they are scored on, so "
                "the best trial may be the one with the easiest data; to compare methods on several data sets, use "
                "lit-cfl compare"
            )
        if not self.study.may_stop:
            lines.append("no trial is stopped early, as the study has a grid or a second metric")
        return lines


def check_study(study: Study) -> tuple[Study, Experiment, dict[str, Experiment]]:
    """Checks everything in a study that can be checked without its data.

    Returns:
        The study with its seeds, the base's experiment, and the experiments at the corners of the space and at the
            study's points, by their values in words.

    Raises:
        InputError: an unknown option, a refused value, a searcher that cannot be used.
    """
    base, space = study.whole_base, study.search_space
    with prefix_errors("base"):
        default = build(base)
    _require_reserved_gpus(study, default)
    corners = {format_values(point): point for point in [*space.corners(), *study.own_settings]}
    built = {name: _build(base, name, space.words(point)) for name, point in corners.items()}
    sampler_of(study)
    return replace(study, seeds=study.seeds or default.seeds), default, built


def prepare(study: Study, path: Path, like: Experiment | None = None) -> PreparedStudy:
    """Checks a whole study, loads the base's data, and collects what the study's run needs.

    Args:
        study: The study.
        path: Directory of the study.
        like: An experiment whose loaded data are used if the base's are described equally.

    Raises:
        InputError: the study cannot run.
    """
    study, default, corners = check_study(study)
    default = default if like is None else like.with_options(**default.to_dict())  # equal data are loaded once
    seeds, limits = study.seeds or default.seeds, study.limits
    prepared, _ = replace(default, seeds=seeds).try_out(seeds[0])
    require_validation(prepared)
    _require_possible_corners(prepared, default, corners)
    prepared.engine.close()
    scores = prepared.engine.scores
    del prepared
    release_gpu_memory()
    objective = Objective.of(study.metric, scores, study.second_metric)
    for experiment in (default, *corners.values()):
        experiment.evaluation.require_reported(objective.metric, scores, "metric")
    require_possible_target(objective.metric, limits.target, scores, "limits.target")
    study = replace(study, metric=objective.metric)
    late = max(experiment.algorithm.first_clustering_round() for experiment in corners.values())
    first = study.first_rung(default.rounds, late)
    scheduler = scheduler_of(study, objective, default.rounds, first)
    has_rule = study.may_stop and study.scheduler is None and study.stopping.eta > 1
    rule = StoppingRule(first, default.rounds, objective.mode == "min", study.stopping.eta) if has_rule else None
    watched = rule is not None or scheduler is not None
    job = TrialJob(study, objective, path.absolute() / TRIALS, watched=watched)
    checked = PreparedStudy(job, default, corners, rule, scheduler)
    needed, given = len(checked.settings), limits.trials if study.search_space.grid else study.num_trials
    if given is not None and given < needed:
        raise InputError(
            f"limits.trials is {given}, but the base's setting, the points and the grid make {needed} trials; give "
            f"{needed} or more"
        )
    return checked


def _build(base: Mapping[str, Any], name: str, words: list[str]) -> Experiment:
    with prefix_errors(f"space: {name}"):
        try:
            return build(base, words)
        except InputError as error:
            if "a whole number" in str(error):  # the ends of `uniform` are fractions
                raise InputError(f"{error}; search whole numbers by randint, lograndint or choice") from error
            raise


def _require_possible_corners(prepared: PreparedRun, default: Experiment, corners: Mapping[str, Experiment]) -> None:
    """Raises InputError if the algorithm of a corner with the base's data and net cannot train these clients."""
    own = default.to_dict()
    for values, experiment in corners.items():
        config = experiment.to_dict()
        if config["data"] == own["data"] and config["task"] == own["task"]:
            with prefix_errors(f"space: {values}"):
                experiment.algorithm.check(prepared.engine.at(0, prepared.data))


def _require_reserved_gpus(study: Study, default: Experiment) -> None:
    """Raises InputError if trials would use a GPU that Ray does not reserve for them, or one with an index above 0."""
    plan = default.plan or PlanOptions()
    if default.engine == "ray" or plan.workers:
        return
    require_first_gpu(plan.device or default.device, "a trial")
    device = plan.device or resolve_device(default.device)
    if not study.resources.gpus and device != "cpu":
        raise InputError(
            f"resources.gpus is 0, but trials would all train on {device}; give each a share of a GPU, such as "
            "--resources.gpus 0.25, or set base.device to cpu"
        )
