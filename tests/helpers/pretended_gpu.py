"""Simulates a GPU: its tensors are in the CPU's memory, but PyTorch's function and dispatch modes track them.

Results are real, so they can be compared bit for bit. An operation on tensors of both devices is refused, as on a GPU.
Costs on a GPU are counted: launched operations, copies in both directions, and waits of the CPU.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU, CPU = torch.device("cuda:0"), torch.device("cpu")
_aten = torch.ops.aten
_WAITING = {_aten._local_scalar_dense, _aten.nonzero, _aten.masked_select, _aten.equal, _aten.unique_consecutive}
_INDEXING = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_}
_NO_KERNEL = {_aten.empty, _aten.empty_like, _aten.new_empty, _aten.empty_strided, _aten.new_empty_strided}
_NO_KERNEL |= {_aten.lift_fresh, _aten.detach, _aten._unsafe_view, _aten.view, _aten.alias}


@dataclass
class Counts:
    """Counts of a GPU's work: operations and replays, copies from and to the CPU, waits of the CPU."""

    launches: int = 0
    replays: int = 0
    replayed: int = 0  # number of operations in replayed graphs
    uploads: int = 0
    downloads: int = 0
    waits: int = 0
    moved: int = 0  # number of bytes moved in both directions


class PretendedGPU:
    """Context manager within which some tensors count as being on the simulated GPU."""

    def __init__(self) -> None:
        self.counts, self.replaying, self.ended = Counts(), False, False
        self.made_current: list[torch.device] = []
        self._mine: dict[int, StorageWeakRef] = {}
        self._pinned: dict[int, StorageWeakRef] = {}

    def __enter__(self) -> "PretendedGPU":
        self._modes = _Operations(), _Functions()
        for mode in self._modes:
            mode.gpu = self
            mode.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)

    def holds(self, tensor: Tensor) -> bool:
        return _kept(self._mine, tensor)

    def take(self, tensor: Tensor) -> Tensor:
        """Marks a tensor as being on the GPU."""
        _keep(self._mine, tensor)
        return tensor

    def pinned(self, tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        _keep(self._pinned, copy)
        return copy

    def uploaded(self, tensor: Tensor, waits: bool) -> Tensor:
        self.counts.uploads += 1
        self.counts.moved += tensor.nbytes
        self.counts.waits += waits and not _kept(self._pinned, tensor)
        return self.take(tensor.clone())

    def downloaded(self, tensor: Tensor) -> Tensor:
        self.counts.downloads += 1
        self.counts.moved += tensor.nbytes
        self.counts.waits += 1
        self.ended = True  # the copy counts as the CPU's
        copy = tensor.clone()
        self.ended = False
        return copy

    @contextmanager
    def counting(self) -> Iterator[Counts]:
        """Yields counts that start from zero and stop at the end of the block."""
        self.counts = Counts()
        yield self.counts
        self.counts = Counts()


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.untyped_storage()


def _kept(held: dict[int, StorageWeakRef], tensor: Tensor) -> bool:
    found = held.get(_storage(tensor)._cdata)
    return found is not None and not found.expired()


def _keep(held: dict[int, StorageWeakRef], tensor: Tensor) -> None:
    storage = _storage(tensor)
    held[storage._cdata] = StorageWeakRef(storage)


class _Functions(TorchFunctionMode):
    """Function mode that reports the devices of tensors, and copies tensors between CPU and simulated GPU."""

    gpu: PretendedGPU

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gpu, kwargs = self.gpu, dict(kwargs or {})
        if func == Tensor.device.__get__:
            return GPU if gpu.holds(args[0]) else func(*args)
        if func in (Tensor.tolist, Tensor.numpy) and gpu.holds(args[0]):
            if func is Tensor.numpy:
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            return func(gpu.downloaded(args[0]))
        if func is Tensor.cpu:
            return gpu.downloaded(args[0]) if gpu.holds(args[0]) else args[0]
        if func is Tensor.to:
            return self._moved(*args, **kwargs)
        if func is Tensor.__deepcopy__ and gpu.holds(args[0]):
            return gpu.take(func(*args, **kwargs))
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda" and func is not torch._C._nn._parse_to:
            made = func(*args, **kwargs | {"device": CPU})
            if func in (torch.tensor, torch.as_tensor):
                return gpu.uploaded(made, waits=True)
            gpu.counts.launches += not gpu.replaying
            return gpu.take(made)
        return func(*args, **kwargs)

    def _moved(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        targets = [arg for arg in (*args, kwargs.pop("device", None)) if isinstance(arg, (str, torch.device))]
        waits = not (kwargs.pop("non_blocking", False) or True in args)
        others = [arg for arg in args if not isinstance(arg, (str, torch.device, Tensor))]
        likes = [arg for arg in args if isinstance(arg, Tensor)]
        targets += [GPU if self.gpu.holds(like) else CPU for like in likes]
        kinds = [other for other in others if isinstance(other, torch.dtype)] + [like.dtype for like in likes]
        here = self.gpu.holds(tensor)
        there = torch.device(targets[0]).type == "cuda" if targets else here
        if there and not here:
            tensor = self.gpu.uploaded(tensor, waits)
        elif here and not there:
            tensor = self.gpu.downloaded(tensor)
        return tensor.to(*kinds, **kwargs) if kinds or kwargs else tensor


class _Operations(TorchDispatchMode):
    """Dispatch mode that counts operations, and refuses those on tensors of both devices."""

    gpu: PretendedGPU

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gpu, kwargs = self.gpu, kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        mine = [gpu.holds(tensor) for tensor in tensors]
        if gpu.ended or not any(mine):
            return func(*args, **kwargs)
        packet, counts = func.overloadpacket, gpu.counts
        for tensor, held in zip(tensors, mine, strict=True):
            if not held and tensor.dim() and packet not in (_aten.copy_, *_INDEXING):
                raise RuntimeError(f"{func}: tensors on cuda:0 and cpu")
        if not gpu.replaying:
            self._count(func, packet, args, tensors, mine)
        found = func(*args, **kwargs)
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor) and not (packet is _aten.copy_ and not mine[0]):
                gpu.take(leaf)
        counts.launches += not gpu.replaying and _has_kernel(func)
        return found

    def _count(self, func: Any, packet: Any, args: Any, tensors: list[Tensor], mine: list[bool]) -> None:
        counts = self.gpu.counts
        if packet is _aten.copy_ and mine[0] != mine[1]:
            blocking = not (len(args) > 2 and args[2] and (mine[1] or _kept(self.gpu._pinned, tensors[1])))
            counts.uploads, counts.downloads = counts.uploads + mine[0], counts.downloads + mine[1]
            counts.moved, counts.waits = counts.moved + tensors[1].nbytes, counts.waits + blocking
        elif packet in _INDEXING:
            indices = [index for index in args[1] if isinstance(index, Tensor)]
            masks = [index for index in indices if index.dtype == torch.bool]
            away = [index for index in indices if not self.gpu.holds(index)]
            counts.uploads, counts.waits = counts.uploads + len(away), counts.waits + len(away) + len(masks)
        elif packet in _WAITING or "unique" in str(packet):
            counts.waits += 1


def _has_kernel(func: Any) -> bool:
    return func.overloadpacket not in _NO_KERNEL and not func.is_view


class Graph(TorchDispatchMode):
    """Dispatch mode that records operations, and repeats them on the same tensors, as a CUDA graph does."""

    made = 0
    gpu: PretendedGPU

    def __init__(self) -> None:
        super().__init__()
        Graph.made += 1
        self.steps: list[tuple[Callable[..., object], tuple, dict, object]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.steps.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        gpu = Graph.gpu
        gpu.replaying = True
        gpu.counts.replays += 1
        gpu.counts.replayed += sum(_has_kernel(func) for func, *_ in self.steps)
        for func, args, kwargs, out in self.steps:
            for held, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(held, Tensor) and held.data_ptr() != new.data_ptr():
                    held.copy_(new)
        gpu.replaying = False

    def pool(self) -> tuple[int, int]:
        return (0, 1)
