"""Clients with quadratic losses, for which all results are known in closed form."""

from collections.abc import Iterator
from copy import copy

import torch
from torch import Tensor, nn

from lit_cfl.errors import InputError
from lit_cfl.local_work import (
    Budget,
    Chunk,
    ClientFunction,
    Fitted,
    LocalCosts,
    Sketch,
    Statistic,
    count_bytes,
    keep_statistic,
    per_client,
)
from lit_cfl.parameters import ParameterLayout
from lit_cfl.seeds import generator


class QuadraticWork:
    """Clients whose loss is F_i(w) = 1/2 |w - c_i|^2, trained by exact gradient steps. A `LocalWork`.

    One step of size eta with the proximal term mu/2 |w - z|^2 moves w to w - eta (w - c_i + mu (w - z)), so E steps
    lead to p + (1 - eta (1 + mu))^E (w - p) with p = (c_i + mu z) / (1 + mu). An epoch is one step on all of a client's
    examples. Each example has the loss F_i, so example weights with the mean q change it to q F_i.

    In `map`, all examples of a client are c_i, and have labels according to `label_counts` (n_i zeros if it has no
    columns); the module of a model w returns `inputs - w`, also as its latent features.

    Args:
        centers: Centres c_i, float64 `[clients, d]`.
        num_examples: Numbers of examples n_i, int64 `[clients]`; a client with 0 does not train, its gradient is 0, and
            its losses are nan.
        learning_rate: Learning rate eta.
        label_counts: Examples of each label, int64 `[clients, labels]`; None = one label.
        layers: Sizes of the layers by name, which sum to d; None = `conv1` and `fc1`, half of the columns each.
        steps: E of the run's budget.
        chunk_size: Number of clients in a chunk: fits of more clients are read in chunks and not held; None = all fits
            are held.
        true_clusters: True clusters, int64 `[clients]`, -1 = unknown; None = algorithms that ask for them are refused.

    Example:
        >>> work = QuadraticWork(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([1, 3]), learning_rate=0.5)
        >>> work.fit(torch.zeros(1, 2), torch.tensor([1])).rows.tolist()
        [[1.0, 0.0]]
    """

    def __init__(
        self,
        centers: Tensor,
        num_examples: Tensor,
        learning_rate: float,
        *,
        label_counts: Tensor | None = None,
        layers: dict[str, int] | None = None,
        steps: int = 1,
        chunk_size: int | None = None,
        skew: str = "other",
        seed: int = 0,
        true_clusters: Tensor | None = None,
    ) -> None:
        d = centers.shape[1]
        self.centers, self.num_examples, self.learning_rate = centers, num_examples, learning_rate
        self.label_counts = num_examples[:, None] if label_counts is None else label_counts
        sizes = layers or {"conv1": d // 2, "fc1": d - d // 2}
        self.layout = ParameterLayout.of_layers({layer: size for layer, size in sizes.items() if size})
        self.steps, self.chunk_size, self.skew, self.seed = steps, chunk_size, skew, seed
        self.round, self._true_clusters = 0, true_clusters
        self.population, self.costs = torch.arange(len(centers)), LocalCosts()
        self.bytes_up = 0

    def at(self, round: int, data: object = None) -> "QuadraticWork":
        """Returns the same clients in another round."""
        view = copy(self)
        view.round, view.bytes_up, view.costs = round, 0, LocalCosts()
        return view

    @property
    def true_clusters(self) -> Tensor:
        if self._true_clusters is None:
            raise InputError(
                "true_clusters can be read only by an algorithm that is an upper bound; set its sees_truth = True"
            )
        return self._true_clusters

    @property
    def budget(self) -> Budget:
        return Budget(self.steps)

    def initial(self, number: int) -> Tensor:
        rng = generator(self.seed, "initial", number)
        return torch.randn(self.centers.shape[1], generator=rng, dtype=self.centers.dtype)

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
        if prox and centers is None:
            raise TypeError("prox needs centers")
        begin = models[per_client(start, clients)]
        anchor = begin if centers is None else centers[per_client(center, clients)]
        own = self.centers[clients]
        steps = per_client(self.steps if budget is None else budget.length, clients)[:, None]
        share = 1.0 if weights is None else self._mean_weights(weights, clients).to(own.dtype)[:, None]
        resting = (share * own + prox * anchor) / (share + prox)
        end = resting + (1 - self.learning_rate * (share + prox)) ** steps.to(own.dtype) * (begin - resting)
        trained = (self.num_examples[clients] > 0) & (steps[:, 0] > 0)
        end = torch.where(trained[:, None], end, begin)
        self._count(steps[:, 0], clients)
        losses = torch.where(trained, (share * self._loss(begin, own)[:, None])[:, 0], float("nan"))

        def chunks() -> Iterator[Chunk]:
            size = self.chunk_size or max(len(clients), 1)
            for at in range(0, len(clients), size):
                part = slice(at, at + size)
                yield Chunk(at, end[part], losses[part], trained[part])

        held = self.chunk_size is None or len(clients) <= self.chunk_size
        return Fitted(chunks(), self.num_examples[clients], held=held)

    def _mean_weights(self, weights: Tensor, clients: Tensor) -> Tensor:
        """Computes the mean weight of each client's examples: float64 `[n]`, above 0; 1 without examples."""
        sizes = self.num_examples[clients]
        sums = torch.zeros(len(clients), dtype=torch.float64)
        sums.index_add_(0, torch.arange(len(clients)).repeat_interleave(sizes), weights.double())
        return torch.where(sizes > 0, sums / sizes, 1.0).clamp(min=torch.finfo(self.centers.dtype).tiny)

    def gradients(self, model: Tensor, clients: Tensor, sketch: Sketch | None = None) -> Tensor:
        rows = (model - self.centers[clients]) * (self.num_examples[clients] > 0)[:, None]
        self._count(torch.ones_like(clients), clients)
        return rows if sketch is None else sketch(rows)

    def losses(self, models: Tensor, clients: Tensor) -> Tensor:
        self.costs.scored += int(self.num_examples[clients].sum()) * len(models)
        plain = torch.stack([self._loss(model, self.centers[clients]) for model in models], dim=1)
        return plain.where(self.num_examples[clients, None] > 0, float("nan"))

    def example_losses(self, models: Tensor, clients: Tensor) -> Tensor:
        return self.losses(models, clients).T.double().repeat_interleave(self.num_examples[clients], dim=1)

    def map(self, function: ClientFunction, clients: Tensor, model: Tensor | None = None) -> list[Statistic | None]:
        more = () if model is None else (_Difference(model),)
        found = [self._statistic(function, client, more) for client in clients.tolist()]
        self.bytes_up += count_bytes(found)
        self.costs.scored += int(self.num_examples[clients].sum())
        return found

    def _statistic(self, function: ClientFunction, client: int, more: tuple[nn.Module, ...]) -> Statistic | None:
        if not self.num_examples[client]:
            return None
        counts = self.label_counts[client]
        unlabelled = torch.zeros(int(self.num_examples[client]), dtype=torch.int64)
        labels = torch.arange(len(counts)).repeat_interleave(counts) if len(counts) else unlabelled
        inputs = self.centers[client].repeat(len(labels), 1)
        with torch.no_grad():
            return keep_statistic(function(inputs, labels, *more), client)

    def _count(self, steps: Tensor, clients: Tensor) -> None:
        sizes = self.num_examples[clients]
        self.costs.steps += int((steps * sizes.clamp(max=1)).sum())
        self.costs.examples += int((steps * sizes).sum())

    @staticmethod
    def _loss(models: Tensor, centers: Tensor) -> Tensor:
        return 0.5 * (models - centers).square().sum(-1)


class _Difference(nn.Module):
    """Module that returns its inputs minus a model."""

    def __init__(self, model: Tensor) -> None:
        super().__init__()
        self.model = nn.Parameter(model.clone(), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        difference: Tensor = inputs - self.model
        return difference

    latent_features = forward
