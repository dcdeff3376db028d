"""Runs many experiments: in parallel in Ray if there are enough cores, else one after the other."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lit_cfl.compare.jobs import CompareJob, one_by_one, processes
from lit_cfl.engines.choose_device import resolve_device
from lit_cfl.engines.plan import Plan, PlanOptions
from lit_cfl.experiment import Experiment
from lit_cfl.progress import Display, Screen
from lit_cfl.runs.signals import interruptible
from lit_cfl.storage.atomic_writes import name_write_errors
from lit_cfl.storage.config_file import write_config


def run_many(
    experiments: Mapping[Path, Experiment],
    num_cpus: int | None = None,
    ended: Callable[[Path], str] = lambda run: "",
) -> dict[Path, str]:
    """Runs experiments under each of their seeds, each run in a process, with one thread unless its plan has more.

    `<folder>/seed-<seed>/` is the directory of a run. What is there is resumed, and nothing is run twice. All runs take
    part, also after one that fails. It is for experiments of one kind: the first one's plan says whether each gets a
    core or a GPU.

    Args:
        experiments: Experiments by the folder of their runs, whose last part is the displayed name.
        num_cpus: Cores to use; None = all.
        ended: Called in this process with the directory of each run that has ended without an error. What it returns
            is shown.

    Returns:
        Why runs failed, by their directories.

    Raises:
        Interrupted: SIGINT or SIGTERM arrived; the runs have saved themselves.
    """
    planned = {folder.resolve(): _planned(experiment) for folder, experiment in experiments.items()}
    for folder, experiment in planned.items():
        with name_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_config(folder, experiment.described())
    jobs = [
        CompareJob(folder.parent, folder.name, seed)
        for folder, experiment in planned.items()
        for seed in experiment.seeds
    ]
    rounds = {folder.name: experiment.rounds for folder, experiment in planned.items()}
    if not jobs:
        return {}
    plan = _found(next(iter(planned.values())))
    with interruptible() as check, Screen().display(len(jobs)) as display:
        failed = run_jobs(jobs, rounds, plan, num_cpus, display, check, lambda job: ended(job.folder))
    return {job.folder: error for job, error in failed.items()}


def _planned(experiment: Experiment) -> Experiment:
    """Sets one thread in an experiment's plan unless it sets another number."""
    plan = experiment.plan or PlanOptions()
    return experiment.changed(plan={"threads": plan.threads or 1})


def _found(experiment: Experiment) -> Plan:
    """Returns the plan options that determine the number of parallel runs."""
    options = experiment.plan or PlanOptions()
    given = {name: value for name, value in vars(options).items() if value is not None}
    return Plan(**{"device": resolve_device(experiment.device)} | given)


def run_jobs(
    jobs: Sequence[CompareJob],
    rounds: Mapping[str, int],
    plan: Plan,
    num_cpus: int | None,
    display: Display,
    check: Callable[[], None],
    outcome: Callable[[CompareJob], str],
) -> dict[CompareJob, str]:
    """Runs all jobs, continuing after failures.

    Args:
        jobs: Jobs to run.
        rounds: Rounds of the jobs by name.
        plan: Plan of every run.
        num_cpus: Cores to use; None = all.
        display: Shows their progress.
        check: Called between jobs and while they run; may raise to end them all.
        outcome: Called with each job that has ended without an error; what it returns is shown.

    Returns:
        The error of each job that failed.
    """
    if not jobs:
        return {}
    at_once = processes(plan, num_cpus, len(jobs))
    if at_once > 1:
        from lit_cfl.compare.side_by_side import side_by_side  # imports Ray

        ends = side_by_side(jobs, rounds, display, check, plan, at_once)
    else:
        ends = one_by_one(jobs, rounds, display, check)
    failed = {}
    for job, error in ends:
        if error is None:
            display.ended(str(job), outcome(job))
        else:
            display.ended(str(job), f"failed: {error}", failed=True)
            failed[job] = error
    return failed
