"""Counts and values that a run needs from earlier rounds, in addition to its algorithm's state."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from math import isnan
from typing import Any

import torch
from torch import Tensor

from lit_cfl.algorithms.base import Algorithm
from lit_cfl.client_scores import SplitScores
from lit_cfl.clustering.cluster_scores import silhouette
from lit_cfl.evaluation import Evaluation
from lit_cfl.metric_names import LOCAL, Row
from lit_cfl.rounds import Round

_MOST_KEPT = 2**24  # from this number of memberships on (64 MiB), changes between two due rounds are not kept


@dataclass
class RunTotals:
    """Counts, best scores and memberships of a run, which survive a resume.

    Args:
        members: Cluster of each client at the last evaluation, int64 `[clients]`, -1 = none; None before the first one.
        memberships: Clusters of each client by number of the round, in rounds in which one changed or some were due.
        best: Best test value of each score by its name, among evaluations that cover every client.
        silhouette, skipped, shifted: Values for the next row; `shifted` are the numbers of clients and examples.
        compared: Number of the round of the last snapshot.
        trained: True if any client has trained.
    """

    members: Tensor | None = None
    memberships: dict[int, Tensor] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    silhouette: float | None = None
    skipped: int = 0
    compared: int | None = None
    shifted: list[int] = field(default_factory=lambda: [0, 0])
    trained: bool = False

    @classmethod
    def restore(cls, saved: Mapping[str, Any]) -> "RunTotals":
        """Restores the totals from a checkpoint."""
        return cls(**{part.name: saved[part.name] for part in fields(cls)})

    def content(self) -> dict[str, Any]:
        """Returns a copy of the totals for a checkpoint; later rounds do not change the copy."""
        return {name: copy(value) for name, value in vars(self).items()}

    def count(self, r: Round) -> None:
        """Adds a round's skipped clients, and its shifted clients and examples, to the counts."""
        self.skipped += r.info.skipped
        # clients may have trained without reporting a loss
        without_loss = r.info.up > 0 or (r.costs.steps > 0 and r.info.skipped == 0)
        self.trained |= not isnan(r.info.loss) or without_loss
        for moved in r.moves:
            self.shifted = [self.shifted[0] + len(moved.clients), self.shifted[1] + int(moved.examples.sum())]

    def compare(self, r: Round, algorithm: Algorithm, every: int) -> None:
        """Computes the silhouette of a round's similarities, if a snapshot is due, which is every `every` rounds."""
        found = r.info.similarity
        if found is not None and is_due(r.number, self.compared, every):
            clusters = algorithm.serve(r.state, found.clients).index
            self.compared, self.silhouette = r.number, silhouette(found.matrix, clusters)

    def row(self, shifting: bool) -> Row:
        """Returns the counts and the silhouette since the last row, and resets them."""
        row: Row = {"clients/skipped": self.skipped, "clusters/silhouette": self.silhouette}
        if shifting:
            row |= {"shift/clients": self.shifted[0], "shift/examples": self.shifted[1]}
        self.skipped, self.silhouette, self.shifted = 0, None, [0, 0]
        return row

    def take(self, r: Round, evaluation: Evaluation, every: int) -> None:
        """Updates memberships and best scores from an evaluation.

        Args:
            every: Rounds after which memberships are kept, even if none has changed.
        """
        test = evaluation.scores.get("test")
        if evaluation.full_coverage and test is not None:
            self._keep_best(test)
        self.members = torch.full((r.data.num_clients,), -1)
        self.members[evaluation.clients] = evaluation.index
        found, last = self.members.int(), max(self.memberships, default=None)
        few = len(found) * len(self.memberships) < _MOST_KEPT
        if is_due(r.number, last, every) or (few and last is not None and not found.equal(self.memberships[last])):
            self.memberships[r.number] = found

    def _keep_best(self, test: SplitScores) -> None:
        weighted = test.weighted_means()
        for score in test.scores:
            new, old = weighted[score.name], self.best.get(score.name)
            if not isnan(new) and (old is None or score.better(new, old)):
                self.best[score.name] = new

    def memberships_with(self, number: int) -> dict[int, Tensor]:
        """Returns the stored memberships, and those of the last evaluation, which was of the round `number`."""
        return self.memberships | ({} if self.members is None else {number: self.members})


def traffic_row(r: Round, mib: float) -> Row:
    """Counts the models sent, and the MiB of everything sent, since the start and in this round.

    Args:
        mib: Size of a model as it is sent, in MiB.
    """
    return {
        "traffic/models_down": r.traffic.down,
        "traffic/models_up": r.traffic.up,
        "traffic/mib": (r.traffic.down + r.traffic.up) * mib + r.traffic.bytes_up / 2**20,
        "traffic/round_models_down": r.info.down,
        "traffic/round_models_up": r.info.up,
        "traffic/round_mib": (r.info.down + r.info.up) * mib + r.info.bytes_up / 2**20,
    }


def costs_row(r: Round) -> Row:
    """Counts the clients' computations since the start."""
    return dict(zip(LOCAL, (r.costs.steps, r.costs.examples, r.costs.scored), strict=True))


def is_due(number: int, last: int | None, every: int) -> bool:
    """Returns whether a new period of `every` rounds has started since the round `last`.

    Args:
        number, last: Numbers of two rounds, from 1: with 10, periods are 1 to 10, 11 to 20, and so on.
    """
    return last is None or (number - 1) // every > (last - 1) // every
