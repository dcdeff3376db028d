"""Lists the runs of the check: each has a group, a name, and a function that makes its experiment."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import data_cases
import torch
import yaml
from inside import shrink
from torch import nn

from experiments.published import (
    PublishedFedGroup,
    PublishedFeSEM,
    PublishedFlexCFL,
    PublishedIFCA,
    PublishedPACFL,
    PublishedStoCFL,
)
from lit_cfl import Experiment, load_experiment
from lit_cfl import algorithms as methods
from lit_cfl.algorithms import (
    CFL,
    FLHC,
    FLUX,
    IFCA,
    PACFL,
    AdaCFL,
    Algorithm,
    Ditto,
    FedAvg,
    FedDrift,
    FedEM,
    FedGroup,
    FedGrouProx,
    FedProx,
    FeSEM,
    FlexCFL,
    LayerCFL,
    Local,
    Oracle,
    StoCFL,
)
from lit_cfl.data import ClientIndex, FederatedData
from lit_cfl.data.shift import Shift, ShiftContext, ShiftLog
from lit_cfl.datamodules import Digits, Dirichlet, Incremental, LabelDrift, LabelGroups, Rotations, SwapAll, SwapPart
from lit_cfl.experiment import EvaluationPlan, LocalTraining, Pictures, StopRule
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR, MLP
from lit_cfl.tasks import Classification

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 3
Make = Callable[[], Experiment]


@dataclass(frozen=True)
class Case:
    """A run of the check.

    Args:
        group: File of its records.
        name: Key of its record.
        make: Makes its experiment.
    """

    group: str
    name: str
    make: Make


@cache  # reading all configurations takes as long as five short runs
def all_cases() -> list[Case]:
    """Lists the runs of all groups."""
    groups = {
        "configs": configurations(),
        "algorithms": algorithms(),
        "ties": ties(),
        "tasks": with_data("task", data_cases.tasks()),
        "data": with_data("data", data_cases.kinds()),
        "partitions": with_data("partition", data_cases.partitions()),
        "skews": with_data("skew", data_cases.skews()),
        "shifts": shifts(),
        "nets": with_data("net", data_cases.nets()),
        "options": options(),
    }
    found = [Case(group, name, make) for group, cases in groups.items() for name, make in cases.items()]
    if len({case.name for case in found}) < len(found):
        raise ValueError("two runs have one name")
    return found


# --- packaged configurations -----------------------------------------------------------------------------------------


def configurations() -> dict[str, Make]:
    """Returns the packaged configurations: those of digits whole, and all of them short."""
    cases: dict[str, Make] = {}
    for name, file in sorted(configuration_files().items()):
        content = yaml.safe_load(file.read_text())
        if not isinstance(content, dict) or not {"base", "algorithm"} & set(content):
            continue
        content = content.get("base", content)
        for suffix, one in _with_baseline(content):
            if name.endswith(("digits", "quickstart")) and not name.startswith("tune/"):
                cases[f"{name}{suffix}"] = partial(whole, one)
                cases[f"{name}{suffix}, {ROUNDS} rounds"] = partial(whole, one, ROUNDS)
            else:
                cases[f"{name}{suffix}, tiny"] = partial(tiny, one)
    return cases


def configuration_files() -> dict[str, Path]:
    """Returns the files of `configs/`, and of `experiments/configs/`, by their names without a suffix."""
    folders = [ROOT / "configs", ROOT / "experiments" / "configs"]
    return {str(p.relative_to(folder).with_suffix("")): p for folder in folders for p in folder.rglob("*.yaml")}


def _with_baseline(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields a configuration, and the same with its baseline as the algorithm if it has one."""
    baseline, rest = content.get("baseline"), {key: part for key, part in content.items() if key != "baseline"}
    yield "", rest
    if baseline is not None:
        yield " (baseline)", rest | {"algorithm": baseline}


