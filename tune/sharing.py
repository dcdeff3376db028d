"""A study's data: loaded once by the process that leads it, and held once by each node, in Ray's object store."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray import ObjectRef
from ray.util import deregister_serializer, register_serializer
from torch import Tensor

from lit_cfl.experiment import Experiment


@dataclass(frozen=True)
class SharedData:
    """The base's data module with what it has loaded.

    Args:
        config: how the base describes its data.
        module: where the object store has them.
    """

    config: Any
    module: ObjectRef[Any]

    def give_to(self, experiment: Experiment) -> None:
        """Lets the experiment's module have loaded these data, without a copy; not where it describes others."""
        if experiment.described()["data"] == self.config:
            vars(experiment.data).update(vars(ray.get(self.module)))  # its task asks this very module for examples, too


def share(experiment: Experiment) -> SharedData | None:
    """Puts the data of an experiment into the object store.

    Returns:
        None where a user's own data module holds what cannot travel: each trial then loads its own.
    """
    register_serializer(Tensor, serializer=Tensor.numpy, deserializer=_tensor)
    try:
        return SharedData(experiment.described()["data"], ray.put(experiment.data))
    except Exception as error:  # Ray's, pickle's, the module's own
        warnings.warn(f"the data cannot be shared, so each trial loads them itself: {error}", stacklevel=2)
        return None
    finally:
        deregister_serializer(Tensor)


def _tensor(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the array is read-only; nobody writes into examples
        return torch.from_numpy(array)
