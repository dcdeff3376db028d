"""Dividing examples among clients: pure functions over index arrays and an explicit rng, each behind an option."""

from datamodules.partition.base import Partition, Pool, SharedOut, split_each
from datamodules.partition.ditto500 import Ditto500
from datamodules.partition.fedprox_femnist import FedProxFEMNIST
from datamodules.partition.label_clusters import DominantClass, LabelGroups
from datamodules.partition.labels import ClassesPerClient, Dirichlet, Shards
from datamodules.partition.mnist1000 import MNIST1000
from datamodules.partition.natural import Natural
from datamodules.partition.sizes import IID, DirichletSizes, LogNormalSizes, PowerLawSizes

__all__ = [
    "IID",
    "MNIST1000",
    "ClassesPerClient",
    "Dirichlet",
    "DirichletSizes",
    "Ditto500",
    "DominantClass",
    "FedProxFEMNIST",
    "LabelGroups",
    "LogNormalSizes",
    "Natural",
    "Partition",
    "Pool",
    "PowerLawSizes",
    "Shards",
    "SharedOut",
    "split_each",
]
