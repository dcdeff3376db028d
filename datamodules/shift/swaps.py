"""Swaps: two clients exchange all their data, or the examples of one label each."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.data.shift import Shift, ShiftContext, ShiftLog
from lit_cfl.datamodules.partition.base import shuffle_lists
from lit_cfl.options import SHARE, bounded


@dataclass(frozen=True)
class SwapAll(Shift):
    """Pairs of clients exchange all their data, and their true clusters.

    In each round the participants are paired at random, and each pair exchanges with the given probability. So a client
    moves with about that probability in a round.

    Args:
        probability: Probability that a pair swaps, in each round, 0 to 1.
        participants: `all` clients in training, or only the `warm` ones, which have a model (the papers' tables).
    """

    probability: float = bounded(0.05, SHARE)

    def step(self, data: FederatedData, at: ShiftContext) -> tuple[FederatedData, ShiftLog | None]:
        pairs = draw_pairs(at.participants, self.probability, at.rng("pairs"))
        return swap_all(data, pairs) if len(pairs) else (data, None)


@dataclass(frozen=True)
class SwapPart(Shift):
    """Pairs of clients exchange the examples of one label each; their true clusters are unknown from then on.

    Pairs are drawn as in `SwapAll`. Each client of a pair gives away all examples of a label that it has in both its
    training and its test data, while the other client does not; a pair without such labels does not swap.

    Args:
        probability: Probability that a pair swaps, in each round, 0 to 1.
        participants: `all` clients in training, or only the `warm` ones, which have a model (the papers' tables).
    """

    probability: float = bounded(0.05, SHARE)

    def widen(self, examples: Examples) -> Examples:
        examples.require_classes(type(self).__name__)
        return examples

    def step(self, data: FederatedData, at: ShiftContext) -> tuple[FederatedData, ShiftLog | None]:
        pairs = draw_pairs(at.participants, self.probability, at.rng("pairs"))
        labels = unique_labels(data, pairs, at.rng("labels"))
        able = (labels >= 0).all(1)
        return swap_part(data, pairs[able], labels[able], at.rng("order")) if able.any() else (data, None)


def draw_pairs(clients: Tensor, probability: float, rng: np.random.Generator) -> Tensor:
    """Pairs the clients at random, and keeps each pair with the given probability.

    Args:
        clients: Ids of the clients, int64 `[n]`; if n is odd, one of them is in no pair.
        probability: Probability of each pair, 0 to 1.

    Returns:
        int64 `[pairs, 2]`.
    """
    order = clients[torch.from_numpy(rng.permutation(len(clients)))]
    half = len(clients) // 2
    pairs = torch.stack([order[:half], order.flip(0)[:half]], 1)
    return pairs[torch.from_numpy(rng.random(half) < probability)]


def swap_all(data: FederatedData, pairs: Tensor) -> tuple[FederatedData, ShiftLog]:
    """Exchanges all examples and the true clusters within each pair of clients, without copying lists.

    Args:
        pairs: Pairs of clients, int64 `[pairs, 2]`, each client at most once.
    """
    source = torch.arange(data.num_clients)
    source[pairs] = pairs.flip(1)
    clusters = data.true_clusters[source]
    swapped = replace(data.of_lists(lambda index: index.select(source)), true_clusters=clusters)
    clients = pairs.flatten().sort().values
    came = (swapped.train.sizes + swapped.validation.sizes + swapped.test.sizes)[clients]
    return swapped, ShiftLog("swap_all", clients, source[clients], came, data.true_clusters[clients], clusters[clients])


def unique_labels(data: FederatedData, pairs: Tensor, rng: np.random.Generator) -> Tensor:
    """Draws, for each client of a pair, a label that only this client has in both training and test data.

    Returns:
        labels int64 `[pairs, 2]`, drawn uniformly from the possible ones; -1 if there is none.
    """
    mine = data.subset(pairs.flatten())
    held = (mine.label_counts > 0) & (replace(mine, train=mine.test).label_counts > 0)
    held = held.view(*pairs.shape, data.examples.num_labels)
    own = held & ~held.flip(1)
    draws = torch.from_numpy(rng.random(tuple(own.shape))).where(own, -1.0)
    return draws.argmax(2).where(own.any(2), -1)


def swap_part(
    data: FederatedData, pairs: Tensor, labels: Tensor, rng: np.random.Generator
) -> tuple[FederatedData, ShiftLog]:
    """Moves all examples of one label from each client of a pair to the other client.

    Args:
        pairs: Pairs of clients, int64 `[pairs, 2]`, each client at most once.
        labels: Label that each client gives away, int64 `[pairs, 2]`.
        rng: Generator that shuffles the new lists.
    """
    clients, given = pairs.flatten(), labels.flatten()

    def exchange(index: ClientIndex) -> ClientIndex:
        mine = index.select(clients)
        # the two clients of a pair are adjacent, so ^ 1 exchanges them
        owners = mine.owners ^ _mark_given(mine, given, data.examples).long()
        lists = ClientIndex.from_owners(owners, len(clients))
        return index.replace_lists(clients, shuffle_lists(replace(lists, values=mine.entries[lists.values]), rng))

    swapped = replace(data.of_lists(exchange), true_clusters=data.true_clusters.index_fill(0, clients, -1))
    came = torch.zeros_like(pairs)
    for index in (data.train, data.validation, data.test):
        mine = index.select(clients)
        left = torch.bincount(mine.owners[_mark_given(mine, given, data.examples)], minlength=len(clients))
        came += left.view_as(pairs).flip(1)
    order = clients.argsort()
    columns = (pairs, pairs.flip(1), came, data.true_clusters[pairs], torch.full_like(pairs, -1))
    return swapped, ShiftLog("swap_part", *(column.flatten()[order] for column in columns))


def _mark_given(lists: ClientIndex, given: Tensor, examples: Examples) -> Tensor:
    """Marks the examples with the label that their owner gives away, bool `[entries]`."""
    return examples.targets(lists.entries).cpu() == given[lists.owners]
