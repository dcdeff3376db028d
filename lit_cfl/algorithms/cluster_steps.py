"""Steps shared by algorithms with clusters: one round of FedAvg in each cluster, and finding the closest cluster."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lit_cfl.aggregation import Weights, client_weights, discrepancy, mean_by_cluster
from lit_cfl.algorithms.base import Info, State
from lit_cfl.clustering import clusters_of
from lit_cfl.local_work import Budget, Chunk, Fitted, LocalWork, MeanHook
from lit_cfl.memmap_rows import keep_row


def cold(state: State, clients: Tensor) -> Tensor:
    """Lists those of the clients that have no cluster yet, int64 `[m]`."""
    return clients[clusters_of(state.index, clients) < 0]


def train_clusters(
    state: State, cohort: Tensor, work: LocalWork, weights: Weights | Tensor, **options: Any
) -> tuple[State, Info]:
    """Runs FedAvg in every cluster: its clients train from its model, which becomes the mean of theirs.

    Args:
        state: State with `models` `[K, d]` and `index` (cluster of each client, -1 = none).
        cohort: Ids of the clients, int64 `[n]`; those without a cluster are left out.
        work: Clients, bound to the round.
        weights: Weights of the clients in a cluster's mean: a rule, or a weight for each of the cohort `[n]`.
        options: Further arguments of `average_in_clusters`.

    Returns:
        The state with the new models, and the Info of the round, see `average_in_clusters`.
    """
    labels = clusters_of(state.index, cohort)
    placed = labels >= 0
    shares = client_weights(work.num_examples[cohort], weights) if isinstance(weights, str) else weights
    models, info, _ = average_in_clusters(work, state.models, cohort[placed], labels[placed], shares[placed], **options)
    return replace(state, models=models), info


def average_in_clusters(
    work: LocalWork,
    models: Tensor,
    cohort: Tensor,
    labels: Tensor,
    weights: Weights | Tensor,
    *,
    prox: float = 0.0,
    centers: Tensor | None = None,
    budget: Budget | None = None,
    examples: Tensor | None = None,
    keep: dict[int, Tensor] | None = None,
    step: MeanHook | None = None,
    mix: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Info, Fitted]:
    """Trains clients from the models of their clusters, and averages their local models per cluster.

    Args:
        work: Clients, bound to the round.
        models: Models of the clusters `[K, d]`.
        cohort: Ids of the clients, int64 `[n]`.
        labels: Cluster of each client, int64 `[n]`, none negative.
        weights: Weights of the clients in a cluster's mean: a rule, or a weight for each client `[n]`.
        prox: Pull of a local model towards the one from which it started, 0 or more.
        centers: One model `[1, d]` towards which all local models are pulled instead; None = the start.
        budget: Length of the training; None = the run's.
        examples: Weights of the training examples, as in `LocalWork.fit`.
        keep: Receives the parameters of each trained local model, by client; None = they are not kept.
        step: Step from the models to their means, as in `Fitted.hook`; None = to the means.
        mix: Changes the new models `[K, d]` before the discrepancy is measured.

    Returns:
        The new models `[K, d]`, unchanged for clusters in which no client trained; the Info of the round, in which each
        client received a model; and the fit, which has been read.
    """
    pull: dict[str, Any] = {}
    if prox:
        start = centers is None
        pull = {"prox": prox, "centers": models if start else centers, "center": labels if start else 0}
    fitted = work.fit(models, cohort, labels, budget=budget, weights=examples, **pull)
    if step is not None:
        fitted.hook = step
    if keep is not None:
        keep_trained(fitted, cohort, keep, work, columns=slice(work.layout.num_parameters))
    shares = client_weights(work.num_examples[cohort], weights) if isinstance(weights, str) else weights
    means = mean_by_cluster(fitted, labels, shares, into=models)
    means = means if mix is None else mix(means)
    scores = {"train/discrepancy": discrepancy(fitted, means, labels, work.layout.num_parameters)}
    return means, Info(fitted.loss, len(cohort), int(fitted.trained.sum()), fitted.skipped, scores), fitted


def keep_trained(
    fitted: Fitted, clients: Tensor, into: dict[int, Tensor], work: LocalWork, columns: slice = slice(None)
) -> Fitted:
    """Copies each trained local model into a dict by client, when the fit is read. Returns the fit.

    Args:
        clients: Ids of the clients in the fit, int64 `[n]`.
        columns: Columns to keep.
    """

    def keep(chunk: Chunk) -> None:
        ids = clients[chunk.start : chunk.start + len(chunk.models)][chunk.trained].tolist()
        for client, row in zip(ids, chunk.models[chunk.trained], strict=True):
            into[client] = keep_row(row[columns], of=len(work.num_examples))

    return fitted.on_read(keep)


def closest_by_update(
    fitted: Fitted, start: Tensor, marks: Tensor, closeness: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Info]:
    """Finds the cluster closest to each client's update.

    Args:
        fitted: Clients that trained from `start`; read here, chunk by chunk.
        start: Model from which they trained `[d]`.
        marks: Vectors with which updates are compared, one row per cluster `[K, parameters]`.
        closeness: Similarity of updates `[c, parameters]` and marks: `[c, K]`, larger is closer.

    Returns:
        Labels int64 `[n]`, ties: the lowest; -1 for a client that did not train; and the Info of the fit, with the
        closeness `[n, K]` (nan for a client that did not train) and one model up per client that did.
    """
    found = [marks.new_empty(0, len(marks))]
    for chunk in fitted.chunks():
        near = closeness((chunk.models - start)[:, : marks.shape[1]], marks)
        found.append(torch.where(chunk.trained[:, None], near, float("nan")))
    near, trained = torch.cat(found), fitted.trained
    labels = torch.where(trained, near.argmax(1), -1)
    return labels, Info(fitted.loss, up=int(trained.sum()), skipped=fitted.skipped, closeness=near)
