"""The task of a run: its module, and some examples on which ways of training it are tried."""

from dataclasses import dataclass

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.data import FederatedData
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.task_protocol import Batch
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
