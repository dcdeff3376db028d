"""Tests when a run is resumed: which experiment, data, plan, machine and code it needs, and its files till then.

That a resumed run equals an uninterrupted one is tested by `test_resumed_features.py`.
"""

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from digits_experiment import digits, timeless_rows
from processes import OPTIONS, ROUNDS, replace_everywhere, resume
from same_files import find_differences
from torch import nn
from torch.optim import SGD

from lit_cfl import compare, load_experiment, load_run, run
from lit_cfl.algorithms import FedAvg
from lit_cfl.cli.main import main
from lit_cfl.datamodules import ArrayData, Digits
from lit_cfl.datamodules.shift import SwapAll
from lit_cfl.early_stopping import StopRule
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError, Notice
from lit_cfl.runs import environment as module
from lit_cfl.runs.resume import require_agreement
from lit_cfl.runs.run import RunCallbacks
from lit_cfl.tasks import Classification

# Files of runs that were killed


class Killed(BaseException):
    pass


def test_an_extension_has_no_files_of_the_earlier_end(tmp_path: Path):
    path = tmp_path / "run"
    run(digits(rounds=1), path)
    names = {"summary.json", "clients.csv", "memberships.npz", "SHA256SUMS"}
    assert names < {file.name for file in path.iterdir()}

    def die(row: dict[str, Any]) -> None:
        raise Killed

    with pytest.raises(Killed):
        run(digits(rounds=2), path, RunCallbacks(row=die), mode="resume")
    assert not names & {file.name for file in path.iterdir()}
    with pytest.raises(InputError, match=r"has no clients\.csv yet"):
        _ = load_run(path, digits(rounds=2)).clients


def test_a_run_killed_between_a_checkpoint_with_more_rounds_and_its_configuration_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole, path, replace = run(digits(rounds=3), tmp_path / "whole").path, tmp_path / "run", Path.replace
    run(digits(rounds=1), path)
    before = (path / "config.yaml").read_bytes()

    def dying(self: Path, target: Path) -> Path:
        if Path(target).name == "config.yaml":
            raise Killed
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dying)
        with pytest.raises(Killed):
            run(digits(rounds=3), path, mode="resume")
    assert (path / "config.yaml").read_bytes() == before
    with pytest.raises(InputError, match="rounds"):
        run(digits(rounds=1), path, mode="resume")
    run(digits(rounds=3), path, mode="resume")
    assert timeless_rows(path / "metrics.csv") == timeless_rows(whole / "metrics.csv")


def test_a_finished_run_prints_its_table_and_changes_nothing(ended: Path, capsys):
    before = {p: p.read_bytes() for p in ended.rglob("*") if p.is_file()}
    assert main(["run", *OPTIONS.split(), "--rounds", str(ROUNDS), "--resume", str(ended)]) == 0
    assert "weighted accuracy" in capsys.readouterr().out
    assert {p: p.read_bytes() for p in ended.rglob("*") if p.is_file()} == before


def test_options_that_differ_are_named_with_both_values(tmp_path: Path):
    stored = {"rounds": 5, "local": {"epochs": 2, "last_batch": "keep"}, "plan": vars(Plan("loop"))}
    joined = stored | {"local": {"epochs": 2, "last_batch": "join"}}
    require_agreement(tmp_path, stored, stored, new_plan=False)
    # a class without arguments, as it is recorded and as it is typed
    recorded, typed = {"class_path": "Digits", "init_args": {}}, {"class_path": "Digits"}
    require_agreement(tmp_path, stored | {"data": recorded}, stored | {"data": typed}, new_plan=False)
    for before, now, named in (
        (stored | {"plan": 3}, stored, "plan: 3 ->"),  # the plan of a damaged file
        (stored, joined, r"local\.last_batch: keep -> join"),
        (stored | {"local": {"epochs": 2}}, stored, r"local\.last_batch: \(not set\) -> keep"),
    ):
        with pytest.raises(InputError, match=named):
            require_agreement(tmp_path, before, now, new_plan=False)


def task(activation: type[nn.Module] = nn.ReLU, p: float = 0.5, rate: float = 0.1, hidden: bool = False) -> Any:
    """Returns a factory of a task whose net has the same shapes and initial weights for all arguments.

    If the learning rate is hidden, only the optimizer shows it.
    """

    def build() -> Classification:
        layers = (nn.Flatten(), nn.Dropout(p), nn.Linear(64, 8), activation(), nn.Linear(8, 10))
        optimizer = partial(SGD, lr=rate)
        return Classification(nn.Sequential(*layers), (lambda found: optimizer(found)) if hidden else optimizer)

    return build


