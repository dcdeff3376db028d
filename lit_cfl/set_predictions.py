"""Outputs and labels of clients, from which set scores are computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import torch
from torch import Tensor

from lit_cfl.global_generators import seed_globally
from lit_cfl.scores import SetScore
from lit_cfl.seeds import derive


@dataclass(frozen=True, eq=False)
class SetPredictions:
    """Outputs and labels of the scored examples of clients.

    Args:
        outputs: Outputs of the clients' models, float64 `[m, o]`.
        labels: Labels `[m]`.
        lists: Positions of the examples of each list, int64; clients of one model may share a list.
        list_of: List of each client, int64 `[n]`.
    """

    outputs: Tensor
    labels: Tensor
    lists: Sequence[Tensor]
    list_of: Tensor

    def of_clients(self, score: SetScore) -> tuple[Tensor, Tensor]:
        """Computes each client's score, 0 if undefined, and whether it is defined (1 or 0): float64 `[n]` each.

        If an output is not finite, the score is defined, and nan: a diverged model has a bad score, not none.
        """
        found = torch.tensor([self._of(score, places) for places in self.lists], dtype=torch.float64)
        finite = torch.tensor([bool(self.outputs[places].isfinite().all()) for places in self.lists])
        known = ~found.isnan() | ~finite
        return found.where(known, 0)[self.list_of], known.double()[self.list_of]

    def over_clients(self, score: SetScore, clients: Tensor | None = None) -> float:
        """Computes a score over all examples of some clients (None = all); nan if undefined."""
        chosen = (self.list_of if clients is None else self.list_of[clients]).tolist()
        return self._of(score, torch.cat([self.lists[k] for k in chosen])) if chosen else nan

    def _of(self, score: SetScore, places: Tensor) -> float:
        outputs = self.outputs[places]
        with seed_globally(derive(0, "score"), "cpu"):  # a user's function may draw, such as for a bootstrap
            return score.of_set(outputs, self.labels[places]) if outputs.isfinite().all() else nan

    @classmethod
    def join(cls, parts: Sequence["SetPredictions"]) -> "SetPredictions":
        """Joins the predictions of clients on one split."""
        lists: list[Tensor] = []
        list_of, before = [], 0
        for part in parts:
            list_of.append(part.list_of + len(lists))
            lists += [places + before for places in part.lists]
            before += len(part.labels)
        outputs, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("outputs", "labels"))
        return cls(outputs, labels, lists, torch.cat(list_of))
