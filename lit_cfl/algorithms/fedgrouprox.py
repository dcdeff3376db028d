"""FedGrouProx: FedGroup whose clients are held near the cluster model they started from.

arXiv:2010.06870 (FedGroup's paper), Algorithm 2, line 14.

Where this differs from the paper (beside what FedGroup lists):
* the proximal term, towards w_0, is on in pre-training too, as in the published code, whose comment
  says that it is not (C38).
"""

from dataclasses import dataclass

from lit_cfl.algorithms.base import require_not_negative
from lit_cfl.algorithms.fedgroup import FedGroup


@dataclass(frozen=True)
class FedGrouProx(FedGroup):
    """FedGroup with FedProx inside each cluster.

    The arguments of FedGroup, and:

    Args:
        mu: adds mu/2 * |w - w_cluster|^2 to each client's loss; 0 is FedGroup. The paper uses 1 (Sent140: 0.01).
    """

    mu: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative(mu=self.mu)

    @property
    def prox(self) -> float:
        return self.mu
