"""Implements what an algorithm may ask of clients, with an engine."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lit_cfl.activity import Activity, Report
from lit_cfl.data import FederatedData
from lit_cfl.engines.local_training import FitRequest, LocalTraining
from lit_cfl.engines.scorer import EVALUATION_BATCH
from lit_cfl.errors import join_ids, note_on_error
from lit_cfl.local_work import Budget, Fitted, Sketch, per_client
from lit_cfl.parameters import ParameterLayout

PositionedRow = tuple[int, Tensor]  # a row [d], and the position of the client that it is of


class ClientEngine(Protocol):
    """The part of an `Engine` that works for algorithms."""

    layout: ParameterLayout
    local: LocalTraining
    report: Report

    def initial(self, number: int) -> Tensor: ...

    def fit(self, request: FitRequest, round: int, data: FederatedData) -> Fitted: ...

    def require_variance(self, clients: Tensor, budget: Budget, lengths: Tensor, data: FederatedData) -> None: ...

    def gradients(self, model: Tensor, clients: Tensor, round: int, data: FederatedData) -> Iterator[PositionedRow]: ...

    def losses_of_all(self, models: Tensor, index: Tensor, data: FederatedData) -> Tensor: ...

    def penalties(self, models: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class ClientWork:
    """Implements `LocalWork` with an engine, for one round and its data."""

    engine: ClientEngine
    round: int
    data: FederatedData

    @property
    def layout(self) -> ParameterLayout:
        return self.engine.layout

    @property
    def population(self) -> Tensor:
        return self.data.population

    @property
    def num_examples(self) -> Tensor:
        return self.data.num_examples

    @property
    def label_counts(self) -> Tensor:
        return self.data.label_counts

    @property
    def budget(self) -> Budget:
        return self.engine.local.budget

    @property
    def skew(self) -> str:
        return self.data.skew

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
            budget,
            per_client(budget.length, clients),
        )
        return self.engine.fit(request, self.round, self.data)

    def gradients(self, model: Tensor, clients: Tensor, sketch: Sketch | None = None) -> Tensor:
        whole = Budget(1, "epochs", EVALUATION_BATCH)
        self.engine.require_variance(clients, whole, torch.ones_like(clients), self.data)
        rows: dict[int, Tensor] = {}
        for position, row in self.engine.gradients(model, clients, self.round, self.data):
            rows[position] = row if sketch is None else sketch(row[None])[0]
            self.engine.report(Activity("gradients of", self.round, len(rows), len(clients)))
        if not rows:
            empty = model.new_empty(0, self.layout.num_columns)
            return empty if sketch is None else sketch(empty)
        return torch.stack([rows[position] for position in range(len(clients))])

    def losses(self, models: Tensor, clients: Tensor, *, penalised: bool = False) -> Tensor:
        self.engine.report(Activity(f"losses of {len(models)} models on {len(clients)} clients", self.round))
        index = self.data.train.select(clients)
        with note_on_error(lambda: f"in round {self.round + 1}, in losses on the clients {join_ids(clients.tolist())}"):
            losses = self.engine.losses_of_all(models, index.entries, self.data)
        sums = torch.zeros(len(clients), len(models), dtype=torch.float64).index_add_(0, index.owners, losses.T)
        means = sums / index.sizes[:, None]  # 0 / 0 is nan: no data
        return means + self.engine.penalties(models) if penalised else means
