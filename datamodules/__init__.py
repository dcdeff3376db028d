"""Federated data modules: a data set, divided among clients, with the true clusters attached."""

from datamodules.arrays import ArrayData
from datamodules.digits import Digits
from datamodules.federated import FederatedDataModule
from datamodules.femnist import FEMNIST
from datamodules.hf import HFDataset
from datamodules.hybrid import Hybrid
from datamodules.image_sets import CIFAR10, MNIST, EMNISTLetters, FashionMNIST, ImageSet
from datamodules.pooled import PooledDataModule
from datamodules.sent140 import Sent140
from datamodules.synthetic import Synthetic

__all__ = [
    "CIFAR10",
    "FEMNIST",
    "MNIST",
    "ArrayData",
    "Digits",
    "EMNISTLetters",
    "FashionMNIST",
    "FederatedDataModule",
    "HFDataset",
    "Hybrid",
    "ImageSet",
    "PooledDataModule",
    "Sent140",
    "Synthetic",
]
