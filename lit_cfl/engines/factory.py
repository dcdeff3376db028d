"""Builds the engine of a plan, with notices for the user."""

import warnings

from lightning import LightningModule

from lit_cfl.engines.base import Engine
from lit_cfl.engines.plan import REFERENCE, EngineOption, Plan, PlanOptions
from lit_cfl.engines.training_options import LocalTraining, TaskFactory
from lit_cfl.engines.ways import get_way, reason_against, trial_of
from lit_cfl.engines.workload import RayRoom, Workload
from lit_cfl.errors import Notice, count_noun


def build_engine(
    task: TaskFactory, plan: Plan, seed: int, local: LocalTraining, template: LightningModule | None = None
) -> Engine:
    """Builds the engine that a plan describes.

    Args:
        template: The task's module of this seed, if it was built already.
    """
    if plan.workers:
        from lit_cfl.engines.ray.engine import RayEngine  # the other engines work without Ray

        return RayEngine(task, plan, seed, local, template)
    return Engine(task, plan, seed, local, template)


def room_of_ray(engine: EngineOption, device: str, options: PlanOptions | None) -> RayRoom:
    """Counts the resources of Ray's workers, if the options request Ray.

    Adds a notice if a cluster is running and `device` is `auto`.
    """
    options = options or PlanOptions()
    asked = options.device or device
    if not (engine == "ray" or options.workers) or (asked == "cpu" and options.workers):
        return RayRoom()
    from lit_cfl.engines.ray import cluster  # the other engines work without Ray

    room = cluster.count_room(options.threads or 1)
    if asked == "auto" and cluster.is_there():
        what = (
            f"has {count_noun(room.gpus, 'GPU')}: clients train on them"
            if room.gpus
            else "has no GPU: clients train on CPUs"
        )
        warnings.warn(f"Ray's cluster {what}; set --device to change that", Notice, stacklevel=2)
    return room


def warn_of_slowness(asked: str, plan: Plan, workload: Workload) -> None:
    """Warns if clients are trained by the slower `trainer`, with the reason."""
    task = workload.task
    if task is None or trial_of(task, workload.local).fails:  # the checks before training report it
        return
    if asked != REFERENCE and plan.engine == REFERENCE:
        reasons = reason_against(get_way("loop"), task, plan.device, plan.precision, workload.local)
        warnings.warn(
            f"clients are trained by lightning.Trainer, which is slower, for this reason: {reasons}",
            Notice,
            stacklevel=2,
        )
