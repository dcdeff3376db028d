"""FedProx: FedAvg whose clients are held near the model they started from.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020.
arXiv:1812.06127, Algorithm 2.

Where this differs from the paper:
* every client runs the run's whole local budget; stragglers are not simulated.
* clients are drawn uniformly and averaged by their number of examples, as in the released code; the
  paper's text draws them in proportion to it and takes the simple mean (`weights: equal` has the mean).
"""

from dataclasses import dataclass

from lit_cfl.algorithms.base import require_not_negative
from lit_cfl.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term against client drift.

    Args:
        weights: of the clients in the mean: their number of `examples`, or `equal`.
        mu: adds mu/2 * |w - w_t|^2 to each client's loss; 0 is FedAvg. The papers use 1 (Sent140: 0.01).
    """

    mu: float = 1.0

    def __post_init__(self) -> None:
        require_not_negative(mu=self.mu)

    @property
    def prox(self) -> float:
        return self.mu
