"""Partitions: classes that divide a pool of examples among clients."""

from lit_cfl.datamodules.partition.base import Partition, PartitionWithTestRule, Pool, split_each
from lit_cfl.datamodules.partition.label_clusters import DominantClass, LabelGroups
from lit_cfl.datamodules.partition.labels import ClassesPerClient, Dirichlet, InnerDirichlet, Shards
from lit_cfl.datamodules.partition.natural import Natural
from lit_cfl.datamodules.partition.paper_partitions import MNIST1000, Ditto500, FedProxFEMNIST
from lit_cfl.datamodules.partition.sizes import IID, DirichletSizes, LogNormalSizes, PowerLawSizes

__all__ = [
    "IID",
    "MNIST1000",
    "ClassesPerClient",
    "Dirichlet",
    "DirichletSizes",
    "Ditto500",
    "DominantClass",
    "FedProxFEMNIST",
    "InnerDirichlet",
    "LabelGroups",
    "LogNormalSizes",
    "Natural",
    "Partition",
    "PartitionWithTestRule",
    "Pool",
    "PowerLawSizes",
    "Shards",
    "split_each",
]
