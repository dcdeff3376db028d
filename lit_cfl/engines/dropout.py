"""Dropout whose masks come from a hash and do not depend on how many clients are trained together.

A random generator has one stream for a whole stack of clients. Here a client's mask is a function of its key, the
step, the layer and the position, so every way of training drops the same units.
"""

import torch
from lightning import LightningModule
from torch import Tensor, nn

from lit_cfl.keyed_random import hash_keys

KEY = "key"  # name of the buffer


class KeyedDropout(nn.Module):
    """Replacement for `nn.Dropout` whose masks depend on a key.

    Args:
        p: Probability that a unit is dropped, 0 to 1.
        layer: Number of this layer in the module.
    """

    key: Tensor

    def __init__(self, p: float, layer: int) -> None:
        super().__init__()
        self.p, self.layer = p, layer
        self.register_buffer(KEY, torch.zeros((), dtype=torch.int64), persistent=False)

    def extra_repr(self) -> str:
        return f"p={self.p}"  # part of the description by which a resumed run knows its net

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        row = hash_keys(self.key + 0x9E3779B9 * (self.layer + 1))
        positions = torch.arange(input.numel(), device=self.key.device) * 0x9E3779B9  # of fewer units: a prefix
        kept = hash_keys(row + positions).view(input.shape) >= int(self.p * 2**32)
        return input * (kept.to(input.dtype) * (0.0 if self.p == 1 else 1 / (1 - self.p)))


def replace_dropout(module: LightningModule) -> LightningModule:
    """Replaces every plain `nn.Dropout` in a module, in registration order. Returns the module."""
    layer = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                setattr(parent, name, KeyedDropout(child.p, layer).train(child.training))
                layer += 1
    return module


def key_names(module: nn.Module) -> list[str]:
    """Returns the full names of the buffers that store the keys."""
    return [f"{name}.{KEY}" for name, child in module.named_modules() if isinstance(child, KeyedDropout)]


def set_key(module: nn.Module, key: int) -> None:
    """Sets the key of every keyed dropout in the module."""
    for child in module.modules():
        if isinstance(child, KeyedDropout):
            child.key.fill_(key)


def keys_of_steps(client_keys: Tensor, steps: Tensor) -> Tensor:
    """Derives the keys of all steps of each client, int64 `[sum of steps]`, each below 2^32.

    Args:
        client_keys: Keys of the clients, int64 `[n]`.
        steps: Steps of each client, int64 `[n]`.
    """
    numbers = torch.arange(int(steps.sum())) - (steps.cumsum(0) - steps).repeat_interleave(steps)
    return hash_keys(hash_keys(client_keys).repeat_interleave(steps) + numbers * 0x85EBCA6B)
