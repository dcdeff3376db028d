"""Evaluates models: scores per client and over all clients."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import nan
from typing import Literal

import torch
from torch import Tensor

from lit_cfl.algorithms.automatic_clusters import chooses_number
from lit_cfl.algorithms.base import Algorithm, Assignment, OwnLayers, State
from lit_cfl.algorithms.check_answers import check_assignment
from lit_cfl.clustering.cluster_scores import agreement, churn, mean_entropy
from lit_cfl.data import ClientIndex, FederatedData, Split
from lit_cfl.data.index import distinct_values
from lit_cfl.engines.engine import Engine
from lit_cfl.errors import InputError, Notice, join_ids, with_client_names
from lit_cfl.local_work import Budget
from lit_cfl.metric_names import CHOSEN, ENTROPY, tuned_columns
from lit_cfl.options import FROM_1, bounded, require_options
from lit_cfl.scores import ACCURACY, CLASSIFIER, Scores, SetScore, per_example
from lit_cfl.seeds import generator
from lit_cfl.set_predictions import SetPredictions


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

    def require_accuracy(self, scores: Scores, num_labels: int) -> None:
        """Raises InputError if `class_counts` is set, but the task has no classes or no accuracy."""
        if self.class_counts and (not num_labels or ACCURACY not in scores):
            lack = "are not scored by accuracy; add it to task.scores, or" if num_labels else "have no classes;"
            raise InputError(f"evaluation.class_counts is true, but the data {lack} leave class_counts out")

    def require_reported(self, metric: str, scores: Scores, option: str) -> None:
        """Raises InputError if an option names a score after fine-tuning, but `fine_tune` is not set."""
        if self.fine_tune is None and metric in tuned_columns(scores):
            raise InputError(
                f"{option} is {metric!r}, but evaluation.fine_tune is null, so no run reports it; set "
                "evaluation.fine_tune to {length: 1, unit: epochs}"
            )

    def require_one_model(self, algorithm: Algorithm) -> None:
        """Raises InputError if fine-tuning is requested for an algorithm that gives clients several models."""
        if self.fine_tune is not None and algorithm.mixes_models:
            raise InputError(
                f"evaluation.fine_tune is given, but {type(algorithm).__name__} mixes several models for each client, "
                "so no client has a single model to fine-tune; leave fine_tune out"
            )

    def require_clients(self, clients: int) -> None:
        """Raises InputError if more clients are to be scored than exist."""
        if not isinstance(self.clients, str) and self.clients > clients:
            raise InputError(
                f"evaluation.clients is {self.clients}, but only {clients} clients take part in training; give "
                f"{clients} or fewer, or assigned"
            )

    def candidates(self, population: Tensor, seed: int) -> Tensor:
        """Returns the ids of the clients that may be scored, ascending."""
        if isinstance(self.clients, str) or self.clients >= len(population):
            return population
        drawn = torch.rand(len(population), generator=generator(seed, "evaluated clients")).argsort()
        return population[drawn[: self.clients]].sort().values


@dataclass(frozen=True, eq=False)
class SplitScores:
    """Scores and losses of the clients on one split.

    Args:
        scores: Scores of the task.
        count: Examples of each client, int64 `[n]`.
        loss: Sum of the losses of each client, float64 `[n]`.
        sums: Sum of value times weight for each score and client, float64 `[scores, n]`; right answers of an accuracy.
        weights: Sums of the weights, float64 `[scores, n]`. For a score of sets, `sums` are the values of the clients,
            0 if undefined, and `weights` are 1 if they are defined, else 0.
        predictions: Outputs and labels of the clients; None if no score is of sets.
        by_class: Examples of each class of each client, and the number of right ones, float64 `[2, n, classes]`; None
            unless requested.
    """

    scores: Scores
    count: Tensor
    loss: Tensor
    sums: Tensor
    weights: Tensor
    predictions: SetPredictions | None = None
    by_class: Tensor | None = None

    def of_clients(self, number: int = 0) -> Tensor:
        """Returns a score of each client, float64 `[n]`; nan for clients without examples."""
        return self.scores[number].of(self.sums[number], self.weights[number])

    def weighted_means(self, clients: Tensor | None = None) -> dict[str, float]:
        """Computes each score over all examples of these clients (None = all), by name; nan without examples."""
        chosen = slice(None) if clients is None else clients
        sums, weights = self.sums[:, chosen].sum(1), self.weights[:, chosen].sum(1)
        found = {s.name: float(s.of(sums[k], weights[k])) for k, s in enumerate(self.scores)}
        if self.predictions is not None:
            found |= {s.name: self.predictions.over_clients(s, clients) for s in self.scores if isinstance(s, SetScore)}
        return found

    def metrics(self, split: str) -> dict[str, float]:
        """Computes the metrics of a split, named `split/...`; empty if no client has examples.

        The spread is nan if a loss is not finite; otherwise models that all predict nothing would have the smallest.
        """
        if not self.count.any():
            return {}
        found = {f"{split}/weighted_{name}": value for name, value in self.weighted_means().items()}
        for number, score in enumerate(self.scores):
            known = self.of_clients(number)[self.weights[number] > 0]
            if isinstance(score, SetScore):
                found[f"{split}/undefined_{score.name}"] = int((self.count > 0).sum()) - len(known)
            if not len(known):
                continue  # no example has any weight
            badness = -known if score.higher_is_better else known
            worst = known[badness.argsort(descending=True)[: max(1, len(known) // 10)]]  # nan counts as the worst
            found |= {
                f"{split}/mean_{score.name}": float(known.mean()),
                f"{split}/std_{score.name}": float(known.std(correction=0)) if self.loss.isfinite().all() else nan,
                f"{split}/worst10_{score.name}": float(worst.mean()),
            }
        return found | {f"{split}/loss": float(self.loss.sum() / self.count.sum())}


def score_clients(
    engine: Engine,
    models: Tensor,
    index: Tensor,
    clients: Tensor,
    data: FederatedData,
    split: Split,
    class_counts: bool = False,
    own: OwnLayers | None = None,
    weights: Tensor | None = None,
) -> SplitScores:
    """Scores clients with their models; an example shared by clients of one model is scored once.

    Args:
        models: Models `[K, d]`.
        index: Model of each client, int64 `[n]`, not negative.
        clients: Ids, int64 `[n]`.
        own: Personal layers that replace layers of the clients' models.
        weights: Weights of the models in each client's mixture `[n, K]`, which replace `index`; None = one model.
    """
    if own is None:
        return _score(engine, models, index, clients, data, split, class_counts, weights)
    parts = own_models(engine, models, index, clients, own)
    return _join_parts([_score(engine, rows, each, some, data, split, class_counts) for rows, each, some in parts])


def own_models(
    engine: Engine, models: Tensor, index: Tensor, clients: Tensor, own: OwnLayers | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yields clients with their models: in groups that fit into memory if layers are personal, else all at once.

    Args:
        models, index, clients, own: See `score_clients`.

    Yields:
        Models `[K, d]`, the model of each of these clients, int64 `[m]`, and the clients, int64 `[m]`.
    """
    if own is None:
        yield models, index, clients
        return
    for some, which in zip(clients.split(engine.rows_that_fit), index.split(engine.rows_that_fit), strict=True):
        yield own.models_of(some, models, which), torch.arange(len(some)), some


