"""FedGrouProx: FedGroup with a proximal term that keeps clients near the cluster model from which they started.

arXiv:2010.06870 (FedGroup's paper), Algorithm 2, line 14.

Where this differs from the paper (in addition to FedGroup's list):
* the proximal term, towards w_0, is also used in pre-training, as in the published code, whose comment says otherwise
  (C38).
"""

from dataclasses import dataclass

from lit_cfl.algorithms.fedgroup import FedGroup
from lit_cfl.options import NOT_NEGATIVE, bounded


@dataclass(frozen=True)
class FedGrouProx(FedGroup):
    """FedGroup with FedProx inside each cluster.

    Takes the arguments of FedGroup, and:

    Args:
        mu: Proximal factor: mu/2 * |w - w_cluster|^2 is added to each client's loss; 0 is FedGroup. The paper uses 1
            (Sent140: 0.01).
    """

    mu: float = bounded(1.0, NOT_NEGATIVE)

    @property
    def prox(self) -> float:
        return self.mu
