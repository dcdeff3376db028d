"""Models as rows: a module's parameters in one flat vector, with named columns.

A row holds the trainable parameters in the order of registration, then the floating-point buffers
(such as BatchNorm's running statistics). Buffers are averaged with the parameters but never enter a
similarity. Frozen parameters, integer buffers and buffers that are not finite (such as an attention mask of -inf)
are not in the row, since they are the same for all clients.
"""

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, nn

from lit_cfl.errors import InputError

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Slot:
    """One tensor of the module and its columns `start:stop` in a row.

    Args:
        name: Full name of the tensor, such as `net.fc1.weight`.
        layer: Full name of the module that owns it, such as `net.fc1`.
        kind: Class of the owner in lower case, such as `linear` or `conv2d`.
        others: Further full names of the tensor, if several layers share it.
    """

    name: str
    layer: str
    kind: str
    shape: torch.Size
    start: int
    stop: int
    is_buffer: bool = False
    others: tuple[str, ...] = ()

    @property
    def owners(self) -> list[str]:
        """Full names of the layers that have this tensor, one or more."""
        return [name.rpartition(".")[0] for name in (self.name, *self.others)]

    def matches(self, pattern: str) -> bool:
        """Returns whether a name of the tensor or its layers, with or without outer modules, matches the pattern."""
        whole = (*self.owners, self.name, *self.others)
        names = (".".join(name.split(".")[i:]) for name in whole for i in range(name.count(".") + 1))
        return any(fnmatchcase(name, pattern) for name in names)


@dataclass(frozen=True)
class ParameterLayout:
    """The columns of each tensor of a module in a row.

    Example:
        >>> layout = ParameterLayout.of(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)))
        >>> layout.num_columns, layout.columns("linear[-1]").tolist()
        (11, [8, 9, 10])
    """

    slots: tuple[Slot, ...]
    left_out: tuple[str, ...] = ()  # names of layers that the module has and this layout lacks, for messages

    @classmethod
    def of(cls, module: nn.Module) -> "ParameterLayout":
        """Computes the layout of a module.

        Raises:
            InputError: the module has no trainable parameters, or a tensor that a row of real numbers cannot hold.
        """
        _require_real(module)
        named: list[tuple[str, Tensor, bool]] = [
            (name, tensor, False) for name, tensor in module.named_parameters() if tensor.requires_grad
        ]
        named += [(name, tensor, True) for name, tensor in _floating_buffers(module)]
        if not any(not is_buffer for *_, is_buffer in named):
            raise InputError(
                f"{type(module).__name__} has no trainable parameters, so there is nothing to federate; give a module "
                "with parameters that require a gradient"
            )
        owners = dict(module.named_modules())
        names: dict[int, list[str]] = {}
        slots, start = [], 0
        for name, parameter in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        for name, tensor, is_buffer in named:
            layer = name.rpartition(".")[0]
            kind = type(owners[layer]).__name__.lower()
            stop = start + tensor.numel()
            others = tuple(names.get(id(tensor), [])[1:])
            slots.append(Slot(name, layer, kind, tensor.shape, start, stop, is_buffer, others))
            start = stop
        return cls(tuple(slots))

    @classmethod
    def of_layers(cls, sizes: dict[str, int]) -> "ParameterLayout":
        """Makes a layout with one plain vector per layer; names such as `conv1` or `fc1` determine the layer's kind."""
        slots, start = [], 0
        for layer, size in sizes.items():
            kind = {"conv": "conv2d", "fc": "linear"}.get(layer.rstrip("0123456789"), "other")
            slots.append(Slot(f"{layer}.weight", layer, kind, torch.Size([size]), start, start + size))
            start += size
        return cls(tuple(slots))

    @property
    def num_columns(self) -> int:
        """d, the length of a row."""
        return self.slots[-1].stop

    @cached_property
    def num_parameters(self) -> int:
        """The number of trainable columns, which come first in a row; only they enter similarities."""
        return max(slot.stop for slot in self.slots if not slot.is_buffer)

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Names of the modules with trainable parameters, in registration order."""
        return tuple(dict.fromkeys(slot.layer for slot in self.slots if not slot.is_buffer))

    def layers_of(self, kind: str) -> list[str]:
        """Names the layers of a kind, such as `conv` or `linear`, in registration order."""
        trainable = (slot for slot in self.slots if not slot.is_buffer)
        return list(dict.fromkeys(slot.layer for slot in trainable if slot.kind.startswith(kind)))

    def columns(self, patterns: str | Sequence[str]) -> Tensor:
        """Finds the columns of the trainable parameters that a pattern chooses, ascending int64.

        Args:
            patterns: One or several of these: a name with wildcards (`fc*`, `conv1.weight`, `*`), or a kind and a
                position counted from 0 or from the end (`conv[3]` is the fourth convolution, `linear[-1]` the
                last fully connected layer, `batchnorm[*]` are all layers of that kind).

        Raises:
            InputError: a pattern matches nothing; the message lists the existing layers.
        """
        patterns = [patterns] if isinstance(patterns, str) else list(patterns) or [""]
        trainable = [slot for slot in self.slots if not slot.is_buffer]
        return self._columns_of([slot for pattern in patterns for slot in self._matches(pattern, trainable)])

    def columns_with_buffers(self, patterns: Sequence[str]) -> Tensor:
        """Finds columns as `columns` does, including the buffers of the chosen layers, such as running statistics.

        Raises:
            InputError: a pattern matches nothing.
        """
        chosen = [slot for pattern in patterns for slot in self._matches(pattern, self.slots)]
        layers = {slot.layer for slot in chosen}
        return self._columns_of([*chosen, *(slot for slot in self.slots if slot.is_buffer and slot.layer in layers)])

    def without(self, columns: Tensor) -> "ParameterLayout":
        """Returns the layout of the same module without the tensors that have these columns (ascending int64)."""
        gone = torch.zeros(self.num_columns, dtype=torch.bool).index_fill_(0, columns, True)
        slots, left_out, start = [], [], 0
        for slot in self.slots:
            if gone[slot.start : slot.stop].any():
                left_out.append(slot.layer)
            else:
                slots.append(replace(slot, start=start, stop=start + slot.stop - slot.start))
                start = slots[-1].stop
        return ParameterLayout(tuple(slots), tuple(dict.fromkeys(left_out)))

    def _columns_of(self, chosen: Sequence[Slot]) -> Tensor:
        mask = torch.zeros(self.num_columns, dtype=torch.bool)
        for slot in chosen:
            mask[slot.start : slot.stop] = True
        return mask.nonzero().flatten()

    def _matches(self, pattern: str, slots: Sequence[Slot]) -> list[Slot]:
        found = self._find(pattern, slots)
        if not found:
            without = f" (without {', '.join(self.left_out)}: personal)" if self.left_out else ""
            kinds = {slot.layer: slot.kind for slot in self.slots if not slot.is_buffer}
            layers = ", ".join(f"{layer or '(top)'} ({kind})" for layer, kind in kinds.items())
            raise InputError(f"layer pattern {pattern!r} matches nothing; the layers are: {layers}{without}")
        return found

    def _find(self, pattern: str, slots: Sequence[Slot]) -> list[Slot]:
        position = re.fullmatch(r"([a-z]\w*)\[(-?\d+|\*)\]", pattern)
        if position is None:
            return [slot for slot in slots if slot.matches(pattern)]
        if position[2] == "*":
            return [slot for slot in slots if slot.kind.startswith(position[1])]
        layers, number = self.layers_of(position[1]), int(position[2])
        layer = layers[number] if -len(layers) <= number < len(layers) else None
        return [slot for slot in slots if layer in slot.owners]

    def read(self, module: nn.Module, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """Copies the module's tensors into a new row `[d]`."""
        tensors = (tensor.detach().reshape(-1).to(device, dtype) for tensor in self._tensors(module))
        return torch.cat(list(tensors))

    def write(self, row: Tensor, module: nn.Module) -> None:
        """Copies a row `[d]` into the module, in place."""
        if row.shape != (self.num_columns,):
            raise ValueError(f"a row of shape {tuple(row.shape)} does not fit {self.num_columns} columns")
        with torch.no_grad():
            for slot, tensor in zip(self.slots, self._tensors(module), strict=True):
                tensor.copy_(row[slot.start : slot.stop].view(slot.shape))

    def _tensors(self, module: nn.Module) -> Iterable[Tensor]:
        named = dict(module.named_parameters()) | dict(module.named_buffers())
        return (named[slot.name] for slot in self.slots)


