"""Builds the engine of a plan, and measures the workload from which a plan is chosen."""

import warnings
from dataclasses import replace
from math import prod

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from lit_cfl.data import FederatedData
from lit_cfl.engines.base import Engine
from lit_cfl.engines.batches import num_steps
from lit_cfl.engines.choose_plan import RayRoom, Workload, lacks_compiler
from lit_cfl.engines.convolutions import is_small
from lit_cfl.engines.dual import has_dual, pays
from lit_cfl.engines.local_training import LocalTraining, TaskFactory
from lit_cfl.engines.operations import count_multiply_adds
from lit_cfl.engines.perceptron import is_perceptron
from lit_cfl.engines.plan import EngineOption, Plan, PlanOptions, Precision
from lit_cfl.engines.stacked.engine import StackedEngine
from lit_cfl.engines.stacked.stackable import obstacles
from lit_cfl.engines.trainer import TrainerEngine
from lit_cfl.errors import Notice


def build_engine(task: TaskFactory, plan: Plan, seed: int, local: LocalTraining) -> Engine:
    """Builds the engine that a plan names."""
    if plan.engine == "ray":
        from lit_cfl.engines.ray.engine import RayEngine  # all others work without Ray

        return RayEngine(task, plan, seed, local)
    return {"trainer": TrainerEngine, "stacked": StackedEngine}[plan.engine](task, plan, seed, local)


def room_of_ray(engine: EngineOption, device: str, by_hand: PlanOptions | None) -> RayRoom:
    """Counts what Ray's workers find. Where a cluster is there and `device` is `auto`, says what follows.

    Returns:
        nothing where no worker of Ray's needs to know.
    """
    by_hand = by_hand or PlanOptions()
    asked = by_hand.device or device
    if (by_hand.engine or engine) != "ray" or (asked == "cpu" and by_hand.workers):
        return RayRoom()
    from lit_cfl.engines.ray import cluster  # all others work without Ray

    room = cluster.count_room(by_hand.threads or 1)
    if asked == "auto" and cluster.is_there():
        what = f"has {room.gpus} GPU(s): clients train on them" if room.gpus else "has no GPU: clients train on CPUs"
        warnings.warn(f"Ray's cluster {what}; --device says otherwise", Notice, stacklevel=2)
    return room


def workload(
    task: TaskFactory,
    seed: int,
    local: LocalTraining,
    data: FederatedData,
    precision: Precision,
    client_fits: int,
    cohort: int = 64,
    on_gpu: bool = False,
) -> Workload:
    """Measures the workload from which the plan is chosen.

    Args:
        client_fits: how many times a client is fitted in the run.
        cohort: clients of a round.
        on_gpu: estimate what a client takes in a GPU's stack, too.
    """
    probe = TrainerEngine(task, Plan(), seed, local)
    found = obstacles(probe.template, probe.layout, data.examples, precision)
    convolutions = [layer for layer in probe.template.modules() if isinstance(layer, _ConvNd)]
    return Workload(
        probe.layout.num_parameters,
        bool(convolutions),
        any(isinstance(layer, nn.RNNBase) for layer in probe.template.modules()),
        round(client_fits * mean_steps(local, data)),
        count_multiply_adds(probe.template, data.examples.batch(torch.zeros(1, dtype=torch.int64), device="cpu"))
        * mean_batch(local, data),
        max(1, client_fits // cohort),
        found,
        min(cohort, len(data.population)),
        _lane_bytes(task, seed, local, data, precision) if on_gpu and not found else None,
        not found and local.batch_size != "full" and is_perceptron(probe.template, local),
        not found and has_dual(probe.template, local) and _dual_pays(local, data),
        bool(convolutions) and all(map(is_small, convolutions)),
    )


def _dual_pays(local: LocalTraining, data: FederatedData) -> bool:
    """Says whether the dual form pays for a mean client, pulled towards a centre."""
    examples = round(mean_batch(replace(local, batch_size="full"), data))
    inputs = prod(data.examples.inputs.shape[1:])
    return pays(examples, round(mean_steps(local, data)), round(mean_batch(local, data)), inputs, pulled=True)


def _lane_bytes(
    task: TaskFactory, seed: int, local: LocalTraining, data: FederatedData, precision: Precision
) -> int | None:
    plan = Plan("stacked", precision="32-true" if precision == "tf32" else precision)  # its tensors are float32
    try:
        return StackedEngine(task, plan, seed, local).lane_bytes(data)
    except Exception:  # such as an operation of the user's own, which fake tensors do not know
        return None


def mean_steps(local: LocalTraining, data: FederatedData) -> float:
    """Computes the mean number of mini-batches of a client in a round, over the clients in training."""
    sizes = data.num_examples[data.population]
    counts = sizes.unique(return_counts=True)
    steps = [num_steps(local.budget, local.epochs, size, local.batch_size) for size in counts[0].tolist()]
    total: int = sum(n * c for n, c in zip(steps, counts[1].tolist(), strict=True))
    return total / max(1, len(sizes))


def mean_batch(local: LocalTraining, data: FederatedData) -> float:
    """Computes the examples of a mini-batch, of a mean client in training."""
    mean = int(data.num_examples[data.population].sum()) / max(1, len(data.population))
    return mean if local.batch_size == "full" else min(local.batch_size, mean)


def warn_of_slowness(asked: str, plan: Plan, workload: Workload) -> None:
    """Warns the user where clients could train faster, and says why they do not."""
    if workload.obstacles and asked != "trainer":
        reasons = "; ".join(workload.obstacles)
        warnings.warn(f"clients are fitted by the engine trainer, which is slower: {reasons}", Notice, stacklevel=2)
    if lacks_compiler(plan, workload):
        warnings.warn("no C++ compiler (g++) is there: clients train in a plain loop, slower", Notice, stacklevel=2)
