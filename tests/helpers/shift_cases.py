"""Makes small clients whose data shift, and summarises their data."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from quadratic import ids
from torch import Tensor

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.data.shift import Shift, apply_shifts, with_concepts


def two_clients(*shifts: Shift, **more: object) -> FederatedData:
    """Makes two clients with the labels 0 to 2 of 4, with the views that the shifts need.

    Client 0 has no test example of label 2, and client 1 none of label 0.
    """
    labels = ids(0, 0, 1, 2, 1, 2, 2, 0, 0, 1, 1, 2, 0, 2)
    examples = Examples(torch.arange(14)[:, None].float(), labels, 4)
    train = ClientIndex.from_lists([ids(0, 1, 2, 3), ids(4, 5, 6, 7)])
    validation = ClientIndex.from_lists([ids(12), ids(13)])
    test = ClientIndex.from_lists([ids(8, 9), ids(10, 11)])
    return _widened(FederatedData(examples, train, validation, test, ids(0, 1), **more), shifts)


def with_sizes(*sizes: int, shifts: Sequence[Shift] = ()) -> FederatedData:
    """Makes one client per training size; all have the label 0 of 2, and share two test examples."""
    total = sum(sizes)
    examples = Examples(torch.arange(total)[:, None].float(), torch.zeros(total, dtype=torch.int64), 2)
    train = ClientIndex.from_sizes(torch.arange(total), torch.tensor(sizes))
    shared = ClientIndex(ids(0, 1), ids(0).repeat(len(sizes)), ids(2).repeat(len(sizes)))
    clusters = torch.arange(len(sizes))
    return _widened(FederatedData(examples, train, ClientIndex.empty(len(sizes)), shared, clusters), shifts)


def _widened(data: FederatedData, shifts: Sequence[Shift]) -> FederatedData:
    for shift in shifts:
        data = replace(data, examples=shift.widen(data.examples))
    return with_concepts(data, shifts)


def after(
    data: FederatedData, *shifts: Shift, round: int = 0, seed: int = 0, warm: Tensor | None = None
) -> FederatedData:
    """Returns the data after one round of these shifts."""
    return apply_shifts(data, shifts, round, seed, data.population if warm is None else warm)[0]


def data_at(data: FederatedData, shifts: Sequence[Shift], round: int, seed: int = 0) -> FederatedData:
    """Returns the data after the shifts of rounds 0 to `round`, with all clients taking part."""
    for number in range(round + 1):
        data = after(data, *shifts, round=number, seed=seed)
    return data


def lists(data: FederatedData, *names: str) -> list[list[list[int]]]:
    """Returns the sorted lists of the clients, for each of these parts."""
    return [[sorted(one.tolist()) for one in getattr(data, name)] for name in names]
