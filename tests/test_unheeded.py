"""Tests warnings about options that have no effect with this number of rounds or this algorithm."""

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
from digits_experiment import digits

from lit_cfl.algorithms import (
    CFL,
    FLHC,
    AdaCFL,
    FedAvg,
    FedDrift,
    LayerCFL,
)
from lit_cfl.data.shift import Shift
from lit_cfl.datamodules.shift import Incremental, LabelDrift, SwapAll
from lit_cfl.errors import Notice
from lit_cfl.rounds import Cohorts, warn_of_ineffective_options


def notes(algorithm: Any, num_rounds: int, shifts: Sequence[Shift] = (), dropout: float = 0.0) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_ineffective_options(algorithm, shifts, Cohorts(5, dropout=dropout), num_rounds=num_rounds)
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


def test_shift_after_the_end_is_noted():
    shifts = [SwapAll(), LabelDrift(start=9), LabelDrift(start=10), Incremental(rounds=(12, 20), shares=(0.5, 1.0))]
    assert notes(FedAvg(), 10, shifts) == [
        "LabelDrift changes the data after 10 completed rounds, but rounds is 10, so this never happens",
        "Incremental changes the data after 12, 20 completed rounds, but rounds is 10, so this never happens",
    ]
    assert notes(FedAvg(), 10, [LabelDrift(start=6, duration=4), LabelDrift(start=9, duration=1)]) == []
    (unfinished,) = notes(FedAvg(), 10, [LabelDrift(start=6, duration=5)])
    assert unfinished.startswith("LabelDrift changes the data after 10 completed rounds")


def test_dropout_that_a_round_of_all_clients_does_not_heed_is_noted():
    assert notes(FedAvg(), 5, dropout=0.3) == []
    assert notes(CFL(warmup_rounds=0), 5) == []
    every, once = "every round", "round 3"
    for algorithm, when in ((CFL(warmup_rounds=0), every), (FLHC(warmup_rounds=2), once)):
        name = type(algorithm).__name__
        expected = f"dropout is 0.3, but {name} asks all clients in {when}, where dropout does not apply"
        assert notes(algorithm, 5, dropout=0.3) == [expected]


def test_the_baseline_is_noted_too_when_an_experiment_is_prepared():
    with pytest.warns(Notice) as caught:
        digits(algorithm=FLHC(warmup_rounds=10), baseline=CFL(), dropout=0.1).prepare(0)
    names = [str(one.message).split()[0] for one in caught if "round" in str(one.message)]
    assert names == ["FLHC", "CFL", "dropout"]
