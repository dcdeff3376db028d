"""Evaluates models: scores per client and over all clients."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_cfl.algorithms.automatic_clusters import chooses_number
from lit_cfl.algorithms.base import Algorithm, Assignment, State
from lit_cfl.algorithms.check_answers import check_assignment
from lit_cfl.client_scores import SplitScores, join_scores, own_models, score_clients
from lit_cfl.clustering.cluster_scores import agreement, churn, mean_entropy
from lit_cfl.data import FederatedData, Split
from lit_cfl.engines.engine import Engine
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget
from lit_cfl.metric_names import CHOSEN, ENTROPY, tuned_columns
from lit_cfl.options import FROM_1, bounded, require_options
from lit_cfl.scores import ACCURACY, Scores
from lit_cfl.seeds import generator


@dataclass(frozen=True)
class EvaluationPlan:
    """When to evaluate, and on which clients.

    Args:
        every: Rounds between two evaluations, 1 or more; the last round is always evaluated.
        clients: `assigned`: clients that have a model. `all`: clients without a model get one for this score, which is
            then dropped. A number: clients with a model among a fixed sample of this size.
        fine_tune: Also score each client after fine-tuning a copy of its model on its own examples for this budget
            (`test/tuned_accuracy`); each evaluation takes as long as that training. None = never.
        per_client: Also write the scores of each client in each evaluated round into `client_rounds.parquet`.
        class_counts: With `per_client`, also write the number of each client's test examples of each class, and how
            many of them are predicted correctly.
    """

    every: int = bounded(1, FROM_1)
    clients: Literal["assigned", "all"] | int = bounded("assigned", FROM_1)
    fine_tune: Budget | None = None
    per_client: bool = False
    class_counts: bool = False

    def __post_init__(self) -> None:
        require_options(self, "evaluation.")
        if self.class_counts and not self.per_client:
            raise InputError(
                "evaluation.class_counts is true, but evaluation.per_client is false; set both to true, or neither"
            )

    def require_possible(self, algorithms: Sequence[Algorithm], scores: Scores, data: FederatedData) -> None:
        """Raises InputError if the plan cannot be followed with these algorithms, the task's scores, or the data."""
        clients, num_labels = len(data.population), data.examples.num_labels
        if not isinstance(self.clients, str) and self.clients > clients:
            raise InputError(
                f"evaluation.clients is {self.clients}, but only {clients} clients take part in training; give "
                f"{clients} or fewer, or assigned"
            )
        if self.class_counts and (not num_labels or ACCURACY not in scores):
            lack = "are not scored by accuracy; add it to task.scores, or" if num_labels else "have no classes;"
            raise InputError(f"evaluation.class_counts is true, but the data {lack} leave class_counts out")
        mixing = [type(algorithm).__name__ for algorithm in algorithms if algorithm.mixes_models]
        if self.fine_tune is not None and mixing:
            raise InputError(
                f"evaluation.fine_tune is given, but {mixing[0]} mixes several models for each client, so no client "
                "has a single model to fine-tune; leave fine_tune out"
            )

    def require_reported(self, metric: str, scores: Scores, option: str) -> None:
        """Raises InputError if an option names a score after fine-tuning, but `fine_tune` is not set."""
        if self.fine_tune is None and metric in tuned_columns(scores):
            raise InputError(
                f"{option} is {metric!r}, but evaluation.fine_tune is null, so no run reports it; set "
                "evaluation.fine_tune to {length: 1, unit: epochs}"
            )

    def candidates(self, population: Tensor, seed: int) -> Tensor:
        """Returns the ids of the clients that may be scored, ascending."""
        if isinstance(self.clients, str) or self.clients >= len(population):
            return population
        drawn = torch.rand(len(population), generator=generator(seed, "evaluated clients")).argsort()
        return population[drawn[: self.clients]].sort().values


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results of one evaluation.

    Args:
        clients: Ids of the scored clients, int64 `[n]`, ascending.
        index: Clusters of these clients, int64 `[n]`.
        scores: Scores by split (`validation`, `test`).
        metrics: Columns of `metrics.csv`.
        full_coverage: True if every training client was scored; only such rounds count for the best value.
        weights: Weights of the models in each client's mixture, float64 `[n, K]`; None = each uses one model.
    """

    clients: Tensor
    index: Tensor
    scores: dict[Split, SplitScores]
    metrics: dict[str, float]
    full_coverage: bool
    weights: Tensor | None = None


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
        before: Cluster of each client at the previous evaluation, int64 `[clients]`, for the churn.
    """
    candidates = plan.candidates(data.population, engine.seed)
    served = algorithm.serve(state, data.population)  # only once, since a model per client may fill the memory
    served = check_assignment(algorithm, served, data.population, engine.layout.num_columns)
    unassigned = data.population[served.index < 0]
    assigned = len(data.population) - len(unassigned)
    num_models = len(served.models)
    if plan.clients == "all" and len(unassigned):
        del served
        served = place_for_scoring(algorithm, state, engine, data, data.population, round, unassigned)
    if candidates is not data.population:
        served = served.select(torch.isin(data.population, candidates))
    clients, served = candidates[served.index >= 0], served.select(served.index >= 0)
    index, weights = served.index, served.weights
    metrics: dict[str, float] = {}
    scores: dict[Split, SplitScores] = {}
    for split, name in NAMES.items():
        if not len(clients) or not data.split(split).sizes.any():
            continue
        counted = plan.class_counts and split == "test"
        scores[split] = score_clients(engine, served.models, index, clients, data, split, counted, served.own, weights)
        metrics |= scores[split].metrics(name)
        if "global" in served.extra:
            row, everyone = served.extra["global"][None], torch.zeros_like(index)
            shared = score_clients(engine, row, everyone, clients, data, split, own=served.own)
            metrics |= {f"{name}/global_{score}": value for score, value in shared.weighted_means().items()}
    if plan.fine_tune is not None and scores:
        models = own_models(engine, served.models, index, clients, served.own)
        metrics |= _tuned_metrics(engine, models, data, round, plan.fine_tune, list(scores))
    metrics |= {
        "clusters/count": len(index.unique()),
        "clusters/assigned": assigned,
        "clusters/unobserved": len(unassigned),
        "clients/evaluated": len(clients),
    }
    if chooses_number(algorithm):
        metrics[CHOSEN] = num_models
    if weights is not None:
        metrics[ENTROPY] = mean_entropy(weights)
    truth = data.true_clusters[clients]
    # clusters are unknown after a partial swap; agreement over the remaining clients would mislead
    if (truth >= 0).all():
        metrics |= agreement(index, truth)
    if before is not None:
        metrics["clusters/churn"] = churn(before[clients], index)
    return Evaluation(clients, index, scores, metrics, len(clients) == len(data.population), weights)


