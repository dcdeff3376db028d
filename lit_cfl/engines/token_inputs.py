"""Decides whether integer inputs are token ids, which depends on the net."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from lit_cfl.data import FederatedData
from lit_cfl.data.checks import warn_of_large_numbers


def takes_tokens(module: nn.Module) -> bool:
    """Returns whether a module reads integers as token ids: it has an embedding, or sets `takes_tokens`."""
    embeds = any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in module.modules())
    return embeds or bool(getattr(module, "takes_tokens", False))


def mark_tokens(data: FederatedData, build: Callable[[], nn.Module]) -> FederatedData:
    """Marks integer inputs as token ids if the module takes them; otherwise warns if the integers are large.

    Args:
        build: Returns the module; called only if the inputs may be token ids.
    """
    examples = data.examples
    if examples.vocabulary or not examples.num_tokens:
        return data
    with torch.random.fork_rng(devices=[]):
        taken = takes_tokens(build())
    if taken:
        return replace(data, examples=replace(examples, vocabulary=examples.num_tokens))
    if examples.inputs.ndim != 4:  # `warn_of_large_inputs` has already warned of images
        warn_of_large_numbers(examples)
    return data