def whole(content: dict[str, Any], rounds: int | None = None) -> Experiment:
    """Makes a packaged experiment for its first seed."""
    experiment = load_undrawn(content)
    return experiment if rounds is None else replace(experiment, rounds=rounds)


def tiny(content: dict[str, Any]) -> Experiment:
    """Makes a packaged experiment with few clients, samples and steps, and three rounds that cluster if possible."""
    experiment = shrink(load_undrawn(content))
    plan = replace(experiment.evaluation, every=1)
    return replace(experiment, rounds=ROUNDS, evaluation=plan, algorithm=sooner(experiment.algorithm))


def load_undrawn(content: dict[str, Any]) -> Experiment:
    """Loads a configuration for its first seed, without pictures."""
    return load_experiment(content | {"seeds": content.get("seeds", [0])[:1], "pictures": {"formats": []}})


def sooner(algorithm: Algorithm) -> Algorithm:
    """Returns the algorithm with its clustering in the second round if it would come later."""
    late = {"warmup_rounds", "step_rounds"} & {field.name for field in fields(algorithm)}
    return replace(algorithm, **{name: min(1, getattr(algorithm, name)) for name in late})


# --- short runs of digits --------------------------------------------------------------------------------------------


def linear() -> Classification:
    """Makes a task with a linear net, which the compiled steps train."""
    return Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1))


