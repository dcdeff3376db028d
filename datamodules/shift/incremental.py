"""Training data that are released gradually over the rounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import torch
from torch import Tensor

from lit_cfl.data import ClientIndex, FederatedData
from lit_cfl.data.shift import Shift, ShiftContext, ShiftLog
from lit_cfl.datamodules.partition.base import shuffle_lists
from lit_cfl.errors import InputError


@dataclass(frozen=True)
class Incremental(Shift):
    """Clients have a growing share of their training data; test and validation data are complete from the start.

    The first release withholds the rest, later ones add more of it. Clients that did not take part in the first
    release (newcomers, and under `participants: warm` the cold ones) always have all their data.

    Args:
        rounds: Completed rounds before each release, ascending; 0 = before the first round. Before the first release
            all data are present.
        shares: Share of each client's training examples that is available after each release, ascending, above 0 to 1.
        participants: `all` clients in training, or only the `warm` ones, which have a model (the papers' tables).
    """

    rounds: Sequence[int] = (0, 50, 100, 150)
    shares: Sequence[float] = (0.25, 0.5, 0.75, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        rounds, shares = pairwise((-1, *self.rounds)), pairwise((0, *self.shares))
        ascending = all(sooner < later for sooner, later in rounds) and all(less < more <= 1 for less, more in shares)
        if len(self.rounds) != len(self.shares) or not self.rounds or not ascending:
            raise InputError(
                f"rounds are {self.rounds}, shares {self.shares}; give both in ascending order, one share for each "
                "round: rounds from 0, shares above 0 to 1"
            )

    def step(self, data: FederatedData, at: ShiftContext) -> tuple[FederatedData, ShiftLog | None]:
        if at.round not in self.rounds:
            return data, None
        number = list(self.rounds).index(at.round)
        clients = at.participants
        withheld = ClientIndex.empty(data.num_clients) if data.withheld is None else data.withheld
        present = data.train.select(clients)
        if number == 0:
            present = shuffle_lists(present, at.rng("order"))
        else:
            taking_part = withheld.sizes[clients] > 0
            clients, present = clients[taking_part], present.select(taking_part.nonzero().flatten())
        whole = present.plus(withheld.select(clients))
        sizes = self.count_released(number, present.sizes, whole.sizes)
        released = replace(
            data,
            train=data.train.replace_lists(clients, whole.first(sizes)),
            withheld=withheld.replace_lists(clients, whole.after(sizes)),
        )
        more = (released.num_examples - data.num_examples)[clients].abs()
        clients, more = clients[more > 0], more[more > 0]  # the log leaves out clients whose data did not change
        clusters = data.true_clusters[clients]
        return released, ShiftLog("incremental", clients, torch.full_like(clients, -1), more, clusters, clusters)

    def count_released(self, number: int, present: Tensor, whole: Tensor) -> Tensor:
        """Counts the examples that each client has after a release, int64 `[n]`.

        Args:
            number: Number of the release, from 0.
            present: Training examples of each client before the release, int64 `[n]`.
            whole: Training and withheld examples of each client, int64 `[n]`.
        """
        sizes = share_of(self.shares[number], whole)
        return sizes.maximum(present) if number else sizes  # after swaps of a label, a client may have more already


def share_of(share: float, sizes: Tensor) -> Tensor:
    """Computes ceil(share * n) for each n, exactly for the decimal share: 0.7 * 10 is 7, not 8.

    Args:
        share: Share, above 0 to 1.
        sizes: Sizes n, int64 of any shape.
    """
    numerator, denominator = Fraction(share).limit_denominator(1_000_000_000).as_integer_ratio()
    return (sizes * numerator + denominator - 1) // denominator
