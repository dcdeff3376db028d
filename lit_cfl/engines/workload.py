"""Measures the task and the workload of a run, from which its plan is chosen."""

import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from lightning import LightningModule
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from lit_cfl.data import FederatedData
from lit_cfl.engines.check_module import require_module
from lit_cfl.engines.initial_models import build_module
from lit_cfl.engines.mini_batches import count_steps
from lit_cfl.engines.task_protocol import Batch, losses_of
from lit_cfl.engines.training_options import LocalTraining, TaskFactory
from lit_cfl.local_work import per_client
from lit_cfl.parameters import ParameterLayout

_SOME = 48  # number of examples that the task is measured on: those of small clients, see `agreement.py`
_BLOCK = 2**16  # number of examples that are searched for labels at a time


@dataclass(frozen=True, eq=False)
class TaskTraits:
    """Properties of the task of a run.

    Args:
        module: The module as the user's task builds it, with keyed dropout, on the CPU; it must not be changed.
        layout: Layout of the module's rows.
        batch: Some of the run's training examples, of different labels; floating-point inputs are float32.
        mean_size: Mean number of training examples per client.
    """

    module: LightningModule
    layout: ParameterLayout
    batch: Batch
    mean_size: int = 1

    @classmethod
    def of(cls, module: LightningModule, data: FederatedData) -> "TaskTraits":
        """Measures a task's properties on the run's data."""
        some = some_of_each_label(data, _SOME)
        mean = int(data.num_examples[data.population].sum()) / max(1, len(data.population))
        inputs, labels = data.examples.batch(some, device="cpu")
        sound = inputs.reshape(len(inputs), -1).isfinite().all(1)  # results of NaN are equal in every way of training
        chosen = sound if sound.any() else slice(None)
        return cls(module, ParameterLayout.of(module), (inputs[chosen], labels[chosen]), max(1, round(mean)))

    @cached_property
    def multiply_adds(self) -> int:
        """Multiply-adds of products and convolutions in the loss of one example; 0 = unknown."""
        return count_multiply_adds(self.module, self.batch)

    def batch_size(self, local: LocalTraining) -> int:
        """Returns the mini-batch size of a client of mean size."""
        return self.mean_size if local.batch_size == "full" else min(local.batch_size, self.mean_size)


def some_of_each_label(data: FederatedData, count: int) -> Tensor:
    """Chooses training examples of as many different labels as possible, then from all over the data.

    Returns:
        `count` examples, or all if there are fewer, as `Examples.batch` takes them.
    """
    entries = data.train.entries
    spread = entries[torch.arange(min(count, len(entries))) * len(entries) // min(count, len(entries))]
    if data.examples.label_kind != "classes":
        return spread
    first = one_of_each_label(data)
    first = first[torch.arange(min(count, len(first))) * len(first) // min(count, len(first))]
    others = spread[~torch.isin(spread, first)]
    return torch.cat([first, others])[:count]


def one_of_each_label(data: FederatedData) -> Tensor:
    """Returns the first training example of each label, in the order of labels."""
    found: dict[int, Tensor] = {}
    for some in data.train.entries.split(_BLOCK):
        labels = data.examples.targets(some).cpu()
        first = torch.full((data.examples.num_labels,), len(some)).scatter_reduce(
            0, labels, torch.arange(len(some)), "amin"
        )
        new = [label for label in (first < len(some)).nonzero().flatten().tolist() if label not in found]
        found |= {label: some[first[label]] for label in new}
    return torch.stack([found[label] for label in sorted(found)])


def count_multiply_adds(module: LightningModule, batch: Batch) -> int:
    """Counts the multiply-adds of products and convolutions in the loss of one example, without computing it.

    Args:
        batch: Batch of at least one example; only the first is used.

    Returns:
        0 if the module needs numbers, not only shapes, or cannot take the example, which training reports.
    """
    shapes = copy.deepcopy(module).to("meta").eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            losses_of(shapes, (batch[0][:1].to("meta"), batch[1][:1].to("meta")))
    except Exception:  # a user's module may raise anything
        return 0
    return int(counter.get_total_flops()) // 2


@dataclass(frozen=True)
class Workload:
    """Properties of a run that determine its plan, besides options and hardware.

    Args:
        task: Task that clients train; None = unknown, so the plan must name the engine.
        local: Options of local training.
        client_steps: Expected number of mini-batches in the run.
        rounds: Number of rounds.
        cohort: Number of clients per round.
    """

    task: TaskTraits | None = None
    local: LocalTraining = LocalTraining()
    client_steps: int = 0
    rounds: int = 1
    cohort: int = 64

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds for the losses of all mini-batches; 0 = unknown."""
        return (
            0 if self.task is None else (self.client_steps * self.task.multiply_adds * self.task.batch_size(self.local))
        )


@dataclass(frozen=True)
class RayRoom:
    """Resources of Ray's workers on all machines together; see `factory.room_of_ray`.

    Args:
        places: Number of workers that fit on the cores with their threads; None = one per core of this machine.
        gpus: Number of GPUs.
    """

    places: int | None = None
    gpus: int = 0


def measure_workload(
    task: TaskFactory, seed: int, local: LocalTraining, data: FederatedData, rounds: int, cohort: int
) -> Workload:
    """Measures the workload from which the plan is chosen. Builds the task's module once.

    Args:
        seed: The run's seed.
        rounds: Number of rounds.
        cohort: Number of clients per round.
    """
    module = build_module(task, seed)
    require_module(module)
    steps = round(rounds * cohort * mean_steps(local, data))
    return Workload(TaskTraits.of(module, data), local, steps, rounds, min(cohort, len(data.population)))


def mean_steps(local: LocalTraining, data: FederatedData) -> float:
    """Computes the mean number of mini-batches per client in a round, over the clients in training."""
    sizes = data.num_examples[data.population]
    lengths = per_client(local.epochs, sizes)
    return float(count_steps(local.budget, lengths, sizes, local.batch_size, local.last_batch).double().mean())
