"""A round of FedAvg in each cluster, for algorithms whose clusters are made otherwise."""

from torch import Tensor

from lit_cfl.aggregation import Weights, client_weights, discrepancy, mean_by_cluster
from lit_cfl.algorithms.base import Info
from lit_cfl.local_work import LocalWork


def average_in_clusters(
    work: LocalWork, models: Tensor, cohort: Tensor, labels: Tensor, weights: Weights
) -> tuple[Tensor, Info]:
    """Trains clients from the models of their clusters, and averages what they return.

    Args:
        work: Clients, bound to the round.
        models: `[K, d]`.
        cohort: ids of the clients, int64 `[n]`.
        labels: the cluster of each, int64 `[n]`, none negative.
        weights: Weights of the clients in a cluster's mean.

    Returns:
        The new models `[K, d]`; that of a cluster in which nobody trained is unchanged. And the Info of the round, in
        which each client received a model.
    """
    fitted = work.fit(models, cohort, labels)
    means = mean_by_cluster(fitted, labels, client_weights(work.num_examples[cohort], weights), into=models)
    scores = {"train/discrepancy": discrepancy(fitted, means, labels, work.layout.num_parameters)}
    return means, Info(fitted.loss, len(cohort), int(fitted.trained.sum()), fitted.skipped, scores)
