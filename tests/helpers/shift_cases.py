"""Makes clients whose data shift, and summarises their data before and after."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import settings
from quadratic import ids
from torch import Tensor

from lit_cfl.data import ClientIndex, Examples, FederatedData, View
from lit_cfl.data.shift import Shift, ShiftLog, apply_shifts, with_concepts
from lit_cfl.datamodules.shift import Incremental, LabelDrift, SwapAll, SwapPart

VISIBLE = ("train", "validation", "test")
ALL = (*VISIBLE, "withheld")
SHIFTS = (SwapAll(0.4), SwapPart(0.4), Incremental((1, 3, 5), (0.3, 0.5, 1.0)), LabelDrift(start=2, duration=3))
few = settings(deadline=None, derandomize=True, max_examples=25)


def made(
    clients: int = 12, labels: int = 4, seed: int = 0, shifts: tuple[Shift, ...] = (), **more: object
) -> FederatedData:
    """Makes clients of random sizes whose inputs are all different; odd clients have reversed labels.

    They have 3 to 20 training, 0 to 3 validation and 1 to 6 test examples.
    """
    rng = np.random.default_rng(seed)
    sizes = [torch.from_numpy(rng.integers(low, high, clients)) for low, high in ((3, 21), (0, 4), (1, 7))]
    number = int(sum(sizes).sum())
    inputs = torch.arange(number)[:, None].float()
    views = (View(), View(label_map=tuple(reversed(range(labels)))))
    examples = Examples(inputs, torch.from_numpy(rng.integers(0, labels, number)), labels, views=views)
    for shift in shifts:
        examples = shift.widen(examples)
    own = torch.from_numpy(rng.permutation(number)).split([int(size.sum()) for size in sizes])
    clusters = torch.arange(clients) % 2
    lists = [
        ClientIndex.from_sizes(indices + number * clusters.repeat_interleave(size), size)
        for indices, size in zip(own, sizes, strict=True)
    ]
    return with_concepts(FederatedData(examples, *lists, clusters, **more), shifts)


def after(
    data: FederatedData, *shifts: Shift, round: int = 0, seed: int = 0, warm: Tensor | None = None
) -> FederatedData:
    """Returns the data after one round of these shifts."""
    return apply_shifts(data, shifts, round, seed, data.population if warm is None else warm)[0]


def lists(data: FederatedData, *names: str) -> list[list[list[int]]]:
    """Returns the index lists of each split: one list per client, in order."""
    kept = [index for name in names or ALL if (index := getattr(data, name)) is not None]
    return [[one.tolist() for one in index] for index in kept]


def everything(data: FederatedData) -> tuple[list[list[list[int]]], list[int]]:
    return lists(data), data.true_clusters.tolist()


def seen(data: FederatedData, client: int, *names: str) -> Counter[tuple[float, int]]:
    """Counts the pairs of input and label that a client sees."""
    pairs: Counter[tuple[float, int]] = Counter()
    for index in (getattr(data, name) for name in names or VISIBLE):
        if index is not None:
            inputs, labels = data.examples.batch(index[client])
            pairs.update(zip(inputs.flatten().tolist(), labels.tolist(), strict=True))
    return pairs


def union(data: FederatedData, *names: str) -> Counter[tuple[float, int]]:
    return sum((seen(data, client, *names) for client in range(data.num_clients)), Counter())


def rows(moves: ShiftLog) -> list[tuple[int, ...]]:
    columns = (moves.clients, moves.partners, moves.examples, moves.before, moves.after)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def two_clients(**more: object) -> FederatedData:
    """Makes two clients with labels 0 to 2; client 0 has no test example of label 2, and client 1 none of label 0."""
    labels = ids(0, 0, 1, 2, 1, 2, 2, 0, 0, 1, 1, 2, 0, 2)
    examples = Examples(torch.arange(14)[:, None].float(), labels, 3)
    train = ClientIndex.from_lists([ids(0, 1, 2, 3), ids(4, 5, 6, 7)])
    validation = ClientIndex.from_lists([ids(12), ids(13)])
    test = ClientIndex.from_lists([ids(8, 9), ids(10, 11)])
    return FederatedData(examples, train, validation, test, ids(0, 1), **more)


def with_sizes(*sizes: int) -> FederatedData:
    """Makes one client per training size; all have the same label and share two test examples."""
    total = sum(sizes)
    examples = Examples(torch.arange(total)[:, None].float(), torch.zeros(total, dtype=torch.int64), 1)
    train = ClientIndex.from_sizes(torch.arange(total), torch.tensor(sizes))
    shared = ClientIndex(ids(0, 1), ids(0).repeat(len(sizes)), ids(2).repeat(len(sizes)))
    return FederatedData(examples, train, train.first(1), shared, torch.arange(len(sizes)))


def held(data: FederatedData, *names: str) -> Tensor:
    """Returns the sorted indices of the examples that clients have."""
    indices = [getattr(data, name).entries for name in names if getattr(data, name) is not None]
    return (torch.cat(indices) % len(data.examples)).sort().values


def data_at(data: FederatedData, shifts: Sequence[Shift], round: int, seed: int) -> FederatedData:
    """Returns the data after the shifts of rounds 0 to `round`, with all clients taking part."""
    for number in range(round + 1):
        data, _ = apply_shifts(data, shifts, number, seed, data.population)
    return data
