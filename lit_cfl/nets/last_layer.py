"""Finds the latent features of examples: the inputs of a net's last layer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lit_cfl.errors import InputError

_AT_ONCE = 1024  # maximum number of examples in one call of the module


def latent_features(module: nn.Module, inputs: Tensor) -> Tensor:
    """Computes the flattened inputs of a module's last layer: `[n, features]`.

    The last layer is the last submodule that is called, among those with parameters and without submodules, such as the
    last Linear of a net. If the module, or its `net`, has a method `latent_features(inputs)`, that is used instead.

    Args:
        module: LightningModule or net that computes outputs of inputs, in evaluation mode.
        inputs: Inputs `[n, ...]`, n at least 1.

    Raises:
        InputError: the last layer cannot be found, or the method does not return rows of features.
    """
    own = _own_features(module)
    if own is None:
        return torch.cat([_inputs_of_last_layer(module, part).flatten(1) for part in inputs.split(_AT_ONCE)])
    name, compute = own
    return torch.cat([_as_rows(compute(part), len(part), name) for part in inputs.split(_AT_ONCE)])


def _own_features(module: nn.Module) -> tuple[str, Callable[[Tensor], Any]] | None:
    """Finds the method `latent_features` of a module or its net, and the name of its class."""
    for part in (module, getattr(module, "net", None)):
        compute: Any = getattr(part, "latent_features", None)
        if callable(compute):
            return type(part).__name__, compute
    return None


def _as_rows(features: Any, count: int, name: str) -> Tensor:
    if isinstance(features, Tensor) and features.ndim > 1 and len(features) == count:
        return features.flatten(1)
    returned = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
    raise InputError(
        f"{name}.latent_features returns {returned} for {count} inputs; return a tensor [{count}, features]"
    )


def _inputs_of_last_layer(module: nn.Module, inputs: Tensor) -> Tensor:
    called: list[tuple[Tensor, Tensor]] = []  # inputs and outputs of the layer that was called last

    def note(layer: nn.Module, arguments: tuple[Tensor, ...], named: dict[str, Tensor], outputs: Tensor) -> None:
        called[:] = [((*arguments, *named.values())[0], outputs)]

    layers = [
        part
        for part in module.modules()
        if next(part.parameters(recurse=False), None) is not None and next(part.children(), None) is None
    ]
    handles = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    try:
        outputs = module(inputs)
    finally:
        for handle in handles:
            handle.remove()
    if not called or not isinstance(called[0][1], Tensor) or called[0][1].numel() > outputs.numel():
        why = "calls no layer with parameters" if not called else "computes its outputs after its last layer"
        name = type(getattr(module, "net", module)).__name__
        raise InputError(
            f"the latent features of {name} are not known, because it {why}; end the net with a layer such as "
            "nn.Linear, or give it a method latent_features(inputs) that returns [n, features]"
        )
    return called[0][0]
