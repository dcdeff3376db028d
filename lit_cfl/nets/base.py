"""The base class of our nets, their sizes and their initialisation."""

from collections.abc import Sequence
from math import prod

from torch import nn

from lit_cfl.errors import InputError


class Net(nn.Module):
    """Base class of our nets, which configurations find by their short names.

    If a configuration leaves out `input_shape`, `num_labels` or `vocabulary` (number of token ids, 0 if inputs are not
    tokens), the data module provides it. A user's own net may be any `torch.nn.Module`.
    """


def sizes(input_shape: Sequence[int] | None, num_labels: int | None) -> tuple[int, int]:
    """Returns the number of values in one input, and the number of outputs. Raises InputError if one is unknown."""
    if not input_shape or not num_labels:
        raise InputError(
            f"input_shape is {input_shape} and num_labels {num_labels}: a net built in Python needs both, "
            "for example input_shape=[1, 28, 28], num_labels=10 (a configuration takes them from the data)"
        )
    return prod(input_shape), num_labels


def image_sizes(
    input_shape: Sequence[int] | None, num_labels: int | None, *, border: int, halvings: int
) -> tuple[int, int, int]:
    """Counts the channels of the images, the pixels of a channel after the convolutions, and the outputs.

    Args:
        border: Pixels that unpadded convolutions remove from a side before each halving.
        halvings: Number of times that pooling or a stride halves the sides.

    Raises:
        InputError: inputs are not images, or so small that no pixel is left.
    """
    _, labels = sizes(input_shape, num_labels)
    if input_shape is None or len(input_shape) != 3:
        raise InputError(
            f"inputs of shape {input_shape} are not images (channels, height, width); "
            "choose MLP or MCLR for vectors, a recurrent net for tokens"
        )
    channels, height, width = input_shape
    least = 2**halvings + border * (2**halvings - 1)
    missing = least - min(height, width)
    if missing > 0:
        raise InputError(
            f"images of {list(input_shape)} are too small for this net, which takes {least} x {least} or more; "
            f"add a border (the data's option pad: {-(-missing // 2)}), or choose MNISTCNN, MLP or MCLR"
        )
    for _ in range(halvings):
        height, width = (height - border) // 2, (width - border) // 2
    return channels, height * width, labels


def glorot(layer: nn.Linear | nn.Conv2d) -> nn.Linear | nn.Conv2d:
    """Gives a layer Glorot-uniform weights and zero biases, as Keras initialises the nets of FedGroup and FlexCFL."""
    nn.init.xavier_uniform_(layer.weight)
    return _zero_bias(layer)


def he(layer: nn.Linear | nn.Conv2d) -> nn.Linear | nn.Conv2d:
    """Gives a layer He-normal weights (He et al., 2015), which deep ReLU nets need, and zero biases."""
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return _zero_bias(layer)


def _zero_bias(layer: nn.Linear | nn.Conv2d) -> nn.Linear | nn.Conv2d:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
