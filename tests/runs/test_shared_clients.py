"""Tests that two runs that score different clients are compared on the clients scored in both."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lit_cfl.runs.shared_clients import ScoredClients, compare_shared, read_scored
from lit_cfl.scores import Score


def clients(**values: float) -> ScoredClients:
    """Makes scored clients from keywords `k1`, `k2`, ...; client k has k examples and the given score."""
    numbers = [int(name[1:]) for name in values]
    return ScoredClients(dict(zip(numbers, numbers, strict=True)), dict(zip(numbers, values.values(), strict=True)))


NAMES = ("test/weighted_accuracy", "test/mean_accuracy", "test/worst10_accuracy")
MANY = {f"k{number}": number / 100 for number in range(1, 21)}


@pytest.mark.parametrize(
    ("pairs", "number", "mine", "others"),
    [
        (  # by clients 2 and 4
            [(clients(k1=0.5, k2=0.0, k4=1.0), clients(k2=1.0, k3=0.9, k4=0.25))],
            2,
            ((2 * 0.0 + 4 * 1.0) / 6, 0.5, 0.0),
            ((2 * 1.0 + 4 * 0.25) / 6, 0.625, 0.25),
        ),
        (  # a mean over seeds is of each seed's own shared clients
            [
                (clients(k1=0.5), clients(k1=1.0, k2=0.0)),
                (clients(k3=0.0, k4=1.0), clients(k3=0.5, k4=0.25)),
            ],
            1.5,
            ((0.5 + 4 / 7) / 2, 0.5, 0.25),
            ((1.0 + 2.5 / 7) / 2, (1.0 + 0.375) / 2, (1.0 + 0.25) / 2),
        ),
        ([(clients(k1=0.5), clients(k2=0.5))], 0, (None,) * 3, (None,) * 3),
    ],
)
def test_figures_are_over_the_clients_of_both(pairs: list[Any], number: float, mine: Any, others: Any):
    found = compare_shared(pairs)
    assert found is not None
    assert found.clients == number
    for figures, expected in ((found.mine, mine), (found.others, others)):
        assert figures == pytest.approx(dict(zip(NAMES, expected, strict=True)))


def test_same_clients_need_no_figures_of_their_own():
    assert compare_shared([(clients(k1=0.5, k2=0.0), clients(k1=0.1, k2=0.2))]) is None


def test_the_worst_tenth_of_twenty_clients_is_two_and_of_an_error_the_largest():
    found = compare_shared([(clients(**MANY), clients(**MANY, k30=0.0))])
    assert found is not None
    assert found.mine["test/worst10_accuracy"] == pytest.approx(0.015)
    mine = replace(clients(k1=0.5, k2=3.0), by_size=False)  # weights other than sizes are not guessed
    found = compare_shared([(mine, clients(k1=1.0, k2=2.0, k3=9.0))], Score("mae", higher_is_better=False))
    assert found is not None
    assert found.mine == {"test/weighted_mae": None, "test/mean_mae": 1.75, "test/worst10_mae": 3.0}
    assert found.others == {"test/weighted_mae": 5 / 3, "test/mean_mae": 1.5, "test/worst10_mae": 2.0}


def test_newcomers_and_clients_without_a_score_do_not_count(tmp_path: Path):
    rows = ["0,1,5,0.5,0", "1,,5,,0", "2,1,5,0.5,1", "3,1,0,,0", "4,1,15,0.1,0"]
    (tmp_path / "clients.csv").write_text("\n".join(["client,cluster,n_test,accuracy,newcomer", *rows]) + "\n")
    expected = ScoredClients({0: 5, 4: 15}, {0: 0.5, 4: 0.1})
    assert read_scored(tmp_path, {"test/weighted_accuracy": (5 * 0.5 + 15 * 0.1) / 20}) == expected
    for other in (0.3, None):  # the mean is weighted by tokens, or the score is infinite
        assert read_scored(tmp_path, {"test/weighted_accuracy": other}) == replace(expected, by_size=False)
