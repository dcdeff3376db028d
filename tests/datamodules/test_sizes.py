"""Partitions that look at no label: equal and unequal sizes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import divided, few, labels_of, pool_of, seeds

from lit_cfl.datamodules.partition import IID, DirichletSizes, LogNormalSizes, PowerLawSizes, SharedOut
from lit_cfl.errors import InputError


@few
@given(st.integers(1, 40), st.integers(0, 500), seeds)
def test_iid_sizes_differ_by_one_at_most(clients: int, more: int, seed: int):
    division = divided(IID(clients, 0.0), pool_of(torch.zeros(clients + more, dtype=torch.int64)), seed)
    assert division.train.sizes.max() - division.train.sizes.min() <= 1
    assert division.true_clusters.tolist() == [0] * clients


@few
@given(
    st.sampled_from([LogNormalSizes(9), PowerLawSizes(9), DirichletSizes(9)]),
    st.integers(1, 12),
    st.integers(0, 400),
    seeds,
)
def test_sizes_keep_their_minimum_and_sum_up(partition: LogNormalSizes, least: int, more: int, seed: int):
    sizes = replace(partition, min_size=least).sizes(9 * least + more, np.random.default_rng(seed))
    assert (int(sizes.min()) >= least, int(sizes.sum())) == (True, 9 * least + more)


def test_sizes_without_spread_are_equal():
    for partition in (LogNormalSizes(4, min_size=2, sigma=0.0), PowerLawSizes(4, min_size=2, exponent=0.0)):
        assert sorted(partition.sizes(102, np.random.default_rng(0)).tolist()) == [25, 25, 26, 26]


def test_lognormal_sizes_have_the_spread_asked_for():
    sizes = LogNormalSizes(20_000, min_size=10).sizes(10**9, np.random.default_rng(0))
    assert (sizes - 10).double().log().std().item() == pytest.approx(2.0, rel=0.02)


def test_extreme_spread_is_no_overflow():
    sizes = LogNormalSizes(10, min_size=1, sigma=1e4).sizes(1000, np.random.default_rng(0))
    assert sorted(sizes.tolist()) == [1] * 9 + [991]


def test_power_law_sizes_follow_the_ranks():
    sizes = PowerLawSizes(4, min_size=5, exponent=2.0).sizes(20 + 205, np.random.default_rng(0))  # 144 + 36 + 16 + 9
    assert sorted(sizes.tolist(), reverse=True) == [149, 41, 21, 14]
    orders = {
        tuple(PowerLawSizes(4, exponent=2.0).sizes(999, np.random.default_rng(seed)).tolist()) for seed in range(9)
    }
    assert len(orders) > 3


@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_dirichlet_sizes_have_the_variance_of_their_law(alpha: float):
    n = 4000
    shares = DirichletSizes(n, min_size=1, alpha=alpha).sizes(10**8, np.random.default_rng(0)).double() / 10**8
    assert shares.var().item() == pytest.approx((n - 1) / n**2 / (n * alpha + 1), rel=0.1)


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (LogNormalSizes(4, sigma=-1.0), "sigma of the sizes is -1.0; give 0 or more"),
        (PowerLawSizes(4, exponent=float("nan")), "exponent of the sizes is nan; give 0 or more"),
        (DirichletSizes(4, alpha=0.0), "alpha of the Dirichlet distribution is 0.0; it must be above 0"),
        (
            DirichletSizes(4, min_size=26),
            "cannot share 100 examples with 26 or more each; give fewer clients .3 at most. or",
        ),
        (DirichletSizes(4, min_size=0), "num_clients is 4 and min_size 0; give 1 or more of both"),
    ],
)
def test_impossible_sizes_are_refused(partition: SharedOut, message: str):
    with pytest.raises(InputError, match=message):
        divided(replace(partition, test=0.0), pool_of(labels_of([50, 50])))
