"""What our nets have in common."""

from collections.abc import Sequence
from math import prod

from torch import nn

from lit_cfl.errors import InputError


class Net(nn.Module):
    """A net of ours: found by its short name, and told the shape of the data.

    An argument `input_shape`, `num_labels` or `vocabulary` (number of token ids, 0 where inputs are none) that a
    configuration leaves out is filled from the data module.
    A user's own net may be any `torch.nn.Module`.
    """


def sizes(input_shape: Sequence[int] | None, num_labels: int | None) -> tuple[int, int]:
    """Numbers in one input, and outputs. Raises InputError where either is not known."""
    if not input_shape or not num_labels:
        raise InputError(
            f"input_shape is {input_shape} and num_labels {num_labels}: a net built by hand needs both, "
            "for example input_shape=[1, 28, 28], num_labels=10 (a configuration takes them from the data)"
        )
    return prod(input_shape), num_labels


def glorot(layer: nn.Linear | nn.Conv2d) -> nn.Linear | nn.Conv2d:
    """The layer with Glorot-uniform weights and zero biases, as Keras starts the papers' nets."""
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
