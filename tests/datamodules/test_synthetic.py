from typing import Any

import numpy as np
import pytest
import torch

from lit_cfl.datamodules import SyntheticMixture
from lit_cfl.datamodules.synthetic import Synthetic, log_normal_sizes

SMALL: dict[str, Any] = {"num_clients": 300, "dimensions": 6, "num_labels": 4}
SMALL |= {"mean_log_size": 2.0, "log_size_deviation": 1.0, "min_size": 3}


def made(sizes: np.ndarray, alpha: float, beta: float, dimensions: int, num_labels: int, **options: Any) -> Synthetic:
    module = Synthetic(alpha, beta, len(sizes), dimensions, num_labels, **options)
    module.sizes = sizes
    return module


def inputs_of(module: Synthetic) -> np.ndarray:
    return module.load().inputs.numpy()


@pytest.mark.parametrize("num_clusters", [None, 3])
def test_every_example_has_the_label_that_its_clients_model_gives(num_clusters: int | None):
    module = made(np.random.default_rng(1).integers(1, 30, 200), 1.0, 1.0, 5, 4, num_clusters=num_clusters)
    x, y = (part.numpy() for part in (module.load().inputs, module.load().labels))
    owners = np.repeat(np.arange(200), module.sizes)
    assert module.models().shape == (num_clusters or 200, 4, 6)
    models = module.models().astype(np.float64)[owners if num_clusters is None else owners % num_clusters]
    scores = np.einsum("nld,nd->nl", models[:, :, :-1], x) + models[:, :, -1]
    assert (scores[np.arange(len(y)), y] >= scores.max(1) - 1e-5).all()  # float32 against float64
    assert (scores.argmax(1) == y).mean() > 0.999
    assert set(y.tolist()) == {0, 1, 2, 3}


def test_inputs_and_models_of_the_population_follow_the_law():
    module = made(np.full(3000, 40), 2.0, 0.5, 8, 5)
    x = inputs_of(module).reshape(3000, 40, 8).astype(np.float64)
    centres = x.mean(1)  # N(B, 1), with the noise of 40 inputs
    noise = np.arange(1, 9) ** -1.2 / 40
    between = np.cov(centres.T)
    assert np.allclose(between, 0.25 + np.diag(1 + noise), atol=0.2)  # B is shared by all dimensions of a client
    assert np.allclose(x.var(1, ddof=1).mean(0), np.arange(1, 9) ** -1.2, rtol=0.03)
    weights = module.models().reshape(3000, -1).astype(np.float64)
    assert np.cov(weights.T)[0, -1] == pytest.approx(4, rel=0.15)  # u is shared by W and b
    assert weights.var(0).mean() == pytest.approx(5, rel=0.1)


def test_models_inputs_centres_and_noise_are_independent():
    # five numbers per client for the inputs, and four for the models
    module = made(np.full(5000, 5), 0.0, 0.0, 1, 2)
    numbers = np.column_stack([inputs_of(module).reshape(5000, 5), module.models().reshape(5000, 4)])
    assert abs(np.corrcoef(numbers.T)[:5, 5:]).max() < 5 / 5000**0.5
    pairs = inputs_of(made(np.full(5000, 2), 0.0, 0.0, 1, 2)).reshape(5000, 2)
    assert np.allclose(np.cov(pairs.T), [[2, 1], [1, 2]], atol=0.2)  # the centre and the noise have variance 1 each


def test_sizes_are_the_minimum_plus_a_log_normal_number_cut_to_an_integer():
    class Drawn:
        def standard_normal(self, size: int) -> np.ndarray:
            return np.array([-50.0, 0.0, 1.0, 0.5])[:size]

    # exp(1 - 100), exp(1), exp(3) = 20.09, exp(2) = 7.39
    assert log_normal_sizes(4, 1.0, 2.0, 50, Drawn()).tolist() == [50, 52, 70, 57]


