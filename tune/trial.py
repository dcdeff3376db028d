"""One trial: a whole run in a directory of its own, which tells Ray Tune of each round."""

import errno
import fcntl
import shutil
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from ray import tune as ray_tune

from lit_cfl.errors import SaveError
from lit_cfl.experiment import Experiment
from lit_cfl.run import Finished, Watch, run
from tune.job import Job
from tune.replay import Stages, copied, with_stages
from tune.reporting import Report

_WAIT_SECONDS, _POLL_SECONDS = 60.0, 0.2


def run_trial(config: dict[str, Any], job: Job) -> None:
    """The trainable. An exception ends this trial alone: it is reported as the worst value there is."""
    path = job.folder / ray_tune.get_context().get_trial_id()
    report = Report(job, path)
    try:
        values = job.values(config)
        experiment = _evolving(job, path, values) if job.evolves else job.experiment(values, path.name)
        report.end(_run(experiment, path, report))
    except Exception as error:  # whatever a user's net or data raise: the other trials go on
        if _is_full_disk(error):
            sleep(_WAIT_SECONDS)  # the study ends meanwhile, and goes on with this trial when it is resumed
        report.failed(error)


def _is_full_disk(error: Exception) -> bool:
    return isinstance(error, SaveError) or (isinstance(error, OSError) and error.errno == errno.ENOSPC)


def _run(experiment: Experiment, path: Path, report: Report) -> Finished:
    report.begin(experiment)
    _wait_until_free(path)
    return run(experiment, path, Watch(started=report.started, row=report.row), going="resume")


def _wait_until_free(path: Path) -> None:
    """The process that ran this trial before may still be about to end."""
    deadline = monotonic() + _WAIT_SECONDS
    while monotonic() < deadline and (path / ".lock").exists():
        with (path / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sleep(_POLL_SECONDS)
            else:
                return


def _evolving(job: Job, path: Path, values: Mapping[str, Any]) -> Experiment:
    """Goes on from what Ray hands over, which may be another trial's, with values that may have changed."""
    checkpoint = ray_tune.get_checkpoint()
    stages: Stages = [(0, dict(values))]
    if path.exists():
        shutil.rmtree(path)
    if checkpoint is not None:
        with checkpoint.as_directory() as source:
            stages = copied(Path(source), path, values)
    experiments = [(first, job.experiment(own, path.name)) for first, own in stages]
    return with_stages(path, stages, experiments)
