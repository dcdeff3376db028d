"""Checks a whole study before it starts, and lists the settings that it tries first.

An invalid corner of the space would otherwise appear after hours.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lit_cfl.config.variants import build
from lit_cfl.devices import release_gpu_memory
from lit_cfl.early_stopping import require_possible_target
from lit_cfl.engines.choose_plan import require_first_gpu, resolve_device
from lit_cfl.engines.plan import PlanOptions
from lit_cfl.errors import InputError, count_noun, prefix_errors
from lit_cfl.experiment import Experiment, PreparedRun
from lit_cfl.scores import Scores
from lit_cfl.tune.objective import Objective, require_validation
from lit_cfl.tune.record import TRIALS
from lit_cfl.tune.searchers import sampler_of
from lit_cfl.tune.spaces import Space, as_plain, format_values
from lit_cfl.tune.stopping import StoppingRule
from lit_cfl.tune.study import Study
from lit_cfl.tune.trial import TrialJob

Corner = tuple[dict[str, Any], Experiment]  # a point of the study, or at an end of the space, and its experiment


def check_study(study: Study) -> tuple[Study, Experiment, list[Corner]]:
    """Checks everything in a study that can be checked without its data.

    Returns:
        The study with its seeds, the base's experiment, and the experiments at the corners of the space and at the
            study's points.

    Raises:
        InputError: an unknown option (with the most similar known one), a refused value, a searcher that
            cannot be used.
    """
    base, space, trials = study.whole_base, study.search_space, study.limits.trials
    if space.grid and trials is not None and trials < space.size:
        raise InputError(
            f"limits.trials is {trials}, but a grid runs all of its {space.size} points; leave out limits.trials"
        )
    with prefix_errors("base"):
        default = build(base)
    _require_reserved_gpus(study, default)
    corners: list[Corner] = []
    for point in [*space.corners(), *study.own_settings]:
        with prefix_errors(f"space: {format_values(point)}"):
            corners.append((point, _build_corner(base, space.words(point))))
    whole = replace(study, seeds=study.seeds or default.seeds)
    sampler_of(whole)
    whole.stopping_rule(default.rounds, first_clustering_round(corners), lower_is_better=True)
    return whole, default, corners


def _build_corner(base: Mapping[str, Any], words: Sequence[str]) -> Experiment:
    try:
        return build(base, words)
    except InputError as error:
        if "is not a whole number" in str(error):  # the ends of `uniform` are fractions
            raise InputError(f"{error}; search whole numbers by randint, lograndint or choice") from error
        raise


def _require_reserved_gpus(study: Study, default: Experiment) -> None:
    """Raises InputError if trials would use a GPU that Ray does not reserve for them, or one with an index above 0."""
    plan = default.plan or PlanOptions()
    if default.engine == "ray" or plan.workers:
        return
    require_first_gpu(plan.device or default.device, "a trial")
    if study.resources.gpus:
        return
    device = plan.device or resolve_device(default.device)
    if device != "cpu":
        raise InputError(
            f"resources.gpus is 0, but trials would all train on {device}; give each a share of a GPU, such as "
            "--resources.gpus 0.25, or set base.device to cpu"
        )


def notices(study: Study, base: Experiment) -> list[str]:
    """Lists warnings for the user if the study's trials may not be comparable."""
    space, lines = study.search_space, []
    if space.changes_data:
        lines.append(
            f"{', '.join(space.changes_data)} may change who the clients are and what they are scored on, so "
            "the best trial may be the one with the easiest data; to compare methods on several data sets, use "
            "lit-cfl compare"
        )
    if space.algorithms and base.selection == "uniform" and base.evaluation.clients == "assigned":
        lines.append(
            "an algorithm may have no model for clients that were never drawn, and these are then not scored; "
            "evaluation.clients: all in the base scores all trials on all clients"
        )
    return [*lines, *_inherited_options(study, base)]


def _inherited_options(study: Study, base: Experiment) -> list[str]:
    """Notes which options the searched algorithms inherit from the base's algorithm, such as `num_clusters`."""
    space, algorithm, lines = study.search_space, study.whole_base["algorithm"], []
    written = (algorithm.get("init_args") or {}) if isinstance(algorithm, Mapping) else {}
    first = {point["algorithm"]: point for point in reversed(space.corners() if space.algorithms else [])}
    for name in space.algorithms:
        if name == _name(space, base.to_dict()):
            continue
        own = {
            *space.algorithms[name],
            *(p.option.removeprefix("algorithm.") for p in space.parameters if p.algorithm == name),
        }
        taken = build(study.whole_base, space.words(first[name])).to_dict()["algorithm"].get("init_args", {})
        if kept := [f"{key} {value}" for key, value in written.items() if key not in own and taken.get(key) == value]:
            lines.append(f"{name} runs with the base's {', '.join(kept)}")
    return lines


