"""An algorithm whose values change in the middle of a run."""

import json
from pathlib import Path

import pytest
import torch
from conftest import ids, quadratic_clients, rng
from studies import base

from lit_cfl.algorithms import FLHC, IFCA, FedAvg, FedProx
from lit_cfl.config.variants import build
from lit_cfl.errors import InputError
from lit_cfl.runs.run import run
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.storage.config_file import recorded_run_id
from lit_cfl.tune.replay import Scheduled, Stage, copied, saved_copy, with_stages


def test_each_round_runs_under_the_values_of_its_stage():
    work, prox = quadratic_clients(4), FedProx(mu=1.0)
    mixed = Scheduled([Stage(1, FedProx(mu=0.0)), Stage(3, prox)])
    state, _ = mixed.init(work.at(0), rng())
    cohorts = [ids(0, 1), ids(1, 3), ids(0, 2), ids(2, 3)]
    expected = state
    for number, cohort in enumerate(cohorts):
        state, _ = mixed.round(state, cohort, work.at(number), rng())
        expected, _ = FedProx(mu=0.0 if number < 2 else 1.0).round(expected, cohort, work.at(number), rng())
        assert torch.equal(mixed.serve(state, ids(0)).models, prox.serve(expected, ids(0)).models)
    alone, _ = prox.init(work.at(0), rng())
    for number, cohort in enumerate(cohorts):
        alone, _ = prox.round(alone, cohort, work.at(number), rng())
    assert not torch.allclose(prox.serve(alone, ids(0)).models, mixed.serve(state, ids(0)).models)


@pytest.mark.parametrize("algorithm", [IFCA(num_clusters=2), FLHC(warmup_rounds=2, num_clusters=2)])
def test_what_a_class_says_of_itself_is_the_scheduled_algorithms(algorithm: IFCA | FLHC):
    scheduled = Scheduled([Stage(1, algorithm)])
    assert scheduled.state_type is algorithm.state_type
    assert scheduled.score_columns == algorithm.score_columns
    assert dict(scheduled.tables) == dict(algorithm.tables)
    assert scheduled.first_clustering_round() == algorithm.first_clustering_round()
    assert [scheduled.needs_all(number) for number in range(4)] == [algorithm.needs_all(number) for number in range(4)]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], r"begin at rounds \[\]"),
        ([Stage(0)], r"begin at rounds \[0\]"),
        ([Stage(2)], r"begin at rounds \[2\]"),
        ([Stage(1), Stage(4), Stage(3)], "each later one higher"),
        ([Stage(1), Stage(1)], "each later one higher"),
        ([Stage(1, FedAvg()), Stage(2, FedProx())], "stages are of FedAvg, FedProx"),
    ],
)
def test_stages_that_make_no_schedule_are_refused(stages: list[Stage], message: str):
    with pytest.raises(InputError, match=message):
        Scheduled(stages)


def test_a_trial_goes_on_from_anothers_files_under_its_own_values(tmp_path: Path):
    def staged(path: Path, stages: list[tuple[int, dict[str, float]]], rounds: int):
        words = [(first, ["--algorithm.eta_g", str(own["algorithm.eta_g"])]) for first, own in stages]
        config = base(rounds=rounds)
        return with_stages(path, stages, [(first, build(config, own)) for first, own in words])

    donor, taker, whole = (tmp_path / name for name in ("donor", "taker", "whole"))
    first = [(1, {"algorithm.eta_g": 0.1})]
    run(staged(donor, first, 2), donor, mode="resume")
    saved_copy(donor, tmp_path / "saved")
    stages = copied(tmp_path / "saved", taker, {"algorithm.eta_g": 0.7})
    assert stages == [(1, {"algorithm.eta_g": 0.1}), (3, {"algorithm.eta_g": 0.7})]
    taken = run(staged(taker, stages, 4), taker, mode="resume").summary
    straight = run(staged(whole, stages, 4), whole, mode="resume").summary
    kept = run(staged(tmp_path / "kept", first, 4), tmp_path / "kept", mode="resume").summary
    same = [name for name in straight if not name.startswith("time/")]
    assert [taken[name] for name in same] == [straight[name] for name in same]
    assert straight["val/loss"] != kept["val/loss"]
    states = [Checkpoint(path).load() for path in (taker, whole)]
    assert all(torch.equal(states[0]["state"]["models"], state["state"]["models"]) for state in states)
    assert json.loads((donor / "stages.json").read_text()) == [[1, {"algorithm.eta_g": 0.1}]]


def test_unchanged_values_add_no_stage(tmp_path: Path):
    values = {"algorithm.eta_g": 0.1}
    run(with_stages(tmp_path / "a", [(1, values)], [(1, build(base(rounds=1)))]), tmp_path / "a", mode="resume")
    assert copied(tmp_path / "a", tmp_path / "b", values) == [(1, values)]


def test_a_copy_gets_an_identity_of_its_own_and_who_goes_on_from_itself_keeps_it(tmp_path: Path):
    donor, taker, saved = (tmp_path / name for name in ("donor", "taker", "saved"))
    values, other = {"algorithm.eta_g": 0.1}, {"algorithm.eta_g": 0.2}
    run(with_stages(donor, [(1, values)], [(1, build(base(rounds=1)))]), donor, mode="resume")
    for left in ("wandb/offline-run-1", "pictures"):
        (donor / left).mkdir(parents=True)
    (donor / ".metrics.csv.tmp").write_text("half")
    saved_copy(donor, saved)
    assert not any(
        (saved / left).exists() for left in ("wandb", "pictures", ".metrics.csv.tmp", "summary.json", ".lock")
    )
    identity = recorded_run_id(donor)
    taker.mkdir()
    (taker / "wandb").mkdir()  # of what it was before
    copied(saved, taker, other)
    assert recorded_run_id(taker) != identity
    assert not (taker / "wandb").exists()
    copied(saved, donor, values)
    assert recorded_run_id(donor) == identity
    assert (donor / "wandb" / "offline-run-1").exists()
    experiment = with_stages(taker, [(1, values), (2, other)], [(1, build(base(rounds=2))), (2, build(base(rounds=2)))])
    run(experiment, taker, mode="resume")
    own = recorded_run_id(taker)
    assert own != identity
    assert json.loads((taker / "environment.json").read_text())["run_id"] == own
