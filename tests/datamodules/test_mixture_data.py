"""Tests the synthetic mixture: labels, mixture weights, sizes, the published distribution, and refusals."""

from typing import Any

import numpy as np
import pytest
import torch

from lit_cfl.datamodules import SyntheticMixture

SMALL: dict[str, Any] = {"num_clients": 5, "dimensions": 4, "test_size": 400, "max_size": 300, "noise": 0.0}


def agreement(data: SyntheticMixture) -> tuple[np.ndarray, np.ndarray]:
    """Returns whether each model predicts each example's label `[M, N]`, and the client of each example `[N]`."""
    examples = data.load()
    x, y = examples.inputs.double().numpy(), examples.labels.numpy()
    owners = np.repeat(np.arange(len(data.weights)), data.train_sizes.numpy() + data.test_size)
    return y == (x @ data.models.T > 0).T, owners


def test_every_label_is_that_of_one_of_the_models():
    right, _ = agreement(SyntheticMixture(**SMALL))
    assert right.any(0).mean() > 0.999  # some labels at the border differ between float32 and float64
    assert right.mean() < 0.9


def test_shares_of_the_models_are_the_clients_weights():
    data = SyntheticMixture(**(SMALL | {"test_size": 20_000, "num_components": 2}))
    right, owners = agreement(data)
    differ = right[0] != right[1]  # if the models disagree, the label shows which one was drawn
    for client, weight in enumerate(data.weights[:, 0]):
        assert right[0][differ & (owners == client)].mean() == pytest.approx(weight, abs=0.02)


def test_clients_have_their_train_and_test_examples_and_no_true_cluster():
    data = SyntheticMixture(**SMALL)
    found = data.federated(0)
    assert torch.equal(found.num_examples, data.train_sizes)
    assert 50 <= data.train_sizes.min() < data.train_sizes.max() <= 300
    assert (found.test.sizes.tolist(), found.true_clusters.tolist()) == ([400] * 5, [-1] * 5)


def test_defaults_are_the_papers():
    data = SyntheticMixture()
    assert (data.weights.shape, data.models.shape) == ((300, 3), (3, 150))
    assert 0.99 < np.abs(data.models).max() <= 1
    assert data.weights.max(1).mean() == pytest.approx(0.72, abs=0.03)  # mean for Dirichlet(0.4) over three components
    assert int(data.train_sizes.max()) == 1000
    assert data.train_sizes.double().median() == pytest.approx(50 + np.exp(4), rel=0.3)


def test_noise_changes_labels_near_the_border_alone():
    clean, noisy = (SyntheticMixture(**(SMALL | {"noise": noise})).load() for noise in (0.0, 0.1))
    assert torch.equal(clean.inputs, noisy.inputs)
    assert 0 < float((clean.labels != noisy.labels).double().mean()) < 0.15
    other = SyntheticMixture(**SMALL, population_seed=1).load()
    assert not torch.equal(clean.inputs[:5], other.inputs[:5])
