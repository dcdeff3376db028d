"""Scores of clients on one split: for each client, and over all of their examples."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import nan

import torch
from torch import Tensor

from lit_cfl.algorithms.base import OwnLayers
from lit_cfl.data import ClientIndex, FederatedData, Split
from lit_cfl.data.index import distinct_values
from lit_cfl.engines.engine import Engine
from lit_cfl.errors import Notice, join_ids, with_client_names
from lit_cfl.scores import ACCURACY, CLASSIFIER, Scores, SetScore, per_example
from lit_cfl.seeds import derive, seed_globally


@dataclass(frozen=True, eq=False)
class SetPredictions:
    """Outputs and labels of the scored examples of clients.

    Args:
        outputs: Outputs of the clients' models, float64 `[m, o]`.
        labels: Labels `[m]`.
        lists: Positions of the examples of each list, int64; clients of one model may share a list.
        list_of: List of each client, int64 `[n]`.
    """

    outputs: Tensor
    labels: Tensor
    lists: Sequence[Tensor]
    list_of: Tensor

    def of_clients(self, score: SetScore) -> tuple[Tensor, Tensor]:
        """Computes each client's score, 0 if undefined, and whether it is defined (1 or 0): float64 `[n]` each.

        If an output is not finite, the score is defined, and nan: a diverged model has a bad score, not none.
        """
        found = torch.tensor([self._of(score, places) for places in self.lists], dtype=torch.float64)
        finite = torch.tensor([bool(self.outputs[places].isfinite().all()) for places in self.lists])
        known = ~found.isnan() | ~finite
        return found.where(known, 0)[self.list_of], known.double()[self.list_of]

    def over_clients(self, score: SetScore, clients: Tensor | None = None) -> float:
        """Computes a score over all examples of some clients (None = all); nan if undefined."""
        chosen = (self.list_of if clients is None else self.list_of[clients]).tolist()
        return self._of(score, torch.cat([self.lists[k] for k in chosen])) if chosen else nan

    def _of(self, score: SetScore, places: Tensor) -> float:
        outputs = self.outputs[places]
        with seed_globally(derive(0, "score"), "cpu"):  # a user's function may draw, such as for a bootstrap
            return score.of_set(outputs, self.labels[places]) if outputs.isfinite().all() else nan

    @classmethod
    def join(cls, parts: Sequence["SetPredictions"]) -> "SetPredictions":
        """Joins the predictions of clients on one split."""
        lists: list[Tensor] = []
        list_of, before = [], 0
        for part in parts:
            list_of.append(part.list_of + len(lists))
            lists += [places + before for places in part.lists]
            before += len(part.labels)
        outputs, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("outputs", "labels"))
        return cls(outputs, labels, lists, torch.cat(list_of))


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
    return join_scores([_score(engine, rows, each, some, data, split, class_counts) for rows, each, some in parts])


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


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The distinct pairs of a model and an example, so that an example that clients of one model share is scored once.

    Args:
        models, examples: Model and index of the example of each pair, int64 `[pairs]`.
        lists: Pairs of each distinct list of examples under a model.
        list_of: List of each client, int64 `[n]`.
    """

    models: Tensor
    examples: Tensor
    lists: ClientIndex
    list_of: Tensor

    @classmethod
    def of(cls, mine: ClientIndex, index: Tensor, num_indices: int) -> "_Pairs":
        """Finds the pairs.

        Args:
            mine: Examples of each client.
            index: Model of each client, int64 `[n]`.
            num_indices: Upper bound of the indices of examples.
        """
        lists, list_of_client = mine.distinct()  # clients of one model may also share a list of examples
        keys, list_of = distinct_values(index * len(lists) + list_of_client)
        held = lists.select(keys % len(lists))
        pairs, places = distinct_values((keys // len(lists))[held.owners] * num_indices + held.entries)
        return cls(pairs // num_indices, pairs % num_indices, ClientIndex.from_sizes(places, held.sizes), list_of)

    def sum_per_client(self, values: Tensor) -> Tensor:
        """Sums values of the pairs `[pairs]` for each client: `[n]`."""
        sums = torch.zeros(len(self.lists), dtype=values.dtype)
        return sums.index_add_(0, self.lists.owners, values[self.lists.values])[self.list_of]


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
    pairs = _Pairs.of(mine, index if weights is None else torch.arange(len(clients)), views)

    def named(number: int) -> str:
        return f"model {number} of the clients {join_ids(clients[index == number].tolist())} on {split} data"

    if weights is None:
        found = engine.outcomes_of_each(models, pairs.models, pairs.examples, data, named)
    else:
        found = engine.outcomes_of_mixtures(models, weights, pairs.models, pairs.examples, data)
    finite = found.losses.isfinite()
    if not finite.all() and not engine.noted_not_finite:
        engine.noted_not_finite = True
        _note_not_finite(found.losses, pairs, clients, data, split, engine.scores)
    values = found.values.where(finite, 0) if engine.scores == CLASSIFIER else found.values
    means = zip(*(map(pairs.sum_per_client, each) for each in (values * found.weights, found.weights)), strict=True)
    predictions = None
    if found.outputs is not None:
        labels = data.examples.targets(pairs.examples).cpu()
        lists = pairs.lists.values.split(pairs.lists.sizes.tolist())
        predictions = SetPredictions(found.outputs, labels, lists, pairs.list_of)
    both = [
        next(means) if predictions is None or not isinstance(score, SetScore) else predictions.of_clients(score)
        for score in engine.scores
    ]
    sums, sums_of_weights = (torch.stack(parts) for parts in zip(*both, strict=True))
    right = values[per_example(engine.scores).index(ACCURACY)] if class_counts else None
    by_class = None if right is None else _count_by_class(right, pairs, data)
    losses = pairs.sum_per_client(found.losses)
    return SplitScores(engine.scores, mine.sizes, losses, sums, sums_of_weights, predictions, by_class)


def _count_by_class(right: Tensor, pairs: _Pairs, data: FederatedData) -> Tensor:
    """Counts each client's examples of each class, and the right ones: float64 `[2, n, classes]`.

    Args:
        right: 1 for each pair with a right prediction, else 0, float64 `[pairs]`.
    """
    lists, classes = pairs.lists, data.examples.num_labels
    cells = lists.owners * classes + data.examples.targets(pairs.examples).cpu()[lists.values]
    counted = right[lists.values]
    counts = [torch.bincount(cells, each, len(lists) * classes) for each in (torch.ones_like(counted), counted)]
    return torch.stack(counts).view(2, len(lists), classes)[:, pairs.list_of]


def _note_not_finite(
    losses: Tensor, pairs: _Pairs, clients: Tensor, data: FederatedData, split: Split, scores: Scores
) -> None:
    """Warns of non-finite losses; names the first such example and counts them.

    Args:
        losses: Losses of the pairs.
        clients: Ids of the clients, int64 `[n]`.
    """
    counted = all(score == ACCURACY or score.worst is not None for score in scores)
    meaning = "each of them counts as a wrong prediction" if counted else "scores of their clients may be blank"
    of_entries = losses[pairs.lists.values]
    wrong = (~of_entries.isfinite()).nonzero().flatten()
    client = int(clients[(pairs.list_of == pairs.lists.owners[wrong[0]]).nonzero()[0]])
    example = int(pairs.examples[pairs.lists.values[wrong[0]]]) % len(data.examples)
    whose = with_client_names(f"client {client}", data.names)
    warnings.warn(
        f"the loss of example {example} of {whose}'s {split} data is {float(of_entries[wrong[0]])} under its model "
        f"({len(wrong)} of {len(of_entries)} examples have a loss that is not finite); {meaning}",
        Notice,
        stacklevel=3,
    )


def join_scores(parts: Sequence[SplitScores]) -> SplitScores:
    """Joins the results of groups of clients on one split."""
    count, loss = (torch.cat([getattr(part, name) for part in parts]) for name in ("count", "loss"))
    sums, weights = (torch.cat([getattr(part, name) for part in parts], dim=1) for name in ("sums", "weights"))
    known = [part.predictions for part in parts if part.predictions is not None]
    predictions = SetPredictions.join(known) if known else None
    classes = [part.by_class for part in parts if part.by_class is not None]
    by_class = torch.cat(classes, dim=1) if classes else None
    return SplitScores(parts[0].scores, count, loss, sums, weights, predictions, by_class)
