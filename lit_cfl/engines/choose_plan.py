"""Chooses the plan, i.e. how clients train, from options, task, cohort and machine, and builds its engine.

The rule reads the kind of hardware, never a timing or free memory:

* device: the first GPU if there is one, else the CPU; Ray's workers use a GPU if their cluster has any;
* engine: the first of `chain`, `stack`, `loop` and `trainer` (`ways.py`) that has no reason against it on that device;
* workers: 0 (this process trains); with `engine: ray` one per core, at most one per client of a cohort, or one per GPU;
* lanes: clients that train together on a GPU: one per client of a cohort, in multiples of 8; at most what fits
  a quarter of its memory (in whole GiB; 16 if only Ray's workers see a GPU), and at most 256, or up to 4,096 if they
  have at most 64 million parameters together. 1 on a CPU;
* threads: 1 below a million parameters (a second thread does not speed up an MLP of 100,000), else all cores, but never
  more than `OMP_NUM_THREADS`; Ray's workers have one each;
* rows_mib: 1024.

Any part can be set explicitly (`plan.threads: 2`); the rule fills the rest. A requested way is taken, or refused with
the reason against it.
"""

import os
import warnings
from dataclasses import dataclass
from math import ceil

from lightning import LightningModule

from lit_cfl.data import FederatedData
from lit_cfl.devices import count_cores, count_gpus, gib_of_gpu
from lit_cfl.engines.agreement import Trial
from lit_cfl.engines.check_module import require_module
from lit_cfl.engines.cohort import TrainingWay
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import REFERENCE, EngineOption, Plan, PlanOptions, Precision, RayRoom
from lit_cfl.engines.steps import REMEDY, load_library
from lit_cfl.engines.task_protocol import TaskFactory, build_module
from lit_cfl.engines.ways import WAYS, get_way
from lit_cfl.errors import InputError, Notice, count_noun

_LONG = 2_000  # number of fits from which a run lasts: in PyTorch, half a minute for the smallest nets
_SMALL_MODEL = 1_000_000  # number of parameters from which several threads pay off
_MOST_LANES, _SMALL_NETS_LANES, _PARAMETERS_OF_LANES = 256, 4_096, 64_000_000
_SHARE_OF_GPU = 4  # stacks may take 1/4 of a GPU's memory


@dataclass(frozen=True)
class Workload:
    """Properties of a run that determine its plan, besides options and hardware.

    Args:
        trial: Task that clients train; None = unknown, so the plan must name the engine.
        cohort: Number of clients per round.
    """

    trial: Trial | None = None
    cohort: int = 1

    @classmethod
    def of(cls, task: TaskFactory, seed: int, local: LocalTraining, data: FederatedData, cohort: int) -> "Workload":
        """Builds the task's module once, and measures it on the run's data."""
        module = build_module(task, seed)
        require_module(module)
        return cls(Trial.of(module, data, local), min(cohort, len(data.population)))


def choose_plan(
    engine: EngineOption,
    device: str,
    precision: Precision,
    workload: Workload,
    options: PlanOptions | None = None,
    room: RayRoom = RayRoom(),
) -> Plan:
    """Chooses the plan for these options on this machine.

    Args:
        options: Parts of the plan that are set explicitly.
        room: Resources of Ray's workers.

    Raises:
        InputError: a device that does not exist, a way that cannot train this task, or an option that contradicts a
            part set explicitly.
    """
    options = options or PlanOptions()
    device = "cuda:0" if device == "cuda" else device
    _require_no_contradiction(engine, device, precision, options)
    given = {name: value for name, value in vars(options).items() if value is not None}
    in_ray = given.get("workers", engine == "ray") > 0
    device = resolve_device(options.device or device, room.gpus if in_ray else None)
    way = _way(options.engine or engine, device, precision, workload)
    most = min(room.places, workload.cohort) if device == "cpu" else room.gpus
    workers = given.get("workers", max(1, most) if in_ray else 0)
    by_rule = {
        "engine": way.name,
        "device": device,
        "precision": precision,
        "threads": 1 if in_ray else _threads(workload),
        "lanes": _lanes(way, device, precision, workload, max(1, workers), room.gpus),
        "workers": workers,
    }
    return Plan(**by_rule | given)


def _require_no_contradiction(engine: EngineOption, device: str, precision: str, options: PlanOptions) -> None:
    for name, asked in (("engine", engine), ("device", device), ("precision", precision)):
        fixed = getattr(options, name)
        if fixed is not None and asked not in ("auto", "ray", fixed):
            raise InputError(
                f"{name} is {asked!r}, but plan.{name} is {fixed!r}; leave out plan.{name}, or make them equal"
            )
    if engine == "ray" and options.workers == 0:
        raise InputError("engine is 'ray', but plan.workers is 0; leave out one of them")


