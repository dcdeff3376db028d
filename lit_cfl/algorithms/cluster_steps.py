"""Steps shared by algorithms with clusters: one round of FedAvg in each cluster, and finding the closest cluster."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lit_cfl.aggregation import Weights, client_weights, discrepancy, mean_by_cluster
from lit_cfl.algorithms.base import Info, State
from lit_cfl.clustering import clusters_of
from lit_cfl.local_work import Fitted, LocalWork


def cold(state: State, clients: Tensor) -> Tensor:
    """Lists those of the clients that have no cluster yet, int64 `[m]`."""
    return clients[clusters_of(state.index, clients) < 0]


def train_clusters(
    state: State,
    cohort: Tensor,
    work: LocalWork,
    weights: Weights | Tensor,
    *,
    prox: float = 0.0,
    prepare: Callable[[Fitted], object] | None = None,
    mix: Callable[[Tensor], Tensor] | None = None,
) -> tuple[State, Info]:
    """Runs FedAvg in every cluster: its clients train from its model, which becomes the mean of theirs.

    Args:
        state: State with `models` `[K, d]` and `index` (cluster of each client, -1 = none).
        cohort: Ids of the clients, int64 `[n]`; those without a cluster are left out.
        work: Clients, bound to the round.
        weights: Weights of the clients in a cluster's mean: a rule, or a weight for each of the cohort `[n]`.
        prox: Pull of a local model towards its cluster's model, 0 or more.
        prepare: Called with the fit before it is read, for its `hook` and `on_read`.
        mix: Changes the new models `[K, d]` before the discrepancy is measured.

    Returns:
        The state with the new models, and the Info of the round, see `average_in_clusters`.
    """
    labels = clusters_of(state.index, cohort)
    weights = client_weights(work.num_examples[cohort], weights) if isinstance(weights, str) else weights
    cohort, labels, weights = (rows[labels >= 0] for rows in (cohort, labels, weights))
    fitted = work.fit(state.models, cohort, labels, prox=prox, centers=state.models, center=labels)
    if prepare is not None:
        prepare(fitted)
    models, info = average_in_clusters(fitted, state.models, labels, weights, work, mix)
    return replace(state, models=models), info


def average_in_clusters(
    fitted: Fitted,
    models: Tensor,
    labels: Tensor,
    weights: Tensor,
    work: LocalWork,
    mix: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Info]:
    """Averages local models per cluster.

    Args:
        fitted: Clients that trained, from the models of their clusters; read here.
        models: Models of the clusters `[K, d]`.
        labels: Cluster of each client, int64 `[n]`, none negative.
        weights: Weight of each client in its cluster's mean `[n]`.
        work: Clients, bound to the round.
        mix: Changes the new models `[K, d]` before the discrepancy is measured.

    Returns:
        The new models `[K, d]`, unchanged for clusters in which no client trained; and the Info of the round, in which
        each client received a model.
    """
    means = mean_by_cluster(fitted, labels, weights, into=models)
    means = means if mix is None else mix(means)
    scores = {"train/discrepancy": discrepancy(fitted, means, labels, work.layout.num_parameters)}
    return means, Info(fitted.loss, len(labels), int(fitted.trained.sum()), fitted.skipped, scores)


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
