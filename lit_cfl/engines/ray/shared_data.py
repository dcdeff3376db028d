"""Loaded data in Ray's object store: read once per node, however many runs use them."""

import warnings
from dataclasses import dataclass
from typing import Any

import ray

from lit_cfl.engines.ray.worker import Ref, put


@dataclass(frozen=True)
class SharedData:
    """A data module with its data loaded, in Ray's object store.

    Args:
        config: Configuration of the data.
        module: Reference to the data module in Ray's object store.
    """

    config: Any
    module: Ref

    def give_to(self, module: Any, config: Any) -> None:
        """Passes the loaded data to another data module, without a copy, if both are described equally."""
        if config == self.config:
            vars(module).update(vars(ray.get(self.module)))  # the task asks the same module for examples


def share(module: Any, config: Any) -> SharedData | None:
    """Puts a data module with its loaded data into Ray's object store.

    Returns:
        The shared data; None if a user's data module cannot be sent, so that each run loads its own data.
    """
    try:
        return SharedData(config, put(module))
    except Exception as error:  # Ray, pickle or the module may raise anything
        warnings.warn(f"the data cannot be shared, so each run loads them itself: {error}", stacklevel=2)
        return None