def mlp() -> Classification:
    """Makes a task with two layers, which the compiled steps train."""
    return Classification(MLP(16, [1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1))


def digits(**options: Any) -> Digits:
    """Makes 12 clients of unequal sizes in three rotations, of which one is held out as a newcomer."""
    partition = Dirichlet(num_clients=12, alpha=2.0, test=0.2)
    settings = {"partition": partition, "skew": Rotations((0, 90, 180)), "validation": 0.1, "newcomers": 0.1}
    return Digits(**(settings | options))


def short(**changes: Any) -> Experiment:
    """Makes an experiment of four rounds, with 5 of the clients in each."""
    settings = {
        "data": digits(),
        "task": mlp,
        "algorithm": FedGroup(num_clusters=3, pretrain_scale=2, pretrain=Budget(2)),
        "rounds": 4,
        "cohort_size": 5,
        "seeds": [3],
        "local": LocalTraining(1, 20),
        "pictures": Pictures(formats=[]),
    }
    return Experiment(**(settings | changes))


@dataclass(frozen=True)
class LosesData(Shift):
    """One client has no training data from the second round on."""

    client: int = 2

    def step(self, data: FederatedData, at: ShiftContext) -> tuple[FederatedData, ShiftLog | None]:
        if at.round != 1:
            return data, None
        one = torch.tensor([self.client])
        empty = data.train.replace_lists(one, ClientIndex.empty(1))
        cluster = data.true_clusters[one]
        log = ShiftLog("loses_data", one, -torch.ones_like(one), data.num_examples[one], cluster, cluster)
        return replace(data, train=empty), log


SPLITS = {"eps1": 100.0, "eps2": 0.0, "warmup_rounds": 0}  # splits whenever a cluster has three clients
TWO = {"num_clusters": 2, "pretrain_scale": 2}
FEW: dict[str, Any] = {"psi_budget": Budget(3, "steps", "full")}
VARIANTS: list[Algorithm] = [
    FedAvg(),
    FedAvg(weights="equal"),
    FedProx(),
    FedProx(mu=0.0),
    FedProx(stragglers=0.5),
    FedProx(stragglers=0.5, straggler_work="drop"),
    Ditto(),
    Ditto(0.0),
    Ditto(weights="equal"),
    Ditto(personal=Budget(2, "steps")),
    IFCA(),
    IFCA(num_clusters="auto"),
    IFCA(weights="examples"),
    PublishedIFCA(weights="drawn_first"),
    IFCA(averaging="gradients"),
    IFCA(averaging="gradients", weights="examples"),
    IFCA(reassign_at_evaluation=True),
    IFCA(migrate=True),
    IFCA(migrate=True, shift_metric="loss"),
    FeSEM(),
    FeSEM(num_clusters="auto"),
    PublishedFeSEM(start_partition="same"),
    FeSEM(start_partition="loss"),
    FeSEM(weights="examples"),
    PublishedFeSEM(weights="drawn_first"),
    FeSEM(migrate=True),
    CFL(),
    CFL(**SPLITS | {"warmup_rounds": 1}),
    CFL(**SPLITS | {"warmup_rounds": 1}, linkage="complete", weights="equal"),
    AdaCFL(**SPLITS | {"warmup_rounds": 1}),
    AdaCFL(**SPLITS, layers=["*"]),
    LayerCFL(**SPLITS),
    LayerCFL(**SPLITS, layers=["fc*"], distance="delta_l2"),
    FedDrift(step_rounds=1),
    FedDrift(start="one", delta=0.1),
    FedDrift(start="one", delta=2.0, step_rounds=1, weights="equal"),
    FedDrift(0.5, start="one", eager=True, step_rounds=2),
    FedEM(),
    FedEM(num_clusters=1),
    FedEM(num_clusters="auto"),
    FedEM(newcomer_steps=2),
    FedGroup(),
    FedGroup(num_clusters="auto"),
    FedGroup(measure="madc"),
    PublishedFedGroup(centers="random"),
    PublishedFedGroup(cold_start="random_once", pretrain_scale=1),
    PublishedFedGroup(cold_start="random_each_round", pretrain_scale=1),
    PublishedFedGroup(**TWO, eta_g=0.5, mix="sum", weights="equal", group_start="w0"),
    FedGrouProx(**TWO),
    FedGrouProx(**TWO, mu=0.01),
    FlexCFL(),
    PublishedFlexCFL(**TWO, shift_metric="sorted_counts", cold_start="random_once"),
    PublishedFlexCFL(num_clusters=2, centers="random", mix="sum", eta_g=0.1, shift_threshold=0.0),
    PublishedFlexCFL(pretrain_scale=2, migrate=False, cold_start_at="start", group_start="w0", weights="equal"),
    FlexCFL(**TWO, shift_metric="loss"),
    FlexCFL(**TWO, shift_metric="features"),
    FLHC(warmup_rounds=0),
    FLHC(warmup_rounds=1, num_clusters="auto"),
    FLHC(warmup_rounds=2, distance="cosine", linkage="average"),
    FLHC(warmup_rounds=2, distance="l1", linkage="single", weights="equal"),
    FLHC(warmup_rounds=2, linkage="ward"),
    FLHC(warmup_rounds=2, num_clusters=None, threshold=1.0),
    FLUX(warmup_rounds=1),
    FLUX(warmup_rounds=1, radius_scale=1.5, components=4, weights="equal"),
    FLUX(warmup_rounds=2, num_clusters=3),
    Local(),
    Oracle(),
    Oracle(weights="equal"),
    PACFL(),
    PublishedPACFL(angles="sum", subspace="each_label"),
    PublishedPACFL(num_vectors=1, angles="vectors", linkage="weighted"),
    PACFL(threshold=80, linkage="single", weights="equal"),
    PACFL(linkage="complete", threshold=0),
    StoCFL(**FEW),
    PublishedStoCFL(psi="gradient", representation="sampled", sketch_dim=3, tau=0.9),
    PublishedStoCFL(global_update="sequential_by_id", representation="sampled", **FEW),
    StoCFL(tau=1.0, weights="examples", **FEW),
]


def algorithms() -> dict[str, Make]:
    """Returns all algorithms and variants on digits; a client loses its data, and pairs of clients swap theirs."""
    missing = {name for name in methods.__all__ if _is_algorithm(name)} - {type(one).__name__ for one in VARIANTS}
    if missing:
        raise ValueError(f"no run for the algorithms {sorted(missing)}")
    cases: dict[str, Make] = {}
    for one in VARIANTS:
        name = _name_of(one)
        cases[f"{name}, MLP"] = partial(_of_algorithm, one, mlp)
        if name.endswith("()") or isinstance(one, AdaCFL | FLHC | FLUX | FedDrift):
            cases[f"{name}, linear"] = partial(_of_algorithm, one, linear)
    return cases


def _is_algorithm(name: str) -> bool:
    kind = getattr(methods, name)
    return isinstance(kind, type) and issubclass(kind, Algorithm) and kind is not Algorithm


def _name_of(algorithm: Algorithm) -> str:
    """Returns the algorithm with the options that differ from their defaults, such as `FedAvg(weights='equal')`."""
    changed = []
    for field in fields(algorithm):
        value = getattr(algorithm, field.name)
        if value != field.default and not isinstance(value, Budget):
            changed.append(f"{field.name}={value!r}")
        elif isinstance(value, Budget) and (value.length, value.unit) == (2, "steps"):
            changed.append(f"{field.name}=2 steps")
    return f"{type(algorithm).__name__.removeprefix('Published')}({', '.join(changed)})"


def _of_algorithm(algorithm: Algorithm, task: Callable[[], Classification]) -> Experiment:
    shift = [LosesData(), SwapAll(0.4)]
    return short(data=digits(shift=shift), algorithm=algorithm, task=task)


def ties() -> dict[str, Make]:
    """Returns algorithms that compare clients, where each two clients have equal data and equal updates."""
    kinds = (CFL, AdaCFL, LayerCFL, FeSEM, FLHC, FLUX, FedGroup, FlexCFL, PACFL, StoCFL, IFCA, FedDrift)
    chosen = [one for one in VARIANTS if isinstance(one, kinds) and getattr(one, "warmup_rounds", 0) < ROUNDS]
    return {f"ties {_name_of(one)}": partial(_of_twins, one) for one in chosen}


def _of_twins(algorithm: Algorithm) -> Experiment:
    task = data_cases.classes(lambda: MLP(6, [4], 3))
    local = LocalTraining(2, "full")
    scaled = hasattr(algorithm, "pretrain_scale")  # eight clients are too few for most scales
    chosen = replace(algorithm, pretrain_scale=2) if scaled else algorithm
    return short(data=data_cases.Twins(), task=task, algorithm=chosen, rounds=ROUNDS, cohort_size=8, local=local)


# --- tasks, data, partitions, skews, shifts, nets ---------------------------------------------------------------------


def with_data(kind: str, pairs: dict[str, data_cases.Pair]) -> dict[str, Make]:
    """Returns a run of FedGroup for each pair of data and task."""
    return {f"{kind} {name}": partial(_of_data, data, task) for name, (data, task) in pairs.items()}


def _of_data(data: Callable[[], Any], task: Callable[[], nn.Module]) -> Experiment:
    algorithm = PublishedFedGroup(num_clusters=2, pretrain_scale=2, pretrain=Budget(2, "steps"), cold_start_at="start")
    local = LocalTraining(1, 10)
    return short(data=data(), task=task, algorithm=algorithm, rounds=ROUNDS, cohort_size=3, local=local)


def shifts() -> dict[str, Make]:
    """Returns a run per shift, variant of a shift, and pair of shifts that work on each other's data."""
    found = {
        "SwapAll": [SwapAll(0.5)],
        "SwapAll, warm": [SwapAll(0.5, participants="warm")],
        "SwapPart": [SwapPart(0.7)],
        "SwapPart, warm": [SwapPart(0.7, participants="warm")],
        "Incremental": [Incremental((0, 1, 3), (0.3, 0.5, 1.0))],
        "Incremental, warm": [Incremental((1, 3), (0.3, 1.0), participants="warm")],
        "LabelDrift": [LabelDrift(start=1)],
        "LabelDrift, gradual": [LabelDrift(start=1, duration=3, labels=4)],
        "LabelDrift, warm": [LabelDrift(start=2, participants="warm")],
        "a client loses its data": [LosesData()],
        "SwapPart, Incremental": [SwapPart(0.5), Incremental((0, 2), (0.5, 1.0))],
        "LabelDrift, SwapAll": [LabelDrift(start=1, duration=2), SwapAll(0.5)],
        "two of LabelDrift": [LabelDrift(start=1), LabelDrift(start=2, labels=3)],
    }
    return {f"shift {name}": partial(_of_shift, shift) for name, shift in found.items()}


def _of_shift(shift: list[Shift]) -> Experiment:
    groups = LabelGroups(groups=((0, 1, 2, 3), (4, 5, 6), (7, 8, 9)), clients_per_group=4)
    data = digits(partition=groups, skew=(), shift=shift)
    algorithm = FlexCFL(num_clusters=3, pretrain_scale=2, pretrain=Budget(2))
    return short(data=data, algorithm=algorithm, task=linear, rounds=5)


# --- options of runs -------------------------------------------------------------------------------------------------


def _adam() -> Classification:
    return Classification(MLP(16, [1, 8, 8], 10), partial(torch.optim.Adam, lr=0.01))


def _momentum() -> Classification:
    return Classification(MLP(16, [1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True))


def _tanh() -> Classification:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))
    return Classification(net, partial(torch.optim.SGD, lr=0.1, weight_decay=0.01))


