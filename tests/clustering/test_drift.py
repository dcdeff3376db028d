import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratic import ids, rng

from lit_cfl.clustering import find_drifted, label_shift_distance
from lit_cfl.errors import InputError

few = settings(deadline=None, derandomize=True, max_examples=40)

METRICS = ["sorted_counts", "l1_counts", "total_variation", "w1_label_axis"]
SHARES = ["total_variation", "w1_label_axis"]


def counts(labels: int = 10, **held: int) -> torch.Tensor:
    """Makes label counts: `_0=30, _1=30` means 30 examples of label 0 and 30 of label 1."""
    row = torch.zeros(1, labels, dtype=torch.int64)
    for name, number in held.items():
        row[0, int(name[1:])] = number
    return row


BEFORE = counts(_0=30, _1=30)  # check 16: C = 10, n = 60, tau = 1.2


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (counts(_7=30, _8=30), [0.0, 12.0, 1.0, 7.0]),  # all examples have other labels
        (counts(_0=18, _1=30, _2=12), [2.4, 2.4, 0.2, 0.4]),  # 12 of 60 examples received a new label
        (torch.tensor([[7.5, 7.5] + [0] * 8]), [4.5, 4.5, 0.0, 0.0]),  # a quarter of the examples is released
        (BEFORE, [0.0, 0.0, 0.0, 0.0]),
    ],
    ids=["others", "moved", "released", "same"],
)
def test_distances_of_the_fixture(now: torch.Tensor, expected: list[float]):
    for metric, value in zip(METRICS, expected, strict=True):
        found = label_shift_distance(now, BEFORE, metric)
        assert found.dtype == torch.float64
        assert found.tolist() == pytest.approx([value], abs=1e-15)


def test_sorted_counts_equal_the_published_call():  # C4: SciPy takes the two count vectors as samples
    from scipy.stats import wasserstein_distance

    now, before = torch.randint(50, (2, 6, 10), generator=rng())
    expected = [wasserstein_distance(a, b) for a, b in zip(now.numpy(), before.numpy(), strict=True)]
    assert label_shift_distance(now, before, "sorted_counts").tolist() == pytest.approx(expected)


def test_distance_along_the_labels_is_the_wasserstein_distance_of_the_shares():
    from scipy.stats import wasserstein_distance

    now, before = torch.randint(1, 50, (2, 6, 10), generator=rng(1)).double()
    places = range(10)
    pairs = zip(now.numpy(), before.numpy(), strict=True)
    expected = [wasserstein_distance(places, places, a, b) for a, b in pairs]
    assert label_shift_distance(now, before, "w1_label_axis").tolist() == pytest.approx(expected)


histograms = st.lists(st.integers(0, 40), min_size=5, max_size=5).map(lambda held: torch.tensor([held]))


@few
@given(histograms, histograms, st.permutations(range(5)))
def test_sorted_counts_do_not_see_labels_and_are_never_above_l1(now, before, order):
    sorted_counts = label_shift_distance(now, before, "sorted_counts")
    assert torch.equal(label_shift_distance(now[:, order], before, "sorted_counts"), sorted_counts)
    assert (sorted_counts <= label_shift_distance(now, before, "l1_counts")).all()


@few
@given(histograms, histograms)
def test_every_distance_is_symmetric_and_within_its_range(now, before):
    for metric, greatest in zip(METRICS, [float("inf"), float("inf"), 1, 4], strict=True):
        distance = label_shift_distance(now, before, metric)
        assert torch.equal(distance, label_shift_distance(before, now, metric))
        assert 0 <= distance.item() <= greatest + 1e-12


def test_shares_of_a_client_without_data_are_as_far_as_can_be_from_any_others():
    nobody = counts()
    assert [label_shift_distance(nobody, BEFORE, metric).item() for metric in METRICS] == [6.0, 6.0, 1.0, 9.0]
    assert [label_shift_distance(nobody, nobody, metric).item() for metric in METRICS] == [0, 0, 0, 0]