def sums(scale: float) -> ArrayData:
    x = np.random.default_rng(0).random((80, 1, 8, 8), dtype=np.float32)
    return ArrayData(x=x, y=np.arange(80) % 10, client=np.arange(80) % 8, scale=scale)


@pytest.mark.parametrize(
    ("option", "before", "after", "message"),
    [
        ("task", task(rate=0.1), task(rate=0.2), "a different optimizer"),
        ("task", task(rate=0.1, hidden=True), task(rate=0.2, hidden=True), "a different optimizer"),
        ("task", task(p=0.1), task(p=0.4), "a different net"),
        ("task", task(), task(nn.Tanh), "a different net"),
        ("data", sums(1.0), sums(2.0), "a different scale of the inputs"),
        ("data", Digits(8, shift=SwapAll(0.1)), Digits(8, shift=SwapAll(0.2)), r"data\.shift: .*0\.1.* -> .*0\.2"),
        ("server", partial(SGD, lr=1.0), partial(SGD, lr=0.5), r"server\.made: .*SGD\(lr=1\.0\) -> .*SGD\(lr=0\.5\)"),
    ],
)
def test_a_run_made_in_python_is_not_resumed_with_another_experiment(
    option: str, before: Any, after: Any, message: str, tmp_path: Path
):
    def resumed(value: Any, rounds: int) -> Any:
        made = digits(algorithm=FedAvg(), rounds=rounds, **{option: value})
        return run(made, tmp_path / "run", mode="resume").summary["round"]

    assert resumed(before, 1) == resumed(before, 1) == 1
    for rounds in (1, 2):
        with pytest.raises(InputError, match=message):
            resumed(after, rounds)


def test_the_plan_of_another_machine_is_replaced_only_if_asked_for(ended: Path, whole: Path, capsys):
    (ended / "summary.json").unlink()
    replace_everywhere(ended, "device: cpu", "device: cuda:31")
    assert main(resume(ended)) == 2
    assert "device cuda:31" in capsys.readouterr().err
    assert main(resume(ended, "--new_plan")) == 0
    assert yaml.safe_load((ended / "config.yaml").read_text())["plan"]["device"] == "cpu"
    assert timeless_rows(ended / "metrics.csv") == timeless_rows(whole / "metrics.csv")


def test_sums_that_round_differently_are_noted_once_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "run"
    run(digits(rounds=2), path)
    before = json.loads((path / "environment.json").read_text())
    monkeypatch.setattr(module, "processor_name", lambda: "another processor")
    with pytest.warns(Notice, match="another processor, not .*: sums may round differently"):
        run(digits(rounds=3), path, mode="resume")
    after = json.loads((path / "environment.json").read_text())
    difference = f"after round 2: processor another processor, not {before['processor']}"
    assert after == before | {"processor": "another processor", "earlier": [difference]}
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        run(digits(rounds=4), path, mode="resume")
    assert json.loads((path / "environment.json").read_text()) == after


def test_only_what_the_plan_uses_counts():
    now = module.environment()
    other = now | {"chains": "compiled elsewhere", "gpus": ["a GPU"]}
    assert module.resumed_environment(other, Plan("loop"), 2) == (other, "")
    assert module.resumed_environment(other, Plan("chain", "cuda:0"), 2)[1] == "GPUs none, not a GPU"
    elsewhere = now | {"packages": now["packages"] | {"torch": "1.0"}}
    assert module.resumed_environment(elsewhere, Plan("loop"), 2)[1] == f"torch {now['packages']['torch']}, not 1.0"


@pytest.mark.usefixtures("no_figures")
def test_edited_configuration_of_several_seeds_is_refused_with_the_name_of_the_option(tmp_path: Path):
    experiment = digits(seeds=[0, 1], rounds=2)
    run(experiment, tmp_path)
    file = tmp_path / "config.yaml"
    for old, new, changes in (
        ("rounds: 2", "rounds: 3", {"rounds": 3}),
        ("seeds:\n- 0\n- 1", "seeds:\n- 0\n- 2", {"seeds": [0, 2]}),
        ("cohort_size: 5", "cohort_size: 4", {"cohort_size": 4}),
    ):
        before = file.read_text()
        file.write_text(before.replace(old, new))
        with pytest.raises(InputError, match=rf"config.yaml is not the file .* saved with: {old.partition(':')[0]}: "):
            run(replace(experiment, **changes), tmp_path, mode="resume")
        file.write_text(before)
    for seeds in ([0, 2], [0]):  # asked for, while the file is unchanged
        with pytest.raises(InputError, match=rf"different configuration: seeds: \[0, 1\] -> \{seeds}"):
            run(replace(experiment, seeds=seeds), tmp_path, mode="resume")
    assert sorted(found.name for found in tmp_path.glob("seed-*")) == ["seed-0", "seed-1"]
    run(experiment, tmp_path, mode="resume")


