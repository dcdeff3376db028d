"""Tests the distribution of Synthetic(alpha, beta): models, inputs, labels."""

from typing import Any

import numpy as np
import pytest

from lit_cfl.datamodules.synthetic import Synthetic, draw_around_means, draw_inputs, label_inputs


def made(sizes: np.ndarray, alpha: float, beta: float, dimensions: int, num_labels: int, **options: Any) -> Synthetic:
    """Returns the data module with these sizes of clients."""
    module = Synthetic(alpha, beta, len(sizes), dimensions, num_labels, **options)
    module.sizes = sizes
    return module


def population(num_clusters: int | None = None, seed: int = 0) -> Synthetic:
    sizes = np.random.default_rng(1).integers(1, 30, 200)
    return made(sizes, 1.0, 1.0, 5, 4, num_clusters=num_clusters, population_seed=seed)


def examples_of(module: Synthetic) -> tuple[np.ndarray, np.ndarray]:
    examples = module.load()
    return examples.inputs.numpy(), examples.labels.numpy()


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


# The law


def test_labels_are_those_of_the_linear_model():
    models = np.array([[[1, 0, 0], [0, 1, 0], [0, 0, 2]], [[0, 0, 5], [1, 1, 0], [0, 0, 0]]], np.float32)
    x = np.array([[3, 1], [1, 3], [1, 1], [3, 1], [3, 3]], np.float32)
    # scores of model 0: x1, x2, 2; of model 1: 5, x1 + x2, 0
    assert label_inputs(models, np.array([0, 0, 0, 1, 1]), x).tolist() == [0, 1, 2, 0, 1]


def test_equal_scores_give_the_lowest_label():
    assert label_inputs(np.ones((1, 3, 3), np.float32), np.array([0]), np.ones((1, 2), np.float32)).tolist() == [0]


@pytest.mark.parametrize("num_clusters", [None, 3])
def test_every_example_has_the_label_that_its_clients_model_gives(num_clusters: int | None):
    module = population(num_clusters)
    x, y = examples_of(module)
    owners = np.repeat(np.arange(200), module.sizes)
    models = module.models().astype(np.float64)[owners if num_clusters is None else owners % num_clusters]
    scores = np.einsum("nld,nd->nl", models[:, :, :-1], x) + models[:, :, -1]
    assert (scores[np.arange(len(y)), y] >= scores.max(1) - 1e-5).all()  # float32 against float64
    assert (scores.argmax(1) == y).mean() > 0.999
    assert set(y.tolist()) == {0, 1, 2, 3}


def test_clients_of_a_cluster_share_their_model_and_no_others_do():
    assert population(3).models().shape == (3, 4, 6)
    assert population().models().shape == (200, 4, 6)
    assert len(np.unique(population().models()[:, 0, 0])) == 200


def test_rows_lie_around_means_of_their_own():
    drawn = draw_around_means(4000, 400, 3.0, rng()).astype(np.float64)
    means = drawn.mean(1)
    assert abs(means.mean()) < 5 * 3 / 4000**0.5  # 5 standard errors
    assert means.std() == pytest.approx((9 + 1 / 400) ** 0.5, rel=5 / 8000**0.5)
    assert (drawn - means[:, None]).std() == pytest.approx((1 - 1 / 400) ** 0.5, rel=0.005)


def test_means_are_all_zero_where_their_deviation_is_zero():
    assert abs(draw_around_means(1000, 100, 0.0, rng()).mean(1)).max() < 0.6  # 6 standard errors


def test_variances_of_inputs_fall_as_the_power_minus_1_2():
    centres = np.tile(np.array([1, -2, 3, 0, 5], np.float32), (40_000, 1))
    x = draw_inputs(centres, rng()).astype(np.float64)
    expected = np.array([1, 2**-1.2, 3**-1.2, 4**-1.2, 5**-1.2])
    assert np.allclose(x.mean(0), centres[0], atol=5 / 200)  # 5 standard errors of a deviation of 1 or less
    assert np.allclose(np.cov(x.T), np.diag(expected), atol=5 * 2**0.5 / 200)


def test_inputs_and_models_of_the_population_follow_the_law():
    module = made(np.full(3000, 40), 2.0, 0.5, 8, 5)
    x = examples_of(module)[0].reshape(3000, 40, 8).astype(np.float64)
    centres = x.mean(1)  # N(B, 1), with the noise of 40 inputs
    noise = np.arange(1, 9) ** -1.2 / 40
    between = np.cov(centres.T)
    assert np.allclose(between, 0.25 + np.diag(1 + noise), atol=0.2)  # B is shared by all dimensions of a client
    assert np.allclose(x.var(1, ddof=1).mean(0), np.arange(1, 9) ** -1.2, rtol=0.03)
    weights = module.models().reshape(3000, -1).astype(np.float64)
    assert np.cov(weights.T)[0, -1] == pytest.approx(4, rel=0.15)  # u is shared by W and b
    assert weights.var(0).mean() == pytest.approx(5, rel=0.1)


def test_models_and_inputs_are_independent():
    # five numbers per client for the inputs, and five for the models
    module = made(np.full(5000, 5), 0.0, 0.0, 1, 2)
    numbers = np.column_stack([examples_of(module)[0].reshape(5000, 5), module.models().reshape(5000, 4)])
    assert abs(np.corrcoef(numbers.T)[:5, 5:]).max() < 5 / 5000**0.5


def test_centres_and_noise_are_independent():
    x = examples_of(made(np.full(5000, 2), 0.0, 0.0, 1, 2))[0].reshape(5000, 2)  # two numbers per client for both
    assert np.allclose(np.cov(x.T), [[2, 1], [1, 2]], atol=0.2)  # the centre and the noise have variance 1 each


def test_population_depends_on_its_seed():
    same, other = population(seed=5), population(seed=6)
    assert np.array_equal(examples_of(same)[0], examples_of(population(seed=5))[0])
    assert not np.array_equal(examples_of(same)[0], examples_of(other)[0])
    assert not np.array_equal(same.models(), other.models())