def moved(number: int, of: int) -> torch.Tensor:
    """Makes label counts in which `number` examples of label 0 have become examples of label 2."""
    return counts(_0=of // 2 - number, _1=of - of // 2, _2=number)


@pytest.mark.parametrize(("metric", "most"), [("sorted_counts", 6), ("l1_counts", 6), ("total_variation", 12)])
# 6 of 60 gives 1.2000000000000004 in floating point, and tau is 1.2
def test_trigger_is_strict(metric: str, most: int):
    now = torch.cat([moved(most - 1, 60), moved(most, 60), moved(most + 1, 60)])
    before = BEFORE.expand(3, -1)
    assert find_drifted(now, before, ids(60, 60, 60), 0.2, metric).tolist() == [False, False, True]


@pytest.mark.parametrize("threshold", [0.1, 0.2, 0.3, 0.7, 0.05])
def test_client_exactly_at_the_threshold_never_migrates(threshold: float):
    for of in (20, 60, 140, 1_000, 99_980):
        number = round(threshold * of)
        now, before, sizes = counts(_0=of - number, _3=number), counts(_0=of), ids(of)
        assert not find_drifted(now, before, sizes, threshold, "total_variation").item()
        assert not find_drifted(now, before, sizes, 3 * threshold, "w1_label_axis").item()
        assert not find_drifted(now, before, sizes, 2 * threshold, "l1_counts").item()
        beyond = counts(_0=of - number - 1, _3=number + 1)
        assert find_drifted(beyond, before, sizes, threshold, "total_variation").item()
        assert find_drifted(beyond, before, sizes, 3 * threshold, "w1_label_axis").item()
        assert find_drifted(beyond, before, sizes, 2 * threshold, "l1_counts").item()


@few
@given(histograms, histograms, st.sampled_from(METRICS), st.floats(0, 3))
def test_trigger_follows_the_distance(now, before, metric, threshold):
    distance = label_shift_distance(now, before, metric).item()
    bound = threshold if metric in SHARES else threshold * 37 / 5
    if abs(distance - bound) > 1e-5:
        assert find_drifted(now, before, ids(37), threshold, metric).item() == (distance > bound)


def test_limit_of_the_counts_is_the_first_size_not_the_present_one():  # tau_i is fixed at the start
    now, before = counts(_0=50), counts(_0=60)
    assert find_drifted(now, before, ids(40), 0.2, "l1_counts").item()  # 10 > 8
    assert not find_drifted(now, before, ids(60), 0.2, "l1_counts").item()  # 10 < 12


def test_growing_data_drift_by_counts_but_not_by_shares():  # C4, the incremental release
    now, before = counts(_0=15, _1=15), BEFORE
    fired = [find_drifted(now, before, ids(60), 0.2, metric).item() for metric in METRICS]
    assert fired == [True, True, False, False]


def test_infinite_threshold_never_fires():
    assert not find_drifted(counts(_9=60), BEFORE, ids(60), float("inf"), "l1_counts").item()


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="shift_metric is 'emd'; give one of sorted_counts"):
        label_shift_distance(BEFORE, BEFORE, "emd")
    with pytest.raises(InputError, match=r"\[1, 9\] and \[1, 10\]"):
        label_shift_distance(counts(9), BEFORE, "l1_counts")
    with pytest.raises(InputError, match=r"a count is -3\.0"):
        label_shift_distance(counts(_0=-3), BEFORE, "l1_counts")
    with pytest.raises(InputError, match=r"threshold -0\.1"):
        find_drifted(BEFORE, BEFORE, ids(60), -0.1, "l1_counts")
    with pytest.raises(InputError, match="threshold nan"):
        find_drifted(BEFORE, BEFORE, ids(60), float("nan"), "l1_counts")
    with pytest.raises(InputError, match="2 sizes for the counts of 1 clients"):
        find_drifted(BEFORE, BEFORE, ids(60, 60), 0.2, "l1_counts")