def test_killed_extension_of_several_seeds_goes_on_to_its_rounds(tmp_path: Path):
    experiment = digits(seeds=[0, 1], rounds=3)
    run(experiment, tmp_path / "whole")
    path = tmp_path / "parts"
    run(replace(experiment, rounds=2), path)
    before = (path / "config.yaml").read_text()
    run(experiment.for_seed(0), path / "seed-0", mode="resume")  # as if killed before the second seed
    assert (path / "config.yaml").read_text() == before
    first = (path / "seed-0" / "checkpoint.pt").stat().st_mtime_ns
    run(replace(experiment, rounds=2), path, mode="resume")  # the rounds in config.yaml
    assert (path / "seed-0" / "checkpoint.pt").stat().st_mtime_ns == first
    assert (path / "config.yaml").read_text() == (tmp_path / "whole" / "config.yaml").read_text()
    assert not find_differences(path, tmp_path / "whole")


def test_seeds_that_stopped_early_keep_their_rounds(tmp_path: Path):
    experiment = digits(seeds=[0, 1], rounds=4, stop=StopRule(metric="val/weighted_accuracy", target=0.01))
    run(experiment, tmp_path)
    before = (tmp_path / "config.yaml").read_text()
    for _ in range(2):
        run(replace(experiment, rounds=6), tmp_path, mode="resume")
        assert (tmp_path / "config.yaml").read_text() == before


WORDS = "--data ArrayData --data.source visits.csv --data.test 0.2 --rounds 1 --cohort_size 2"
CHANGED = "seed-0 was made with different data"


def write_table(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines = [f"{k % 4},{rng.normal():.3f},{rng.normal():.3f},{k // 4 % 2}" for k in range(80)]
    Path("visits.csv").write_text("\n".join(["client,a,b,y", *lines]) + "\n")


def table_run(path: str, *words: str, mode: str = "new") -> None:
    run(load_experiment("fedavg/digits", [*WORDS.split(), *words]), path, mode=mode)


def seeds(mode: str = "new") -> None:
    table_run("runs", "--seeds", "[0,1]", mode=mode)


def baseline(mode: str = "new") -> None:
    table_run("seed-0", "--baseline", "Local", mode=mode)


def comparison(mode: str = "new") -> None:
    if mode == "new":
        compare("fedavg/digits", ["FedAvg", "Local"], [0, 1], WORDS.split(), compare_dir="c", num_cpus=1)
    else:
        compare(resume="c", num_cpus=1)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(0)


@pytest.mark.usefixtures("table", "no_figures")
@pytest.mark.parametrize(
    ("start", "lost"), [(seeds, "runs/seed-1"), (baseline, "seed-0/baseline"), (comparison, "c/Local/seed-1")]
)
def test_runs_are_not_added_to_those_on_other_data(start: Callable[..., None], lost: str):
    start()
    shutil.rmtree(lost)
    write_table(1)
    with pytest.raises(InputError, match=CHANGED):
        start("resume")


@pytest.mark.usefixtures("table", "no_figures")
@pytest.mark.parametrize(("old", "new"), [("client,a,b,y", "client,weight,b,y"), (",yes", ",NEVER")])
def test_columns_and_labels_keep_their_names_until_all_runs_have_finished(old: str, new: str):
    table = Path("visits.csv").read_text().replace(",0\n", ",no\n").replace(",1\n", ",yes\n")
    Path("visits.csv").write_text(table)
    seeds()
    shutil.rmtree("runs/seed-1")
    Path("visits.csv").write_text(table.replace(old, new))
    with pytest.raises(InputError, match=CHANGED):
        seeds("resume")
    Path("visits.csv").write_text(table)
    seeds("resume")
    Path("visits.csv").write_text(table.replace(old, new))
    seeds("resume")  # loads no data
