"""An algorithm with an option that must be given."""

from dataclasses import dataclass

from lit_cfl.algorithms import FedAvg


@dataclass(frozen=True, kw_only=True)
class Needs(FedAvg):
    strength: float
