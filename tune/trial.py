"""One trial: a whole run in a directory of its own, which tells Ray Tune of each round."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from time import sleep
from typing import Any

from ray import tune as ray_tune

from lit_cfl.config.own_code import no_code_from
from lit_cfl.config.variants import build
from lit_cfl.errors import SaveError
from lit_cfl.experiment import Experiment
from lit_cfl.runs.run import FinishedRun, RunCallbacks, run
from lit_cfl.storage.lock import wait_until_free
from lit_cfl.tune.job import Job
from lit_cfl.tune.record import trial_id
from lit_cfl.tune.replay import clear, copied, kept_stages, with_stages
from lit_cfl.tune.reporting import Report
from lit_cfl.tune.time_limit import limited

_PATIENCE_SECONDS = 60


def run_trial(config: dict[str, Any], job: Job) -> None:
    """The trainable. An exception ends this trial alone: it is reported as the worst value there is."""
    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = str(_PATIENCE_SECONDS)  # for W&B to end when a trial is stopped
    path = job.folder / ray_tune.get_context().get_trial_id()
    report = Report(job, path)
    try:
        wait_until_free(path)  # the process that ran it before may still be about to end
        with limited(path, job.minutes), no_code_from(job.folder.parent):  # somebody else's study, perhaps
            experiment = _experiment(config, job, path)
            report.end(_run(experiment, path, report))
    except Exception as error:  # whatever a user's net or data raise: the other trials go on
        if _is_full_disk(error):
            sleep(_PATIENCE_SECONDS)  # the study ends meanwhile, and goes on with this trial when it is resumed
        report.failed(error)


def _experiment(config: Mapping[str, Any], job: Job, path: Path) -> Experiment:
    if path.name == trial_id(0):
        return job.of_trial(build(job.base), path.name)
    values = job.space.values_of(config)
    return _evolving(job, path, values) if job.evolves else job.experiment(values, path.name)


def _is_full_disk(error: Exception) -> bool:
    return isinstance(error, SaveError) or (isinstance(error, OSError) and error.errno == errno.ENOSPC)


def _run(experiment: Experiment, path: Path, report: Report) -> FinishedRun:
    report.begin(experiment)
    callbacks = RunCallbacks(started=report.started, row=report.row, notice=lambda line: None)  # the study says it once
    return run(experiment, path, callbacks, mode="resume")


def _evolving(job: Job, path: Path, values: Mapping[str, Any]) -> Experiment:
    """Goes on from what Ray hands over, which may be another trial's, with values that may have changed."""
    checkpoint, stages = ray_tune.get_checkpoint(), kept_stages(path)
    if checkpoint is not None:
        with checkpoint.as_directory() as source:
            stages = copied(Path(source), path, values)
    elif stages is None:
        clear(path)
        stages = [(1, dict(values))]
    experiments = [(first, job.experiment(own, path.name)) for first, own in stages]
    return with_stages(path, stages, experiments)