def _score(
    engine: Engine,
    models: Tensor,
    index: Tensor,
    clients: Tensor,
    data: FederatedData,
    split: Split,
    class_counts: bool,
    weights: Tensor | None = None,
) -> SplitScores:
    mine, views = data.split(split).select(clients), len(data.examples) * len(data.examples.views)
    if len(models) == 1:
        weights = None  # a mixture of one model is that model, to the bit
    index = index if weights is None else torch.arange(len(clients))
    held, list_of, (asked, where) = _score_once(mine, index, views)

    def named(number: int) -> str:
        return f"model {number} of the clients {join_ids(clients[index == number].tolist())} on {split} data"

    if weights is None:
        found = engine.outcomes_of_each(models, asked // views, asked % views, data, named)
    else:
        found = engine.outcomes_of_mixtures(models, weights, asked // views, asked % views, data)
    finite = found.losses.isfinite()
    if not finite.all() and not engine.noted_not_finite:
        engine.noted_not_finite = True
        first = int((~finite)[where].nonzero()[0])
        client = clients[(list_of == held.owners[first]).nonzero()[0]]
        whose = with_client_names(f"client {int(client)}", data.names)
        example = int(held.entries[first]) % len(data.examples)
        _note_not_finite(example, whose, split, found.losses, where, engine.scores)
    values = found.values.where(finite, 0) if engine.scores == CLASSIFIER else found.values

    def per_client(values: Tensor) -> Tensor:
        return torch.zeros(len(held), dtype=values.dtype).index_add_(0, held.owners, values[where])[list_of]

    means = zip(map(per_client, values * found.weights), map(per_client, found.weights), strict=True)
    predictions = None
    if found.outputs is not None:
        labels = data.examples.targets(asked % views).cpu()
        predictions = SetPredictions(found.outputs, labels, where.split(held.sizes.tolist()), list_of)
    both = [
        next(means) if predictions is None or not isinstance(score, SetScore) else predictions.of_clients(score)
        for score in engine.scores
    ]
    sums, weights = (torch.stack(parts) for parts in zip(*both, strict=True))
    by_class = None
    if class_counts:
        right = values[per_example(engine.scores).index(ACCURACY)][where]
        classes, labels = data.examples.num_labels, data.examples.targets(asked % views).cpu()[where]
        cells, size = held.owners * classes + labels, len(held) * classes
        counts = [torch.bincount(cells, each, size) for each in (torch.ones_like(right), right)]
        by_class = torch.stack(counts).view(2, len(held), classes)[:, list_of]
    return SplitScores(engine.scores, mine.sizes, per_client(found.losses), sums, weights, predictions, by_class)


def _score_once(mine: ClientIndex, index: Tensor, views: int) -> tuple[ClientIndex, Tensor, tuple[Tensor, Tensor]]:
    """Finds the distinct pairs of example and model to score, and the clients of each pair.

    Args:
        mine: Examples of each client.
        index: Model of each client, int64 `[n]`.
        views: Upper bound of the indices of examples.

    Returns:
        The distinct lists of examples per model; the list of each client `[n]`; and the scored pairs as model * views +
        example, ascending, with the position of each entry of the lists among them.
    """
    lists, list_of_client = mine.distinct()  # clients of one model may also share a list of examples
    pairs, list_of = distinct_values(index * len(lists) + list_of_client)
    held = lists.select(pairs % len(lists))
    return held, list_of, distinct_values((pairs // len(lists))[held.owners] * views + held.entries)


def _note_not_finite(example: int, whose: str, split: Split, losses: Tensor, where: Tensor, scores: Scores) -> None:
    """Warns of non-finite losses; names the first such example and counts them.

    Args:
        whose: Client that has the example, in words.
        losses: Losses of the evaluated examples.
        where: Position of the loss of each client's example, int64 `[entries]`.
        scores: Scores of the task.
    """
    counted = all(score == ACCURACY or score.worst is not None for score in scores)
    meaning = "each of them counts as a wrong prediction" if counted else "scores of their clients may be blank"
    wrong = losses[where][~losses[where].isfinite()]
    warnings.warn(
        f"the loss of example {example} of {whose}'s {split} data is {float(wrong[0])} under its model ({len(wrong)} "
        f"of {len(where)} examples have a loss that is not finite); {meaning}",
        Notice,
        stacklevel=3,
    )


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
        of_split = _join_parts(found).metrics("")
        for score in engine.scores:
            named = {"weighted": "tuned", "mean": "mean_tuned", "worst10": "worst10_tuned"}
            known = {new: of_split.get(f"/{old}_{score.name}") for old, new in named.items()}
            metrics |= {f"{NAMES[split]}/{new}_{score.name}": v for new, v in known.items() if v is not None}
    return metrics


def _join_parts(parts: Sequence[SplitScores]) -> SplitScores:
    """Joins the results of groups of clients on one split."""
    count, loss = (torch.cat([getattr(part, name) for part in parts]) for name in ("count", "loss"))
    sums, weights = (torch.cat([getattr(part, name) for part in parts], dim=1) for name in ("sums", "weights"))
    known = [part.predictions for part in parts if part.predictions is not None]
    predictions = SetPredictions.join(known) if known else None
    classes = [part.by_class for part in parts if part.by_class is not None]
    by_class = torch.cat(classes, dim=1) if classes else None
    return SplitScores(parts[0].scores, count, loss, sums, weights, predictions, by_class)


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
