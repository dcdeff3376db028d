"""Chooses a plan by rule.

It looks at the model, the options, the amount of work and the kind of hardware, never at a timing or at the memory
that is free:

* engine: `stacked`; `trainer` (one `lightning.Trainer.fit` a client) where the module needs it; `ray` when asked for,
  and on a CPU for long runs whose rounds are long, too (from 5,000 billion multiply-adds and 10 billion a round on:
  about five minutes, and a second a round, of one core) where no part of the plan is set by hand: processes of one
  thread are faster than one process of several threads, and keep their speed beside other programs; shorter rounds do
  not pay the hand-over;
* device: the first GPU where there is one, else the CPU; for `ray` a GPU a worker where the cluster has any;
* fused: on a CPU with a C++ compiler, for linear models and MLPs below a million parameters (larger ones leave the
  cache) that train by plain SGD in mini-batches, from 50,000 client-steps in a run on: less does not pay for building
  the functions, of which one scores; not where `compile`, `lanes`, `narrow` or `steps_per_call` is set by hand;
* dual: on a CPU with a C++ compiler, for MLPs that are not fused and train by plain SGD, where it takes less than a
  plain loop for a client of the mean number of examples, from 1,000 billion multiply-adds on (half a minute of one
  core); not where `compile`, `lanes`, `narrow` or `steps_per_call` is set by hand;
* compile: where neither holds, on a CPU with a C++ compiler, from 50,000 client-steps in a run on; no recurrent nets,
  whose graphs take a minute and a half each and make LSTMs no faster, and no nets below a million parameters whose
  convolutions are all small (`convolutions.py`), such as LeNet: in float32 a plain loop trains them faster, where
  neither `lanes` nor `compile` says otherwise; on a GPU only by hand, since no figure says yet what it is worth:
  Inductor then compiles the steps before they are captured;
* products: `own` for the nets of small convolutions, and on a processor that is not Intel's, or unknown as on the nodes
  of `RAY_ADDRESS`, where it compiles, or is fused or dual, or where a plain loop on a CPU has 10 billion parameters
  times steps to do and there is a compiler; else `torch` (on an AMD processor MKL takes two to ten times as long as
  `own`, on Intel's half to three quarters of its time);
* lanes: 4 on a CPU that compiles (more fall out of its cache), 1 without (a plain loop: an eager stack is slower); on a
  GPU as many as a cohort has clients, rounded up to a multiple of 8, but no more than 256, and than fit a quarter of
  the memory of the GPU (in whole GiB; 16 where workers of `ray` have GPUs and this machine has none) by the estimate of
  `lane_memory.py`; where memory runs out all the same, they are halved;
* steps_per_call: 5 where it compiles a model below a million parameters, else 1;
* narrow: the width of a compiled stack when few lanes are busy: 1, but 2 for nets with convolutions, whose results in a
  stack of one differ from those in wider ones (so do all nets' under two threads, and where nothing is compiled); a
  27th of the lanes on a GPU, where a run captures at most four graphs, and four with a proximal term: of all lanes, a
  third, a ninth and a 27th of them; clients whose steps differ much train in the width that costs least, where a call
  costs as much as its lanes and about eight million parameters more (the small models train in the widest one);
* threads: 1 below a million parameters (a second thread makes an MLP of 100,000 no faster), all cores from there on;
  `ray`'s workers have one each; never more than `OMP_NUM_THREADS`;
* workers: of `ray`, one a core of its cluster, but no more than clients of a cohort, or one a GPU; where the rule chose
  `ray`, one a core of this machine, and no more than `OMP_NUM_THREADS`;
* rows_mib: 1024.

Any part can be set by hand (`plan.threads: 2`); the rule fills the rest.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil

import torch

from lit_cfl.cores import count_cores
from lit_cfl.engines.compiler import compiler
from lit_cfl.engines.kernel_cache import processor
from lit_cfl.engines.plan import EngineName, EngineOption, Plan, PlanOptions, Precision
from lit_cfl.errors import InputError

_SMALL_MODEL = 1_000_000  # parameters
_BUILDING_PAYS = 50_000  # client-steps
_PRODUCTS_PAY = 10_000_000_000  # parameters times client-steps, some ten times what building the products takes
_DUAL_PAYS = 1_000_000_000_000  # multiply-adds: the products are built in less than a tenth of their time
_PROCESSES_PAY = 5_000_000_000_000  # multiply-adds: about five minutes of one core; Ray starts in a quarter of one
_ROUND_PAYS = 10_000_000_000  # multiply-adds: about a second of one core; to hand over a round takes a tenth of one
_MOST_LANES, _SHARE_OF_GPU = 256, 4  # of a GPU's stack; one part in so many of the memory
_GIB, _UNKNOWN_GPU = 2**30, 16  # GiB of a GPU that this machine does not see
_STACKS = {"compile", "lanes", "narrow", "steps_per_call"}  # parts of a plan that say how clients are stacked
_COPIES = 8  # of a model that a lane takes where nobody has estimated it: SGD without activations


@dataclass(frozen=True)
class Workload:
    """What the rule depends on beside options and hardware.

    Args:
        num_parameters: of the model.
        has_convolutions: whether it has any.
        is_recurrent: whether it has recurrent layers.
        client_steps: expected mini-batches in a run.
        multiply_adds: of the losses of one mini-batch, in products and convolutions.
        rounds: of the run.
        obstacles: why the module cannot be stacked; empty if it can.
        cohort: clients of a round.
        lane_bytes: memory of a lane of a GPU's stack, see `lane_memory.py`; None = not estimated.
        perceptron: whether clients train what `PerceptronLoop` computes, in mini-batches.
        has_dual: whether clients train what `DualLoop` computes, faster than the plain loop in a mean client.
        small_convolutions: whether it has convolutions, and all of them are small ones of `convolutions.py`.
    """

    num_parameters: int = 0
    has_convolutions: bool = False
    is_recurrent: bool = False
    client_steps: int = 0
    multiply_adds: float = 0
    rounds: int = 1
    obstacles: Sequence[str] = ()
    cohort: int = 64
    lane_bytes: int | None = None
    perceptron: bool = False
    has_dual: bool = False
    small_convolutions: bool = False


@dataclass(frozen=True)
class RayRoom:
    """What the workers of the engine `ray` find, on whatever machines; see `factory.room_of_ray`.

    Args:
        places: workers for whose threads their machines have cores; None = as many as this one has cores.
        gpus: of their machines.
    """

    places: int | None = None
    gpus: int = 0


def choose_plan(
    engine: EngineOption,
    device: str,
    precision: Precision,
    workload: Workload,
    by_hand: PlanOptions | None = None,
    room: RayRoom = RayRoom(),
) -> Plan:
    """Chooses the plan for these options on this machine.

    Args:
        room: for the workers of the engine `ray`.

    Raises:
        InputError: a device that is not there, or an option that contradicts a part set by hand.
    """
    by_hand = by_hand or PlanOptions()
    device = "cuda:0" if device == "cuda" else device
    _require_no_contradiction(engine, device, precision, by_hand)
    given = {name: value for name, value in vars(by_hand).items() if value is not None}
    chosen = _engine(by_hand.engine or engine, workload)
    places = count_cores() if room.places is None else room.places
    asked = by_hand.device or device
    by_rule_alone = engine == "auto" and chosen == "stacked" and not given
    if by_rule_alone and found_device(asked) == "cpu" and _processes_pay(workload):
        chosen, places = "ray", _cores()
    device = _device_of_ray(asked, room.gpus) if chosen == "ray" else found_device(asked)
    on_cpu = device == "cpu"
    builds = chosen != "trainer" and on_cpu and has_compiler()
    alone = not given.keys() & _STACKS and precision in ("32-true", "64-true", "tf32")
    fused = given.get("fused", builds and alone and not given.get("dual") and _fusing_pays(workload))
    dual = given.get("dual", builds and alone and not fused and _dual_pays(workload))
    pays = builds and _compiling_pays(workload)
    one_by_one = not given.get("compile") and given.get("lanes", 1) == 1 and given.get("products") != "torch"
    small = pays and one_by_one and precision in ("32-true", "tf32") and _small_convolutions(workload)
    compiles = given.get("compile", pays and not (fused or dual or small))
    workers = (max(1, min(places, workload.cohort)) if on_cpu else room.gpus) if chosen == "ray" else 1
    workers = given.get("workers", workers)
    on_one = ceil(workers / room.gpus) if room.gpus else 1  # workers on one GPU
    lanes = given.get("lanes", _lanes(chosen, device, compiles, workers, on_one, workload, precision))
    threads = given.get("threads", 1 if chosen == "ray" else _threads(workload))
    long = chosen != "trainer" and _products_pay(workload)
    own = small or (_mkl_is_slow() and (fused or dual or compiles or long))
    by_rule = {
        "device": device,
        "precision": precision,
        "threads": threads,
        "lanes": lanes,
        "narrow": _narrow(on_cpu, compiles, lanes, threads, workload),
        "steps_per_call": 5 if compiles and workload.num_parameters < _SMALL_MODEL else 1,
        "compile": compiles,
        "fused": fused,
        "dual": dual,
        "products": "own" if on_cpu and own else "torch",
        "workers": workers,
    }
    return Plan(**by_rule | given | {"engine": chosen})


def _require_no_contradiction(engine: EngineOption, device: str, precision: str, by_hand: PlanOptions) -> None:
    for name, asked, fixed in (("engine", engine, by_hand.engine), ("device", device, by_hand.device)):
        fell_back = (asked, fixed) == ("stacked", "trainer")
        if fixed is not None and asked not in ("auto", fixed) and not fell_back:
            raise InputError(f"{name} is {asked!r}, but plan.{name} says {fixed!r}; leave out one of them")
    if by_hand.precision not in (None, precision):
        raise InputError(f"precision is {precision!r}, but plan.precision says {by_hand.precision!r}; set both alike")


def found_device(asked: str) -> str:
    """Returns the device of one process: the first GPU for `cuda`, and for `auto` where there is one.

    Raises:
        InputError: a device that is not there.
    """
    found = count_gpus()
    if asked == "auto":
        return "cuda:0" if found else "cpu"
    asked = "cuda:0" if asked == "cuda" else asked
    number = _number_of(asked)
    if number is not None and number >= found:
        has = f"has {found} CUDA device(s)" if found else "has no CUDA device"
        raise InputError(f"device {asked!r} was asked for, but this machine {has}; use --device cpu or auto")
    return asked


def require_first_gpu(asked: str, what: str) -> None:
    """Refuses a GPU by its number where Ray gives a process one GPU, which is the first one there.

    Args:
        asked: the device.
        what: runs in such a process, for the message.

    Raises:
        InputError: it names another one than the first.
    """
    number = asked.partition(":")[2]
    if asked.startswith("cuda") and number not in ("", "0"):
        raise InputError(
            f"device is {asked!r}, but {what} sees one GPU, which is cuda:0 there: give cuda, and choose GPU {number} "
            f"by CUDA_VISIBLE_DEVICES={number}"
        )


def _device_of_ray(asked: str, found: int) -> str:
    """Returns the device of each worker: Ray shows it its own GPU alone."""
    if asked == "auto":
        return "cuda:0" if found else "cpu"
    if number := _number_of(asked):
        raise InputError(f"device is {asked!r}, but with engine ray there is no GPU {number}: use --device cuda")
    if asked != "cpu" and not found:
        raise InputError(f"device {asked!r} was asked for, but Ray has no GPU; use --device cpu or a cluster of GPUs")
    return asked


def _engine(asked: EngineOption, workload: Workload) -> EngineName:
    if asked == "ray":
        return "ray"
    return "trainer" if asked == "trainer" or workload.obstacles else "stacked"


def _compiling_pays(workload: Workload) -> bool:
    return workload.client_steps >= _BUILDING_PAYS and not workload.is_recurrent and not workload.obstacles


def _fusing_pays(workload: Workload) -> bool:
    return workload.perceptron and workload.client_steps >= _BUILDING_PAYS and workload.num_parameters < _SMALL_MODEL


def _dual_pays(workload: Workload) -> bool:
    return workload.has_dual and workload.client_steps * workload.multiply_adds >= _DUAL_PAYS


def _small_convolutions(workload: Workload) -> bool:
    return workload.small_convolutions and workload.num_parameters < _SMALL_MODEL  # larger ones have several threads


def _products_pay(workload: Workload) -> bool:
    return workload.client_steps * workload.num_parameters >= _PRODUCTS_PAY and has_compiler()


def _mkl_is_slow() -> bool:
    """Says whether MKL, PyTorch's library for products, may take a slow path here, or on a cluster's nodes."""
    model, _, _ = processor().partition("\n")
    return "RAY_ADDRESS" in os.environ or "intel" not in model.lower()


def _lanes(
    engine: EngineName,
    device: str,
    compiles: bool,
    workers: int,
    on_one: int,
    workload: Workload,
    precision: Precision,
) -> int:
    if engine == "trainer" or workload.obstacles:
        return 1
    if device == "cpu":
        return 4 if compiles else 1
    copies = _COPIES * (8 if precision == "64-true" else 4)
    bytes_each = workload.lane_bytes or copies * max(1, workload.num_parameters)
    return lanes_of_gpu(workload.cohort, bytes_each * on_one, gib_of_gpu(device), workers)


def _narrow(on_cpu: bool, compiles: bool, lanes: int, threads: int, workload: Workload) -> int:
    if compiles:
        return min(lanes, 2 if workload.has_convolutions or threads > 1 else 1)
    return lanes if on_cpu else ceil(lanes / 27)


def _processes_pay(workload: Workload) -> bool:
    work = workload.client_steps * workload.multiply_adds
    several = min(_cores(), workload.cohort) > 1 and "RAY_ADDRESS" not in os.environ  # a cluster's cores are others'
    long = work >= _PROCESSES_PAY and work / workload.rounds >= _ROUND_PAYS
    return several and long and find_spec("ray") is not None


def _threads(workload: Workload) -> int:
    return _cores() if workload.num_parameters >= _SMALL_MODEL else 1


def _cores() -> int:
    """Counts the cores that a plan may use."""
    return min(count_cores(), _allowed_threads() or count_cores())


def _allowed_threads() -> int:
    """Reads the bound that `OMP_NUM_THREADS` sets; of a list for nested regions the first. 0 = none."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def lanes_of_gpu(cohort: int, bytes_each: int, gib: int, workers: int = 1) -> int:
    """Computes the width of a GPU's stack.

    Args:
        cohort: clients of a round.
        bytes_each: memory of a lane.
        gib: memory of the GPU.
        workers: that share a cohort.
    """
    fitting = gib * _GIB // _SHARE_OF_GPU // bytes_each
    fitting = 8 * (fitting // 8) or fitting
    return max(1, min(8 * ceil(cohort / (8 * workers)), _MOST_LANES, fitting))


def gib_of_gpu(device: str) -> int:
    """Returns the memory of a GPU, used or not, in whole GiB: what is left of it differs between drivers.

    A trial of a search that has a share of a GPU has that share of the memory.
    """
    if not count_gpus():
        return _UNKNOWN_GPU
    share = torch.cuda.get_per_process_memory_fraction(device) if torch.cuda.is_initialized() else 1.0
    return max(1, round(share * torch.cuda.get_device_properties(device).total_memory / _GIB))


def lacks_compiler(plan: Plan, workload: Workload) -> bool:
    """Says whether the stack would have been compiled, had there been a compiler."""
    return (
        _compiling_pays(workload)
        and plan.engine != "trainer"
        and plan.device == "cpu"
        and not plan.compile
        and not has_compiler()
    )


def has_compiler() -> bool:
    """Says whether there is a C++ compiler."""
    return compiler() is not None


def _number_of(device: str) -> int | None:
    """Returns the number of a GPU, None for the CPU."""
    kind, _, number = device.partition(":")
    if device == "cpu":
        return None
    if kind != "cuda" or not number.isdigit():
        raise InputError(f"device {device!r} is not known; choose auto, cpu, cuda or cuda:<number>")
    return int(number)


def count_gpus() -> int:
    """Counts the GPUs of this machine."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
