"""Lists the state of a module, including tensors, numbers and containers in attributes of any of its parts."""

import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from math import isclose, isnan
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lit_cfl.parameters import ParameterLayout

CONSTANTS = "frozen part of the module"  # name of its digest in a run's fingerprint
Leaf = Tensor | np.ndarray | np.generic | int | float | complex | str | bytes | None | type
FRAMEWORK = frozenset((*vars(nn.Module()), *vars(LightningModule())))  # attributes that every module has
_CODE = (type, FunctionType, BuiltinFunctionType, ModuleType)
_CLOSED = ("torch", "lightning", "numpy", "builtins", "collections", "functools", "itertools", "weakref")


def module_state(module: nn.Module) -> dict[str, Leaf]:
    """Collects the state of a module and all its parts, by name: parameters, buffers, and attributes.

    BatchNorm's counts of batches and the metrics of torchmetrics do not change training and are left out. A value
    without visible contents, such as a function, is represented by its type.
    """
    return dict(_of_module("", module, set()))


def copy_state(module: nn.Module) -> dict[str, Leaf]:
    """Copies the state of a module, so that later changes of the module do not affect it."""
    return {name: _copy_leaf(value) for name, value in module_state(module).items()}


def same_value(one: Leaf, other: Leaf) -> bool:
    """Returns whether two values of a state are equal: tensors and floats up to rounding, other values exactly."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        near = partial(torch.allclose, rtol=1e-9, atol=1e-12, equal_nan=True)
        return one.shape == other.shape and near(one.double(), other.double())
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, float) and isinstance(other, float):
        return isclose(one, other) or (isnan(one) and isnan(other))
    return type(one) is type(other) and bool(one == other)


def _copy_leaf(value: Leaf) -> Leaf:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def digest_of_constants(module: nn.Module, layout: ParameterLayout) -> str:
    """Computes the SHA-256 of all tensors that are not part of the model's row, such as frozen layers."""
    in_rows = {slot.name for slot in layout.slots}
    digest = sha256()
    for name, value in sorted(module_state(module).items()):
        if name not in in_rows and isinstance(value, (Tensor, np.ndarray)):
            array = _array(value)
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode() + array.tobytes())
    return digest.hexdigest()


def digest_of_optimizers(module: LightningModule) -> str:
    """Computes the SHA-256 of classes and numbers of a module's optimizers and schedulers, such as learning rates."""
    configured: Any = None
    with suppress(Exception):  # the module may need a Trainer, or be wrong, which training reports
        configured = module.configure_optimizers()
    digest = sha256()
    for part in _optimizers_in(configured):
        groups = part.param_groups if isinstance(part, Optimizer) else [part.state_dict()]
        numbers = [
            {name: value for name, value in sorted(group.items()) if _is_number(value)}
            | {"of": len(group.get("params", ()))}
            for group in groups
        ]
        digest.update(f"{type(part).__module__}.{type(part).__qualname__} {numbers}\n".encode())
    return digest.hexdigest()


def _optimizers_in(configured: Any) -> Iterator[Optimizer | LRScheduler]:
    """Yields optimizers and schedulers in the return value of `configure_optimizers`."""
    if isinstance(configured, (Optimizer, LRScheduler)):
        yield configured
    elif isinstance(configured, (Mapping, list, tuple)):
        for part in configured.values() if isinstance(configured, Mapping) else configured:
            yield from _optimizers_in(part)


def _is_number(value: Any) -> bool:
    """Returns whether a value is a number or a list of numbers; a Boolean is not a number here.

    Most Booleans in options of optimizers depend on the device.
    """
    if isinstance(value, (list, tuple)):
        return all(map(_is_number, value))
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _array(value: Tensor | np.ndarray) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    held = value.detach().cpu().resolve_conj().to_dense() if value.layout is not torch.strided else value.detach().cpu()
    return held.contiguous().reshape(-1).view(torch.uint8).numpy()  # NumPy has no bfloat16


def _of_module(name: str, module: nn.Module, seen: set[int]) -> Iterator[tuple[str, Leaf]]:
    if id(module) in seen or _counts_only(module):
        return
    seen.add(id(module))
    own = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
    for key, tensor in own.items():
        if key != "num_batches_tracked":
            yield _join_path(name, key), tensor
    for key, child in module.named_children():
        yield from _of_module(_join_path(name, key), child, seen)
    for key, value in vars(module).items():
        if key not in FRAMEWORK:
            yield from _of_value(_join_path(name, key), value, seen)


def _of_value(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, nn.Module):
        yield from _of_module(name, value, seen)
    elif isinstance(value, (Tensor, np.ndarray, np.generic, int, float, complex, str, bytes, type(None))):
        yield name, value
    elif isinstance(value, torch.Generator):
        yield name, value.get_state()
    elif isinstance(value, (random.Random, np.random.Generator, np.random.RandomState)):
        yield name, repr(value.getstate() if isinstance(value, random.Random) else _numpys_state(value))
    elif id(value) not in seen:
        seen.add(id(value))
        parts = _parts(value)
        yield name, len(parts) if parts else type(value)
        for key, part in parts.items():
            yield from _of_value(f"{name}{key}", part, seen)


def _numpys_state(rng: np.random.Generator | np.random.RandomState) -> Any:
    return rng.bit_generator.state if isinstance(rng, np.random.Generator) else rng.get_state(legacy=False)


def _parts(value: Any) -> dict[str, Any]:
    """Returns the contents of an object by name suffix; empty for code and for objects of PyTorch and Python."""
    if isinstance(value, MethodType):
        return {"": value.__self__}
    if isinstance(value, Mapping):
        return {f"[{key!r}]": part for key, part in value.items()}
    if isinstance(value, (set, frozenset)):
        return {f"[{part!r}]": None for part in sorted(value, key=repr)}
    if hasattr(value, "__iter__") and hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        return {f"[{number}]": part for number, part in enumerate(value)}
    closed = isinstance(value, _CODE) or type(value).__module__.partition(".")[0] in _CLOSED
    return {} if closed else {f".{key}": part for key, part in getattr(value, "__dict__", {}).items()}


def _counts_only(module: nn.Module) -> bool:
    return any(kind.__module__.partition(".")[0] == "torchmetrics" for kind in type(module).__mro__)


def _join_path(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
