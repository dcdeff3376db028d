"""The federated learning algorithms, one file each; `base.py` defines their interface."""

from lit_cfl.algorithms.adacfl import AdaCFL
from lit_cfl.algorithms.base import Algorithm, Assignment, Info, Similarity
from lit_cfl.algorithms.cfl import CFL
from lit_cfl.algorithms.ditto import Ditto
from lit_cfl.algorithms.fedavg import FedAvg
from lit_cfl.algorithms.feddrift import FedDrift
from lit_cfl.algorithms.fedem import FedEM
from lit_cfl.algorithms.fedgroup import FedGroup
from lit_cfl.algorithms.fedgrouprox import FedGrouProx
from lit_cfl.algorithms.fedprox import FedProx
from lit_cfl.algorithms.fesem import FeSEM
from lit_cfl.algorithms.flexcfl import FlexCFL
from lit_cfl.algorithms.flhc import FLHC
from lit_cfl.algorithms.flux import FLUX
from lit_cfl.algorithms.ifca import IFCA
from lit_cfl.algorithms.layercfl import LayerCFL
from lit_cfl.algorithms.local import Local
from lit_cfl.algorithms.oracle import Oracle
from lit_cfl.algorithms.pacfl import PACFL
from lit_cfl.algorithms.stocfl import StoCFL

__all__ = [
    "CFL",
    "FLHC",
    "FLUX",
    "IFCA",
    "PACFL",
    "AdaCFL",
    "Algorithm",
    "Assignment",
    "Ditto",
    "FeSEM",
    "FedAvg",
    "FedDrift",
    "FedEM",
    "FedGrouProx",
    "FedGroup",
    "FedProx",
    "FlexCFL",
    "Info",
    "LayerCFL",
    "Local",
    "Oracle",
    "Similarity",
    "StoCFL",
]