def check_on_clients(study: Study, default: Experiment, corners: Sequence[Corner]) -> Scores:
    """Checks that the experiment at each corner of the space can start with the base's clients.

    A corner that changes other options than the algorithm's is prepared as a whole.

    Returns:
        The scores of the base's task.

    Raises:
        InputError: a corner could not start, or its data have no validation part.
    """
    seeds = study.seeds or default.seeds
    base, _ = replace(default, seeds=seeds).try_out(seeds[0])
    require_validation(base)
    for point, experiment in corners:
        with prefix_errors(f"space: {format_values(point)}"):
            _require_possible(experiment, base)
    base.engine.close()
    scores = base.engine.scores
    del base
    release_gpu_memory()
    return scores


def _require_possible(experiment: Experiment, base: PreparedRun) -> None:
    asked, bases = experiment.to_dict(), base.experiment.to_dict()
    if asked | {"algorithm": bases["algorithm"]} == bases:
        experiment.algorithm.check(base.engine.at(0, base.data))
        return
    if asked["data"] == bases["data"]:
        vars(experiment.data).update(vars(base.experiment.data))  # the base has loaded the data already
    prepared, _ = experiment.try_out(base.seed)
    require_validation(prepared)
    prepared.engine.close()


def first_clustering_round(corners: Sequence[Corner]) -> int:
    """Returns the largest number of rounds before the first clustering among the algorithms of the space."""
    return max(experiment.algorithm.first_clustering_round() for _, experiment in corners)


@dataclass(frozen=True)
class PreparedStudy:
    """A checked study, with all that its run needs.

    Args:
        job: Inputs that the trials share, including the study with its seeds.
        default: Experiment of the base.
        rule: Rule of early stopping; None = no trial is stopped.
    """

    job: TrialJob
    default: Experiment
    rule: StoppingRule | None

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
        different = {repr(sorted(setting.items())) for setting in self.settings}
        trials = count_noun(self.limit or len(different), "trial")
        return f"{trials} of {count_noun(self.default.rounds, 'round')} under {under}"


def prepare(study: Study, path: Path) -> PreparedStudy:
    """Checks a whole study, and collects what its run needs. Raises InputError for a study that cannot run.

    Args:
        study: The study.
        path: Directory of the study.
    """
    study, default, corners = check_study(study)
    scores = check_on_clients(study, default, corners)
    objective = Objective.of(study.metric, scores, study.second_metric)
    for experiment in (default, *(experiment for _, experiment in corners)):
        experiment.evaluation.require_reported(objective.metric, scores, "metric")
    require_possible_target(objective.metric, study.limits.target, scores, "limits.target")
    study = replace(study, metric=objective.metric)
    rule = study.stopping_rule(default.rounds, first_clustering_round(corners), objective.mode == "min")
    job = TrialJob(study, objective, path.absolute() / TRIALS, watched=rule is not None)
    prepared = PreparedStudy(job, default, rule)
    if prepared.limit is not None and prepared.limit < len(prepared.settings):
        raise InputError(
            f"limits.trials is {prepared.limit}, but the base's setting and the points make {len(prepared.settings)} "
            f"trials; give {len(prepared.settings)} or more, or leave out points"
        )
    return prepared


def default_values(study: Study, default: Experiment) -> dict[str, Any]:
    """Returns the base's own values of the searched options."""
    space, options = study.search_space, default.to_dict()
    values = {"algorithm": _name(space, options)} if space.algorithms else {}
    for p in space.of(str(values.get("algorithm", ""))):
        with suppress(LookupError):
            values[p.key] = as_plain(_value(options, p.option))
    return space.values_of(values)


def _name(space: Space, options: Mapping[str, Any]) -> str:
    """Returns the name of a configuration's algorithm as written in the space, else its class name."""
    path = str(options["algorithm"]["class_path"])
    short = path.rpartition(".")[2]
    return next((name for name in space.algorithms if name == path or name.rpartition(".")[2] == short), short)


def _value(options: Mapping[str, Any], option: str) -> Any:
    """Reads an option's value from a configuration. Raises LookupError if it has none."""
    node: Any = options
    for word in option.split("."):
        if not isinstance(node, Mapping):
            raise LookupError(option)
        node = node[word] if word in node else (node.get("init_args") or {})[word]
    return node
