"""An algorithm's request for a fit, and the tensors that specify each client's training in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lit_cfl.data import FederatedData
from lit_cfl.engines.cohort_fit import CohortFit
from lit_cfl.engines.dropout import keys_of_steps
from lit_cfl.engines.mini_batches import (
    BatchSize,
    MiniBatches,
    count_examples,
    count_steps,
    draw_batches,
    steps_of_epoch,
)
from lit_cfl.engines.training_options import LocalTraining, Rates
from lit_cfl.local_work import Budget
from lit_cfl.seeds import derive_each

CHECK = "check"  # purpose of the fit that only checks whether clients can be trained
_NONE = torch.empty(0, dtype=torch.int64)
_NO_BATCHES = MiniBatches(_NONE, _NONE, _NONE)


@dataclass(frozen=True, eq=False)
class FitRequest:
    """The arguments of one call of `LocalWork.fit`, client by client."""

    models: Tensor  # [K, d]
    clients: Tensor  # [n]
    start: Tensor  # [n]
    purpose: str
    prox: float
    centers: Tensor | None  # [C, d]
    center: Tensor  # [n]
    budget: Budget
    lengths: Tensor  # [n], the budget's length for each client
    rates: Rates | None = None  # learning rates of the round; None = the optimizer's
    weights: Sequence[Tensor] | None = None  # factors of the losses of each client's examples [n]; None = 1

    @cached_property
    def counted(self) -> str:
        """What a fit trains: `client`, or `model` if a client trains several."""
        return "client" if len(self.clients.unique()) == len(self.clients) else "model"

    def weights_at(self, positions: Tensor) -> Tensor | None:
        """Returns the weights of these clients' examples, concatenated; None without weights."""
        return None if self.weights is None else torch.cat([self.weights[k] for k in positions.tolist()])


@dataclass(frozen=True)
class FitDescriber:
    """Builds the CPU tensors that specify local training: seeds, steps, mini-batches.

    May run in a thread while a GPU trains.

    Args:
        seed: The run's seed.
        local: The run's options of local training.
        draws_masks: True if the module has keyed dropout.
        seeds_generators: True if the module may draw from the global generators.
    """

    seed: int
    local: LocalTraining
    draws_masks: bool
    seeds_generators: bool

    def batch_size(self, budget: Budget) -> BatchSize:
        """Returns the batch size of a fit."""
        return budget.batch_size or self.local.batch_size

    def steps(self, budget: Budget, lengths: Tensor, sizes: Tensor) -> Tensor:
        """Counts the mini-batches that each client trains on, int64 `[n]`; 0 for a client without data.

        Args:
            lengths: The budget's length for each client, int64 `[n]`.
            sizes: Number of examples of each client, int64 `[n]`.
        """
        return count_steps(budget, lengths, sizes, self.batch_size(budget), self.local.last_batch)

    def count_seen(self, budget: Budget, lengths: Tensor, sizes: Tensor) -> Tensor:
        """Counts the examples in all mini-batches of each client, int64 `[n]`; see `steps`."""
        steps = self.steps(budget, lengths, sizes)
        return count_examples(steps, sizes, self.batch_size(budget), self.local.last_batch)

    def fit(self, request: FitRequest, positions: Tensor, round: int, data: FederatedData) -> CohortFit:
        """Builds the tensors for training the clients at these positions of a request, except the examples."""
        clients = request.clients[positions]
        sizes, batch_size = data.num_examples[clients], self.batch_size(request.budget)
        steps = self.steps(request.budget, request.lengths[positions], sizes)
        ids, last = clients.tolist(), self.local.last_batch
        seeds = derive_each(self.seed, request.purpose, round, ids=ids)

        def keys(purpose: str) -> Tensor:
            return keys_of_steps(torch.tensor(derive_each(self.seed, purpose, round, ids=ids)), steps)

        return CohortFit(
            clients,
            request.models,
            request.start[positions],
            request.prox,
            request.centers if request.prox else None,
            request.center[positions],
            _NONE,
            _NONE,
            sizes,
            steps,
            steps_of_epoch(sizes, batch_size, last),
            draw_batches(seeds, sizes, steps, batch_size, last),
            keys(f"{request.purpose}/dropout") if self.draws_masks else None,
            derive_each(self.seed, f"{request.purpose}/module", round, ids=ids) if self.seeds_generators else None,
            request.rates,
            request.weights_at(positions),
            keys(f"{request.purpose}/augment") if data.examples.augment is not None else None,
        )

    def gradients(self, clients: Tensor, round: int, data: FederatedData) -> CohortFit:
        """Builds the tensors for computing these clients' gradients, except the model and the examples."""
        ids, keys, sizes = clients.tolist(), None, data.num_examples[clients]
        if self.draws_masks:
            of_clients = derive_each(self.seed, "gradient/dropout", round, ids=ids)
            keys = keys_of_steps(torch.tensor(of_clients), torch.ones_like(clients))
        seeds = derive_each(self.seed, "gradient", round, ids=ids) if self.seeds_generators else None
        none = torch.zeros_like(clients)
        return CohortFit(
            clients, _NONE, none, 0.0, None, none, _NONE, _NONE, sizes, none, none, _NO_BATCHES, keys, seeds
        )


def split_clients(sizes: Tensor, most: float) -> Iterator[slice]:
    """Splits clients into consecutive groups of at most this many examples; a larger client is alone.

    Args:
        sizes: Number of examples of each client, int64 `[n]`.
        most: Maximum number of examples in a group of several clients.
    """
    before, start = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]), 0
    while start < len(sizes):
        stop = int(torch.searchsorted(before, before[start] + most, right=True)) - 1
        yield slice(start, stop := max(stop, start + 1))
        start = stop
