"""Tests the drift benchmark: its scores of hand-made alarms, and that our default thresholds follow from its rule."""

import pytest
import torch
from benchmark_scripts import FOLDER, loaded

from lit_cfl.algorithms.migration import THRESHOLDS


@pytest.fixture
def drift(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(FOLDER)
    return loaded("drift")


def test_default_thresholds_are_those_of_the_rule(drift):
    chosen = drift.choose_thresholds(drift.read(FOLDER / "results" / "drift_curve.csv"))
    assert {metric: chosen[metric][0] for metric in THRESHOLDS} == THRESHOLDS
    assert all(chosen[metric][1] <= 1 for metric in THRESHOLDS)


def test_scores_by_hand(drift):
    alarms = [(3, 0), (7, 0), (22, 0), (25, 0), (21, 1), (20, 2)]  # alarms as (completed rounds, client)
    tests = [(index, client) for index in (4, 7, 20, 22) for client in range(4)]
    found = drift.score_alarms(alarms, tests, {0, 2, 3}, since=5)
    assert found == {
        "drifted": 3,
        "found": 2,  # client 3 is not found
        "delay": 2 + 0,
        "alarms": 2,  # client 0 in round 7, before it drifts, and client 1
        "tests": 4 + 1 + 1,  # all clients in round 7, then only client 1
    }


def test_clients_that_turn_have_the_images_of_the_next_cluster(drift):
    data = drift.build_experiment(drift.PLAIN["IFCA"], "still", 0.25, 0).data.federated(0)
    context = drift.ShiftContext(drift.START, 7, data.population)
    turned, log = drift.Turn(0.25).step(data, context)
    number, client = len(data.examples), int(log.clients[0])
    assert len(log.clients) == 10
    assert (log.after == (log.before + 1) % 4).all()
    assert torch.equal(turned.train[client], (data.train[client] + number) % (4 * number))
    assert torch.equal(turned.label_counts, data.label_counts)  # label counts do not show this drift


def test_fresh_clients_have_half_of_their_images_another_one_in_each_round(drift):
    data = drift.build_experiment(drift.PLAIN["IFCA"], "fresh", 0.25, 0).data.federated(0)
    first, _ = drift.Fresh().step(data, drift.ShiftContext(0, 7, data.population))
    second, _ = drift.Fresh().step(first, drift.ShiftContext(1, 7, data.population))
    for now in (first, second):
        assert len(now.train[5]) == len(data.train[5]) // 2
        assert set(now.train[5].tolist()) | set(now.withheld[5].tolist()) == set(data.train[5].tolist())
    assert set(first.train[5].tolist()) != set(second.train[5].tolist())
