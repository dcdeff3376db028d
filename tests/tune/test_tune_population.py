"""A trial that goes on from another's run with other values, as in population based training."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from studies import base

from lit_cfl.config.variants import build
from lit_cfl.experiment import Experiment
from lit_cfl.runs.run import run
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.storage.config_file import recorded_run_id
from lit_cfl.tune.population import recorded_stages, save_copy, set_values, take_over

OLD, NEW = {"algorithm.eta_g": 0.1}, {"algorithm.eta_g": 0.7}


def with_values(path: Path, values: dict[str, float], rounds: int) -> Experiment:
    """What a trial runs from its next round on."""
    experiment = build(base(rounds=rounds), ["--algorithm.eta_g", str(values["algorithm.eta_g"])])
    set_values(path, values, experiment.described())
    return experiment


def test_a_trial_goes_on_from_anothers_models_under_its_own_values(tmp_path: Path):
    """Rounds 1 and 2 are the donor's, rounds 3 and 4 differ from those under the donor's values."""
    donor, taker, kept = (tmp_path / name for name in ("donor", "taker", "kept"))
    run(with_values(donor, OLD, 2), donor, mode="resume")
    save_copy(donor, tmp_path / "saved")
    run(with_values(taker, NEW, 1), taker, mode="resume")  # what it trained itself is given up
    take_over(tmp_path / "saved", taker)
    taken = run(with_values(taker, NEW, 4), taker, mode="resume")
    assert recorded_stages(taker) == [(1, OLD), (3, NEW)]
    run(with_values(kept, OLD, 4), kept, mode="resume")
    lines = [(path / "metrics.csv").read_text().splitlines() for path in (donor, taker, kept)]
    times = [number for number, name in enumerate(lines[0][0].split(",")) if name.startswith("time/")]
    rows = [[[c for n, c in enumerate(line.split(",")) if n not in times] for line in own] for own in lines]
    assert rows[1][:3] == rows[0] == rows[2][:3]
    assert rows[1][3:] != rows[2][3:]
    assert len(rows[1]) == 5
    assert taken.summary["round"] == 4
    written = yaml.safe_load((taker / "config.yaml").read_text())
    assert written["algorithm"]["init_args"]["eta_g"] == 0.7


def test_what_a_trial_held_is_there_until_the_copy_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    donor, taker = (tmp_path / name for name in ("donor", "taker"))
    run(with_values(donor, OLD, 2), donor, mode="resume")
    run(with_values(taker, NEW, 1), taker, mode="resume")
    save_copy(donor, tmp_path / "saved")
    before = {file: file.read_bytes() for file in taker.rglob("*") if file.is_file()}

    def killed(path: Path, changed: object, new_id: str | None = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("lit_cfl.tune.population._rewrite", killed)
        with pytest.raises(KeyboardInterrupt):
            take_over(tmp_path / "saved", taker)
    assert {file: file.read_bytes() for file in before} == before
    take_over(tmp_path / "saved", taker)
    saved = Checkpoint(taker).load()
    assert saved is not None
    assert saved["round"] == 2
    assert not (taker / ".next").exists()


def test_the_same_values_go_on_as_if_nothing_had_been_copied(tmp_path: Path):
    donor, taker, straight = (tmp_path / name for name in ("donor", "taker", "straight"))
    run(with_values(donor, OLD, 2), donor, mode="resume")
    save_copy(donor, tmp_path / "saved")
    take_over(tmp_path / "saved", taker)
    run(with_values(taker, OLD, 4), taker, mode="resume")
    run(with_values(straight, OLD, 4), straight, mode="resume")
    assert recorded_stages(taker) == [(1, OLD)]
    states = [Checkpoint(path).load() for path in (taker, straight)]
    assert all(state is not None for state in states)
    assert torch.equal(*(state["state"]["models"] for state in states if state is not None))


def test_values_that_change_before_the_first_save_hold_from_the_first_round(tmp_path: Path):
    with_values(tmp_path, OLD, 2)
    with_values(tmp_path, NEW, 2)
    assert recorded_stages(tmp_path) == [(1, NEW)]


def test_half_a_file_of_stages_is_none(tmp_path: Path):
    (tmp_path / "stages.json").write_text('[[1, {"algorithm.eta')
    assert recorded_stages(tmp_path) == []


def test_a_copy_gets_an_identity_of_its_own_and_a_trial_that_goes_on_from_itself_keeps_it(tmp_path: Path):
    donor, taker, saved = (tmp_path / name for name in ("donor", "taker", "saved"))
    run(with_values(donor, OLD, 1), donor, mode="resume")
    for left in ("wandb/offline-run-1", "pictures"):
        (donor / left).mkdir(parents=True)
    (donor / ".metrics.csv.tmp").write_text("half")
    save_copy(donor, saved)
    assert not any(
        (saved / left).exists() for left in ("wandb", "pictures", ".metrics.csv.tmp", "summary.json", ".lock")
    )
    identity = recorded_run_id(donor)
    taker.mkdir()
    (taker / "wandb").mkdir()  # of what it was before
    take_over(saved, taker)
    assert recorded_run_id(taker) != identity
    assert not (taker / "wandb").exists()
    take_over(saved, donor)
    assert recorded_run_id(donor) == identity
    assert (donor / "wandb" / "offline-run-1").exists()
    run(with_values(taker, NEW, 2), taker, mode="resume")
    own = recorded_run_id(taker)
    assert own != identity
    assert json.loads((taker / "environment.json").read_text())["run_id"] == own
