import pytest
import torch

from lit_cfl.clustering import find_drifted, label_shift_distance


def counts(labels: int = 10, **held: int) -> torch.Tensor:
    """Makes label counts: `_0=30, _1=30` means 30 examples of label 0 and 30 of label 1."""
    row = torch.zeros(1, labels, dtype=torch.int64)
    for name, number in held.items():
        row[0, int(name[1:])] = number
    return row


BEFORE = counts(_0=30, _1=30)  # check 16: C = 10, n = 60
NOBODY = counts()


def distance(now: torch.Tensor, before: torch.Tensor) -> float:
    found = label_shift_distance(now, before)
    assert found.dtype == torch.float64
    return found.item()


def fired(now: torch.Tensor, before: torch.Tensor, threshold: float) -> list[bool]:
    return find_drifted(now, before, threshold).tolist()


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        (counts(_7=30, _8=30), BEFORE, 1.0),  # all examples have other labels
        (counts(_0=18, _1=30, _2=12), BEFORE, 0.2),  # 12 of 60 examples received a new label
        (torch.tensor([[7.5, 7.5] + [0] * 8]), BEFORE, 0.0),  # a quarter of the examples is released
        (BEFORE, BEFORE, 0.0),
        (NOBODY, BEFORE, 1.0),
        (BEFORE, NOBODY, 1.0),
        (NOBODY, NOBODY, 0.0),
    ],
    ids=["others", "moved", "released", "same", "lost", "gained", "nobody"],
)
def test_total_variation_of_the_fixture(now: torch.Tensor, before: torch.Tensor, expected: float):
    assert distance(now, before) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("threshold", [0.1, 0.2, 0.3, 0.7, 0.05])
def test_client_exactly_at_the_threshold_never_migrates(threshold: float):
    for of in (20, 60, 140, 1_000, 99_980):
        number = round(threshold * of)
        assert fired(counts(_0=of - number, _3=number), counts(_0=of), threshold) == [False]
        assert fired(counts(_0=of - number - 1, _3=number + 1), counts(_0=of), threshold) == [True]


def test_another_distance_is_a_function():
    def counts_changed(now: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (now - before).abs().sum(1).double(), torch.tensor([60.0]).double()

    moved = counts(_0=24, _1=30, _2=6)
    assert label_shift_distance(moved, BEFORE, counts_changed).tolist() == [0.2]
    assert find_drifted(moved, BEFORE, 0.2, counts_changed).tolist() == [False]
    assert find_drifted(moved, BEFORE, 0.19, counts_changed).tolist() == [True]
