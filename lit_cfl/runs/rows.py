"""Builds the rows and arrays that a run writes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_cfl.algorithms.base import Similarity
from lit_cfl.data import FederatedData
from lit_cfl.data.shift import ShiftLog
from lit_cfl.evaluation import Evaluation
from lit_cfl.metric_names import Row
from lit_cfl.rounds import Round
from lit_cfl.seeds import generator

_MAX_SNAPSHOT_CLIENTS = 2000
_ROWS_AT_ONCE = 10_000
_NONE = -1  # no cluster


def membership_arrays(memberships: Mapping[int, Tensor], data: FederatedData) -> dict[str, np.ndarray]:
    """Returns the arrays of `memberships.npz`: found clusters `[rounds, clients]`, true clusters `[clients]`."""
    return {
        "rounds": np.array(list(memberships)),
        "cluster": torch.stack([clusters.int() for clusters in memberships.values()]).numpy(),
        "true_cluster": data.true_clusters.numpy().astype(np.int32),
    }


def snapshot(r: Round, similarity: Similarity, clusters: Tensor) -> dict[str, np.ndarray]:
    """Returns the arrays of a similarity snapshot, of at most 2,000 of the compared clients, drawn at random."""
    # not every k-th one: true clusters are often dealt to the clients in turn
    drawn = torch.randperm(len(clusters), generator=generator(0, "snapshot"))[:_MAX_SNAPSHOT_CLIENTS].sort().values
    matrix, clients = similarity.matrix[drawn][:, drawn], similarity.clients[drawn]
    return {
        "clients": clients.numpy(),
        "similarity": matrix.numpy().astype(np.float16),
        "projection": _plane(matrix).numpy().astype(np.float16),
        "cluster": clusters[drawn].numpy(),
        "true_cluster": r.data.true_clusters[clients].numpy(),
        "compared": np.array(len(clusters)),
    }


def _plane(similarity: Tensor) -> Tensor:
    """Computes the clients' two main coordinates `[n, 2]` by classical scaling of the similarity."""
    from scipy.linalg import eigh

    centred = similarity.double() - similarity.double().mean(0)
    centred = centred - centred.mean(1, keepdim=True)
    last = len(centred) - 1
    # only the last two eigenvectors: computing all of them would take 4 times as long
    values, vectors = eigh(centred.numpy(), subset_by_index=[max(last - 1, 0), last])
    plane = torch.from_numpy(vectors * np.sqrt(values.clip(min=0))).flip(1)
    plane *= plane.gather(0, plane.abs().argmax(0, keepdim=True)).sign()  # the sign of an eigenvector is arbitrary
    return torch.nn.functional.pad(plane, (0, 2 - plane.shape[1]))


def cluster_rows(round: int, evaluation: Evaluation, known: Mapping[str, Tensor]) -> Iterator[Row]:
    """Builds one row per cluster, including the algorithm's own columns."""
    test = evaluation.scores.get("test")
    own = {name: values.tolist() for name, values in known.items()}
    for cluster, mine in _members_by_cluster(evaluation.index):
        row: Row = {"round": round, "cluster": cluster, "size": len(mine)}
        if test is not None and (examples := int(test.count[mine].sum())):
            row |= {"n_test": examples, **test.weighted_means(mine), "loss": float(test.loss[mine].sum()) / examples}
        more = {name: values[cluster] for name, values in own.items() if cluster < len(values)}
        yield row | {name: value for name, value in more.items() if value != _NONE}


def _members_by_cluster(index: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yields each cluster with the positions of its members, both ascending."""
    clusters, sizes = index.unique(return_counts=True)
    members = index.argsort(stable=True).split(sizes.tolist())
    yield from zip(clusters.tolist(), members, strict=True)


def shift_rows(round: int, moves: Sequence[ShiftLog]) -> Iterator[Row]:
    """Builds one row per client that a shift changed; unknown values are None."""
    for moved in moves:
        columns = (moved.clients, moved.partners, moved.examples, moved.before, moved.after)
        for client, partner, examples, before, after in torch.stack(columns, dim=1).tolist():
            yield {
                "round": round,
                "shift": moved.what,
                "client": client,
                "partner": partner if partner >= 0 else None,
                "examples": examples,
                "cluster_before": before if before >= 0 else None,
                "cluster_after": after if after >= 0 else None,
            }


def client_rows(
    data: FederatedData, evaluations: Sequence[Evaluation], num_scores: int = 1
) -> Iterator[Sequence[Sequence[Any]]]:
    """Builds one row per client, ordered by id, in blocks; unknown values are None. Names, if any, come last."""
    cluster = torch.full((data.num_clients,), -1)
    figures = torch.full((data.num_clients, num_scores + 1), float("nan"), dtype=torch.float64)  # scores, then the loss
    models = next((one.weights.shape[1] for one in evaluations if one.weights is not None), 0)
    weights = torch.full((data.num_clients, models), float("nan"), dtype=torch.float64)  # weights in mixtures
    for evaluation in evaluations:
        cluster[evaluation.clients] = evaluation.index
        if evaluation.weights is not None:
            weights[evaluation.clients] = evaluation.weights
        test = evaluation.scores.get("test")
        if test is not None:
            of_each = [*map(test.of_clients, range(num_scores)), test.loss / test.count]
            figures[evaluation.clients] = torch.stack(of_each, dim=1)
    newcomers = torch.zeros_like(cluster) if data.newcomers is None else data.newcomers.long()
    sizes = [data.train.sizes, data.validation.sizes, data.test.sizes]
    names = [data.names] if data.names else []
    for start in range(0, data.num_clients, _ROWS_AT_ONCE):
        block = slice(start, start + _ROWS_AT_ONCE)
        clusters = [_known_or_none(numbers[block], numbers[block] >= 0) for numbers in (cluster, data.true_clusters)]
        known, mixed = ([_known_or_none(v, ~v.isnan()) for v in table[block].T] for table in (figures, weights))
        counts = [numbers[block].tolist() for numbers in (*sizes, newcomers)]
        ids = range(start, start + len(counts[0]))
        named = [column[block] for column in names]
        yield list(zip(ids, *clusters, *counts[:3], *known, counts[3], *mixed, *named, strict=True))


def _known_or_none(values: Tensor, which: Tensor) -> list[Any]:
    """Lists the values `[n]`, with None for unknown ones."""
    listed: list[Any] = values.tolist()
    for position in (~which).nonzero().flatten().tolist():
        listed[position] = None
    return listed
