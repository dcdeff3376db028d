"""The clients as an algorithm sees them: `LocalWork` on an engine, bound to one round and its data."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lit_cfl.activity import Activity
from lit_cfl.data import FederatedData
from lit_cfl.errors import listed, noting
from lit_cfl.local.work import Budget, Fitted, Sketch, per_client
from lit_cfl.parameters import ParameterLayout

if TYPE_CHECKING:
    from lit_cfl.local.engine import Engine


@dataclass(frozen=True, eq=False)
class FitRequest:
    """The arguments of one `LocalWork.fit`, spelled out client by client."""

    models: Tensor  # [K, d]
    clients: Tensor  # [n]
    start: Tensor  # [n]
    purpose: str
    prox: float
    centers: Tensor | None  # [C, d]
    center: Tensor  # [n]
    budget: Budget
    lengths: Tensor  # [n], of the budget


@dataclass(frozen=True, eq=False)
class ClientWork:
    """`LocalWork` on an engine."""

    engine: "Engine"
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
            models, clients, per_client(start, clients), purpose, prox, centers, per_client(center, clients),
            budget, per_client(budget.length, clients),
        )  # fmt: skip
        return self.engine.fit(request, self.round, self.data)

    def gradients(self, model: Tensor, clients: Tensor, sketch: Sketch | None = None) -> Tensor:
        rows: dict[int, Tensor] = {}
        for position, row in self.engine.gradients(model, clients, self.round, self.data):
            rows[position] = row if sketch is None else sketch(row[None])[0]
            self.engine.report(Activity("gradients of", self.round, len(rows), len(clients)))
        if not rows:
            nobody = model.new_empty(0, self.layout.num_columns)
            return nobody if sketch is None else sketch(nobody)
        return torch.stack([rows[position] for position in range(len(clients))])

    def losses(self, models: Tensor, clients: Tensor, *, penalised: bool = False) -> Tensor:
        self.engine.report(Activity(f"losses of {len(models)} models on {len(clients)} clients", self.round))
        index = self.data.train.select(clients)
        with noting(lambda: f"in round {self.round + 1}, in losses on the clients {listed(clients.tolist())}"):
            losses = self.engine.losses_of_all(models, index.entries, self.data)
        sums = torch.zeros(len(clients), len(models), dtype=torch.float64).index_add_(0, index.owners, losses.T)
        means = sums / index.sizes[:, None]  # 0 / 0 is nan: no data
        return means + self.engine.penalties(models) if penalised else means
