"""Synthetic(alpha, beta): the law of Li et al. (FedProx), its sizes, its split, and its size in memory by blocks."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from datamodules.synthetic import Population, Synthetic, around_own_mean, inputs_around, labels_by, log_normal_sizes
from lit_cfl.algorithms import FedAvg
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification

SMALL = {
    "num_clients": 300,
    "dimensions": 6,
    "num_labels": 4,
    "mean_log_size": 2.0,
    "log_size_deviation": 1.0,
    "min_size": 3,
}


def population(num_clusters: int | None = None, seed: int = 0, **changes: int | float) -> Population:
    sizes = np.random.default_rng(1).integers(1, 30, 200)
    law = {"alpha": 1.0, "beta": 1.0, "dimensions": 5, "num_labels": 4} | changes
    return Population(sizes, num_clusters=num_clusters, seed=seed, **law)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


# The law


def test_labels_are_those_of_the_linear_model():
    models = np.array([[[1, 0, 0], [0, 1, 0], [0, 0, 2]], [[0, 0, 5], [1, 1, 0], [0, 0, 0]]], np.float32)
    x = np.array([[3, 1], [1, 3], [1, 1], [3, 1], [3, 3]], np.float32)
    # scores of model 0: x1, x2, 2; of model 1: 5, x1 + x2, 0
    assert labels_by(models, np.array([0, 0, 0, 1, 1]), x).tolist() == [0, 1, 2, 0, 1]


def test_equal_scores_give_the_lowest_label():
    assert labels_by(np.ones((1, 3, 3), np.float32), np.array([0]), np.ones((1, 2), np.float32)).tolist() == [0]


@pytest.mark.parametrize("num_clusters", [None, 3])
def test_every_example_has_the_label_that_its_clients_model_gives(num_clusters: int | None):
    made = population(num_clusters)
    x, y = made.examples(block=100)
    owners = np.repeat(np.arange(200), made.sizes)
    models = made.models().astype(np.float64)[owners if num_clusters is None else owners % num_clusters]
    scores = np.einsum("nld,nd->nl", models[:, :, :-1], x) + models[:, :, -1]
    assert (scores[np.arange(len(y)), y] >= scores.max(1) - 1e-5).all()  # float32 against float64
    assert (scores.argmax(1) == y).mean() > 0.999
    assert set(y.tolist()) == {0, 1, 2, 3}


def test_clients_of_a_cluster_share_their_model_and_no_others_do():
    assert population(3).models().shape == (3, 4, 6)
    assert population().models().shape == (200, 4, 6)
    assert len(np.unique(population().models()[:, 0, 0])) == 200


def test_rows_lie_around_means_of_their_own():
    drawn = around_own_mean(4000, 400, 3.0, rng()).astype(np.float64)
    means = drawn.mean(1)
    assert abs(means.mean()) < 5 * 3 / 4000**0.5  # 5 standard errors
    assert means.std() == pytest.approx((9 + 1 / 400) ** 0.5, rel=5 / 8000**0.5)
    assert (drawn - means[:, None]).std() == pytest.approx((1 - 1 / 400) ** 0.5, rel=0.005)


def test_means_are_all_zero_where_their_deviation_is_zero():
    assert abs(around_own_mean(1000, 100, 0.0, rng()).mean(1)).max() < 0.6  # 6 standard errors


def test_variances_of_inputs_fall_as_the_power_minus_1_2():
    centres = np.tile(np.array([1, -2, 3, 0, 5], np.float32), (40_000, 1))
    x = inputs_around(centres, rng()).astype(np.float64)
    expected = np.array([1, 2**-1.2, 3**-1.2, 4**-1.2, 5**-1.2])
    assert np.allclose(x.mean(0), centres[0], atol=5 / 200)  # 5 standard errors of a deviation of 1 or less
    assert np.allclose(np.cov(x.T), np.diag(expected), atol=5 * 2**0.5 / 200)


def test_inputs_and_models_of_the_population_follow_the_law():
    made = Population(np.full(3000, 40), 2.0, 0.5, 8, 5)
    x = made.examples()[0].reshape(3000, 40, 8).astype(np.float64)
    centres = x.mean(1)  # N(B, 1), with the noise of 40 inputs
    noise = np.arange(1, 9) ** -1.2 / 40
    between = np.cov(centres.T)
    assert np.allclose(between, 0.25 + np.diag(1 + noise), atol=0.2)  # B is shared by all dimensions of a client
    assert np.allclose(x.var(1, ddof=1).mean(0), np.arange(1, 9) ** -1.2, rtol=0.03)
    weights = made.models().reshape(3000, -1).astype(np.float64)
    assert np.cov(weights.T)[0, -1] == pytest.approx(4, rel=0.15)  # u is shared by W and b
    assert weights.var(0).mean() == pytest.approx(5, rel=0.1)


def test_models_and_inputs_are_independent():
    made = Population(np.full(5000, 5), 0.0, 0.0, 1, 2)  # five numbers a client for the inputs, and five for the models
    numbers = np.column_stack([made.examples()[0].reshape(5000, 5), made.models().reshape(5000, 4)])
    assert abs(np.corrcoef(numbers.T)[:5, 5:]).max() < 5 / 5000**0.5


def test_centres_and_noise_are_independent():
    x = Population(np.full(5000, 2), 0.0, 0.0, 1, 2).examples()[0].reshape(5000, 2)  # two numbers a client for both
    assert np.allclose(np.cov(x.T), [[2, 1], [1, 2]], atol=0.2)  # the centre has variance 1, and so has the noise


@pytest.mark.parametrize("num_clusters", [None, 1, 7])
@pytest.mark.parametrize("block", [1, 2, 17, 1000, 10**9])
def test_block_size_changes_nothing(num_clusters: int | None, block: int):
    x, y = population(num_clusters).examples()
    again = population(num_clusters).examples(block)
    assert np.array_equal(x, again[0])
    assert np.array_equal(y, again[1])


def test_more_clients_leave_the_first_ones_as_they_are():
    few, many = Synthetic(**SMALL).load(), Synthetic(**(SMALL | {"num_clients": 301})).load()
    assert torch.equal(many.inputs[: len(few)], few.inputs)
    assert torch.equal(many.labels[: len(few)], few.labels)


def test_population_depends_on_its_seed():
    same, other = population(seed=5), population(seed=6)
    assert np.array_equal(same.examples()[0], population(seed=5).examples()[0])
    assert not np.array_equal(same.examples()[0], other.examples()[0])
    assert not np.array_equal(same.models(), other.models())


# Sizes


def test_sizes_are_the_least_and_a_log_normal_number_cut_to_an_integer():
    class Drawn:
        def standard_normal(self, size: int) -> np.ndarray:
            return np.array([-50.0, 0.0, 1.0, 0.5])[:size]

    # exp(1 - 100), exp(1), exp(3) = 20.09, exp(2) = 7.39
    assert log_normal_sizes(4, 1.0, 2.0, 50, Drawn()).tolist() == [50, 52, 70, 57]


def test_sizes_of_the_papers_population():
    sizes = Synthetic(num_clients=20_000).population.sizes
    assert sizes.min() == 50  # int(exp(4 + 2 z)) is 0 with probability 0.023
    assert np.median(sizes) == pytest.approx(50 + np.floor(np.exp(4)), rel=0.05)
    logs = np.log(sizes[sizes > 60] - 50)
    assert np.exp(np.quantile(logs, 0.9)) == pytest.approx(np.exp(4 + 2 * 1.5), rel=0.25)


def test_defaults_are_synthetic_1_1():
    examples = Synthetic().examples
    assert examples.inputs.shape[1:] == (60,)
    assert (examples.inputs.dtype, examples.num_labels) == (torch.float32, 10)
    assert Synthetic().federated(0).num_clients == 100
    assert (Synthetic().population.alpha, Synthetic().population.beta) == (1, 1)


def test_first_two_arguments_are_alpha_and_beta():
    assert (Synthetic(0.5, 0.25).population.alpha, Synthetic(0.5, 0.25).population.beta) == (0.5, 0.25)


# The split


def lists_of(data: object) -> tuple[list[Tensor], list[Tensor]]:
    return list(data.train), list(data.test)


def test_each_client_trains_on_int_0_9_n_of_its_n_examples():
    module = Synthetic(**SMALL)
    data = module.federated(0)
    sizes = module.population.sizes
    assert data.train.sizes.tolist() == [int(0.9 * n) for n in sizes]
    assert (data.train.sizes + data.test.sizes).tolist() == sizes.tolist()
    assert {n for n in sizes.tolist() if n < 12} == set(range(3, 12))


def test_a_single_example_is_for_training():
    data = Synthetic(num_clients=50, min_size=1, mean_log_size=-9.0, test=0.5).federated(0)
    assert data.train.sizes.unique().tolist() == [1]
    assert data.test.sizes.unique().tolist() == [0]


def test_every_example_goes_to_its_client():
    module = Synthetic(**SMALL)
    data = module.federated(3)
    starts = [0, *module.population.sizes.cumsum().tolist()]
    for client, (train, test) in enumerate(zip(*lists_of(data), strict=True)):
        assert torch.cat([train, test]).sort().values.tolist() == list(range(starts[client], starts[client + 1]))


def test_split_depends_on_the_seed_and_examples_do_not():
    module = Synthetic(**SMALL)
    one, other, again = module.federated(1), module.federated(2), Synthetic(**SMALL).federated(1)
    assert one.train.values.tolist() != other.train.values.tolist()
    assert one.train.values.tolist() == again.train.values.tolist()
    assert torch.equal(one.examples.inputs, again.examples.inputs)


def test_nothing_is_tested_where_test_is_zero():
    assert int(Synthetic(**SMALL, test=0.0).federated(0).test.sizes.sum()) == 0


# The truth


def test_true_clusters_are_unknown_in_the_papers_form():
    data = Synthetic(**SMALL).federated(0)
    assert data.true_clusters.unique().tolist() == [-1]
    assert data.skew == "other"


def test_clusters_are_given_in_turn():
    data = Synthetic(**SMALL, num_clusters=4).federated(0)
    assert data.true_clusters[:6].tolist() == [0, 1, 2, 3, 0, 1]
    assert data.skew == "label"
    assert Synthetic(**SMALL, num_clusters=1).federated(0).skew == "other"


# A run, and bad input


def test_fedavg_trains_on_it():
    task = lambda: Classification(MCLR([6], 4), partial(torch.optim.SGD, lr=0.1))  # noqa: E731
    experiment = Experiment(Synthetic(**SMALL), task, FedAvg(), rounds=1, cohort_size=2)
    assert [np.isfinite(r.info.loss) for r in experiment] == [True]


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        ("num_clients", 0, "give 1 or more"),
        ("dimensions", 0, "give 1 or more"),
        ("min_size", 0, "give 1 or more"),
        ("num_labels", 1, "give 2 or more"),
        ("alpha", -0.5, "give 0 or more"),
        ("beta", float("nan"), "give 0 or more"),
        ("log_size_deviation", float("inf"), "give 0 or more"),
        ("num_clusters", 0, "give 1 to 100"),
        ("num_clusters", 101, "give 1 to 100"),
        ("test", 1.0, "0 or more and below 1"),
        ("test", float("nan"), "0 or more and below 1"),
    ],
)
def test_option_outside_its_range_is_refused(option: str, value: float, remedy: str):
    with pytest.raises(InputError, match=f"{option} is {value}.*{remedy}"):
        Synthetic(**{option: value})


@pytest.mark.parametrize("mean", [30.0, 5000.0, float("nan")])
def test_sizes_that_no_machine_holds_are_refused(mean: float):
    with pytest.raises(InputError, match=f"100 clients would have .* examples in all .mean_log_size {mean}, .*lower"):
        Synthetic(mean_log_size=mean)