def _dropout() -> Classification:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 10))
    return Classification(net, partial(torch.optim.SGD, lr=0.1))


def _batch_norm() -> Classification:
    return Classification(MLP(16, [1, 8, 8], 10, batch_norm=True), partial(torch.optim.SGD, lr=0.1))


def _kernel_l2() -> Classification:
    return Classification(MLP(16, [1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1), kernel_l2=0.01)


def _warm_rates(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


def options() -> dict[str, Make]:
    """Returns runs with options of the training, of the rounds, of the evaluation, and of the engines."""
    changes: dict[str, dict[str, Any]] = {
        "Adam": {"task": _adam},
        "momentum": {"task": _momentum},
        "weight decay and tanh": {"task": _tanh},
        "dropout in the net": {"task": _dropout},
        "batch norm": {"task": _batch_norm, "local": LocalTraining(1, 20, last_batch="join")},
        "kernel_l2": {"task": _kernel_l2},
        "clipping": {"local": LocalTraining(1, 20, gradient_clip=0.5)},
        "lr_schedule": {"local": LocalTraining(1, 20, lr_schedule=_warm_rates)},
        "last batch dropped": {"local": LocalTraining(2, 20, last_batch="drop")},
        "last batch joined": {"local": LocalTraining(2, 20, last_batch="join")},
        "full batches": {"local": LocalTraining(2, "full")},
        "server optimizer": {"server": partial(torch.optim.SGD, lr=0.5, momentum=0.5)},
        "shared layers": {"shared": ["fc1"]},
        "personal layers": {"personal": ["fc2"]},
        "personal layers, FedAvg": {"personal": ["fc2"], "algorithm": FedAvg()},
        "clients drop out": {"dropout": 0.3},
        "round_robin_first": {"selection": "round_robin_first"},
        "selection seed": {"selection_seed": 5},
        "fine-tuning": {"evaluation": EvaluationPlan(fine_tune=Budget(1))},
        "scores of each client": {"evaluation": EvaluationPlan(per_client=True, class_counts=True)},
        "all clients scored": {"evaluation": EvaluationPlan(clients="all")},
        "four clients scored": {"evaluation": EvaluationPlan(2, clients=4)},
        "stops early": {"stop": StopRule(target=0.2), "rounds": 8},
        "float64": {"precision": "64-true"},
        "bfloat16": {"precision": "bf16-mixed"},
        "engine chain": {"engine": "chain"},
        "engine loop": {"engine": "loop"},
        "engine trainer": {"engine": "trainer", "rounds": 2},
        "engine loop, float64": {"engine": "loop", "precision": "64-true"},
    }
    return {f"option {name}": partial(short, **change) for name, change in changes.items()}
