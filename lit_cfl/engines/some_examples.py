"""Chooses training examples of different labels, on which a task is tried before a run."""

import torch
from torch import Tensor

from lit_cfl.data import FederatedData

_BLOCK = 2**16  # number of examples that are searched for labels at a time


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
