"""Means over seeds and their intervals: hand arithmetic, scipy's own, and how often they hold."""

from math import sqrt

import numpy as np
import pytest
from scipy.stats import ttest_rel

from lit_cfl.statistics import Interval, Spread, interval, paired_difference, spread


def test_the_interval_is_students():
    found = interval([1.0, 2.0, 3.0])
    assert found == Interval(2.0, pytest.approx(4.302653 / 3**0.5, rel=1e-6), 3)  # t(0.975, 2) * 1 / sqrt(3)
    assert (found.low, found.high) == (pytest.approx(-0.484138, abs=1e-6), pytest.approx(4.484138, abs=1e-6))
    assert str(found) == "2.0000 ± 2.4841"


def test_one_figure_has_no_interval():
    assert interval([0.5]) == Interval(0.5, None, 1)
    assert (interval([0.5]).low, interval([0.5]).high, str(interval([0.5]))) == (None, None, "0.5000")
    assert interval([]) == Interval()


def test_paired_differences_have_the_interval_of_scipys_paired_test():
    mine, first = {2: 0.9, 0: 0.4, 1: 0.6, 7: 0.65}, {0: 0.5, 1: 0.6, 2: 0.7, 7: 0.5}  # pairs are of the same seed
    found = paired_difference(mine, first)
    expected = ttest_rel([0.4, 0.6, 0.9, 0.65], [0.5, 0.6, 0.7, 0.5]).confidence_interval(0.95)
    assert found.mean == pytest.approx((-0.1 + 0 + 0.2 + 0.15) / 4)
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_a_constant_gain_has_an_interval_of_no_width():
    mine, first = {0: 0.5, 1: 0.75, 2: 0.25}, {0: 0.25, 1: 0.5, 2: 0.0}
    assert paired_difference(mine, first) == Interval(0.25, 0.0, 3)


def test_a_seed_that_one_of_them_lacks_is_left_out():
    assert paired_difference({0: 0.5, 1: None, 3: 0.9}, {0: 0.25, 1: 0.1, 2: 0.3}) == Interval(0.25, None, 1)
    assert paired_difference({0: None}, {0: 0.1}) == paired_difference({}, {0: 0.1}) == Interval()


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_interval_holds_the_true_difference_in_95_of_100_comparisons(seeds: int):
    draws = np.random.default_rng(0).normal(size=(4000, seeds))
    held = [abs(found.mean) <= found.margin for found in (interval(list(row)) for row in draws)]
    assert np.mean(held) == pytest.approx(
        0.95, abs=0.012
    )  # three and a half standard errors; the bootstrap: 0.74 to 0.89


def test_spread_is_of_a_sample_and_unknown_where_a_run_does_not_know():
    assert spread([1.0, 2.0, 4.0]) == Spread(pytest.approx(7 / 3), pytest.approx(sqrt((16 + 1 + 25) / 9 / 2)))
    assert spread([0.5]) == Spread(0.5, None)
    assert spread([0.5, None]) == spread([]) == Spread()
