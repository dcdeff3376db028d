"""Decides whether integers among the inputs are token ids, which only the net can tell."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from lit_cfl.data import FederatedData


def has_embedding(module: nn.Module) -> bool:
    """Says whether a module looks up vectors by integers."""
    return any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in module.modules())


def with_tokens_for(data: FederatedData, build: Callable[[], nn.Module]) -> FederatedData:
    """Makes integer inputs token ids if the module has an embedding; otherwise they are numbers, as floats are.

    Args:
        build: returns the module; called only if the inputs may be token ids.
    """
    examples = data.examples
    if examples.vocabulary or not examples.num_tokens:
        return data
    with torch.random.fork_rng(devices=[]):
        embeds = has_embedding(build())
    return replace(data, examples=replace(examples, vocabulary=examples.num_tokens)) if embeds else data