def copy_sharing_frozen(module: Module) -> Module:
    """Copies a module, except for its frozen parameters, which are shared because they may be large."""
    return copy.deepcopy(module, {id(p): p for p in module.parameters() if not p.requires_grad})


def replace_layers(module: Module, other: Callable[[nn.Module], nn.Module | None]) -> Module:
    """Replaces layers of a module in place. Returns the module.

    A layer with two names is replaced by one layer.

    Args:
        other: Returns the replacement of a layer, or None to keep the layer.
    """
    found: dict[nn.Module, nn.Module | None] = {}
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if layer not in found:
            found[layer] = other(layer)
        new = found[layer]
        if new is not None:
            module.set_submodule(name, new)
    return module


def _require_real(module: nn.Module) -> None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_complex():
            raise InputError(
                f"{name} is complex, but a model is a row of real numbers; store its real and imaginary parts "
                "(torch.view_as_real), and put them together in forward (torch.view_as_complex)"
            )
        if tensor.layout is not torch.strided and tensor.is_floating_point():
            raise InputError(f"{name} is sparse, but a model is a row of numbers; make it dense with .to_dense()")


def _floating_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    kept = nn.Module.state_dict(module, keep_vars=True)  # buffers that are not persistent do not belong to a model
    for name, buffer in module.named_buffers():
        # a constant such as an attention mask of -inf needs no mean over clients; tensors on `meta` have no numbers
        if buffer.is_floating_point() and name in kept and (buffer.is_meta or bool(buffer.isfinite().all())):
            yield name, buffer