def resolve_device(asked: str, gpus_of_ray: int | None = None) -> str:
    """Returns the device on which clients train: `cpu` or `cuda:<i>`.

    Args:
        asked: `auto`, `cpu`, `cuda` or `cuda:<i>`.
        gpus_of_ray: Number of GPUs of Ray's workers, each of which sees only its own; None = this process trains.

    Raises:
        InputError: the device does not exist.
    """
    where, found = ("this machine", count_gpus()) if gpus_of_ray is None else ("Ray", gpus_of_ray)
    if asked == "auto":
        return "cuda:0" if found else "cpu"
    asked = "cuda:0" if asked == "cuda" else asked
    kind, _, number = asked.partition(":")
    if asked != "cpu" and (kind != "cuda" or not number.isdigit()):
        raise InputError(f"device {asked!r} is not known; choose auto, cpu, cuda or cuda:<number>")
    if gpus_of_ray is not None:
        require_first_gpu(asked, "each Ray worker")
    if kind == "cuda" and int(number) >= found:
        has = f"has {count_noun(found, 'CUDA device')}" if found else "has no CUDA device"
        raise InputError(f"device {asked!r} was asked for, but {where} {has}; use --device cpu or auto")
    return asked


def require_first_gpu(asked: str, what: str) -> None:
    """Raises InputError for a GPU with an index above 0: Ray gives each process one GPU, which has index 0 there.

    Args:
        asked: Requested device.
        what: Name of the program that runs in such a process, for the message.
    """
    kind, _, number = asked.partition(":")
    if kind == "cuda" and number not in ("", "0"):
        raise InputError(
            f"device is {asked!r}, but {what} sees one GPU, which is cuda:0 there: give cuda, and choose GPU {number} "
            f"by CUDA_VISIBLE_DEVICES={number}"
        )


def _way(asked: str, device: str, precision: Precision, workload: Workload) -> type[TrainingWay]:
    trial, by_rule = workload.trial, asked in ("auto", "ray")
    if trial is None:
        return get_way(REFERENCE if by_rule else asked)
    for way in WAYS if by_rule else [get_way(asked)]:
        if (reason := trial.reason_against(way, device, precision)) is None:
            return way
    if by_rule:
        raise InputError(f"this task cannot be trained: {reason}")
    raise InputError(f"engine is {asked!r}, which this run cannot use: {reason}; use --engine auto")


def _lanes(
    way: type[TrainingWay], device: str, precision: Precision, workload: Workload, workers: int, gpus: int
) -> int:
    if device == "cpu" or not way.is_collective or workload.trial is None:
        return 1
    trial, cohort = workload.trial, ceil(workload.cohort / workers)
    each = way.client_bytes(trial, precision, trial.batch_size)
    on_one = ceil(workers / gpus) if gpus else 1  # workers on one GPU
    fitting = gib_of_gpu(device) * 2**30 // _SHARE_OF_GPU // (each * on_one)
    small = min(_SMALL_NETS_LANES, _PARAMETERS_OF_LANES // trial.layout.num_parameters)
    return max(1, min(8 * ceil(cohort / 8), max(_MOST_LANES, small), 8 * (fitting // 8) or fitting))


def _threads(workload: Workload) -> int:
    if workload.trial is None or workload.trial.layout.num_parameters < _SMALL_MODEL:
        return 1
    cores, limit = count_cores(), os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(cores, int(limit) or cores) if limit.isdecimal() else cores


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
        has = f"{count_noun(room.gpus, 'GPU')}: clients train on them" if room.gpus else "no GPU: clients train on CPUs"
        warnings.warn(f"Ray's cluster has {has}; set --device to change that", Notice, stacklevel=2)
    return room


def warn_of_slowness(asked: str, plan: Plan, workload: Workload, fits: int) -> None:
    """Warns if clients are trained by the slower `trainer`, or a long run has no compiled steps, with the reason.

    Args:
        fits: Number of times that a client is trained in the run.
    """
    trial = workload.trial
    if trial is None or trial.fails:  # the checks before training report it
        return
    notice = None
    if asked != REFERENCE and plan.engine == REFERENCE:
        reason = trial.reason_against(get_way("loop"), plan.device, plan.precision)
        notice = f"clients are trained by lightning.Trainer, which is slower, for this reason: {reason}"
    elif (asked, plan.engine) == ("auto", "loop") and fits >= _LONG and load_library()[0] is None:
        reason = get_way("chain").reason_against(trial, plan.device, plan.precision) or ""
        if reason.endswith(load_library()[1]):  # it is a chain, for which only the compiled steps are missing
            notice = f"the way chain would train this net several times as fast, but {reason}; {REMEDY}"
    if notice:
        warnings.warn(notice, Notice, stacklevel=2)


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