def _tuned_metrics(
    engine: Engine,
    models: Iterable[tuple[Tensor, Tensor, Tensor]],
    data: FederatedData,
    round: int,
    budget: Budget,
    splits: Sequence[Split],
) -> dict[str, float]:
    """Computes the metrics after fine-tuning each client's model on its training examples.

    A client without training examples keeps its model. Memory holds the models of one chunk at a time.

    Args:
        models: Models with their clients, see `own_models`.
    """
    parts: dict[Split, list[SplitScores]] = {split: [] for split in splits}
    for rows, index, clients in models:
        fitted = engine.at(round, data).fit(rows, clients, index, purpose="fine-tune", budget=budget)
        for chunk in fitted.chunks():
            mine, each = clients[chunk.start : chunk.start + len(chunk.models)], torch.arange(len(chunk.models))
            for split, found in parts.items():
                found.append(score_clients(engine, chunk.models, each, mine, data, split))
    metrics: dict[str, float] = {}
    for split, found in parts.items():
        of_split = join_scores(found).metrics("")
        for score in engine.scores:
            named = {"weighted": "tuned", "mean": "mean_tuned", "worst10": "worst10_tuned"}
            known = {new: of_split.get(f"/{old}_{score.name}") for old, new in named.items()}
            metrics |= {f"{NAMES[split]}/{new}_{score.name}": v for new, v in known.items() if v is not None}
    return metrics


NAMES: dict[Split, str] = {"validation": "val", "test": "test"}


def place_for_scoring(
    algorithm: Algorithm,
    state: State,
    engine: Engine,
    data: FederatedData,
    clients: Tensor,
    round: int,
    unassigned: Tensor | None = None,
) -> Assignment:
    """Assigns unassigned clients to clusters by `place`, without changing the algorithm's state.

    Args:
        clients: Ids, int64 `[n]`.
        unassigned: Those of these clients that have no model, in the same order; None = found here.
    """
    if unassigned is None:
        unassigned = clients[algorithm.serve(state, clients).index < 0]
    rng = generator(engine.seed, "place for scoring", round)
    placed = algorithm.place(state, unassigned, engine.at(round, data), rng)[0]
    return check_assignment(algorithm, algorithm.serve(placed, clients), clients, engine.layout.num_columns)
