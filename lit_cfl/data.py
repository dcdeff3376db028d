"""What a federated run trains on: examples held once, and index lists that say which client has which.

An index does not name an example alone but a *view* of it: `view * len(examples) + example`. So one image
can be held by several clients under several rotations without a copy, and the rotation travels with
the index when clients swap their data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from lit_cfl.errors import InputError

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class View:
    """How a client sees an example.

    Args:
        quarter_turns: counter-clockwise rotations of the image by 90 degrees, 0 to 3.
        label_map: the label that stands in place of each label, or None for the labels as they are.
    """

    quarter_turns: int = 0
    label_map: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Examples:
    """The pool of examples, each held once.

    Args:
        inputs: `[N, ...]`; images `[N, channels, height, width]`, kept uint8 where they are.
        labels: int64 `[N]`, 0 to `num_labels - 1`.
        num_labels: size of the label space.
        scale: inputs are multiplied by it when they are handed out as floats (1/255 for uint8 images).
        views: the views that indices may refer to.
    """

    inputs: Tensor
    labels: Tensor
    num_labels: int
    scale: float = 1.0
    views: tuple[View, ...] = (View(),)

    def __post_init__(self) -> None:
        if any(view.quarter_turns % 2 for view in self.views) and self.inputs.shape[-1] != self.inputs.shape[-2]:
            raise InputError(f"images of {tuple(self.inputs.shape[1:])} are not square; rotate them by 0 and 180 only")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch dimension."""
        return tuple(self.inputs.shape[1:])

    def targets(self, index: Tensor) -> Tensor:
        """Labels int64 `[n]` as the clients see them."""
        index = index.to(self.labels.device)
        labels = self.labels[index % len(self)].clone()
        for number, view in enumerate(self.views):
            if view.label_map is not None:
                seen = index // len(self) == number
                labels[seen] = torch.tensor(view.label_map, device=labels.device)[labels[seen]]
        return labels

    def batch(self, index: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Inputs `[n, ...]` (floats of `dtype`; token ids stay integers) and labels `[n]` of these indices."""
        index = index.to(self.inputs.device)
        inputs = self.inputs[index % len(self)]
        if inputs.is_floating_point() or inputs.dtype == torch.uint8:
            inputs = inputs.to(dtype)
            inputs = inputs * self.scale if self.scale != 1.0 else inputs
        for number, view in enumerate(self.views):
            if view.quarter_turns:
                seen = index // len(self) == number
                inputs[seen] = inputs[seen].rot90(view.quarter_turns, (-2, -1))
        return inputs, self.targets(index)

    def to(self, device: torch.device | str) -> "Examples":
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))


@dataclass(frozen=True, eq=False)
class ClientIndex:
    """Which indices each client has: one flat int64 tensor and int64 offsets `[clients + 1]`."""

    values: Tensor
    offsets: Tensor

    @classmethod
    def from_lists(cls, lists: Sequence[Tensor]) -> "ClientIndex":
        sizes = torch.tensor([0, *(len(one) for one in lists)])
        return cls(torch.cat([*lists, torch.empty(0, dtype=torch.int64)]).to(torch.int64), sizes.cumsum(0))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Tensor:
        if not 0 <= client < len(self):
            raise IndexError(f"there is no client {client}; ids are 0 to {len(self) - 1}")
        return self.values[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Tensor:
        """Number of indices of each client, int64 `[clients]`."""
        return self.offsets.diff()

    @property
    def owners(self) -> Tensor:
        """The client of each entry of `values`, int64."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes)

    def behind(self, clients: int) -> "ClientIndex":
        """The same lists after so many clients without any."""
        return ClientIndex(self.values, torch.cat([torch.zeros(clients, dtype=torch.int64), self.offsets]))

    def select(self, clients: Tensor) -> "ClientIndex":
        """The index lists of these clients alone, in their order."""
        return ClientIndex.from_lists([self[int(client)] for client in clients])


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Examples, who holds them, and the true cluster of each client where it is known.

    Args:
        examples: the pool.
        train, validation, test: index lists of each client. `validation` may be empty.
        true_clusters: int64 `[clients]`, -1 = unknown. For scoring only; no algorithm sees it.
        skew: what the data module was told to make: `feature`, `label` or `other`.
        newcomers: bool `[clients]`: clients that never take part in training and join after it.
    """

    examples: Examples
    train: ClientIndex
    validation: ClientIndex
    test: ClientIndex
    true_clusters: Tensor
    skew: str = "other"
    newcomers: Tensor | None = None

    @property
    def num_clients(self) -> int:
        return len(self.train)

    def split(self, name: Split) -> ClientIndex:
        index: ClientIndex = getattr(self, name)
        return index

    @cached_property
    def population(self) -> Tensor:
        """Ids of the clients that take part in training, ascending, int64."""
        if self.newcomers is None:
            return torch.arange(self.num_clients)
        return (~self.newcomers).nonzero().flatten()

    @cached_property
    def num_examples(self) -> Tensor:
        """n_i, the number of training examples, int64 `[clients]`."""
        return self.train.sizes

    @cached_property
    def label_counts(self) -> Tensor:
        """Training examples of each label, int64 `[clients, labels]`."""
        labels = self.examples.num_labels
        cell = self.train.owners * labels + self.examples.targets(self.train.values).cpu()
        return torch.bincount(cell, minlength=self.num_clients * labels).view(self.num_clients, labels)

    def behind(self, clients: int) -> "FederatedData":
        """The same clients with ids raised by `clients`; the ids below have no data."""
        unknown = torch.full((clients,), -1)
        return replace(
            self,
            train=self.train.behind(clients),
            validation=self.validation.behind(clients),
            test=self.test.behind(clients),
            true_clusters=torch.cat([unknown, self.true_clusters]),
            newcomers=None,
        )

    def subset(self, clients: Tensor, max_examples: int | None = None) -> "FederatedData":
        """These clients alone, renumbered from 0, each with at most `max_examples` of every split."""

        def cut(index: ClientIndex) -> ClientIndex:
            return ClientIndex.from_lists([index[int(client)][:max_examples] for client in clients])

        return replace(
            self,
            train=cut(self.train),
            validation=cut(self.validation),
            test=cut(self.test),
            true_clusters=self.true_clusters[clients],
            newcomers=None if self.newcomers is None else self.newcomers[clients],
        )
