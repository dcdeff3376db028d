"""Federated data modules: a data set, divided among clients, with the true clusters attached."""

from datamodules.digits import Digits
from datamodules.federated import FederatedDataModule
from datamodules.pooled import PooledDataModule

__all__ = ["Digits", "FederatedDataModule", "PooledDataModule"]
