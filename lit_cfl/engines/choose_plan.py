"""Chooses the plan, i.e. how clients train, from options, machine and workload.

The rule reads the task, the options, the amount of work and the kind of hardware, never a timing or free memory:

* device: the first GPU if there is one and the run is not small (`choose_device.py`), else the CPU;
* engine: the first of `chain`, `stack`, `loop` and `trainer` (`ways.py`) that has no reason against it on that device;
* workers: 0 (this process trains), or Ray's: with `engine: ray`, and on a CPU for long runs with long rounds
  (5,000 billion multiply-adds per run and 10 billion per round: about five minutes and one second on one core) if no
  part of the plan is set explicitly. There is one per core, or one per GPU, but at most one per client of a cohort;
* lanes: clients that train together on a GPU: one per client of a cohort, in multiples of 8; at most what fits
  a quarter of its memory (in whole GiB; 16 if only Ray's workers see a GPU), and at most 256, or up to 4,096 if they
  have at most 64 million parameters together. 1 on a CPU, where the stacks of `chain` follow from its caches;
* threads: 1 below a million parameters (a second thread does not speed up an MLP of 100,000), else all cores; Ray's
  workers have one each; never more than `OMP_NUM_THREADS`;
* rows_mib: 1024.

Any part can be set explicitly (`plan.threads: 2`); the rule fills the rest. A requested way is taken, or refused with
the reason against it.
"""

import os
from importlib.util import find_spec
from math import ceil

from lit_cfl.cores import count_cores
from lit_cfl.devices import gib_of_gpu
from lit_cfl.engines.choose_device import device_of_ray, resolve_device
from lit_cfl.engines.cohort_fit import TrainingWay
from lit_cfl.engines.plan import EngineOption, Plan, PlanOptions, Precision
from lit_cfl.engines.ways import WAYS, get_way, reason_against
from lit_cfl.engines.workload import RayRoom, Workload
from lit_cfl.errors import InputError

_SMALL_MODEL = 1_000_000  # number of parameters from which several threads pay off
# multiply-adds of a run, and of a round, from which worker processes pay off
_PROCESSES_PAY, _ROUND_PAYS = 5_000_000_000_000, 10_000_000_000
_MOST_LANES, _SMALL_NETS_LANES, _PARAMETERS_OF_LANES = 256, 4_096, 64_000_000
_SHARE_OF_GPU = 4  # stacks may take 1/4 of a GPU's memory


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
    asked, in_ray = options.device or device, given.get("workers", engine == "ray") > 0
    places = count_cores() if room.places is None else room.places
    if engine == "auto" and not given and _processes_pay(workload, resolve_device(asked, workload.multiply_adds)):
        in_ray, places = True, _cores()
    device = device_of_ray(asked, room.gpus) if in_ray else resolve_device(asked, workload.multiply_adds)
    way = _way(options.engine or engine, device, precision, workload)
    most = max(1, min(places, workload.cohort)) if device == "cpu" else max(1, room.gpus)
    workers = given.get("workers", most if in_ray else 0)
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
    for name, asked, fixed in (("engine", engine, options.engine), ("device", device, options.device)):
        if fixed is not None and asked not in ("auto", "ray", fixed):
            raise InputError(f"{name} is {asked!r}, but plan.{name} is {fixed!r}; leave out one of them")
    if engine == "ray" and options.workers == 0:
        raise InputError("engine is 'ray', but plan.workers is 0; leave out one of them")
    if options.precision not in (None, precision):
        raise InputError(
            f"precision is {precision!r}, but plan.precision is {options.precision!r}; leave out one of them, or make "
            "them equal"
        )


def _way(asked: str, device: str, precision: Precision, workload: Workload) -> type[TrainingWay]:
    task = workload.task
    if asked not in ("auto", "ray"):
        reason = task and reason_against(get_way(asked), task, device, precision, workload.local)
        if reason:
            raise InputError(f"engine is {asked!r}, which this run cannot use: {reason}; use --engine auto")
        return get_way(asked)
    if task is None:
        return WAYS[-1]
    reason = None
    for way in WAYS:
        if (reason := reason_against(way, task, device, precision, workload.local)) is None:
            return way
    raise InputError(f"this task cannot be trained: {reason}")


def _lanes(
    way: type[TrainingWay], device: str, precision: Precision, workload: Workload, workers: int, gpus: int
) -> int:
    if device == "cpu" or not way.is_collective or workload.task is None:
        return 1
    task, cohort = workload.task, ceil(workload.cohort / workers)
    each = way.client_bytes(task, precision, task.batch_size(workload.local))
    on_one = ceil(workers / gpus) if gpus else 1  # workers on one GPU
    fitting = gib_of_gpu(device) * 2**30 // _SHARE_OF_GPU // (each * on_one)
    small = min(_SMALL_NETS_LANES, _PARAMETERS_OF_LANES // task.layout.num_parameters)
    return max(1, min(8 * ceil(cohort / 8), max(_MOST_LANES, small), 8 * (fitting // 8) or fitting))


def _processes_pay(workload: Workload, device: str) -> bool:
    # other users may need the cores of a cluster
    several = min(_cores(), workload.cohort) > 1 and "RAY_ADDRESS" not in os.environ
    work = workload.multiply_adds
    long = work >= _PROCESSES_PAY and work / workload.rounds >= _ROUND_PAYS
    return device == "cpu" and several and long and find_spec("ray") is not None


def _threads(workload: Workload) -> int:
    task = workload.task
    return _cores() if task is not None and task.layout.num_parameters >= _SMALL_MODEL else 1


def _cores() -> int:
    """Counts the cores that a plan may use, limited by the first number in `OMP_NUM_THREADS`."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(count_cores(), int(first) or count_cores()) if first.isdecimal() else count_cores()
