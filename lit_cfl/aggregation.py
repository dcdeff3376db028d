"""Means over clients and mixes over clusters. Pure functions; sums are made in float64."""

from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor

from lit_cfl.errors import InputError
from lit_cfl.local.work import Chunk, Fitted

Weights = Literal["examples", "equal"]


def client_weights(num_examples: Tensor, kind: Weights) -> Tensor:
    """Weight of each client `[n]` in float64: its number of training examples, or one."""
    return num_examples.double() if kind == "examples" else torch.ones(len(num_examples), dtype=torch.float64)


def mean_by_cluster(
    models: Tensor | Fitted, labels: Tensor, weights: Tensor | None = None, into: Tensor | None = None
) -> Tensor:
    """Weighted mean of the members' models for each cluster.

    Args:
        models: rows `[n, d]`, or what a fit returned: it is read once, chunk by chunk, and clients that did
            not train (no data, or left out after diverging) count nothing.
        labels: cluster of each row, int64 `[n]`, 0 or more.
        weights: of each row `[n]`, not negative; None = equal.
        into: `[clusters, d]`: what a cluster without members (or without weight) keeps.

    Returns:
        `[clusters, d]` in the dtype of the models.

    Raises:
        InputError: a cluster without members, and no `into`.
    """
    weights = torch.ones(len(labels), dtype=torch.float64) if weights is None else weights.double()
    num_clusters = len(into) if into is not None else int(labels.max()) + 1 if len(labels) else 0
    sums, totals = None, torch.zeros(num_clusters, dtype=torch.float64)
    for chunk in _chunks(models):
        at = slice(chunk.start, chunk.start + len(chunk.models))
        share = torch.where(chunk.trained, weights[at], 0.0)
        if sums is None:
            sums = torch.zeros(num_clusters, chunk.models.shape[1], dtype=torch.float64)
            dtype = chunk.models.dtype
        for row, label, weight in zip(chunk.models, labels[at].tolist(), share.tolist(), strict=True):
            if weight:  # row by row: the same sum for every size of chunk, and no float64 copy of all rows
                sums[label].add_(row, alpha=weight)
        totals.index_add_(0, labels[at], share)
    if sums is None:
        if into is None:
            raise InputError("a mean over no models at all; give at least one row, or `into`")
        return into.clone()
    empty = totals == 0
    if into is None and empty.any():
        raise InputError(f"cluster {int(empty.nonzero()[0])} has no members; pass `into` to keep a model for it")
    means = (sums / totals.clamp(min=torch.finfo(torch.float64).tiny)[:, None]).to(dtype)
    return means if into is None else torch.where(empty[:, None], into, means)


def _chunks(models: Tensor | Fitted) -> Iterable[Chunk] | Iterator[Chunk]:
    if isinstance(models, Fitted):
        return models.chunks()
    everyone = torch.ones(len(models), dtype=torch.bool)
    return [Chunk(0, models, torch.zeros(len(models)), everyone)] if len(models) else []


def mix_clusters(models: Tensor, eta_g: float, form: Literal["normalised", "sum"] = "normalised") -> Tensor:
    """Inter-cluster aggregation of FedGroup and FlexCFL, from the models before the mix (FlexCFL, Eq. 20).

    Args:
        models: `[clusters, d]`, the clusters that take part.
        eta_g: mixing rate, 0 or more; 0 changes nothing.
        form: `sum` is the paper's, w_j + eta_g * sum over l != j of w_l / |w_l|; `normalised` is the published
            code's, the same divided by 1 + eta_g * sum over l != j of 1 / |w_l|, which keeps the norm bounded (C5).
            A model of norm zero is left out of the others' sums.

    Returns:
        `[clusters, d]` in the dtype of the models.
    """
    if eta_g == 0 or len(models) < 2:
        return models
    norms = models.double().norm(dim=1)
    inverse = torch.where(norms > 0, 1 / norms, 0.0)
    pull = inverse.expand(len(models), -1).clone().fill_diagonal_(0)  # [clusters, clusters]
    mixed = models.double() + eta_g * pull @ models.double()
    if form == "normalised":
        mixed = mixed / (1 + eta_g * pull.sum(1, keepdim=True))
    return mixed.to(models.dtype)


def discrepancy(fitted: Fitted, models: Tensor, labels: Tensor) -> float:
    """Mean distance of the clients' local models from their cluster's new model (FedGroup, Section II-C).

    Args:
        fitted: what the clients returned; nan where its rows are not held any more.
        models: `[clusters, d]` after the aggregation and the inter-cluster mix.
        labels: cluster of each client in the fit, int64 `[n]`.

    Returns:
        (1/n) * sum of |w_i - w_cluster(i)| over the clients that trained; nan if none did.
    """
    if not fitted.held or not fitted.trained.any():
        return float("nan")
    pairs = zip(fitted.rows, labels.tolist(), fitted.trained.tolist(), strict=True)
    distances = [(row - models[label]).norm(dtype=torch.float64) for row, label, trained in pairs if trained]
    return float(torch.stack(distances).mean())  # row by row: no second copy of all rows
