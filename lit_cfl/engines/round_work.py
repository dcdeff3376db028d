"""Implements an algorithm's requests to clients with an engine."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lit_cfl.activity import Activity
from lit_cfl.data import FederatedData
from lit_cfl.engines.cohort import FitRequest
from lit_cfl.engines.scorer import EVALUATION_BATCH
from lit_cfl.errors import join_ids, note_on_error
from lit_cfl.local_work import Budget, ClientFunction, Fitted, LocalCosts, Sketch, Statistic, count_bytes, per_client

if TYPE_CHECKING:
    from lit_cfl.engines.engine import Engine

_LOSSES_AT_ONCE = 2**22  # maximum number of losses, one per example and model, that are computed at once


class RoundWork:
    """Implements `LocalWork` with an engine, for one round and its data."""

    def __init__(self, engine: "Engine", round: int, data: FederatedData) -> None:
        self.engine, self.round, self.data = engine, round, data
        self.costs, self.bytes_up = LocalCosts(), 0
        self.layout, self.skew, self.true_clusters = engine.layout, data.skew, data.true_clusters
        self.population, self.num_examples = data.population, data.num_examples

    @property
    def label_counts(self) -> Tensor:
        return self.data.label_counts

    @property
    def budget(self) -> Budget:
        return self.engine.local.budget

    def initial(self, number: int) -> Tensor:
        return self.engine.initial(number)

    def fit(
        self,
        models: Tensor,
        clients: Tensor,
        start: Tensor | int = 0,
        *,
        purpose: str = "train",
        prox: float = 0.0,
        centers: Tensor | None = None,
        center: Tensor | int = 0,
        budget: Budget | None = None,
        weights: Tensor | None = None,
    ) -> Fitted:
        budget = budget or self.budget
        request = FitRequest(
            models,
            clients,
            per_client(start, clients),
            purpose,
            prox,
            centers,
            per_client(center, clients),
            replace(budget, length=1),  # lengths are separate
            per_client(budget.length, clients),
            self.engine.rates(self.round),
            None if weights is None else weights.split(self.data.num_examples[clients].tolist()),
        )
        if len(clients) and int(clients.min()) < 0:
            raise ValueError(f"there is no client {int(clients.min())}; ids are 0 or more")
        self._require_rows(models, request.start)
        if prox:
            if centers is None:
                raise TypeError("prox needs centers")
            self._require_rows(centers, request.center)
        self._count(budget, request.lengths, clients)
        return self.engine.fit(request, self.round, self.data)

    def _require_rows(self, models: Tensor, which: Tensor | None = None) -> None:
        """Raises ValueError unless models are rows of this layout, and `which` are numbers of them."""
        columns = self.layout.num_columns
        if models.dim() != 2 or models.shape[1] != columns:
            raise ValueError(
                f"models have the shape {list(models.shape)}; give rows [K, {columns}], such as model[None]"
            )
        if which is not None and len(which) and int(which.max()) >= len(models):
            raise ValueError(f"a client has the model {int(which.max())}, but there are {len(models)} models")

    def _count(self, budget: Budget, lengths: Tensor, clients: Tensor) -> None:
        sizes, local = self.data.num_examples[clients], self.engine.local
        self.costs.steps += int(local.count_steps(budget, lengths, sizes).sum())
        self.costs.examples += int(local.count_examples(budget, lengths, sizes).sum())

    def gradients(self, model: Tensor, clients: Tensor, sketch: Sketch | None = None) -> Tensor:
        self._require_rows(model[None])
        whole = Budget(1, "epochs", "full")
        once = torch.ones_like(clients)
        self.engine.require_variance(clients, whole, once, self.data)
        self._count(whole, once, clients)
        found = model.new_empty(0, self.layout.num_columns)
        found, done = found if sketch is None else sketch(found), 0
        for rows in self.engine.gradients(model, clients, self.round, self.data):
            rows = rows if sketch is None else torch.cat([sketch(row[None]) for row in rows])
            found = found if done else rows.new_empty(len(clients), rows.shape[1])
            found[done : done + len(rows)] = rows
            done += len(rows)
        return found

    def losses(self, models: Tensor, clients: Tensor) -> Tensor:
        sums = torch.zeros(len(clients), len(models), dtype=torch.float64)
        for owners, losses in self._losses_in_parts(models, clients):
            sums.index_add_(0, owners, losses.T)
        return sums / self.data.num_examples[clients][:, None]  # 0 / 0 is nan for a client without data

    def example_losses(self, models: Tensor, clients: Tensor) -> Tensor:
        none = torch.empty(len(models), 0, dtype=torch.float64)
        return torch.cat([none, *(losses for _, losses in self._losses_in_parts(models, clients))], dim=1)

    def _losses_in_parts(self, models: Tensor, clients: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the losses `[K, m]` of training examples part by part, with the positions of their owners `[m]`."""
        self._require_rows(models)
        self.engine.report(Activity(f"losses of {len(models)} models on {len(clients)} clients", self.round))
        index = self.data.train.select(clients)
        self.costs.scored += int(index.sizes.sum()) * len(models)
        # whole batches of evaluation, so that no loss depends on the parts
        size = EVALUATION_BATCH * max(1, _LOSSES_AT_ONCE // (EVALUATION_BATCH * max(1, len(models))))
        with note_on_error(lambda: f"in round {self.round + 1}, in losses on the clients {join_ids(clients.tolist())}"):
            for owners, entries in zip(index.owners.split(size), index.entries.split(size), strict=True):
                yield owners, self.engine.losses_of_all(models, entries, self.data)

    def map(self, function: ClientFunction, clients: Tensor, model: Tensor | None = None) -> list[Statistic | None]:
        found = self.engine.statistics(function, clients, model, self.round, self.data)
        self.bytes_up += count_bytes(found)
        self.costs.scored += int(self.data.num_examples[clients].sum())
        return found
