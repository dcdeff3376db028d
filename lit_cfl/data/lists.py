"""The index lists of all clients as plain tensors by name, for checkpoints and partition files."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from lit_cfl.data.federated import FederatedData
from lit_cfl.data.index import ClientIndex

_LISTS = ("train", "validation", "test", "withheld")
_PARTS = ("values", "starts", "sizes")
LIST_ARRAYS = (*(f"{name}_{part}" for name in _LISTS for part in _PARTS), "true_clusters")


def lists_of(data: FederatedData) -> dict[str, Tensor]:
    """Returns the lists of all clients and the true clusters; equal lists always give equal tensors."""
    lists = {name: index.compact() for name in _LISTS if (index := getattr(data, name)) is not None}
    tensors = {f"{name}_{part}": getattr(index, part) for name, index in lists.items() for part in _PARTS}
    return tensors | {"true_clusters": data.true_clusters}


def with_lists(data: FederatedData, tensors: Mapping[str, Tensor]) -> FederatedData:
    """Replaces the lists for the same examples and clients. Raises KeyError if one is missing."""
    present = [name for name in _LISTS if name != "withheld" or f"{name}_values" in tensors]
    lists: dict[str, Any] = {name: ClientIndex(*(tensors[f"{name}_{part}"] for part in _PARTS)) for name in present}
    return replace(data, true_clusters=tensors["true_clusters"], **lists)
