"""Client migration: clients whose labels have drifted are placed anew before they train, and it is written down.

FlexCFL (arXiv:2108.09749, Section 4.3) places them by its cold start, its baselines by their own rules: IFCA-MIG by the
least loss, FeSEM-MIG by the nearest model. So the rule is handed in.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lit_cfl.algorithms.base import Info, State
from lit_cfl.clustering import ShiftMetric, clusters_of, drifted
from lit_cfl.local.work import LocalWork

MIGRATIONS = {"migrations": ("client", "cluster_before", "cluster_after")}  # for `Algorithm.tables`
SHIFT_SCORES = ("shift/detected", "shift/migrated")  # for `Algorithm.score_columns`


def migrate(
    state: State,
    work: LocalWork,
    place: Callable[[State, Tensor], tuple[State, Info]],
    threshold: float,
    metric: ShiftMetric,
) -> tuple[State, Info]:
    """Places every warm client whose trigger fires, and takes its present labels as the new reference.

    A slow drift adds up until it fires, because the reference changes then only. Clients without data stay.

    Args:
        state: with `index` (int64 `[clients]`, -1 = cold), `reference` (label counts at the last accepted state
            `[clients, labels]`) and `sizes` (n_i at the start `[clients]`). Clients that were not there at the start
            are compared with their data now.
        place: gives these clients (ids, ascending) a cluster by the method's rule.
        threshold: as for `drifted`.
        metric: as for `drifted`.

    Returns:
        The new state, and the Info of `place` with the scores `shift/detected` (clients whose trigger fired) and
        `shift/migrated` (those whose cluster changed), and with the table of the latter.
    """
    counts, known = work.label_counts, len(state.sizes)
    reference = torch.cat([state.reference, counts[known:]]) if len(counts) > known else state.reference
    sizes = torch.cat([state.sizes, work.num_examples[known:]])
    warm = work.population[clusters_of(state.index, work.population) >= 0]
    warm = warm[work.num_examples[warm] > 0]
    fired = warm[drifted(counts[warm], reference[warm], sizes[warm], threshold, metric)]
    placed, info = place(state, fired)
    log = _log(fired, clusters_of(state.index, fired), clusters_of(placed.index, fired))
    refreshed = reference.index_copy(0, fired, counts[fired])
    return replace(placed, reference=refreshed, sizes=sizes), replace(info, scores=log.scores, tables=log.tables)


def _log(clients: Tensor, before: Tensor, after: Tensor) -> Info:
    moved = before != after
    columns = MIGRATIONS["migrations"]
    rows = torch.stack([clients, before, after], dim=1)[moved].tolist()
    scores = {"shift/detected": float(len(clients)), "shift/migrated": float(len(rows))}
    return Info(scores=scores, tables={"migrations": [dict(zip(columns, row, strict=True)) for row in rows]})
