"""A study that was checked: all that is wrong with it is said before anything starts."""

from dataclasses import dataclass, replace
from pathlib import Path

from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from tune.candidate import build
from tune.check import check_space, first_clustering_round
from tune.cluster import threads_of
from tune.domains import is_population_based, pauses, scheduler, searcher
from tune.job import Job
from tune.spaces import Space
from tune.study import Study

TRIALS = "trials"  # folder of a study directory


@dataclass(frozen=True)
class Prepared:
    """A study that was checked.

    Args:
        study: as given.
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
    space, objective = study.searched(), study.objective
    if not isinstance(study.base, dict):
        raise InputError("the base has to be read first; see tune.candidate.base_config")
    trials = study.limits.trials
    if space.grid and trials is not None and trials < space.size:
        raise InputError(f"limits.trials is {trials}, but the grid has {space.size} points; leave it out")
    seeds = study.seeds or build(study.base).seeds
    with_seeds = replace(study, seeds=seeds)
    default, *corners = check_space(study.base, space, seeds)
    threads, folder = threads_of(study.resources), path.absolute() / TRIALS
    evolves = is_population_based(study)
    job = Job(study.name, study.base, space, seeds, objective, folder, threads, evolves, pauses(study))
    prepared = Prepared(with_seeds, space, job, default, default.rounds, first_clustering_round(corners))
    searcher(with_seeds, space)
    scheduler(with_seeds, space, default.rounds, prepared.first_clustering_round)
    return prepared
