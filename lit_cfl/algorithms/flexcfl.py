"""FlexCFL: FedGroup whose clients choose their cluster again when their data shift.

arXiv:2108.09749, Algorithms 2 and 3, Equations 8, 9 and 20.

Where this differs from the paper (in addition to FedGroup's list: C5, C6, C7, C34):
* the trigger is a total variation of the labels' shares above 0.2, which is the paper's stated "20 % of the training
  data"; the published code compares sorted counts, which do not distinguish labels (C4).
* a client with a shift of exactly the threshold does not migrate (strict, as in Algorithm 2, line 5, and exact).
* pre-training is 50 mini-batches of 10, as in the published code; Algorithm 3 calls the full local training (C8).
* a client that cannot redo its cold start (no data left, or it diverged) keeps its cluster and tries again in the next
  round.
* a client's reference is its labels when the run starts or when it is first known, as in the published code, also while
  it is cold: changes before its cold start count as a shift. After a migration it is the labels at that time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from lit_cfl.algorithms.base import Info, State
from lit_cfl.algorithms.fedgroup import FedGroup, FedGroupState
from lit_cfl.algorithms.migration import MigrationOptions
from lit_cfl.clustering import clusters_of
from lit_cfl.local_work import Budget, LocalWork


@dataclass(frozen=True, eq=False)
class FlexCFLState(FedGroupState):
    """The state of FedGroup, and the clients' earlier data, with which migration compares."""

    reference: Tensor  # migration's reference data [clients, columns]; empty without `migrate`
    sizes: Tensor  # n_i at the start [clients]; empty without `migrate`


@dataclass(frozen=True)
class FlexCFL(FedGroup, MigrationOptions):
    """FedGroup with migration: a client whose data have shifted redoes its cold start before the round.

    Takes the arguments of FedGroup and of migration, `pretrain` and `migrate` with FlexCFL's defaults:

    Args:
        pretrain: Budget of the pre-training: 50 mini-batches of 10 (code), instead of FedGroup's one epoch.
        migrate: Test clients for a shift, and repeat the placing of those whose data shifted; false = as FedGroup.
    """

    paper: ClassVar[str] = (
        "Duan, Liu, Ji, Wu, Liang, Chen, Tan, Ren. Flexible Clustered Federated Learning for Client-Level Data "
        "Distribution Shift. IEEE TPDS 2022. arXiv:2108.09749"
    )
    pretrain: Budget = Budget(50, "steps", batch_size=10)
    migrate: bool = field(default=True, kw_only=True)
    state_type: ClassVar[type] = FlexCFLState
    score_columns: ClassVar[tuple[str, ...]] = (*FedGroup.score_columns, *MigrationOptions.score_columns)
    tables: ClassVar[Mapping[str, tuple[str, ...]]] = MigrationOptions.tables

    def check(self, work: LocalWork) -> None:
        super().check(work)
        self.require_comparable(work)

    def group_cold_start(self, work: LocalWork, rng: torch.Generator) -> tuple[FlexCFLState, Info]:
        """Runs the group cold start (Algorithm 3); its clients receive all directions, for migration (line 19)."""
        groups, info = super().group_cold_start(work, rng)
        reference, sizes = self.first_reference(work)
        state = FlexCFLState(**vars(groups), reference=reference, sizes=sizes)
        return state, replace(info, down=info.down + len(state.models) * len(state.founders))

    def round(self, state: State, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        """Runs a round (Algorithm 2): migration, then a round of FedGroup."""
        found, migrated = self._migrate(state, cohort, work, lambda some: self.nearest(state, some, work))  # lines 4-7
        after, info = super().round(found, cohort, work, rng)  # lines 8-14
        return after, info.plus(replace(migrated, up=0))  # no upload: a client that migrates compares its update itself

    def place(self, state: State, clients: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        """Runs the client cold start, in which clients without a cluster compare their updates with all directions."""
        cold = clusters_of(state.index, clients) < 0
        placed: State
        placed, info = super().place(state, clients, work, rng)
        joined = cold & (clusters_of(placed.index, clients) >= 0)
        return placed, replace(info, down=len(state.models) * int(joined.sum()), up=0)
