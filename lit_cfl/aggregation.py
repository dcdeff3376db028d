"""Pure functions that average models over clients and mix models of clusters. Sums are computed in float64."""

from collections.abc import Iterable, Iterator
from typing import Literal, get_args

import torch
from torch import Tensor

from lit_cfl.errors import InputError, require_word
from lit_cfl.local_work import Chunk, Fitted

__all__ = ["client_weights", "discrepancy", "mean_by_cluster", "mix_clusters"]

Weights = Literal["examples", "equal"]
Mix = Literal["normalised", "sum"]


def client_weights(num_examples: Tensor, kind: Weights) -> Tensor:
    """Computes each client's weight in its cluster's mean, independent of the order of the clients.

    Args:
        num_examples: Numbers of the clients' examples n_i `[n]`.
        kind: `examples` = n_i; `equal` = one.

    Returns:
        float64 `[n]`.

    Raises:
        InputError: unknown kind.
    """
    require_word("weights", kind, get_args(Weights))
    return num_examples.double() if kind == "examples" else torch.ones(len(num_examples), dtype=torch.float64)


def mean_by_cluster(
    models: Tensor | Fitted, labels: Tensor, weights: Tensor | None = None, into: Tensor | None = None
) -> Tensor:
    """Computes the weighted mean of the members' models for each cluster.

    Args:
        models: Rows `[n, d]`, or the result of a fit: it is read once, chunk by chunk, and clients that did not train
            (no data, or left out after diverging) have no weight.
        labels: Cluster of each row, int64 `[n]`, 0 or more.
        weights: Weight of each row `[n]`, not negative; None = equal.
        into: Models `[clusters, d]` that clusters without members (or without weight) keep, and that a server
            optimizer starts from, if the run has one.

    Returns:
        `[clusters, d]` in the dtype of the models, on the CPU.

    Raises:
        InputError: a cluster without members, and no `into`; a weight below 0; labels that do not fit.
    """
    weights = torch.ones(len(labels), dtype=torch.float64) if weights is None else weights.double()
    num_clusters = len(into) if into is not None else int(labels.max()) + 1 if len(labels) else 0
    _require_fitting(models, labels, weights, num_clusters)
    found = _sums_by_cluster(models, labels, weights, num_clusters)
    if found is None:
        if into is None:
            raise InputError("there are no models to average; give at least one row, or `into`")
        return into.clone()
    sums, totals, dtype = found
    empty = totals == 0
    if into is None and empty.any():
        raise InputError(f"cluster {int(empty.nonzero()[0])} has no members; pass `into` to keep a model for it")
    sums.div_(totals.clamp(min=torch.finfo(torch.float64).tiny)[:, None].to(sums.device))
    means = sums.to(dtype).cpu()
    if into is None:
        return means
    means = torch.where(empty[:, None], into, means)
    hook = models.hook if isinstance(models, Fitted) else None
    return means if hook is None else hook(into, means, totals)


def _sums_by_cluster(
    models: Tensor | Fitted, labels: Tensor, weights: Tensor, num_clusters: int
) -> tuple[Tensor, Tensor, torch.dtype] | None:
    """Returns the weighted sums of models `[clusters, d]`, the sums of weights `[clusters]`, and the dtype of models.

    None without models.
    """
    found = None
    for chunk in _chunks(models):
        at = slice(chunk.start, chunk.start + len(chunk.models))
        share = torch.where(chunk.trained, weights[at], 0.0)
        if found is None:
            sums = chunk.models.new_zeros(num_clusters, chunk.models.shape[1], dtype=torch.float64)
            found = sums, torch.zeros(num_clusters, dtype=torch.float64), chunk.models.dtype
        for row, label, weight in zip(chunk.models, labels[at].tolist(), share.tolist(), strict=True):
            if weight:  # row by row: the same sum for every size of chunk, and no float64 copy of all rows
                found[0][label].add_(row, alpha=weight)
        found[1].index_add_(0, labels[at], share)
    return found


