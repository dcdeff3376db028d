"""Loaded data in Ray's object store: read once per node, however many runs use them."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray import ObjectRef
from ray.util import deregister_serializer, register_serializer
from torch import Tensor


@dataclass(frozen=True)
class SharedData:
    """A data module with its data loaded, in Ray's object store.

    Args:
        config: Configuration of the data.
        module: Reference to the data module in Ray's object store.
    """

    config: Any
    module: ObjectRef[Any]

    def give_to(self, module: Any, config: Any) -> None:
        """Passes the loaded data to another data module, without a copy, if both are described equally."""
        if config == self.config:
            vars(module).update(vars(ray.get(self.module)))  # the task asks the same module for examples


def share(module: Any, config: Any) -> SharedData | None:
    """Puts a data module with its loaded data into Ray's object store.

    Returns:
        The shared data; None if a user's data module cannot be sent, so that each run loads its own data.
    """
    register_serializer(Tensor, serializer=Tensor.numpy, deserializer=_tensor)
    try:
        return SharedData(config, ray.put(module))
    except Exception as error:  # Ray, pickle or the module may raise anything
        warnings.warn(f"the data cannot be shared, so each run loads them itself: {error}", stacklevel=2)
        return None
    finally:
        deregister_serializer(Tensor)


def _tensor(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the array is read-only; examples are never written
        return torch.from_numpy(array)
