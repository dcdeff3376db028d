"""The common inputs of all trials: base, space, and data, which each node stores once."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray import ObjectRef
from ray.util import deregister_serializer, register_serializer
from torch import Tensor

from lit_cfl.config.variants import build
from lit_cfl.engines.plan import PlanOptions
from lit_cfl.experiment import Experiment
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.spaces import Space


@dataclass(frozen=True)
class SharedData:
    """The base's data module with its loaded data.

    Args:
        config: how the base describes its data.
        module: where the object store has them.
    """

    config: Any
    module: ObjectRef[Any]

    def give_to(self, experiment: Experiment) -> None:
        """Gives the experiment's module these data as if loaded, without a copy, if it describes the same data."""
        if experiment.described()["data"] == self.config:
            vars(experiment.data).update(vars(ray.get(self.module)))  # the task asks the same module for examples


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


@dataclass(frozen=True)
class TrialJob:
    """The common inputs of all trials of a study.

    Args:
        study: Name of the study.
        base: the experiment.
        space: Search space.
        seeds: Seeds of every trial.
        objective: Reported objective.
        folder: Folder of the trials' directories.
        threads: PyTorch's, in each trial, unless the base says otherwise.
        watched: True if a scheduler needs every round's result.
        minutes: Time limit of a trial in minutes; None = no limit.
        data: Data of the base, already loaded; None = each trial loads its own.
        gpus: share of a GPU that a trial has, see `Resources`.
    """

    study: str
    base: Mapping[str, Any]
    space: Space
    seeds: Sequence[int]
    objective: Objective
    folder: Path
    threads: int = 1
    watched: bool = True
    minutes: float | None = None
    data: SharedData | None = None
    gpus: float = 0.0

    def hold_share(self) -> None:
        """Limits this process to a trial's share of a GPU's memory, leaving the rest to other trials."""
        if 0 < self.gpus < 1:
            torch.cuda.set_per_process_memory_fraction(self.gpus)

    def _device(self, experiment: Experiment, plan: PlanOptions) -> str | None:
        """Returns the CPU for a trial without a share of a GPU; None = the experiment's choice.

        Ray hides no GPU from a worker that asked for none: all trials of a node would train on its first one.
        """
        by_ray = experiment.engine == "ray" or bool(plan.workers)
        return "cpu" if not self.gpus and not by_ray and experiment.device == "auto" else None

    def experiment(self, values: Mapping[str, Any], name: str) -> Experiment:
        """Builds the experiment at a point of the space; trackers show it under the study and this name."""
        experiment = build(self.base, self.space.words(values))
        told = ", ".join(f"{key} = {value}" for key, value in values.items())
        return self.of_trial(experiment.changed(tracking={"notes": told}), name)

    def of_trial(self, experiment: Experiment, name: str) -> Experiment:
        """Gives an experiment the seeds and threads of a trial, and the study's data."""
        if self.data is not None:
            self.data.give_to(experiment)
        plan = experiment.plan or PlanOptions()
        device = plan.device or self._device(experiment, plan)
        return experiment.changed(
            name=f"{self.study}-{name}",
            seeds=list(self.seeds),
            plan={"threads": plan.threads or self.threads, "device": device},
            tracking={"group": experiment.tracking.group or self.study},
        )