def _require_fitting(models: Tensor | Fitted, labels: Tensor, weights: Tensor, num_clusters: int) -> None:
    if isinstance(models, Tensor) and len(models) != len(labels):
        raise InputError(f"there are {len(labels)} labels for {len(models)} models; give one label per model")
    if len(weights) != len(labels):
        raise InputError(f"there are {len(weights)} weights for {len(labels)} labels; give one weight per label")
    if bool((weights < 0).any()):
        raise InputError(f"a weight is {float(weights.min())}; give weights of 0 or more")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_clusters:
        wrong = int(labels.min()) if labels.min() < 0 else int(labels.max())
        raise InputError(f"label {wrong} is not one of the {num_clusters} clusters; place every client first")


def _chunks(models: Tensor | Fitted) -> Iterable[Chunk] | Iterator[Chunk]:
    if isinstance(models, Fitted):
        return models.on_device()
    everyone = torch.ones(len(models), dtype=torch.bool)
    return [Chunk(0, models, torch.zeros(len(models)), everyone)] if len(models) else []


def mix_clusters(models: Tensor, eta_g: float, form: Mix = "normalised", num_parameters: int | None = None) -> Tensor:
    """Mixes the clusters' models, as in FedGroup and FlexCFL (FlexCFL, Eq. 20).

    Args:
        models: Models of the clusters that take part `[clusters, d]`.
        eta_g: Mixing rate, 0 or more; 0 changes nothing.
        form: `sum` is the paper's rule, w_j + eta_g * sum over l != j of w_l / |w_l|; `normalised` is the published
            code's, the same divided by 1 + eta_g * sum over l != j of 1 / |w_l|, which keeps the norm bounded (C5).
            A model of norm zero is left out of the others' sums.
        num_parameters: Number of first columns, which are mixed and enter the norms; the buffers after them are
            unchanged. None = all.

    Returns:
        `[clusters, d]` in the dtype of the models.

    Raises:
        InputError: negative eta_g, or unknown form.
    """
    if not eta_g >= 0:
        raise InputError(f"eta_g is {eta_g}, which would push models apart; give 0 or more")
    require_word("mix", form, get_args(Mix))
    if eta_g == 0 or len(models) < 2:
        return models
    parameters = models[:, :num_parameters].double()
    norms = parameters.norm(dim=1)
    inverse = torch.where(norms > 0, 1 / norms, 0.0)
    pull = inverse.expand(len(models), -1).clone().fill_diagonal_(0)  # [clusters, clusters]
    mixed = parameters + eta_g * pull @ parameters
    if form == "normalised":
        mixed = mixed / (1 + eta_g * pull.sum(1, keepdim=True))
    return torch.cat([mixed.to(models.dtype), models[:, mixed.shape[1] :]], dim=1)


def discrepancy(fitted: Fitted, models: Tensor, labels: Tensor, num_parameters: int | None = None) -> float:
    """Computes the mean distance of local models from their cluster's new model (FedGroup, Section II-C).

    Args:
        fitted: Result of the clients' training; nan if its rows are not held.
        models: `[clusters, d]` after the aggregation and the inter-cluster mix.
        labels: Cluster of each client in the fit, int64 `[n]`.
        num_parameters: Number of first columns, over which distances are computed, without buffers; None = all.

    Returns:
        (1/n) * sum of |w_i - w_cluster(i)| over the clients that trained; nan if none did.
    """
    if not fitted.held or not fitted.trained.any():
        return float("nan")
    distances: list[Tensor] = []
    for chunk in fitted.on_device():
        of_chunk = labels[chunk.start : chunk.start + len(chunk.models)].tolist()
        centers = models.to(chunk.models.device)
        trained = zip(chunk.models, of_chunk, chunk.trained.tolist(), strict=True)
        own = slice(num_parameters)
        distances += [(row - centers[label])[own].norm(dtype=torch.float64) for row, label, able in trained if able]
    return float(torch.stack(distances).mean())  # row by row: no second copy of all rows
