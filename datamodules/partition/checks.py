"""Checks of the data before a partition, and of the partition itself."""

import torch
from torch import Tensor

from lit_cfl.data import ClientIndex
from lit_cfl.errors import InputError


def require_share(name: str, share: float, of: str = "") -> None:
    """Raises InputError unless a share is at least 0 and below 1."""
    if not 0 <= share < 1:
        raise InputError(f"{name} is {share}; give a share{of}, 0 or more and below 1")


def require_enough(num_examples: int, num_clients: int, min_size: int = 1, option: str = "min_size") -> None:
    """Raises InputError if there are too few examples to give every client `min_size`."""
    if num_clients * min_size > num_examples:
        raise InputError(
            f"{num_clients} clients cannot share {num_examples} examples with {min_size} or more each; give fewer "
            f"clients ({num_examples // min_size} at most)" + (f" or a smaller {option}" if min_size > 1 else "")
        )


def require_partition(index: ClientIndex, num_examples: int) -> None:
    """Raises InputError unless every client has an example, and no example occurs twice.

    Args:
        index: Example numbers of each client.
        num_examples: N; numbers are 0 to N - 1.
    """
    entries = index.entries
    if len(outside := entries[(entries < 0) | (entries >= num_examples)]):
        raise InputError(f"the partition assigns example {int(outside[0])}, but examples are 0 to {num_examples - 1}")
    counts = torch.bincount(entries, minlength=num_examples)
    if (counts > 1).any():
        raise InputError(f"the partition assigns example {int(counts.argmax())} several times; use each example once")
    if len(empty := (index.sizes == 0).nonzero().flatten()):
        raise InputError(
            f"{len(empty)} of {len(index)} clients have no example (client {int(empty[0])} is the first); "
            "give fewer clients"
        )


def require_trained(train: Tensor, test: Tensor) -> None:
    """Raises InputError if a label occurs in the test data, but not in the training data.

    Args:
        train, test: Labels of the source's two parts, int64.
    """
    unknown = test[~torch.isin(test, train)]
    if len(unknown):
        raise InputError(
            f"label {int(unknown[0])} is in the source's test part but not in its training part, so no client can "
            "train on it; set test to a share, such as test: 0.2, which divides both parts together"
        )


def require_labels(rule: str, labels: Tensor, num_labels: int, least: int) -> Tensor:
    """Raises InputError if labels are too large or too rare for a rule. Returns their counts, int64 `[num_labels]`.

    Args:
        rule: Name of the rule.
        labels: Labels, int64 `[n]`.
        num_labels: Number of labels of the rule: labels must be 0 to `num_labels - 1`.
        least: Minimum number of examples of each label.
    """
    counts = torch.bincount(labels, minlength=num_labels)
    if len(counts) > num_labels or int(counts.min()) < least:
        raise InputError(
            f"{rule} needs the labels 0 to {num_labels - 1} with {least} examples of each, but there are "
            f"{counts.tolist()[:20]} of them; take other data or another partition"
        )
    return counts
