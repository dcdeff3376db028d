"""Federated data modules: a data set, divided among clients, with the true clusters attached."""

from datamodules.arrays import ArrayData
from datamodules.digits import Digits
from datamodules.federated import FederatedDataModule
from datamodules.femnist import FEMNIST
from datamodules.hf import HFDataset
from datamodules.hybrid import Hybrid
from datamodules.image_sets import CIFAR10, MNIST, EMNISTLetters, FashionMNIST, ImageSet
from datamodules.partition import (
    IID,
    MNIST1000,
    ClassesPerClient,
    Dirichlet,
    DirichletSizes,
    Ditto500,
    DominantClass,
    FedProxFEMNIST,
    LabelGroups,
    LogNormalSizes,
    Natural,
    PowerLawSizes,
    Shards,
)
from datamodules.pooled import PooledDataModule
from datamodules.sent140 import Sent140
from datamodules.shift import Incremental, LabelDrift, SwapAll, SwapPart
from datamodules.skew import LabelPermutations, LabelShifts, NoiseLevels, Rotations
from datamodules.synthetic import Synthetic

__all__ = [
    "CIFAR10", "FEMNIST", "IID", "MNIST", "MNIST1000", "ArrayData", "ClassesPerClient", "Digits", "Dirichlet",
    "DirichletSizes", "Ditto500", "DominantClass", "EMNISTLetters", "FashionMNIST", "FedProxFEMNIST",
    "FederatedDataModule", "HFDataset", "Hybrid", "ImageSet", "Incremental", "LabelDrift", "LabelGroups",
    "LabelPermutations", "LabelShifts", "LogNormalSizes", "Natural", "NoiseLevels", "PooledDataModule",
    "PowerLawSizes", "Rotations", "Sent140", "Shards", "SwapAll", "SwapPart", "Synthetic",
]  # fmt: skip
