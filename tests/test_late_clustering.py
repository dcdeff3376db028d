"""Tests the notes on runs that end before their algorithm clusters."""

import warnings
from typing import Any

import pytest
from digits_experiment import digits

from lit_cfl.algorithms import CFL, FLHC, AdaCFL, FedDrift, LayerCFL
from lit_cfl.errors import Notice
from lit_cfl.rounds import note_late_clustering


def notes(algorithm: Any, num_rounds: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        note_late_clustering(algorithm, num_rounds)
    assert all(one.category is Notice for one in caught)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("kind", [FLHC, CFL, AdaCFL, LayerCFL])
def test_warm_up_that_is_longer_than_the_run_is_noted(kind: type[Any]):
    assert notes(kind(warmup_rounds=2), 3) == []  # the clustering is in round 3
    (note,) = notes(kind(warmup_rounds=3), 3)
    assert note == (
        f"{kind.__name__} does not cluster before round 4, but rounds is 3, so there will be one cluster; raise rounds "
        "above 3, or set warmup_rounds below 3"
    )


def test_clusters_of_feddrift_that_will_not_change_are_noted():
    assert notes(FedDrift(step_rounds=2), 3) == notes(FedDrift(start="one", step_rounds=2), 3) == []
    assert notes(FedDrift(step_rounds=3), 3) == notes(FedDrift(start="one", step_rounds=3), 3)
    assert notes(FedDrift(step_rounds=3), 3) == [
        "FedDrift does not cluster before round 4, but rounds is 3, so its first clusters will not change; raise "
        "rounds above 3, or set step_rounds below 3"
    ]


def test_the_baseline_is_noted_too_when_an_experiment_is_prepared():
    with pytest.warns(Notice) as caught:
        digits(algorithm=FLHC(warmup_rounds=10), baseline=CFL(warmup_rounds=10)).prepare(0)
    names = [str(one.message).split()[0] for one in caught if "does not cluster" in str(one.message)]
    assert names == ["FLHC", "CFL"]
