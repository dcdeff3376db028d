"""Tests Synthetic(alpha, beta) as a data module: sizes, split, true clusters, a run, bad input."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_cfl.datamodules.synthetic import Synthetic, log_normal_sizes
from lit_cfl.errors import InputError

SMALL = {
    "num_clients": 300,
    "dimensions": 6,
    "num_labels": 4,
    "mean_log_size": 2.0,
    "log_size_deviation": 1.0,
    "min_size": 3,
}


# Sizes


def test_more_clients_leave_the_first_ones_unchanged():
    few, many = Synthetic(**SMALL).load(), Synthetic(**(SMALL | {"num_clients": 301})).load()
    assert torch.equal(many.inputs[: len(few)], few.inputs)
    assert torch.equal(many.labels[: len(few)], few.labels)


def test_sizes_are_the_minimum_plus_a_log_normal_number_cut_to_an_integer():
    class Drawn:
        def standard_normal(self, size: int) -> np.ndarray:
            return np.array([-50.0, 0.0, 1.0, 0.5])[:size]

    # exp(1 - 100), exp(1), exp(3) = 20.09, exp(2) = 7.39
    assert log_normal_sizes(4, 1.0, 2.0, 50, Drawn()).tolist() == [50, 52, 70, 57]


def test_sizes_of_the_papers_population():
    sizes = Synthetic(num_clients=20_000).sizes
    assert sizes.min() == 50  # int(exp(4 + 2 z)) is 0 with probability 0.023
    assert np.median(sizes) == pytest.approx(50 + np.floor(np.exp(4)), rel=0.05)
    logs = np.log(sizes[sizes > 60] - 50)
    assert np.exp(np.quantile(logs, 0.9)) == pytest.approx(np.exp(4 + 2 * 1.5), rel=0.25)


def test_defaults_are_synthetic_1_1():
    examples = Synthetic().examples
    assert examples.inputs.shape[1:] == (60,)
    assert (examples.inputs.dtype, examples.num_labels) == (torch.float32, 10)
    assert Synthetic().federated(0).num_clients == 100
    assert (Synthetic().alpha, Synthetic().beta) == (1, 1)


def test_first_two_arguments_are_alpha_and_beta():
    assert (Synthetic(0.5, 0.25).alpha, Synthetic(0.5, 0.25).beta) == (0.5, 0.25)


# The split


def lists_of(data: object) -> tuple[list[Tensor], list[Tensor]]:
    return list(data.train), list(data.test)


def test_each_client_trains_on_int_0_9_n_of_its_n_examples():
    module = Synthetic(**SMALL)
    data = module.federated(0)
    sizes = module.sizes
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
    starts = [0, *module.sizes.cumsum().tolist()]
    assert data.num_clients == len(starts) - 1 > 1
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
