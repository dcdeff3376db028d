"""CFL: FedAvg that splits a cluster in two when its mean update is small although its clients' updates are large.

arXiv:1910.01991, Algorithms 2 and 3, Theorem 1.

Where this differs from the paper:
* the bipartition is exactly optimal; the published code's complete linkage need not be: `linkage` (C29).
* clients keep their ids in every split; the published notebook uses positions in the cluster instead, and mixes them up
  from the second split on (C30).
* Theorem 1's test needs gamma_max, which cannot be observed; like all code, we leave it out (C31).
* the published code takes simple means, also in the criterion: `weights`, here of both means (C32).
* a cluster of one or two clients is never split, as in the published code, which also has `warmup_rounds`.
* a newcomer walks down the tree of splits and joins at each split the part whose MEAN is most similar; the paper
  compares it with each member, whose updates we do not keep. The server keeps the model before each split, and the
  means.
* all parts of a split continue from the cluster's mean of that round; in the published code each part continues from
  its own mean.
* a client that could not train in the round of a split stays with the part that keeps the cluster's number.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from lit_cfl.algorithms.splits import SplittingAlgorithm
from lit_cfl.clustering import bipartition


@dataclass(frozen=True)
class CFL(SplittingAlgorithm):
    """Splits clusters by the cosines of their clients' updates; every client takes part in every round.

    A cluster is split when the norm u of its mean update is below eps1 and the largest norm v of a client's update is
    above eps2. Both are in `clusters.csv`; rule of thumb: eps1 a tenth of the largest u, eps2 from eps1 to 10 eps1.

    Takes the arguments of `SplittingAlgorithm`, and:

    Args:
        linkage: Linkage: `single` finds the optimal bipartition (paper), `complete` may not (code) (C29).
    """

    paper: ClassVar[str] = (
        "Sattler, Müller, Samek. Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization "
        "under Privacy Constraints. IEEE TNNLS 2021. arXiv:1910.01991"
    )
    linkage: Literal["single", "complete"] = "single"

    def divide(self, similarity: Tensor) -> Tensor:
        return bipartition(similarity, self.linkage)  # Algorithm 3, for the cosines of Delta_i and Delta_j
