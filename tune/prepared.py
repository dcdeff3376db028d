"""A study that was checked: all that is wrong with it is said before anything starts."""

from dataclasses import dataclass, replace
from pathlib import Path

from lit_cfl.experiment import Experiment
from lit_cfl.tune.check import check_on_clients, check_study, first_clustering_round
from lit_cfl.tune.cluster import threads_of
from lit_cfl.tune.job import Job
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.schedulers import is_population_based, pauses, watches
from lit_cfl.tune.spaces import Space
from lit_cfl.tune.study import Study

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
    """

    study: Study
    space: Space
    job: Job
    default: Experiment
    rounds: int
    first_clustering_round: int


def prepare(study: Study, path: Path) -> Prepared:
    """Checks all of a study and starts nothing. Raises InputError."""
    study, (default, *corners) = check_study(study)
    objective = Objective.of(study.metric, check_on_clients(study, default, corners))
    study = replace(study, metric=objective.metric)
    evolves, space = is_population_based(study), study.searched()
    job = Job(
        study.name, study.whole_base, space, list(study.seeds or []), objective, path.absolute() / TRIALS,
        threads_of(study.resources), evolves, pauses(study), watches(study),
    )  # fmt: skip
    return Prepared(study, space, job, default, default.rounds, first_clustering_round(corners))
