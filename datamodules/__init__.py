"""Federated data modules: data sets divided among clients, with their true clusters if known."""

from lit_cfl.datamodules.arrays import ArrayData
from lit_cfl.datamodules.digits import Digits
from lit_cfl.datamodules.federated import FederatedDataModule
from lit_cfl.datamodules.femnist import FEMNIST
from lit_cfl.datamodules.hf import HFDataset
from lit_cfl.datamodules.hybrid import Hybrid
from lit_cfl.datamodules.image_sets import CIFAR10, MNIST, EMNISTLetters, FashionMNIST, ImageSet
from lit_cfl.datamodules.mixture import SyntheticMixture
from lit_cfl.datamodules.partition import (
    IID,
    MNIST1000,
    ClassesPerClient,
    Dirichlet,
    DirichletSizes,
    Ditto500,
    DominantClass,
    FedProxFEMNIST,
    InnerDirichlet,
    LabelGroups,
    LogNormalSizes,
    Natural,
    PowerLawSizes,
    Shards,
)
from lit_cfl.datamodules.pooled import PooledDataModule
from lit_cfl.datamodules.sent140 import Sent140
from lit_cfl.datamodules.shift import Incremental, LabelDrift, SwapAll, SwapPart
from lit_cfl.datamodules.skew import (
    Blurs,
    Brightnesses,
    Colours,
    FreeRotations,
    LabelPermutations,
    LabelShifts,
    LabelSwaps,
    NoiseLevels,
    Rotations,
)
from lit_cfl.datamodules.synthetic import Synthetic

__all__ = [
    "CIFAR10",
    "FEMNIST",
    "IID",
    "MNIST",
    "MNIST1000",
    "ArrayData",
    "Blurs",
    "Brightnesses",
    "ClassesPerClient",
    "Colours",
    "Digits",
    "Dirichlet",
    "DirichletSizes",
    "Ditto500",
    "DominantClass",
    "EMNISTLetters",
    "FashionMNIST",
    "FedProxFEMNIST",
    "FederatedDataModule",
    "FreeRotations",
    "HFDataset",
    "Hybrid",
    "ImageSet",
    "Incremental",
    "InnerDirichlet",
    "LabelDrift",
    "LabelGroups",
    "LabelPermutations",
    "LabelShifts",
    "LabelSwaps",
    "LogNormalSizes",
    "Natural",
    "NoiseLevels",
    "PooledDataModule",
    "PowerLawSizes",
    "Rotations",
    "Sent140",
    "Shards",
    "SwapAll",
    "SwapPart",
    "Synthetic",
    "SyntheticMixture",
]
