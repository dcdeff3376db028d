import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_cfl.clustering import find_drifted, label_shift_distance
from lit_cfl.errors import InputError

few = settings(deadline=None, derandomize=True, max_examples=40)


def counts(labels: int = 10, **held: int) -> torch.Tensor:
    """Makes label counts: `_0=30, _1=30` means 30 examples of label 0 and 30 of label 1."""
    row = torch.zeros(1, labels, dtype=torch.int64)
    for name, number in held.items():
        row[0, int(name[1:])] = number
    return row


def first_label(now: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compares the numbers of examples of the first label with 10."""
    return (now - before)[:, 0].abs(), torch.full((len(now),), 10.0, dtype=torch.float64)


BEFORE = counts(_0=30, _1=30)  # check 16


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (counts(_7=30, _8=30), 1.0),  # all examples have other labels
        (counts(_0=18, _1=30, _2=12), 0.2),  # 12 of 60 examples received a new label
        (torch.tensor([[7.5, 7.5] + [0] * 8]), 0.0),  # a quarter of the examples is released
        (BEFORE, 0.0),
    ],
    ids=["others", "moved", "released", "same"],
)
def test_total_variation_is_the_share_of_the_data_with_another_label(now: torch.Tensor, expected: float):
    found = label_shift_distance(now, BEFORE)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([expected], abs=1e-15)


histograms = st.lists(st.integers(0, 40), min_size=5, max_size=5).map(lambda held: torch.tensor([held]))


@few
@given(histograms, histograms)
def test_total_variation_is_symmetric_and_at_most_1(now, before):
    distance = label_shift_distance(now, before)
    assert torch.equal(distance, label_shift_distance(before, now))
    assert 0 <= distance.item() <= 1


def test_shares_of_a_client_without_data_are_as_far_as_can_be_from_any_others():
    nobody = counts()
    assert label_shift_distance(nobody, BEFORE).item() == label_shift_distance(BEFORE, nobody).item() == 1
    assert label_shift_distance(nobody, nobody).item() == 0


def test_another_distance_is_a_function():
    now = counts(_0=28, _1=30)
    assert label_shift_distance(now, BEFORE, first_label).item() == 0.2
    assert not find_drifted(now, BEFORE, 0.2, first_label).item()
    assert find_drifted(now, BEFORE, 0.1, first_label).item()


def moved(number: int, of: int) -> torch.Tensor:
    """Makes label counts in which `number` examples of label 0 have become examples of label 2."""
    return counts(_0=of // 2 - number, _1=of - of // 2, _2=number)


def test_trigger_is_strict():
    now = torch.cat([moved(11, 60), moved(12, 60), moved(13, 60)])
    assert find_drifted(now, BEFORE.expand(3, -1), 0.2).tolist() == [False, False, True]


@pytest.mark.parametrize("threshold", [0.1, 0.2, 0.3, 0.7, 0.05])
def test_client_exactly_at_the_threshold_never_migrates(threshold: float):
    for of in (20, 60, 140, 1_000, 99_980):
        number = round(threshold * of)
        assert not find_drifted(counts(_0=of - number, _3=number), counts(_0=of), threshold).item()
        assert find_drifted(counts(_0=of - number - 1, _3=number + 1), counts(_0=of), threshold).item()


@few
@given(histograms, histograms, st.floats(0, 1.5))
def test_trigger_follows_the_distance(now, before, threshold):
    distance = label_shift_distance(now, before).item()
    if abs(distance - threshold) > 1e-5:
        assert find_drifted(now, before, threshold).item() == (distance > threshold)


def test_growing_data_do_not_drift():  # C4, the incremental release
    assert not find_drifted(counts(_0=15, _1=15), BEFORE, 0.2).item()


def test_infinite_threshold_never_fires():
    assert not find_drifted(counts(_9=60), BEFORE, float("inf")).item()


def test_bad_input_is_refused():
    with pytest.raises(InputError, match=r"\[1, 9\] and \[1, 10\]"):
        label_shift_distance(counts(9), BEFORE)
    with pytest.raises(InputError, match=r"a count is -3\.0"):
        label_shift_distance(counts(_0=-3), BEFORE)
    with pytest.raises(InputError, match=r"threshold -0\.1"):
        find_drifted(BEFORE, BEFORE, -0.1)
    with pytest.raises(InputError, match="threshold nan"):
        find_drifted(BEFORE, BEFORE, float("nan"))
