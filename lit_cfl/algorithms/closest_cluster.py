"""Places clients by their updates, for algorithms whose clusters have a direction or a mean update."""

from collections.abc import Callable

import torch
from torch import Tensor

from lit_cfl.algorithms.base import Info
from lit_cfl.local_work import Fitted


def closest_by_update(
    fitted: Fitted, start: Tensor, marks: Tensor, closeness: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Info]:
    """Finds the cluster closest to each client's update.

    Args:
        fitted: clients that trained from `start`; read here, chunk by chunk.
        start: `[d]`.
        marks: Vectors that an update is compared with, one row per cluster `[K, parameters]`.
        closeness: Similarity of updates `[c, parameters]` and marks: `[c, K]`, larger is closer.

    Returns:
        Labels int64 `[n]`, ties: the lowest; -1 for a client that did not train. And the Info of the fit, with the
        closeness `[n, K]` (nan for a client that did not train) and a model up for each that did.
    """
    found = [marks.new_empty(0, len(marks))]
    for chunk in fitted.chunks():
        near = closeness((chunk.models - start)[:, : marks.shape[1]], marks)
        found.append(torch.where(chunk.trained[:, None], near, float("nan")))
    near, trained = torch.cat(found), fitted.trained
    labels = torch.where(trained, near.argmax(1), -1)
    return labels, Info(fitted.loss, up=int(trained.sum()), skipped=fitted.skipped, closeness=near)
