"""Which migrations were right: what `benchmarks/migration.py` scores.

* events: times that another cluster became the right one for a client. The right cluster of a type of client (its
  true cluster) is the one that most clients of the type were in before the first exchange.
* detected: share of them that a trigger followed before the right cluster changed again; delay: rounds until it did.
* alarms: triggers; false: those of clients whose right cluster was the one that it was when they were last placed.
* right, wrong: migrations into the client's right cluster, and into another one; misplaced: share of the clients that
  are not in their right cluster after the last round.
"""

from statistics import mean

import torch
from torch import Tensor

from lit_cfl.metric_names import Row
from lit_cfl.rounds import Round

COUNTED = ("events", "alarms", "false", "right", "wrong")
WATCHED = ("events", "detected", "delay", "alarms", "false", "right", "wrong", "misplaced")


class Watch:
    """Follows the right cluster of each client, and what the method does about it."""

    def __init__(self, index: Tensor, truth: Tensor) -> None:
        """
        Args:
            index, truth: found and true cluster of each client before the first exchange, int64 `[clients]`.
        """
        pairs = torch.zeros(int(truth.max()) + 1, int(index.max()) + 1).index_put_(
            (truth, index), torch.tensor(1.0), accumulate=True
        )
        self.home = pairs.argmax(1)  # [types]
        self.right, self.placed = self.home[truth], self.home[truth]  # now, and when they were last placed
        self.open: dict[int, int] = {}  # round of each event that no trigger has followed
        self.delays: list[int] = []
        self.counts = dict.fromkeys(COUNTED, 0)

    def add(self, r: Round) -> None:
        now = self.home[r.data.true_clusters]
        for client in (now != self.right).nonzero().flatten().tolist():
            self.open[client] = r.number
            self.counts["events"] += 1
        self.right = now
        for row in r.info.tables.get("migrations", []):
            self._migrated(r.number, row["client"], row["cluster_before"], row["cluster_after"])

    def _migrated(self, round: int, client: int, before: int, after: int) -> None:
        self.counts["alarms"] += 1
        self.counts["false"] += int(self.right[client] == self.placed[client])
        if before != after:
            self.counts["right" if after == self.right[client] else "wrong"] += 1
        if client in self.open:
            self.delays.append(round - self.open.pop(client))
        self.placed = self.placed.index_copy(0, torch.tensor([client]), self.right[[client]])

    def scores(self, index: Tensor) -> Row:
        events = self.counts["events"]
        return {
            **self.counts,
            "detected": len(self.delays) / events if events else None,
            "delay": mean(self.delays) if self.delays else None,
            "misplaced": float((index != self.right).double().mean()),
        }
