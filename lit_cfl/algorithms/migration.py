"""Client migration: clients whose data have drifted are placed again before they train.

FlexCFL (arXiv:2108.09749, Algorithm 2, lines 4 to 7, and Section 4.3) places them by its cold start, its baselines by
other rules: IFCA-MIG by the lowest loss, FeSEM-MIG by the nearest model. So the rule is an argument. FlexCFL compares
labels; losses and features, which detect drift that labels do not show, are ours.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lit_cfl.algorithms.base import Info, State, clients_with_data
from lit_cfl.clustering import assign, clusters_of, find_drifted
from lit_cfl.clustering.drift import total_variation
from lit_cfl.errors import InputError
from lit_cfl.local_work import LocalWork
from lit_cfl.options import NOT_NEGATIVE, bounded

DriftMetric = Literal["total_variation", "loss", "features"]

MIGRATIONS = {"migrations": ("client", "cluster_before", "cluster_after")}  # for `Algorithm.tables`
SHIFT_SCORES = ("shift/detected", "shift/migrated")  # for `Algorithm.score_columns`
THRESHOLDS = {"total_variation": 0.2, "loss": 0.1, "features": 0.25}  # 0.2: paper; experiments/studies/drift.md


@dataclass(frozen=True, kw_only=True)
class MigrationOptions:
    """Options of an algorithm with migration, and the migration step before a round.

    Args:
        migrate: Before training, repeat the placing of clients whose data drifted.
        shift_threshold: Distance above which a client migrates, 0 or more; null = 0.2 for labels (the share of the data
            that may change), and measured defaults for `loss` and `features`.
        shift_metric: Distance of a client's data from those with which it was last placed: the `total_variation` of the
            labels' shares (FlexCFL) (C4); `loss`, its rise under the cluster's model, for clients in the round; or
            `features`, the distance of mean inputs.
    """

    migrate: bool = False
    shift_threshold: float | None = bounded(None, NOT_NEGATIVE)
    shift_metric: DriftMetric = "total_variation"
    score_columns: ClassVar[tuple[str, ...]] = SHIFT_SCORES
    tables: ClassVar[Mapping[str, tuple[str, ...]]] = MIGRATIONS

    @property
    def _compares_labels(self) -> bool:
        return self.shift_metric not in ("loss", "features")

    def require_comparable(self, work: LocalWork) -> None:
        """Raises InputError if migration compares class counts, but the data have no classes."""
        if self.migrate and self._compares_labels and not work.label_counts.shape[1]:
            raise InputError(
                "migrate compares the class counts of a client's data, but these data have no classes; set "
                "shift_metric to loss or features, or migrate to false"
            )

    def first_reference(self, work: LocalWork) -> tuple[Tensor, Tensor]:
        """Returns a new state's reference for detecting drift, and the clients' numbers of examples.

        Returns:
            `reference`, with which the metric compares: label counts, int64 `[clients, labels]`; or float64, the last
            loss `[clients, 1]`, or means and total variance of inputs `[clients, features + 1]`, nan = not known yet;
            and `sizes` (n_i, int64 `[clients]`). Both are empty without `migrate`.

        Raises:
            InputError: the data have no classes, and labels are compared.
        """
        self.require_comparable(work)
        known = len(work.num_examples) if self.migrate else 0
        sizes = work.num_examples[:known].clone()
        if not self.migrate or self._compares_labels:
            return work.label_counts[:known].clone(), sizes
        if self.shift_metric == "loss":
            return torch.full((known, 1), torch.nan, dtype=torch.float64), sizes
        seen = clients_with_data(work)
        moments = feature_moments(work, seen)
        return moments.new_full((known, moments.shape[1]), torch.nan).index_copy(0, seen, moments), sizes

    def _migrate(
        self, state: State, cohort: Tensor, work: LocalWork, find: Callable[[Tensor], tuple[Tensor, Info]]
    ) -> tuple[State, Info]:
        """Finds new clusters for clients whose data have drifted, and stores their current data as the new reference.

        Except for `loss`, a slow drift adds up until it fires, because the reference changes only then. A client that
        cannot be placed keeps its cluster and its reference, so it is tried again.

        Args:
            state: State with `models` `[K, d]`, `index` (int64 `[clients]`, -1 = cold), `reference` and `sizes`, see
                `first_reference`. Clients that did not exist at the start are compared with their first data.
            cohort: Clients of the round, int64 `[n]`; `loss` tests only these, as they receive their cluster's model.
            find: Rule of the method that finds a cluster for each of these clients (ids, ascending): int64 `[n]`, -1 =
                it cannot be placed (no data, or it diverged).

        Returns:
            The new state; and the Info of `find`, in which clients of the cohort without data do not count as skipped,
            with the scores `shift/detected` (clients whose trigger fired) and `shift/migrated` (those whose cluster
            changed), and a row of `migrations` for each client that was placed.
        """
        if not self.migrate:
            return state, Info()
        tested = self._clients_to_test(state, cohort, work)
        sizes = torch.cat([state.sizes, work.num_examples[len(state.sizes) :]])
        reference = self._extended(state, work)
        now, apart = self._compare(state, tested, reference[tested], sizes[tested], work)
        fired = tested[apart]
        labels, info = find(fired)
        again = int(torch.isin(fired[work.num_examples[fired] == 0], cohort).sum())  # the round counts them as skipped
        placed, after = fired[labels >= 0], labels[labels >= 0]
        before = clusters_of(state.index, placed)
        changed = int((before != after).sum())
        accepted = torch.isin(tested, placed)
        if self.shift_metric == "loss":
            now = now.masked_fill(accepted[:, None], torch.nan)  # the next test will use another model
            info = replace(info, down=info.down + changed)  # clients also receive the new model
            accepted |= ~apart
        accepted |= reference[tested].isnan().any(1)
        reference = reference.index_copy(0, tested[accepted], now[accepted])
        state = replace(state, index=assign(state.index, placed, after), reference=reference, sizes=sizes)
        rows = torch.stack([placed, before, after], dim=1).tolist()
        tables = {"migrations": [dict(zip(MIGRATIONS["migrations"], row, strict=True)) for row in rows]}
        scores = {"shift/detected": float(len(fired)), "shift/migrated": float(changed)}
        return state, replace(info, skipped=max(info.skipped - again, 0), scores=scores, tables=tables)

    def _clients_to_test(self, state: State, cohort: Tensor, work: LocalWork) -> Tensor:
        """Lists the clients with a cluster whose data can be compared, ascending int64 `[t]`."""
        warm = work.population[clusters_of(state.index, work.population) >= 0]
        if self._compares_labels:
            return warm
        able = warm[work.num_examples[warm] > 0]
        return able[torch.isin(able, cohort)] if self.shift_metric == "loss" else able

    def _extended(self, state: State, work: LocalWork) -> Tensor:
        """Returns the references of all clients `[clients, columns]`, with those of new ones: nan unless labels."""
        if self._compares_labels:
            return torch.cat([state.reference, work.label_counts[len(state.sizes) :]])
        new = len(work.num_examples) - len(state.reference)
        return torch.cat([state.reference, state.reference.new_full((new, state.reference.shape[1]), torch.nan)])

    def _compare(
        self, state: State, tested: Tensor, before: Tensor, sizes: Tensor, work: LocalWork
    ) -> tuple[Tensor, Tensor]:
        """Finds the clients `[t]` whose data moved by more than the threshold from those `before` `[t, columns]`.

        Returns:
            Their present data `[t, columns]`, and which of them have drifted, bool `[t]`.
        """
        threshold = self.shift_threshold
        threshold = THRESHOLDS.get(self.shift_metric, 0.2) if threshold is None else threshold
        if self._compares_labels:
            now = work.label_counts[tested]
            return now, find_drifted(now, before, threshold, lambda now, before: self.label_change(now, before, sizes))
        if self.shift_metric == "features":
            now = feature_moments(work, tested) if len(tested) else before
            return now, feature_distance(now, before) > threshold
        now = cluster_losses(work, state.models, tested, clusters_of(state.index, tested))
        scale = work.losses(work.initial(0)[None], tested)[:, 0].double()
        return now[:, None], (now - before[:, 0]) / scale > threshold

    def label_change(self, now: Tensor, before: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Measures the change of labels that is compared with the threshold, for variants to override.

        Args:
            now: Present examples of each label `[n, labels]`.
            before: Examples of each label when the client was last placed `[n, labels]`.
            sizes: Sizes n_i at the start `[n]`.

        Returns:
            Numerators and denominators of the changes, float64 `[n]`.
        """
        return total_variation(now, before)


