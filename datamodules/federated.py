"""The base of all data modules: a pool of examples, divided among clients."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lit_cfl.data import Division, Examples, FederatedData, Split
from lit_cfl.data.augment import Augment, AugmentFunction, augment_function
from lit_cfl.data.checks import require_division, require_examples
from lit_cfl.data.partition_file import load_partition
from lit_cfl.data.shift import Shift, with_concepts
from lit_cfl.datamodules.partition import split_each
from lit_cfl.datamodules.partition.checks import require_share
from lit_cfl.errors import InputError, count_noun
from lit_cfl.seeds import derive
from lit_cfl.storage.given_paths import expand_home


class FederatedDataModule(LightningDataModule, ABC):
    """A LightningDataModule that divides its examples among clients.

    A subclass defines `load` and `divide`. As an ordinary LightningDataModule it returns the union of all clients, for
    a centralised baseline.

    Args:
        shift: Changes of the clients' data over the rounds, in this order.
        validation: Share of each client's training part set aside for validation, 0 to below 1.
        newcomers: Share of the clients that are held out of training and join after it, 0 to below 1.
        partition_seed: Seed of the partition, the validation part and the newcomers; None = the run's seed. Shifts are
            drawn from the run's seed alone.
        partition_file: Partition saved by a run, to be used instead of a new one: a run directory, or its file
            `partition.npz`. The file determines clients, validation part and newcomers, whatever the other options say.
        allow_unseen_labels: Train even if test or validation data have a label that no client trains on; otherwise this
            is an error.
        batch_size: Batch size of the centralised loaders.
        augment: Random changes of the examples in local training only: `{crop: 4, flip: true}` pads images by 4 pixels,
            cuts a window of their size, and mirrors half of them; or the path of your own function of a batch and a key
            per example, such as `my_module.function`. None = none.
    """

    commit: str | None = None  # commit of the Hub's data set, once it is loaded

    def __init__(
        self,
        shift: Shift | Sequence[Shift] = (),
        validation: float = 0.0,
        newcomers: float = 0.0,
        partition_seed: int | None = None,
        partition_file: str | Path | None = None,
        allow_unseen_labels: bool = False,
        batch_size: int = 32,
        augment: Augment | AugmentFunction | str | None = None,
    ) -> None:
        super().__init__()
        require_share("validation", validation, " of each client's training examples")
        require_share("newcomers", newcomers, " of the clients")
        if batch_size < 1:
            raise InputError(f"data.batch_size is {batch_size}; it must be 1 or more")
        self.shift = list_of(Shift, "shift", shift)
        self.validation, self.newcomers = validation, newcomers
        self.partition_seed, self.partition_file, self.batch_size = partition_seed, partition_file, batch_size
        self.allow_unseen_labels = allow_unseen_labels
        self.augment = augment_function(augment)

    @abstractmethod
    def load(self) -> Examples:
        """Loads the pool of examples."""

    @abstractmethod
    def divide(self, examples: Examples, rng: np.random.Generator) -> Division:
        """Divides the examples among clients, into training and test data; the validation part is split off later."""

    @cached_property
    def examples(self) -> Examples:
        """The pool of examples, loaded once, including the views that shifts need."""
        examples = self.load()
        require_examples(examples, type(self).__name__)
        examples = replace(examples, inputs=examples.inputs.detach(), labels=examples.labels.detach())
        examples = examples if self.augment is None else replace(examples, augment=self.augment)
        for shift in self.shift:
            examples = shift.widen(examples)
        return examples

    def federated(self, seed: int) -> FederatedData:
        """Returns the clients' data under a seed, or under `partition_seed` if that is set, before any shift."""
        if self.partition_file is not None:
            given = expand_home(self.partition_file)
            return load_partition(given / "partition.npz" if given.is_dir() else given, self.examples)
        seed = seed if self.partition_seed is None else self.partition_seed
        division = self.divide(self.examples, _rng(seed, "partition"))
        require_division(division, self.examples, type(self).__name__)
        rng = _rng(seed, "validation")
        train, validation = split_each(division.train, self.validation, rng, "validation", division.is_ordered)
        data = FederatedData(self.examples, train, validation, division.test, division.true_clusters, division.skew)
        names, cluster_names = (tuple(map(str, one)) for one in (division.names, division.cluster_names))
        data = replace(data, partition_seed=seed, names=names, cluster_names=cluster_names)
        data = replace(data, newcomers=self._draw_newcomers(data.num_clients, seed)) if self.newcomers else data
        if not self.allow_unseen_labels:
            _require_seen_labels(data)
        return with_concepts(data, self.shift)

    def _draw_newcomers(self, clients: int, seed: int) -> Tensor:
        held_out = min(round(self.newcomers * clients), clients - 1)
        if not held_out:
            raise InputError(
                f"newcomers is {self.newcomers}, which leaves none of {clients} clients to join, or none to train; "
                "raise it, or leave it out"
            )
        mask = torch.zeros(clients, dtype=torch.bool)
        mask[_rng(seed, "newcomers").permutation(clients)[:held_out]] = True
        return mask

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
        if not hasattr(self, "data"):
            raise InputError(f"{type(self).__name__} is not set up: call setup() before you ask for its loaders")
        # a centralised baseline does not train on the newcomers' data
        held = self.data.split(split).select(self.data.population)
        inputs, labels = self.data.examples.batch(held.entries.unique())
        return DataLoader(TensorDataset(inputs, labels), self.batch_size, shuffle=shuffle)


def list_of(kind: type, name: str, given: object) -> tuple[Any, ...]:
    """Returns one object or a list of them as a tuple. Raises InputError if an object is of another class."""
    listed = given if isinstance(given, list | tuple) else [given]
    for one in listed:
        if not isinstance(one, kind):
            raise InputError(f"{name} holds {one!r}; give an object of {kind.__name__}, or a list of them: [] for none")
    return tuple(listed)


def _require_seen_labels(data: FederatedData) -> None:
    if data.examples.label_kind != "classes":
        return
    trained = data.train.select(data.population)
    known = data.examples.targets(trained.compact().values).unique()
    for name in ("validation", "test"):
        labels = data.examples.targets(getattr(data, name).compact().values).unique()
        unseen = labels[~torch.isin(labels, known)]
        if len(unseen):
            raise InputError(
                f"the {name} data hold label {data.examples.label_name(int(unseen[0]))}, which no training client has "
                f"({count_noun(len(unseen), 'such label')}); choose another partition or seed, or set "
                "allow_unseen_labels to true (or num_labels to 0 if labels are numbers to predict)"
            )


def _rng(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng(derive(seed, purpose))
