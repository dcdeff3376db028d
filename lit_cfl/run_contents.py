"""What stands in the files of a run: from evaluations and states to arrays and rows."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_cfl.algorithms.base import Similarity
from lit_cfl.data import FederatedData
from lit_cfl.evaluation import Evaluation, Scores, weighted_accuracy
from lit_cfl.rounds import Round

Row = dict[str, Any]
_MAX_SNAPSHOT_CLIENTS = 2000


def members(evaluation: Evaluation, num_clients: int) -> Tensor:
    members = torch.full((num_clients,), -1)
    members[evaluation.clients] = evaluation.index
    return members


def membership_arrays(memberships: dict[int, Tensor], data: FederatedData) -> dict[str, np.ndarray]:
    return {
        "rounds": np.array(list(memberships)),
        "cluster": torch.stack(list(memberships.values())).numpy().astype(np.int32),
        "true_cluster": data.true_clusters.numpy().astype(np.int32),
    }


def snapshot(r: Round, similarity: Similarity, clusters: Tensor) -> dict[str, np.ndarray]:
    step = -(-len(clusters) // _MAX_SNAPSHOT_CLIENTS)
    matrix, clients = similarity.matrix[::step, ::step], similarity.clients[::step]
    return {
        "clients": clients.numpy(),
        "similarity": matrix.numpy().astype(np.float16),
        "projection": _plane(matrix).numpy().astype(np.float16),
        "cluster": clusters[::step].numpy(),
        "true_cluster": r.data.true_clusters[clients].numpy(),
    }


def _plane(similarity: Tensor) -> Tensor:
    """The two main coordinates of the clients `[n, 2]`: classical scaling of the similarity."""
    centred = similarity.double() - similarity.double().mean(0)
    values, vectors = torch.linalg.eigh(centred - centred.mean(1, keepdim=True))
    plane: Tensor = vectors[:, -2:].flip(1) * values[-2:].flip(0).clamp(min=0).sqrt()
    return plane


def cluster_rows(round: int, evaluation: Evaluation) -> Iterator[Row]:
    test = evaluation.scores.get("test")
    for cluster in evaluation.index.unique().tolist():
        mine = evaluation.index == cluster
        row: Row = {"round": round, "cluster": cluster, "size": int(mine.sum())}
        if test is not None and int(test.count[mine].sum()):
            row |= {
                "n_test": int(test.count[mine].sum()),
                "accuracy": weighted_accuracy(test.correct[mine], test.count[mine]),
                "loss": float(test.loss[mine].sum() / test.count[mine].sum()),
            }
        yield row


def client_rows(data: FederatedData, evaluations: Sequence[Evaluation]) -> Iterator[list[Any]]:
    """A row a client, ordered by id; what is not known is None."""
    cluster, accuracy, loss = {}, {}, {}
    for evaluation in evaluations:
        test: Scores | None = evaluation.scores.get("test")
        for k, client in enumerate(evaluation.clients.tolist()):
            cluster[client] = int(evaluation.index[k])
            if test is not None and test.count[k]:
                accuracy[client] = float(test.accuracy[k])
                loss[client] = float(test.loss[k] / test.count[k])
    sizes = [split.sizes.tolist() for split in (data.train, data.validation, data.test)]
    truth = data.true_clusters.tolist()
    for client in range(data.num_clients):
        newcomer = int(data.newcomers is not None and bool(data.newcomers[client]))
        true = truth[client] if truth[client] >= 0 else None
        counts = [size[client] for size in sizes]
        yield [client, cluster.get(client), true, *counts, accuracy.get(client), loss.get(client), newcomer]
