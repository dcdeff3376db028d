"""Tests means over seeds and their intervals against SciPy and a published example, and their coverage."""

from math import sqrt

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_rel

from lit_cfl.errors import InputError
from lit_cfl.statistics import (
    Interval,
    Ranking,
    critical_difference,
    friedman,
    holm,
    interval,
    p_value,
    paired_difference,
    ratio_of_means,
    seeds_needed,
)


def test_the_interval_is_students():
    found = interval([1.0, 2.0, 3.0])
    assert found == Interval(2.0, pytest.approx(4.302653 / 3**0.5, rel=1e-6), 3, 1.0)  # t(0.975, 2) * 1 / sqrt(3)
    assert (found.low, found.high) == (pytest.approx(-0.484138, abs=1e-6), pytest.approx(4.484138, abs=1e-6))
    assert str(found) == "2.0000 ± 2.4841"
    assert interval([1.0, 2.0, 4.0]).deviation == pytest.approx(sqrt((16 + 1 + 25) / 9 / 2))  # of a sample
    one = interval([0.5])
    assert one == Interval(0.5, None, 1)
    assert (one.low, one.high, str(one)) == (None, None, "0.5000")
    assert interval([0.5, None]) == interval([]) == Interval()  # unknown where a run does not know


def test_paired_differences_have_the_interval_of_scipys_paired_test():
    mine, first = {2: 0.9, 0: 0.4, 1: 0.6, 7: 0.65}, {0: 0.5, 1: 0.6, 2: 0.7, 7: 0.5}  # pairs are formed by seed
    found = paired_difference(mine, first)
    expected = ttest_rel([0.4, 0.6, 0.9, 0.65], [0.5, 0.6, 0.7, 0.5]).confidence_interval(0.95)
    assert found.mean == pytest.approx((-0.1 + 0 + 0.2 + 0.15) / 4)
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_a_constant_gain_has_an_interval_of_no_width_and_a_seed_that_one_lacks_is_left_out():
    mine, first = {0: 0.5, 1: 0.75, 2: 0.25}, {0: 0.25, 1: 0.5, 2: 0.0}
    assert paired_difference(mine, first) == Interval(0.25, 0.0, 3, 0.0)
    assert paired_difference({0: 0.5, 1: None, 3: 0.9}, {0: 0.25, 1: 0.1, 2: 0.3}) == Interval(0.25, None, 1)
    assert paired_difference({0: None}, {0: 0.1}) == paired_difference({}, {0: 0.1}) == Interval()


def test_p_values_are_those_of_scipys_test():
    for values in ([0.5, 0.65, 0.95], [-1.0, 0.25], [0.1, -0.1, 0.2, 0.3]):
        assert p_value(interval(values)) == pytest.approx(ttest_1samp(values, 0).pvalue)
    assert [p_value(one) for one in (interval([0.0, 0.0]), interval([0.5, 0.5]), interval([0.5]))] == [1, 0, 1]


def test_the_number_of_seeds_is_that_of_tables_of_the_paired_t_test():
    """Numbers of pairs for d = 0.2, 0.5, 0.8 and 1 at 5 %, two-sided, with power 0.8 (Cohen 1988; G*Power 3.1)."""
    known = {0.2: 199, 0.5: 34, 0.8: 15, 1.0: 10}
    assert {effect: seeds_needed(effect, 1.0) for effect in known} == known
    assert {effect: seeds_needed(0.01, 0.01 / effect) for effect in known} == known
    assert (seeds_needed(1.0, 0.0), seeds_needed(1.0, 1e-300)) == (2, 2)
    assert seeds_needed(0.001, 1.0) == pytest.approx((1.959964 + 0.841621) ** 2 * 1e6, rel=1e-5)  # t is nearly normal


def test_four_seeds_just_miss_the_power_that_five_have():
    draws = np.random.default_rng(0).normal(2.115, 1, (400_000, 5))
    found = [(ttest_1samp(draws[:, :n], 0, axis=1).pvalue < 0.05).mean() for n in (4, 5)]
    assert found[0] < 0.798 < 0.9 < found[1]  # the standard error is 0.0006
    assert seeds_needed(2.115, 1.0) == 5


def test_holm_multiplies_the_smallest_p_value_by_the_number_of_tests_the_next_by_one_less():
    # 4 x 0.005, 3 x 0.01, 2 x 0.03, and 0.04, which cannot be below the one before it
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1, 1]
    assert holm([]) == []