def test_the_papers_population():
    sizes = Synthetic(num_clients=20_000).sizes
    assert sizes.min() == 50  # int(exp(4 + 2 z)) is 0 with probability 0.023
    assert np.median(sizes) == pytest.approx(50 + np.floor(np.exp(4)), rel=0.05)
    logs = np.log(sizes[sizes > 60] - 50)
    assert np.exp(np.quantile(logs, 0.9)) == pytest.approx(np.exp(4 + 2 * 1.5), rel=0.25)
    module = Synthetic()
    assert (module.alpha, module.beta, module.federated(0).num_clients) == (1, 1, 100)
    assert (module.examples.inputs.shape[1:], module.examples.num_labels) == ((60,), 10)
    assert module.examples.inputs.dtype == torch.float32


def test_population_depends_on_its_seed_and_more_clients_leave_the_first_ones_unchanged():
    one, same, other = (Synthetic(**SMALL, population_seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(inputs_of(one), inputs_of(same))
    assert not np.array_equal(one.models(), other.models())
    assert not np.array_equal(one.sizes, other.sizes)
    assert not np.array_equal(inputs_of(one)[:3], inputs_of(other)[:3])
    more = Synthetic(**(SMALL | {"num_clients": 301}), population_seed=5).load()
    assert np.array_equal(more.inputs[: len(inputs_of(one))].numpy(), inputs_of(one))
    assert torch.equal(more.labels[: len(one.load())], one.load().labels)


@pytest.mark.parametrize(
    ("number", "first", "skew"), [(None, [-1] * 6, "other"), (4, [0, 1, 2, 3, 0, 1], "label"), (1, [0] * 6, "other")]
)
def test_true_clusters_are_given_in_turn_or_unknown(number: int | None, first: list[int], skew: str):
    data = Synthetic(**SMALL, num_clusters=number).federated(0)
    assert (data.true_clusters[:6].tolist(), data.skew) == (first, skew)


TINY: dict[str, Any] = {"num_clients": 5, "dimensions": 4, "test_size": 400, "max_size": 300, "noise": 0.0}


def agreement(data: SyntheticMixture) -> tuple[np.ndarray, np.ndarray]:
    """Returns whether each model predicts each example's label `[M, N]`, and the client of each example `[N]`."""
    examples = data.load()
    x, y = examples.inputs.double().numpy(), examples.labels.numpy()
    owners = np.repeat(np.arange(len(data.weights)), data.train_sizes.numpy() + data.test_size)
    return y == (x @ data.models.T > 0).T, owners


def test_every_label_is_that_of_one_of_the_models():
    right, _ = agreement(SyntheticMixture(**TINY))
    assert right.any(0).mean() > 0.999  # some labels at the border differ between float32 and float64
    assert right.mean() < 0.9


def test_shares_of_the_models_are_the_clients_weights():
    data = SyntheticMixture(**(TINY | {"test_size": 20_000, "num_components": 2}))
    right, owners = agreement(data)
    differ = right[0] != right[1]  # if the models disagree, the label shows which one was drawn
    for client, weight in enumerate(data.weights[:, 0]):
        assert right[0][differ & (owners == client)].mean() == pytest.approx(weight, abs=0.02)


def test_defaults_are_the_papers():
    data = SyntheticMixture()
    assert (data.weights.shape, data.models.shape) == ((300, 3), (3, 150))
    assert 0.99 < np.abs(data.models).max() <= 1
    assert data.weights.max(1).mean() == pytest.approx(0.72, abs=0.03)  # mean for Dirichlet(0.4) over three components
    assert int(data.train_sizes.max()) == 1000
    assert data.train_sizes.double().median() == pytest.approx(50 + np.exp(4), rel=0.3)


def test_noise_changes_labels_near_the_border_alone():
    clean, noisy = (SyntheticMixture(**(TINY | {"noise": noise})).load() for noise in (0.0, 0.1))
    assert torch.equal(clean.inputs, noisy.inputs)
    assert 0 < float((clean.labels != noisy.labels).double().mean()) < 0.15
    other = SyntheticMixture(**TINY, population_seed=1).load()
    assert not torch.equal(clean.inputs[:5], other.inputs[:5])
