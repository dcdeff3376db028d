"""Which method when: the trials that are drawn, the setting that is chosen, and the page's statistics."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks.reproduction.cells import Setting
from benchmarks.reproduction.command import main
from benchmarks.reproduction.ledger import Ledger
from benchmarks.reproduction.plan import PlannedRun
from benchmarks.reproduction.recorder import LedgerRecorder
from benchmarks.reproduction.result_key import result_key
from benchmarks.reproduction.which_method import Protocol, recorded
from benchmarks.reproduction.which_method_page import write_page
from benchmarks.reproduction.which_method_results import complete_data, entries, ranking
from lit_cfl.config.variants import base_config, build
from lit_cfl.experiment import Experiment
from lit_cfl.statistics import interval

COMMITTED = Path(__file__).parents[3] / "docs" / "which_method"
PROTOCOL = Protocol.read()
OPTIONS = {"FedAvg": "algorithm.weights", "IFCA": "algorithm.weights", "StoCFL": "algorithm.tau"}  # one of each
SMALL = replace(
    PROTOCOL,
    trials=3,
    seeds=(1, 2),
    common={"task.optimizer.lr": [0.1]},
    edges=[],
    systems={
        name: PROTOCOL.systems[name] | {"options": {option: PROTOCOL.systems[name]["options"][option][:2]}}
        for name, option in OPTIONS.items()
    },
    data={name: PROTOCOL.data[name] for name in ("Rotated MNIST", "Hybrid MNIST")},
)


def ledger_of(accuracy: dict[str, list[float]], validation: dict[str, list[float]]) -> Ledger:
    """Records all runs of the small protocol.

    Args:
        accuracy: of each system, on both data sets, under both seeds.
        validation: of each system's trials.
    """
    ledger = Ledger(Path("nowhere"), {})

    def add(setting: Setting, seed: int, **scores: float | None) -> Ledger:
        command = setting.command(seed)
        row = {"run": command, "command": command, "algorithm": setting.method, "results_version": 99, "seconds": 1.0}
        row |= {"traffic": 100, "ari": None, "worst10_accuracy": 50.0, "newcomers_accuracy": 60.0} | scores
        return Ledger(ledger.folder, {**ledger.rows, command: row})

    for number, data in enumerate(SMALL.data):
        for system in SMALL.systems:
            for trial, setting in enumerate(SMALL.searched(data, system)):
                ledger = add(setting, 0, validation_accuracy=validation[system][trial], test_accuracy=None)
            for setting in SMALL.reported(data, system, ledger):
                for place, seed in enumerate(SMALL.seeds):
                    ledger = add(
                        setting, seed, validation_accuracy=0.0, test_accuracy=accuracy[system][2 * number + place]
                    )
    return ledger


ACCURACY = {"FedAvg": [60.0, 62.0, 70.0, 70.0], "IFCA": [80.0, 81.0, 69.0, 70.0], "StoCFL": [79.0, 83.0, 65.0, 64.0]}
VALIDATION = {"FedAvg": [1.0, 3.0, 2.0], "IFCA": [5.0, 5.0, 5.0], "StoCFL": [1.0, 2.0, 3.0]}


@pytest.mark.parametrize("system", PROTOCOL.systems)
def test_trials_are_the_default_and_others_of_the_grid(system: str):
    trials = PROTOCOL.drawn(system)
    grid = {**PROTOCOL.common, **PROTOCOL.systems[system]["options"]}
    assert len(trials) == PROTOCOL.trials == len({tuple(trial.items()) for trial in trials})
    assert trials[0] == {name: values[0] for name, values in grid.items()}
    assert all(trial[name] in values for trial in trials for name, values in grid.items())
    assert len(PROTOCOL.systems[system]["options"]) <= 3
    assert trials == PROTOCOL.drawn(system)


@pytest.mark.full
@pytest.mark.parametrize("data", PROTOCOL.data)
def test_every_trial_parses_and_its_default_is_the_system_s_own(data: str):
    base = base_config(PROTOCOL.data[data]["config"])
    numbers = range(len(PROTOCOL.systems)) if data == "Rotated MNIST" else [list(PROTOCOL.data).index(data)]
    for system in (list(PROTOCOL.systems)[number] for number in numbers):
        first, *_, last = PROTOCOL.searched(data, system)
        built: Experiment = build(base, first.words_of(0))
        assert type(built.algorithm).__name__ == system
        assert built.rounds == 100
        named = (
            {"shift_threshold": 0.2} if "shift_threshold" in str(first.words_of(0)) else {}
        )  # what null is for labels
        assert repr(built.algorithm) == repr(type(built.algorithm)(**_clusters(data, system), **named))
        build(base, last.words_of(0))


def _clusters(data: str, system: str) -> dict[str, int]:
    needed = PROTOCOL.systems[system].get("needs_clusters")
    return {"num_clusters": PROTOCOL.data[data]["clusters"]} if needed else {}


def test_best_trial_is_that_of_validation_data_and_the_first_of_equals():
    ledger = ledger_of(ACCURACY, VALIDATION)
    for system, best in {"FedAvg": 1, "IFCA": 0, "StoCFL": 2}.items():
        assert SMALL.chosen("Rotated MNIST", system, ledger) == SMALL.drawn(system)[best]


@pytest.mark.parametrize("data", PROTOCOL.data)
def test_committed_runs_are_those_of_todays_configurations(data: str):
    """Runs are found by their commands alone, for to build each experiment would take minutes."""
    first, *_ = PROTOCOL.searched(data, "FedAvg")
    row = recorded(Ledger.read(COMMITTED), first, 0)
    assert row is not None
    assert row["run"] == result_key(first.configs([0])[0])


@pytest.mark.full
def test_committed_page_and_results_follow_from_the_committed_runs(tmp_path: Path):
    out = tmp_path / COMMITTED.name
    out.mkdir()
    shutil.copy(COMMITTED / "in_short.txt", out)
    write_page(out, PROTOCOL, Ledger.read(COMMITTED))
    assert (out / "results.csv").read_text() == (COMMITTED / "results.csv").read_text()
    assert out.with_suffix(".md").read_text() == COMMITTED.with_suffix(".md").read_text()


def test_what_the_page_says_of_choosing_anew_is_that_of_its_runs():
    found = {(e.data, e.system, e.variant): e for e in entries(PROTOCOL, Ledger.read(COMMITTED))}
    means = [found["Shifting MNIST", "IFCA", variant] for variant in ("choose anew", "best")]
    accuracies = [interval([row["test_accuracy"] for row in entry.rows.values()]) for entry in means]
    told = [f"{one.mean:.1f} ± {one.margin:.1f}" for one in accuracies]
    page = COMMITTED.with_suffix(".md").read_text()
    assert re.findall(r"^\| IFCA,? who.* \| (.*) \|$", page, flags=re.MULTILINE) == [told[1], told[0]]


def test_nothing_is_reported_before_all_trials_are_over():
    ledger = ledger_of(ACCURACY, VALIDATION)
    lacking = SMALL.searched("Rotated MNIST", "IFCA")[1].command(0)
    ledger = Ledger(ledger.folder, {name: row for name, row in ledger.rows.items() if name != lacking})
    assert SMALL.reported("Rotated MNIST", "IFCA", ledger) == []
    assert list(complete_data(SMALL, entries(SMALL, ledger))) == ["Hybrid MNIST"]


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[PlannedRun]:
    """Lists the runs that a command starts; all of them fail."""
    asked: list[PlannedRun] = []

    def run(recorder: LedgerRecorder, todo: list[PlannedRun], *_: object) -> dict[PlannedRun, str]:
        asked.extend(todo)
        return dict.fromkeys(todo, "it diverged")

    monkeypatch.setattr(Protocol, "read", lambda: SMALL)
    monkeypatch.setattr(LedgerRecorder, "run", run)
    return asked


@pytest.mark.full
def test_data_sets_after_one_whose_trials_fail_run_all_the_same(
    tmp_path: Path, attempts: list[PlannedRun], capsys: pytest.CaptureFixture[str]
):
    words = ["which-method", "--out", str(tmp_path / "answer-0.1"), "--only", "*/FedAvg", "--variants", "trial *"]
    assert main(words) == 1
    assert [str(run) for run in attempts] == [
        f"{data}, FedAvg (trial {number}), seed 0" for data in SMALL.data for number in range(3)
    ]
    assert capsys.readouterr().out.count(" failed: it diverged\n") == 6
    assert (tmp_path / "answer-0.1.md").exists()


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--variants", "trial 1", "--seeds", "0"], "--task.optimizer.lr 0.03 --algorithm.weights equal --seed 0"),
        (["--variants", "best", "--seeds", "2"], "--config which_method/hybrid_mnist --algorithm FedAvg"),
    ],
)
def test_one_run_can_be_trained_alone(
    words: list[str], command: str, tmp_path: Path, attempts: list[PlannedRun], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(COMMITTED.parents[1])  # the committed trials have chosen, though the runs go elsewhere
    monkeypatch.setattr(Protocol, "read", lambda: replace(PROTOCOL, data=SMALL.data))
    assert main(["which-method", "--out", str(tmp_path / "one"), "--only", "Hybrid MNIST/FedAvg", *words]) == 1
    (run,) = attempts
    assert (run.setting.variant, run.seed) == (words[1], int(words[3]))
    recorded_row = Ledger.read(COMMITTED).by_command[run.setting.command(run.seed)]
    assert recorded_row["run"] == run.key
    assert command in recorded_row["command"]


def test_folder_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["which-method", "--out", "."]) == 2
    assert "--out .: the page is written next to the folder; name one" in capsys.readouterr().err


def test_runs_are_counted():
    ledger = ledger_of(ACCURACY, VALIDATION)
    # trials of three systems; under two seeds the best of each, newcomers on rotated MNIST, and there IFCA's 2 and 8
    counts = {"Rotated MNIST": 3 * 3 + (3 + 3 + 2) * 2, "Hybrid MNIST": 3 * 3 + 3 * 2}
    assert {data: SMALL.num_runs(data) for data in SMALL.data} == counts
    assert len(ledger.rows) == sum(counts.values())


def test_page_has_means_paired_intervals_and_ranks(tmp_path: Path):
    ledger = ledger_of(ACCURACY, VALIDATION)
    (tmp_path / "which_method").mkdir()
    (tmp_path / "which_method" / "in_short.txt").write_text("By hand.\n")
    told = write_page(tmp_path / "which_method", SMALL, ledger)
    assert told == "40 of 40 runs, 2 of 2 data sets"
    page = (tmp_path / "which_method.md").read_text()
    # 79 - 60 and 83 - 62: mean 20, standard deviation sqrt(2), t(0.975, 1) = 12.706, so 12.706 * sqrt(2) / sqrt(2)
    assert "| StoCFL | 81.0 | +20.00 ± 12.71 |  | 50.0 |" in page
    assert "\n\nBy hand.\n\n![Accuracy of every" in page
    assert "* **Rotated MNIST**: StoCFL (81.0 %), not told apart from IFCA" in page
    assert "* **Hybrid MNIST**: FedAvg (70.0 %)" in page
    assert (tmp_path / "which_method" / "systems.png").stat().st_size > 5000
    groups = complete_data(SMALL, entries(SMALL, ledger))
    assert ranking(groups).mean_ranks == {"FedAvg": 2.0, "IFCA": 2.0, "StoCFL": 2.0}
    alone = {"Rotated MNIST": groups["Rotated MNIST"]}  # 81, 80.5 and 61
    assert ranking(alone).mean_ranks == {"StoCFL": 1.0, "IFCA": 2.0, "FedAvg": 3.0}


def test_picture_colours_only_what_is_told_apart_from_the_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn = []

    def draw(texts: np.ndarray, values: np.ndarray, rows: list[str], *others: object, linear: float) -> Figure:
        drawn.append(dict(zip(rows, values.tolist(), strict=True)))
        return Figure()

    monkeypatch.setattr("benchmarks.reproduction.which_method_page.heat_table", draw)
    write_page(tmp_path / "which_method", SMALL, ledger_of(ACCURACY, VALIDATION))
    # hybrid: IFCA's differences are -1 and 0, +- 6.4; StoCFL's are -5 and -6, +- 6.4
    assert drawn == [{"FedAvg": [0, 0], "IFCA": [19.5, 0], "StoCFL": [20, 0]}]


def test_page_names_the_data_whose_seconds_are_of_compiled_stacks(tmp_path: Path):
    ledger = ledger_of(ACCURACY, VALIDATION)
    key = next(setting for setting in SMALL.reported("Hybrid MNIST", "IFCA", ledger)).command(SMALL.seeds[0])
    for plan, named in (({"compile": True}, True), ({"compile": False, "fused": True}, False)):
        rows = {name: row | ({"plan": json.dumps(plan)} if name == key else {}) for name, row in ledger.rows.items()}
        write_page(tmp_path / "which_method", SMALL, Ledger(ledger.folder, rows))
        assert ("Some runs on Hybrid MNIST\n" in (tmp_path / "which_method.md").read_text()) == named
