"""Steps shared by algorithms with clusters: averaging within clusters, and finding the closest cluster."""

from collections.abc import Callable

import torch
from torch import Tensor

from lit_cfl.aggregation import Weights, client_weights, discrepancy, mean_by_cluster
from lit_cfl.algorithms.base import Info
from lit_cfl.local_work import Fitted, LocalWork


def average_in_clusters(
    work: LocalWork, models: Tensor, cohort: Tensor, labels: Tensor, weights: Weights
) -> tuple[Tensor, Info]:
    """Trains clients from the models of their clusters, and averages their local models per cluster.

    Args:
        work: Clients, bound to the round.
        models: Models of the clusters `[K, d]`.
        cohort: Ids of the clients, int64 `[n]`.
        labels: Cluster of each client, int64 `[n]`, none negative.
        weights: Weights of the clients in a cluster's mean.

    Returns:
        The new models `[K, d]`, unchanged for clusters in which no client trained; and the Info of the round, in which
        each client received a model.
    """
    fitted = work.fit(models, cohort, labels)
    means = mean_by_cluster(fitted, labels, client_weights(work.num_examples[cohort], weights), into=models)
    scores = {"train/discrepancy": discrepancy(fitted, means, labels, work.layout.num_parameters)}
    return means, Info(fitted.loss, len(cohort), int(fitted.trained.sum()), fitted.skipped, scores)


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
