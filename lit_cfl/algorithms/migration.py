"""Client migration: clients whose labels have drifted are placed again before they train; a table lists them.

FlexCFL (arXiv:2108.09749, Algorithm 2, lines 4 to 7, and Section 4.3) places them by its cold start, its baselines by
their own rules: IFCA-MIG by the lowest loss, FeSEM-MIG by the nearest model. So the rule is handed in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lit_cfl.algorithms.base import Info, State, require_not_negative
from lit_cfl.clustering import ShiftMetric, assign, clusters_of, drifted
from lit_cfl.errors import InputError
from lit_cfl.local_work import LocalWork

MIGRATIONS: dict[str, tuple[str, ...]] = {"migrations": ("client", "cluster_before", "cluster_after")}  # the table
SHIFT_SCORES = ("shift/detected", "shift/migrated")  # for `Algorithm.score_columns`


@dataclass(frozen=True, kw_only=True)
class MigrationOptions:
    """The options of an algorithm with migration, and what it does by them before a round.

    Args:
        migrate: before training, clients whose labels drifted are placed again.
        shift_threshold: share of the data that may change before a client migrates, 0 or more.
        shift_metric: how the change is measured: `total_variation`, `sorted_counts` (FlexCFL's code), `l1_counts`
            or `w1_label_axis` (C4).
    """

    migrate: bool = False
    shift_threshold: float = 0.2
    shift_metric: ShiftMetric = "total_variation"
    score_columns: ClassVar[tuple[str, ...]] = SHIFT_SCORES
    tables: ClassVar[Mapping[str, tuple[str, ...]]] = MIGRATIONS

    def __post_init__(self) -> None:
        require_not_negative(shift_threshold=self.shift_threshold)

    def migrated(
        self, state: State, work: LocalWork, find: Callable[[Tensor], tuple[Tensor, Info]]
    ) -> tuple[State, Info]:
        """Migrates clients as `migrate` does; the same state, and an empty Info, where the option is off."""
        return migrate(state, work, find, self.shift_threshold, self.shift_metric) if self.migrate else (state, Info())


def first_labels(work: LocalWork, *, wanted: bool) -> tuple[Tensor, Tensor]:
    """Notes the first labels of clients, for a new state.

    Returns:
        `reference` (label counts, int64 `[clients, labels]`) and `sizes` (n_i, int64 `[clients]`); no rows if not
        `wanted`.

    Raises:
        InputError: the data have no classes.
    """
    if wanted and not work.label_counts.shape[1]:
        raise InputError("migrate compares the labels of a client's data, but these have no classes; set it to false")
    known = len(work.num_examples) if wanted else 0
    return work.label_counts[:known].clone(), work.num_examples[:known].clone()


def migrate(
    state: State,
    work: LocalWork,
    find: Callable[[Tensor], tuple[Tensor, Info]],
    threshold: float,
    metric: ShiftMetric,
) -> tuple[State, Info]:
    """Places every warm client whose trigger fires, and notes its present labels as the new reference.

    A slow drift adds up until it fires, because the reference changes then only. A client that cannot be placed stays
    where it is, and as its reference does, too, it is tried again in the next round.

    Args:
        state: with `index` (int64 `[clients]`, -1 = cold), `reference` (label counts at the last accepted state
            `[clients, labels]`) and `sizes` (n_i at the start `[clients]`). Clients that were not there at the start
            are compared with the first data that they come with.
        find: a cluster for each of these clients (ids, ascending) by the method's rule: int64 `[n]`, -1 = it cannot
            be placed (no data, or it diverged).
        threshold: as for `drifted`.
        metric: as for `drifted`.

    Returns:
        The new state, and the Info of `find` with the scores `shift/detected` (clients whose trigger fired) and
        `shift/migrated` (those whose cluster changed), and a row of `migrations` for each client that was placed again.
    """
    counts, known = work.label_counts, len(state.sizes)
    reference = torch.cat([state.reference, counts[known:]])
    sizes = torch.cat([state.sizes, work.num_examples[known:]])
    warm = work.population[clusters_of(state.index, work.population) >= 0]
    fired = warm[drifted(counts[warm], reference[warm], sizes[warm], threshold, metric)]
    labels, info = find(fired)
    placed, after = fired[labels >= 0], labels[labels >= 0]
    before = clusters_of(state.index, placed)
    rows = torch.stack([placed, before, after], dim=1).tolist()
    scores = {"shift/detected": float(len(fired)), "shift/migrated": float((before != after).sum())}
    tables = {"migrations": [dict(zip(MIGRATIONS["migrations"], row, strict=True)) for row in rows]}
    reference = reference.index_copy(0, placed, counts[placed])
    state = replace(state, index=assign(state.index, placed, after), reference=reference, sizes=sizes)
    return state, replace(info, scores=scores, tables=tables)
