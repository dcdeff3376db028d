"""Index lists of any number of clients in three tensors, without a Python object per client."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lit_cfl.notebook import short_repr


@dataclass(frozen=True, eq=False)
class ClientIndex:
    """The indices of each client as a slice of one flat array.

    Clients may share a slice (such as a test set on which all of them are scored), and the array may contain entries
    that no client has.

    Args:
        values: Indices, int64 `[M]`.
        starts: Start of each client's slice, int64 `[clients]`.
        sizes: Size of each client's slice, int64 `[clients]`.
    """

    values: Tensor
    starts: Tensor
    sizes: Tensor

    __repr__ = short_repr

    @classmethod
    def from_lists(cls, lists: Sequence[Tensor]) -> "ClientIndex":
        """Builds the index from lists, one int64 tensor per client."""
        sizes = torch.tensor([len(one) for one in lists], dtype=torch.int64)
        return cls.from_sizes(torch.cat([*lists, torch.empty(0, dtype=torch.int64)]).to(torch.int64), sizes)

    @classmethod
    def from_sizes(cls, values: Tensor, sizes: Tensor) -> "ClientIndex":
        """Builds the index of consecutive slices of these sizes, int64 `[clients]`."""
        return cls(values, sizes.cumsum(0) - sizes, sizes)

    @classmethod
    def from_owners(cls, owners: Tensor, num_clients: int) -> "ClientIndex":
        """Builds the index in which client `owners[k]` has entry k; `owners` is int64 `[M]`, -1 = no client.

        The lists are ascending.
        """
        order = owners.argsort(stable=True)[int((owners < 0).sum()) :]
        return cls.from_sizes(order, torch.bincount(owners[order], minlength=num_clients))

    @classmethod
    def empty(cls, num_clients: int) -> "ClientIndex":
        none = torch.zeros(num_clients, dtype=torch.int64)
        return cls(torch.empty(0, dtype=torch.int64), none, none)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, client: int) -> Tensor:
        if not 0 <= client < len(self):
            raise IndexError(f"there is no client {client}; ids are 0 to {len(self) - 1}")
        start = int(self.starts[client])
        return self.values[start : start + int(self.sizes[client])]

    @cached_property
    def is_packed(self) -> bool:
        """Whether the lists fill `values` consecutively."""
        ends = self.sizes.cumsum(0)
        return len(self.values) == int(self.sizes.sum()) and torch.equal(ends - self.sizes, self.starts)

    @cached_property
    def entries(self) -> Tensor:
        """The concatenated lists of all clients, int64."""
        if self.is_packed:
            return self.values
        packed = self.sizes.cumsum(0) - self.sizes
        return self.values[torch.arange(int(self.sizes.sum())) + (self.starts - packed).repeat_interleave(self.sizes)]

    @property
    def owners(self) -> Tensor:
        """The client to which each of `entries` belongs, int64."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes)

    def offset_clients(self, clients: int) -> "ClientIndex":
        """Inserts `clients` new clients with empty lists before the existing ones."""
        none = torch.zeros(clients, dtype=torch.int64)
        return ClientIndex(self.values, torch.cat([none, self.starts]), torch.cat([none, self.sizes]))

    def select(self, clients: Tensor) -> "ClientIndex":
        """Selects the lists of `clients` (int64 `[n]`), in their order, without copying a list."""
        return ClientIndex(self.values, self.starts[clients], self.sizes[clients])

    def first(self, sizes: Tensor | int) -> "ClientIndex":
        """Truncates each client's list to at most `sizes` entries: one number for all, or int64 `[clients]`."""
        return ClientIndex(self.values, self.starts, self.sizes.clamp(max=sizes))

    def after(self, sizes: Tensor) -> "ClientIndex":
        """Drops the first `sizes` entries of each client's list; `sizes` is int64 `[clients]`."""
        taken = torch.minimum(self.sizes, sizes)
        return ClientIndex(self.values, self.starts + taken, self.sizes - taken)

    def distinct(self) -> tuple["ClientIndex", Tensor]:
        """Finds the distinct slices, in order of first use, and the slice of each client."""
        width = int(self.sizes.max()) + 1 if len(self) else 1
        keys, which = distinct_values(self.starts * width + self.sizes)
        if len(keys) == len(self):
            return self, torch.arange(len(self))
        first = torch.full_like(keys, len(self)).scatter_reduce(0, which, torch.arange(len(self)), "amin")
        order = first.argsort()
        keys, place = keys[order], torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
        return ClientIndex(self.values, keys // width, keys % width), place[which]

    def compact(self) -> "ClientIndex":
        """Copies the lists into a new array without unused entries; shared slices stay shared."""
        stretches, which = self.distinct()
        return stretches.pack().select(which)

    def replace_lists(self, clients: Tensor, lists: "ClientIndex") -> "ClientIndex":
        """Replaces the lists of these clients.

        The new lists are appended; entries that no client has any more are removed once they are half of the array.

        Args:
            clients: Ids of the clients, int64 `[n]`, each once.
            lists: Lists of these clients, in their order.
        """
        new = lists.compact()
        starts = self.starts.index_copy(0, clients, new.starts + len(self.values))
        sizes = self.sizes.index_copy(0, clients, new.sizes)
        whole = ClientIndex(torch.cat([self.values, new.values]), starts, sizes)
        compact = whole.compact()
        return compact if len(whole.values) > 2 * len(compact.values) else whole

    def pack(self) -> "ClientIndex":
        """Concatenates copies of the lists in a new array without unused entries."""
        return ClientIndex.from_sizes(self.entries, self.sizes)

    def plus(self, other: "ClientIndex") -> "ClientIndex":
        """Appends to each client's list the same client's list in `other`."""
        entries = torch.cat([self.entries, other.entries])
        order = torch.cat([self.owners, other.owners]).argsort(stable=True)
        return ClientIndex.from_sizes(entries[order], self.sizes + other.sizes)


def distinct_values(values: Tensor) -> tuple[Tensor, Tensor]:
    """Finds the distinct values `[m]`, ascending, and each value's index among them `[n]`; sorts only if needed."""
    if bool((values[1:] > values[:-1]).all()):
        return values, torch.arange(len(values))
    different: tuple[Tensor, Tensor] = values.unique(return_inverse=True)
    return different