def cluster_losses(work: LocalWork, models: Tensor, clients: Tensor, labels: Tensor) -> Tensor:
    """Computes each client's mean training loss under the model of its cluster `labels`, float64 `[n]`."""
    losses = torch.empty(len(clients), dtype=torch.float64)
    for cluster in labels.unique().tolist():
        own = labels == cluster
        losses[own] = work.losses(models[cluster : cluster + 1], clients[own])[:, 0].double()
    return losses


def feature_moments(work: LocalWork, clients: Tensor) -> Tensor:
    """Asks clients for the mean and the total variance of their inputs: float64 `[n, features + 1]`.

    Raises:
        InputError: inputs are whole numbers, such as tokens.
    """
    found = work.map(_moments, clients)
    rows = [row.double() for row in found if isinstance(row, Tensor)]
    return torch.stack(rows) if rows else torch.empty(0, 1, dtype=torch.float64)


def _moments(inputs: Tensor, labels: Tensor) -> Tensor:
    if not inputs.is_floating_point():
        raise InputError(
            f"shift_metric features averages the inputs, but these are {inputs.dtype}, as token ids are; set "
            "shift_metric to loss"
        )
    rows = inputs.flatten(1)
    mean = rows.mean(0)
    return torch.cat([mean, (rows - mean).square().mean(0).sum()[None]])


def feature_distance(now: Tensor, before: Tensor) -> Tensor:
    """Measures how far mean inputs have moved, in units of the inputs' spread.

    Args:
        now: Means and total variance `[n, features + 1]`.
        before: Means and total variance at the last accepted state.

    Returns:
        |mean now - mean before| / sqrt(mean of both total variances), float64 `[n]`; nan if one is unknown.
    """
    moved = (now[:, :-1] - before[:, :-1]).norm(dim=1)
    spread = ((now[:, -1] + before[:, -1]) / 2).sqrt()
    return torch.where(moved == 0, 0.0, moved / spread).where(~moved.isnan(), torch.nan)
