"""The base of all data modules: a pool of examples, divided among clients."""

from abc import abstractmethod
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from datamodules.partition import split_each
from lit_cfl.data import ClientIndex, Examples, FederatedData, Split
from lit_cfl.errors import InputError
from lit_cfl.seeds import derive


class FederatedDataModule(LightningDataModule):
    """A LightningDataModule that can say which client has what.

    Subclasses give `load` and `partition`. As an ordinary LightningDataModule it serves the union of all clients, which
    is what a centralised baseline trains on.

    Args:
        validation: share of each client's training part set aside for validation, 0 to below 1.
        newcomers: share of the clients held out of training, 0 to below 1; they join after it.
        partition_seed: of everything that is drawn here; None = the run's seed.
        batch_size: of the centralised loaders.
    """

    def __init__(
        self,
        validation: float = 0.0,
        newcomers: float = 0.0,
        partition_seed: int | None = None,
        batch_size: int = 32,
    ) -> None:
        super().__init__()
        for name, share in {"validation": validation, "newcomers": newcomers}.items():
            if not 0 <= share < 1:
                raise InputError(f"{name} is {share}; it must be 0 or more and below 1")
        if batch_size < 1:
            raise InputError(f"data.batch_size is {batch_size}; it must be 1 or more")
        self.validation, self.newcomers, self.partition_seed = validation, newcomers, partition_seed
        self.batch_size = batch_size

    @abstractmethod
    def load(self) -> Examples:
        """The pool of examples."""

    @abstractmethod
    def partition(self, examples: Examples, rng: np.random.Generator) -> tuple[list[Tensor], list[Tensor], Tensor, str]:
        """Train and test indices of each client, the true clusters int64 `[clients]`, and the skew's name."""

    @cached_property
    def examples(self) -> Examples:
        """The pool of examples, loaded once."""
        return self.load()

    def federated(self, seed: int) -> FederatedData:
        """The data of a run under this seed (unless `partition_seed` is set)."""
        seed = seed if self.partition_seed is None else self.partition_seed
        examples = self.examples
        train, test, truth, skew = self.partition(examples, _rng(seed, "partition"))
        kept, validation = split_each(train, self.validation, _rng(seed, "validation"))
        data = FederatedData(
            examples,
            ClientIndex.from_lists(kept),
            ClientIndex.from_lists(validation),
            ClientIndex.from_lists(test),
            truth,
            skew,
        )
        if self.newcomers:
            held_out = min(round(self.newcomers * len(train)), len(train) - 1)
            if not held_out:
                raise InputError(f"newcomers is {self.newcomers}, which is nobody of {len(train)} clients; raise it")
            mask = torch.zeros(len(train), dtype=torch.bool)
            mask[_rng(seed, "newcomers").permutation(len(train))[:held_out]] = True
            data = replace(data, newcomers=mask)
        return data

    def setup(self, stage: str | None = None) -> None:
        """Divides the data under seed 0, for use as an ordinary LightningDataModule."""
        self.data = self.federated(0)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return self._union("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return self._union("validation")

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return self._union("test")

    def _union(self, split: Split, shuffle: bool = False) -> DataLoader[tuple[Tensor, ...]]:
        inputs, labels = self.data.examples.batch(self.data.split(split).values)
        return DataLoader(TensorDataset(inputs, labels), self.batch_size, shuffle=shuffle)


def _rng(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng(derive(seed, purpose))
