"""Tests the activities that a run reports, starting with the loading of its data."""

from itertools import groupby
from pathlib import Path

import pytest
import torch
from digits_experiment import digits
from ragged import LOCAL, PLANS, SHAPE, ragged_data, task

from lit_cfl.activity import Activity
from lit_cfl.algorithms import FedAvg, FedGroup
from lit_cfl.datamodules import Digits
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.nets import MCLR
from lit_cfl.runs.run import RunCallbacks, run


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("held", [True, False])
def test_every_engine_counts_the_clients_of_a_fit_up_to_the_last(name: str, held: bool):
    engine, reported = build_engine(task(lambda: MCLR(SHAPE, 10)), PLANS[name], 5, LOCAL), list[Activity]()
    engine.report = reported.append
    if not held:
        engine.__class__ = type("Chunked", (type(engine),), {"rows_that_fit": property(lambda self: 2)})
    clients = torch.arange(1, 6)  # client 0 has no data
    fit = engine.at(2, ragged_data()).fit(engine.initial(0)[None], clients, purpose="pretrain")
    assert sum(len(chunk.models) for chunk in fit.chunks()) == 5
    assert {(activity.what, activity.round, activity.total) for activity in reported} == {("pre-training", 2, 5)}
    counts = [activity.done for activity in reported]
    assert (counts[0], counts[-1]) == (0, 5)
    assert counts == sorted(counts)
    assert len(set(counts)) > 2  # intermediate counts are reported, too


def test_run_reports_its_activity_from_the_start(tmp_path: Path):
    reported: list[str | Activity] = []
    # the loop trains one client after another; in a stack, all end at once
    options = {"rounds": 2, "cohort_size": 3, "baseline": FedAvg(), "engine": "loop"}
    experiment = digits(data=Digits(8), algorithm=FedGroup(2, 3), **options)
    callbacks = RunCallbacks(
        activity=reported.append, started=lambda title, first, rounds, seed: reported.append(title)
    )
    run(experiment, tmp_path / "run", callbacks)
    phases = [text for text, _ in groupby(one if isinstance(one, str) else one.what for one in reported)]
    begin = ["loading the data", "dividing 1,797 examples among clients", "checking that the clients can be trained"]
    first = reported.index("FedGroup")
    assert phases[:3] == begin
    assert reported[first - 1] == Activity("starting the trackers")
    assert reported[first + 1 : first + 8] == [Activity("pre-training", 0, done, 6) for done in range(7)]
    assert phases[phases.index("FedAvg") + 1 :] == ["training", "evaluating", "training", "evaluating"]
