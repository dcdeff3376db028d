"""Runs in Ray, a process each."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import ray

from lit_cfl.compare.jobs import Job, Row, View, run_job
from lit_cfl.errors import InputError
from lit_cfl.local import ray_cluster
from lit_cfl.local.plan import Plan
from lit_cfl.tables import read_table

_POLL_SECONDS = 0.5
_WORKER_DEATHS = 2  # of one run, that are survived


def side_by_side(
    jobs: Sequence[Job], plan: Plan, at_once: int, view: View, check: Callable[[], None]
) -> Iterator[tuple[Job, str | None]]:
    """Each run, and why it failed, in the order in which they end. Ray is started here, and ended, unless it runs."""
    share = _connected(jobs[0].path, Plan("ray", device=plan.device, threads=plan.threads, workers=at_once))
    try:
        remote = ray.remote(num_cpus=share["CPU"], num_gpus=share.get("GPU", 0), max_retries=_WORKER_DEATHS)
        task, waiting = remote(run_job), list(jobs)
        running: dict[ray.ObjectRef[str | None], Job] = {}
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                view.began(job)
                running[task.remote(job)] = job
            over, _ = ray.wait(list(running), timeout=_POLL_SECONDS)
            check()
            for job in running.values():
                _show(job, view)
            for reference in over:
                yield running.pop(reference), _error(reference)
    finally:
        ray_cluster.disconnect()


def _connected(path: Path, plan: Plan) -> ray_cluster.Resources:
    try:
        return ray_cluster.connect(plan)
    except InputError as error:
        again = f"lit-cfl compare --resume {path} --num_cpus 1"
        raise InputError(f"{error}. One run after the other needs no Ray: {again}") from error


def _error(reference: "ray.ObjectRef[str | None]") -> str | None:
    try:
        error: str | None = ray.get(reference)
    except ray.exceptions.RayError as failure:
        return f"its process died ({type(failure).__name__}); where memory is short, give a smaller --num_cpus"
    return error


def _show(job: Job, view: View) -> None:
    row = last_row(job.folder / "metrics.csv")
    if row is not None:
        view.row(job, row)


def last_row(path: Path) -> Row | None:
    """Of a table that another process writes."""
    try:
        rows = read_table(path)
    except (OSError, ValueError, TypeError):  # half a row is there
        return None
    return rows[-1] if rows else None
