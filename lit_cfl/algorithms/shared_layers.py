"""Layers that all clusters share: averaged over all clients of a round, while the other layers stay per cluster.

This is the weight sharing that arXiv:2006.04088 combines with IFCA if clusters are ambiguous, for every algorithm that
averages in clusters.

* The mean over all clients has the weights that the algorithm gives them inside clusters.
* Clusters without training also get the shared layers, and so do new ones, from their first fit on.
* A mix of clusters (`eta_g`) does not change the shared layers.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lit_cfl.algorithms.base import Algorithm, Info, State
from lit_cfl.algorithms.mean_hooks import HookedWork, derive, plain, require_hook_used, require_means
from lit_cfl.errors import InputError
from lit_cfl.local_work import Fitted, LocalWork


def with_shared_layers(algorithm: Algorithm, patterns: Sequence[str] | None) -> Algorithm:
    """Returns the algorithm with these layers shared by all clusters.

    Args:
        algorithm: Algorithm that may share other layers.
        patterns: Names of layers, see `ParameterLayout.columns`; None = the algorithm without shared layers.

    Raises:
        InputError: the algorithm does not average models in clusters.
    """
    algorithm = plain(algorithm)
    if patterns is None:
        return algorithm
    if not patterns:
        raise InputError("shared is []; name layers, such as [conv*], or leave it out")
    require_means(algorithm, "shared")
    return derive(algorithm, _WithSharedLayers, {"shared_patterns": tuple(patterns)})


class _WithSharedLayers(Algorithm):
    """Averages the shared layers over all clients each time the algorithm averages in clusters."""

    plain_kind: ClassVar[type[Algorithm]]
    shared_patterns: ClassVar[tuple[str, ...]]

    def check(self, work: LocalWork) -> None:
        super().check(work)
        work.layout.columns_with_buffers(self.shared_patterns)

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        state, info = super().init(work, rng)  # type: ignore[safe-super]  # the algorithm's, which comes next
        return self._with_common(state, state.models, work), info

    def round(self, state: State, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        shared = _SharedMean(work.layout.columns_with_buffers(self.shared_patterns), state.models)
        hooked = _SharingWork(work, shared)
        after, info = super().round(state, cohort, hooked, rng)  # type: ignore[safe-super]  # as above
        require_hook_used(self, "shared", hooked, shared.taken)
        return replace(after, models=shared.write_into(after.models)), info

    def place(self, state: State, clients: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        after, info = super().place(state, clients, work, rng)  # type: ignore[safe-super]  # as above
        return self._with_common(after, state.models, work), info

    def _with_common(self, state: State, models: Tensor, work: LocalWork) -> State:
        """Gives all clusters of a state the shared layers of the first of these models `[K, d]`."""
        shared = _SharedMean(work.layout.columns_with_buffers(self.shared_patterns), models)
        return replace(state, models=shared.write_into(state.models))


class _SharedMean:
    """The shared layers during a round, and the rule that averages them over its clients.

    Args:
        columns: Columns of the shared layers, ascending int64 `[s]`.
        models: Models before the round `[K, d]`, which share them already.
    """

    def __init__(self, columns: Tensor, models: Tensor) -> None:
        self._columns, self.taken = columns, False
        self._common: Tensor | None = models[0, columns] if len(models) else None

    def __call__(self, before: Tensor, means: Tensor, weights: Tensor) -> Tensor:
        """Replaces the shared layers in the clusters' means `[K, d]` by their mean over all clients."""
        self.taken = True
        if weights.any():
            columns = means[:, self._columns].double()
            self._common = ((weights @ columns) / weights.sum()).to(means.dtype)
        return self.write_into(means)

    def write_into(self, models: Tensor) -> Tensor:
        """Returns the models `[K, d]` with the shared layers written into them."""
        if self._common is None or not len(models):
            return models
        return models.index_copy(1, self._columns, self._common.expand(len(models), -1))


class _SharingWork(HookedWork):
    """A round's `LocalWork` in which clients start from models with the current shared layers."""

    def __init__(self, work: LocalWork, shared: _SharedMean) -> None:
        super().__init__(work, shared)
        self._shared = shared

    def fit(self, models: Tensor, clients: Tensor, *arguments: Any, purpose: str = "train", **options: Any) -> Fitted:
        if purpose == "train":
            models = self._shared.write_into(models)
        return super().fit(models, clients, *arguments, purpose=purpose, **options)
