"""A study that was checked: all that is wrong with it is said before anything starts."""

from dataclasses import dataclass, replace
from pathlib import Path

from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.tune.check import check_on_clients, check_study, first_clustering_round
from lit_cfl.tune.cluster import threads_of
from lit_cfl.tune.job import Job
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.points import settings
from lit_cfl.tune.schedulers import is_population_based, pauses, watches
from lit_cfl.tune.spaces import Space
from lit_cfl.tune.study import Study
from lit_cfl.tune.trials import Setting

TRIALS = "trials"  # folder of a study directory


@dataclass(frozen=True)
class Prepared:
    """A study that was checked.

    Args:
        study: as given, with its seeds.
        space: parsed.
        job: what its trials share.
        default: the base's experiment.
        rounds: T.
        first_clustering_round: no trial is stopped before it.
        first: settings that are tried before the searcher's: the default, then the study's points.
        limit: how many trials are trained.
    """

    study: Study
    space: Space
    job: Job
    default: Experiment
    rounds: int
    first_clustering_round: int
    first: list[Setting]
    limit: int


def prepare(study: Study, path: Path) -> Prepared:
    """Checks all of a study and starts nothing. Raises InputError."""
    study, (default, *corners) = check_study(study)
    scores = check_on_clients(study, default, corners)
    objective = Objective.of(study.metric, scores, study.second_metric)
    study = replace(study, metric=objective.metric)
    evolves, space = is_population_based(study), study.searched()
    job = Job(
        study.name,
        study.whole_base,
        space,
        list(study.seeds or []),
        objective,
        path.absolute() / TRIALS,
        threads_of(study.resources),
        evolves,
        pauses(study),
        watches(study),
        study.limits.trial_minutes,
    )
    first = settings(study, space, default)
    return Prepared(
        study, space, job, default, default.rounds, first_clustering_round(corners), first, _limit(study, space, first)
    )


def _limit(study: Study, space: Space, first: list[Setting]) -> int:
    """How many trials are trained: of a grid all of its points, and the default where it is none of them."""
    if space.grid:
        return space.size + sum(not setting.inside for setting in first)
    different = len({repr(sorted(setting.values.items())) for setting in first})
    if study.num_trials < different:
        raise InputError(
            f"limits.trials is {study.num_trials}, but the base's setting and the points are {different} trials; "
            "give more, or leave out points"
        )
    return study.num_trials
