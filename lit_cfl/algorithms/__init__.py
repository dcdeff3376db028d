"""The algorithms, one file each. `base.py` says what an algorithm is."""

from lit_cfl.algorithms.base import Algorithm, Assignment, Info, Similarity
from lit_cfl.algorithms.fedavg import FedAvg
from lit_cfl.algorithms.fedgroup import FedGroup
from lit_cfl.algorithms.fedgrouprox import FedGrouProx
from lit_cfl.algorithms.fedprox import FedProx

__all__ = ["Algorithm", "Assignment", "FedAvg", "FedGrouProx", "FedGroup", "FedProx", "Info", "Similarity"]
