"""How good the models are, per client and over all of them."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_cfl.agreement import agreement, churn
from lit_cfl.algorithms.base import Algorithm, Assignment, State
from lit_cfl.data import FederatedData, Split
from lit_cfl.errors import InputError
from lit_cfl.local.engine import Engine
from lit_cfl.seeds import generator


@dataclass(frozen=True)
class EvaluationPlan:
    """When to evaluate, and whom.

    Args:
        every: rounds between two evaluations, 1 or more; the last round is always evaluated.
        clients: `assigned`: those that have a model; `all`: the others are placed for scoring only, and what that
            changes and costs is dropped; a number: the assigned ones of a fixed sample of so many clients.
    """

    every: int = 1
    clients: Literal["assigned", "all"] | int = "assigned"

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"evaluation.every is {self.every}; it must be 1 or more")
        if self.clients not in ("assigned", "all") and not (isinstance(self.clients, int) and self.clients >= 1):
            raise InputError(f"evaluation.clients is {self.clients}; give assigned, all, or a number of 1 or more")

    def candidates(self, population: Tensor, seed: int) -> Tensor:
        """Ids of the clients that may be scored, ascending."""
        if isinstance(self.clients, str) or self.clients >= len(population):
            return population
        drawn = torch.rand(len(population), generator=generator(seed, "evaluated clients")).argsort()
        return population[drawn[: self.clients]].sort().values


@dataclass(frozen=True, eq=False)
class Scores:
    """Results on one split.

    Args:
        correct, count: right answers and examples of each client, int64 `[n]`.
        loss: sum of the losses of each client `[n]`.
    """

    correct: Tensor
    count: Tensor
    loss: Tensor

    @property
    def accuracy(self) -> Tensor:
        """Of each client `[n]`; nan without examples."""
        return self.correct.double() / self.count

    def metrics(self, split: str) -> dict[str, float]:
        """Means and spread over the clients that have examples, named `split/...`; empty if none has."""
        tested = self.count > 0
        if not tested.any():
            return {}
        accuracy = self.accuracy[tested]
        worst = accuracy.sort().values[: max(1, len(accuracy) // 10)]
        return {
            f"{split}/weighted_accuracy": weighted_accuracy(self.correct, self.count),
            f"{split}/mean_accuracy": float(accuracy.mean()),
            f"{split}/std_accuracy": float(accuracy.std(correction=0)),
            f"{split}/worst10_accuracy": float(worst.mean()),
            f"{split}/loss": float(self.loss.sum() / self.count.sum()),
        }


def weighted_accuracy(correct: Tensor, count: Tensor) -> float:
    """Right answers over examples, for clients or clusters alike: the papers' accuracy. nan without examples."""
    return float(correct.sum().double() / count.sum())


def score_clients(
    engine: Engine, models: Tensor, index: Tensor, clients: Tensor, data: FederatedData, split: Split
) -> Scores:
    """Scores clients with their models; an example that clients of one model share is run once.

    Args:
        models: `[K, d]`.
        index: the model of each client, int64 `[n]`, none negative.
        clients: ids int64 `[n]`.
    """
    mine = data.split(split).select(clients)
    stretches, stretch_of = mine.distinct()  # clients of one model may share a list, too
    pairs, list_of = (index * len(stretches) + stretch_of).unique(return_inverse=True)
    held = stretches.select(pairs % len(stretches))
    views = len(data.examples) * len(data.examples.views)
    asked = (pairs // len(stretches))[held.owners] * views + held.entries
    asked, where = asked.unique(return_inverse=True)
    losses, correct = engine.outcomes_of_each(models, asked // views, asked % views, data)

    def per_client(values: Tensor) -> Tensor:
        return torch.zeros(len(held), dtype=values.dtype).index_add_(0, held.owners, values)[list_of]

    return Scores(per_client(correct.long()[where]), mine.sizes, per_client(losses[where]))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What one evaluation found.

    Args:
        clients: ids scored, int64 `[n]`, ascending.
        index: their cluster, int64 `[n]`.
        scores: by split (`validation`, `test`).
        metrics: columns of `metrics.csv`.
        full_coverage: whether every client in training was scored; only such rounds count for the best accuracy.
    """

    clients: Tensor
    index: Tensor
    scores: dict[Split, Scores]
    metrics: dict[str, float]
    full_coverage: bool


def evaluate(
    algorithm: Algorithm,
    state: State,
    engine: Engine,
    data: FederatedData,
    plan: EvaluationPlan,
    *,
    round: int,
    before: Tensor | None = None,
) -> Evaluation:
    """Evaluates a state on validation and test data.

    Args:
        before: the cluster of each client at the evaluation before, int64 `[clients]`, for the churn.
    """
    candidates = plan.candidates(data.population, engine.seed)
    scored = algorithm.serve(state, candidates)
    assigned = int((algorithm.serve(state, data.population).index >= 0).sum())
    if plan.clients == "all" and (scored.index < 0).any():
        scored = place_for_scoring(algorithm, state, engine, data, candidates, round)
    known = scored.index >= 0
    clients, index = candidates[known], scored.index[known]
    metrics: dict[str, float] = {}
    scores: dict[Split, Scores] = {}
    for split, name in NAMES.items():
        if not len(clients) or not data.split(split).sizes.any():
            continue
        scores[split] = score_clients(engine, scored.models, index, clients, data, split)
        metrics |= scores[split].metrics(name)
        if "global" in scored.extra:
            row, everyone = scored.extra["global"][None], torch.zeros_like(index)
            shared = score_clients(engine, row, everyone, clients, data, split)
            metrics[f"{name}/global_accuracy"] = weighted_accuracy(shared.correct, shared.count)
    metrics |= {
        "clusters/count": len(index.unique()),
        "clusters/assigned": assigned,
        "clusters/unobserved": len(data.population) - assigned,
        "clients/evaluated": len(clients),
    }
    truth = data.true_clusters[clients]
    if (truth >= 0).all():  # after a partial swap nobody knows: agreement over the rest alone would mislead
        metrics |= agreement(index, truth)
    if before is not None:
        metrics["clusters/churn"] = churn(before[clients], index)
    return Evaluation(clients, index, scores, metrics, len(clients) == len(data.population))


NAMES: dict[Split, str] = {"validation": "val", "test": "test"}


def place_for_scoring(
    algorithm: Algorithm, state: State, engine: Engine, data: FederatedData, clients: Tensor, round: int
) -> Assignment:
    """Who would use which model if the unassigned were placed now; the placed state is dropped."""
    unassigned = clients[algorithm.serve(state, clients).index < 0]
    rng = generator(engine.seed, "place for scoring", round)
    placed, _ = algorithm.place(state, unassigned, engine.at(round, data), rng)
    return algorithm.serve(placed, clients)
