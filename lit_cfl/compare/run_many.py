"""Runs many experiments: in parallel in Ray if there are enough cores, else one after the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from os.path import commonpath
from pathlib import Path
from types import MappingProxyType

from lit_cfl.compare.jobs import Job, run_job, write_experiment
from lit_cfl.engines.choose_plan import resolve_device
from lit_cfl.engines.plan import Plan, PlanOptions
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.progress.live import Display
from lit_cfl.progress.screen import Screen
from lit_cfl.runs.run import RunCallbacks, require_comparable_runs
from lit_cfl.runs.signals import interruptible


def run_many(
    experiments: Mapping[Path, Experiment] | Mapping[str, Experiment],
    num_cpus: int | None = None,
    ended: Callable[[Path], str] = lambda run: "",
) -> dict[Path, str]:
    """Runs experiments under each of their seeds, with one thread per run unless the plan sets another number.

    `<folder>/seed-<seed>/` is the directory of a run. Existing runs are resumed, and nothing is run twice. A failed run
    does not end the others. The experiments must be of one kind: the first one's plan says whether each run gets a core
    or a GPU.

    Args:
        experiments: Experiments by the folder of their runs, which are displayed by their paths below the folder that
            holds all of them.
        num_cpus: Cores to use; None = all.
        ended: Called in this process with the directory of each run that has ended without an error. Its return value
            is shown.

    Returns:
        The reasons why runs failed, by their directories.

    Raises:
        InputError: this is not a mapping to experiments, an experiment was made in Python, or it has finished runs and
            its data have changed since.
        Interrupted: SIGINT or SIGTERM arrived; the runs have saved themselves.
    """
    if not isinstance(experiments, Mapping) or not all(isinstance(one, Experiment) for one in experiments.values()):
        raise InputError(
            f"experiments is {experiments!r:.60}; give a mapping of folders to experiments, such as "
            "{'runs/a': load_experiment('quickstart')}"
        )
    planned = {Path(folder).resolve(): with_threads(experiment) for folder, experiment in experiments.items()}
    for folder, experiment in planned.items():
        require_comparable_runs({folder / f"seed-{seed}": experiment.for_seed(seed) for seed in experiment.seeds})
        write_experiment(folder, experiment)
    if not planned:
        return {}
    root = Path(commonpath(folder.parent for folder in planned))
    jobs = [
        Job(root, folder.relative_to(root).as_posix(), seed, experiment.rounds)
        for folder, experiment in planned.items()
        for seed in experiment.seeds
    ]
    plan = plan_of(next(iter(planned.values())))
    with interruptible() as check, Screen().display(len(jobs)) as display:
        failed = run_jobs(jobs, plan, num_cpus, display, check, lambda job: ended(job.folder))
    return {job.folder: error for job, error in failed.items()}


def with_threads(experiment: Experiment) -> Experiment:
    """Sets one thread in an experiment's plan unless the plan sets another number."""
    plan = experiment.plan or PlanOptions()
    return experiment.with_options(plan={"threads": plan.threads or 1})


def plan_of(experiment: Experiment) -> Plan:
    """Returns a plan with the experiment's device and plan options, which limit the number of parallel runs."""
    options = experiment.plan or PlanOptions()
    given = {name: value for name, value in vars(options).items() if value is not None}
    return Plan(**{"device": resolve_device(experiment.device)} | given)


def processes(plan: Plan, num_cpus: int | None, jobs: int) -> int:
    """Returns how many runs can train at the same time on the cores or GPUs."""
    if plan.workers or num_cpus == 1 or jobs < 2:
        return 1
    from lit_cfl.engines.ray import cluster  # imports Ray

    room = cluster.count_room(plan.threads)
    cores = room.places if num_cpus is None else num_cpus // plan.threads
    return max(1, min((cores if plan.device == "cpu" else room.gpus) or 1, jobs))


def run_jobs(
    jobs: Sequence[Job],
    plan: Plan,
    num_cpus: int | None,
    display: Display,
    check: Callable[[], None],
    outcome: Callable[[Job], str],
    experiments: Mapping[str, Experiment] = MappingProxyType({}),
) -> dict[Job, str]:
    """Runs all jobs, continuing after failures.

    Args:
        jobs: Jobs to run.
        plan: Plan of every run.
        num_cpus: Cores to use; None = all.
        display: Shows the progress of the jobs.
        check: Called between jobs and while they run; may raise an error to end all jobs.
        outcome: Called with each job that has ended without an error; its return value is shown.
        experiments: Experiments of runs in this process, by the jobs' names; others are read from their files.

    Returns:
        The error of each job that failed.
    """
    if not jobs:
        return {}
    at_once = processes(plan, num_cpus, len(jobs))
    if at_once > 1:
        from lit_cfl.compare.side_by_side import side_by_side  # imports Ray

        ends = side_by_side(jobs, display, check, plan, at_once)
    else:
        ends = _one_by_one(jobs, display, check, experiments)
    failed = {}
    for job, error in ends:
        if error is None:
            display.ended(str(job), outcome(job))
        else:
            display.ended(str(job), f"failed: {error}", failed=True)
            failed[job] = error
    return failed


def _one_by_one(
    jobs: Sequence[Job], display: Display, check: Callable[[], None], experiments: Mapping[str, Experiment]
) -> Iterator[tuple[Job, str | None]]:
    """Runs the jobs in this process. Yields each job, and the reason if it failed."""
    for job in jobs:
        check()
        display.started(str(job), 0, job.rounds)
        callbacks = RunCallbacks(
            between_clients=check, row=partial(display.row, str(job)), activity=partial(display.activity, str(job))
        )
        yield job, run_job(job, callbacks, experiments.get(job.name))