def test_a_t_test_of_the_gains_has_p_5_percent_at_the_ends_of_a_ratio():
    part, whole = [0.02, 0.05, 0.01, 0.04], [0.1, 0.12, 0.07, 0.09]
    ratio, low, high = ratio_of_means(part, whole)
    assert ratio == pytest.approx(0.12 / 0.38)
    assert low < ratio < high
    for end in (low, high):
        rest = [a - end * b for a, b in zip(part, whole, strict=True)]
        assert ttest_1samp(rest, 0).pvalue == pytest.approx(0.05)


def test_over_a_constant_a_ratio_has_the_interval_of_students_t():
    found = interval([0.1, 0.2, 0.6])
    expected = found.mean / 0.5, found.low / 0.5, found.high / 0.5
    assert ratio_of_means([0.1, 0.2, 0.6], [0.5, 0.5, 0.5]) == pytest.approx(expected)


def test_a_ratio_over_what_cannot_be_told_from_0_is_unknown():
    # the interval of 1 - d, 1 and 1 + d is 1 ± 2.4841 d
    assert ratio_of_means([1.0, 2.0, 3.0], [1 - 0.402, 1.0, 1 + 0.402]) is not None
    assert ratio_of_means([1.0, 2.0, 3.0], [1 - 0.403, 1.0, 1 + 0.403]) is None
    assert ratio_of_means([-1.0, -2.0, -3.0], [0.402 - 1, -1.0, -1 - 0.402]) is not None
    assert [ratio_of_means(whole, whole) for whole in ([0.0, 0.0], [0.5], [])] == [None, None, None]


# Ranks of Demsar (JMLR 7, 2006), Table 6, by AUC: C4.5 without and with tuned m and cf, 14 data sets; ties share ranks.
# Row 13 prints the AUC 0.975 twice; only the ranks 2 and 3 give the mean ranks that the paper prints.
METHODS = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")
RANKS = """4 3 2 1|1 2 3 4|4 1 2 3|4 1 3 2|4 2 3 1|1 2.5 4 2.5|3 2 4 1|2.5 2.5 4 1|4 3 2 1|2.5 2.5 2.5 2.5|4 2.5 1 2.5|
3 2 4 1|4 1 2 3|3 1 4 2"""
DEMSAR = {
    f"data set {number}": dict(zip(METHODS, map(float, line.split()), strict=True))
    for number, line in enumerate(RANKS.split("|"))
}


def test_friedman_and_nemenyi_are_those_of_the_published_example():
    found = friedman(DEMSAR, higher_is_better=False)
    assert found.data_sets == 14
    assert list(found.mean_ranks) == ["C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5"]
    # as printed in the paper
    assert [round(rank, 3) for rank in found.mean_ranks.values()] == [1.964, 2.0, 2.893, 3.143]
    # The paper prints 9.28, without correction for ties: 78 of 14 (4^3 - 4), for three pairs and one group of four
    assert found.statistic * (1 - 78 / (14 * 60)) == pytest.approx(9.28, abs=0.02)
    assert found.p_value == pytest.approx(0.0167, abs=1e-4)  # chi-square of 10.24 with 3 degrees of freedom
    assert found.critical_difference == pytest.approx(2.569 * sqrt(4 * 5 / (6 * 14)), abs=1e-3)
    assert round(found.critical_difference, 2) == 1.25
    assert not found.differ("C4.5", "C4.5+m+cf")  # 1.179 apart
    assert found.groups == [tuple(found.mean_ranks)]


def test_critical_difference_is_nemenyi_s():
    # Demsar (2006), Table 5: q is 2.343 for 3 and 3.164 for 10 methods at 0.05
    assert critical_difference(3, 10) == pytest.approx(2.343 * sqrt(3 * 4 / 60), abs=1e-3)
    assert critical_difference(10, 8) == pytest.approx(3.164 * sqrt(10 * 11 / 48), abs=1e-3)


def test_groups_are_maximal_sets_without_significant_differences():
    ranks = {"a": 1.0, "b": 1.5, "c": 2.0, "d": 4.0}
    assert Ranking(ranks, 10, 9.0, 0.01, 1.0).groups == [("a", "b", "c")]  # (b, c) is contained in it
    # a difference of exactly the critical difference is not significant
    assert Ranking({"a": 1.0, "b": 2.0}, 10, 9.0, 0.01, 1.0).groups == [("a", "b")]


def test_methods_that_are_alike_everywhere_are_alike():
    found = friedman({"one": dict.fromkeys("abc", 0.5), "other": dict.fromkeys("abc", 0.7)})
    assert (found.mean_ranks, found.statistic, found.p_value) == ({"a": 2.0, "b": 2.0, "c": 2.0}, 0.0, 1.0)


def test_scores_that_are_not_complete_are_refused():
    with pytest.raises(InputError, match="c has the score None on two"):
        friedman({"one": {"a": 1.0, "b": 2.0, "c": 3.0}, "two": {"a": 1.0, "b": 2.0}})
