"""Tests FLUX: descriptors in closed form and against the published code, clusters, newcomers without labels."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from few_rounds import begin, last
from quadratic import Clients, clients_at, f64, ids, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms import FLUX, FedAvg, Info, flux
from lit_cfl.algorithms.flux import FLUXState
from lit_cfl.clustering.descriptors import principal_axes
from lit_cfl.errors import Notice
from lit_cfl.local_work import Statistic, keep_statistic
from lit_cfl.testing import QuadraticWork

# The table was made by the functions of github.com/dariofenoglio98/FLUX at 43aadbe (extract_descriptors,
# client_descr_scaling, aggregate_fit with CLIENT_CLUSTER_METHOD 4, extract_descriptors_inference). Flower and plotting
# were stubbed; n_classes is 3, and the model returns its inputs as latent features.
PUBLISHED = json.loads(Path(__file__).with_name("flux_published_code.json").read_text())


class KnownExamples(Clients):
    """Clients with given examples, whose latent features under the all-zero model are their inputs."""

    def __init__(self, examples: list[tuple[Tensor, Tensor]], num_labels: int) -> None:
        width = examples[0][0].shape[1]
        counts = torch.stack([labels.bincount(minlength=num_labels) for _, labels in examples])
        super().__init__(torch.zeros(len(examples), width).double(), counts.sum(1), 0.5, label_counts=counts)
        self.examples, self.start = examples, torch.zeros(width).double()

    def _statistic(self, function: Callable[..., Statistic], client: int, more: tuple[object, ...]) -> Statistic:
        return keep_statistic(function(*self.examples[client], *more), client)


def published_client(client: int) -> tuple[Tensor, Tensor]:
    """Makes a client's examples as in the recorded run of the published code."""
    group, i, j = int(client >= 4), np.arange(12 + client)[:, None], np.arange(5)
    inputs = ((3 * i + 5 * j * j + i * j + client) % 11) / 10 + 2.0 * group * (j == 1) + 0.02 * client
    labels = (i[:, 0] * (1 + group) + i[:, 0] // 3) % 3
    if client == 7:
        labels = np.where(labels == 2, 0, labels)
        labels[0] = 2
    return torch.from_numpy(inputs), torch.from_numpy(labels)


def clustered(algorithm: FLUX, work: QuadraticWork) -> tuple[FLUXState, Info]:
    return algorithm.round(begin(algorithm, work), ids(), work.at(algorithm.warmup_rounds), rng())


def test_descriptors_clusters_and_newcomers_are_those_of_the_published_code(monkeypatch: pytest.MonkeyPatch):
    def axes_of(points: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Replaces FLUX's random points with those that the published code draws."""
        assert points.shape == (200, 5)
        assert 0.98 * 1.02 * 3.14 < points.max() < 1.02 * 3.14  # the largest latent feature is 3.14
        drawn = np.random.RandomState(1).uniform(0, 1.02 * 3.14, size=(200, 5))
        return principal_axes(torch.from_numpy(drawn), number)

    monkeypatch.setattr(flux, "principal_axes", axes_of)
    known = [published_client(client) for client in range(8)]
    work = KnownExamples(known, 3)
    state, _ = clustered(FLUX(), work)
    rows, _ = FLUX()._descriptors(state, torch.arange(8), work, 3)
    assert_close(rows.flatten(1), torch.tensor(PUBLISHED["descriptors"], dtype=torch.float64), rtol=0, atol=1e-10)
    assert state.index.tolist() == PUBLISHED["clusters"] == [0, 1, 1, 2, 3, 3, 3, 4]

    new = [published_client(2 * k) for k in range(4)]
    new = [(inputs[::2] + 0.05 * k, labels[::2]) for k, (inputs, labels) in enumerate(new)]
    placed, info = FLUX().place_unlabelled(state, torch.arange(8, 12), KnownExamples(known + new, 3), rng())
    distances = torch.tensor(PUBLISHED["distances"], dtype=torch.float64)
    assert_close(-info.closeness, distances, rtol=0, atol=1e-10)
    assert placed.index[8:].tolist() == distances.argmin(1).tolist()


def block(*values: float) -> Tensor:
    return f64(*values)[:, None]


def test_unequal_data_of_one_mean_are_distinguished_by_deviation_or_by_labels():
    """All clients have the same mean features; those of clients 2 and 3 vary more, and 4 and 5 have swapped labels."""
    near, far, labels = block(4.0, 4.0, 6.0, 6.0), block(2.0, 2.0, 8.0, 8.0), ids(0, 0, 1, 1)
    known = KnownExamples([(near, labels)] * 2 + [(far, labels)] * 2 + [(near, 1 - labels)] * 2, 2)
    state, _ = clustered(FLUX(), known)
    assert state.index.tolist() == [0, 0, 1, 1, 2, 2]
    assert FLUX().place(state, torch.arange(6), known, rng())[0].index.tolist() == [0, 0, 1, 1, 2, 2]
    unlabelled, info = FLUX().place_unlabelled(state, torch.arange(6), known, rng())
    # without labels, client 4 cannot be distinguished from client 0
    assert unlabelled.index.tolist() == [0, 0, 1, 1, 0, 0]
    assert_close(info.closeness[4, 2], info.closeness[4, 0])


def two_sides(without_data: int | None = None) -> Clients:
    """Makes clients 0, 2, 4 around (4, 0) and 1, 3, 5 around (-4, 0), of unequal sizes."""
    rows = [(4 - 8.0 * (k % 2) + 0.01 * k, 0.02 * k) for k in range(6)]
    return clients_at(*rows, sizes=[0 if k == without_data else 2 + k for k in range(6)], rate=0.25, steps=2)


def test_descriptors_are_those_of_the_model_at_the_clustering():
    """Later descriptors are computed by the joint model of the clustering, not by the clusters' models."""
    work, algorithm = two_sides(), FLUX(warmup_rounds=1, radius_scale=50.0)
    state = last(algorithm, work, [torch.arange(6)] * 4)
    assert torch.equal(state.joint, last(FedAvg(), work, [torch.arange(6)]).models[0])
    assert len(state.models) == 2
    means = (work.centers - state.joint - state.center) @ state.axes
    rows, _ = algorithm._descriptors(state, torch.arange(6), work, 1)
    assert_close(rows[:, 0], means)
    assert_close(rows[:, 2], means)
    assert_close(rows[:, [1, 3]], torch.zeros(6, 2, 1).double(), atol=1e-9, rtol=0)


def test_every_client_with_data_is_described_and_only_the_cohort_trains():
    work, algorithm = two_sides(without_data=5), FLUX(warmup_rounds=0, components=1, radius_scale=50.0)
    first, later = work.at(0), work.at(1)
    state, info = algorithm.round(begin(algorithm, work), ids(0, 1, 5), first, rng())
    assert state.index.tolist() == [0, 1, 0, 1, 0, -1]
    assert (info.down, info.up, info.skipped) == (5, 2, 1)
    assert first.bytes_up == 5 * (2 * 8 + 4 * 1 * 8)  # the range, and four blocks of one number each
    _, info = algorithm.round(state, ids(0, 1), later, rng())
    assert (info.down, info.up, later.bytes_up) == (2, 2, 0)
    state, info = algorithm.round(state, ids(5), two_sides().at(1), rng())  # the client joins once it has data
    assert state.index.tolist() == [0, 1] * 3
    assert (info.down, info.up) == (2, 1)  # the joint model, then the model of the client's cluster


def test_newcomers_before_the_clustering_have_the_joint_model():
    work, algorithm = two_sides(), FLUX()
    for place in (algorithm.place, algorithm.place_unlabelled):
        placed, info = place(begin(algorithm, work), ids(7), work, rng())
        assert algorithm.serve(placed, ids(7)).index.tolist() == [0]
        assert (info.down, work.bytes_up) == (0, 0)


def test_larger_radius_joins_what_a_smaller_one_leaves_apart():
    work = two_sides()
    with pytest.warns(Notice, match="auto of FLUX chose 1 cluster"):
        assert len(clustered(FLUX(radius_scale=1000.0), work)[0].models) == 1
    work.label_counts = torch.tensor([[12, 30], [9, 40], [10, 0], [0, 3], [11, 11], [1, 1]])
    with pytest.warns(Notice, match="chose 6 clusters, 6 of them of one client; 3 of 6 clients have fewer than 10 ex"):
        assert len(clustered(FLUX(radius_scale=1e-6), work)[0].models) == 6


def test_labels_other_than_classes_are_left_out():
    work = two_sides()
    work.label_counts = work.label_counts[:, :0]
    state, _ = clustered(FLUX(radius_scale=50.0), work)
    assert state.centroids.shape == (2, 2, 2)  # of the ten axes asked for, only two exist
    assert state.index.tolist() == [0, 1] * 3
