"""Tests the search of `which_method`: the drawn trials, the chosen setting, and the page's statistics."""

import csv
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments import recorder
from experiments.cells import Setting
from experiments.command import main
from experiments.ledger import Ledger
from experiments.plan import PlannedRun
from experiments.recorder import LedgerRecorder
from experiments.which_method import Protocol, Search, find_run
from experiments.which_method_page import write_page
from experiments.which_method_results import (
    Entry,
    best_of_data,
    collect_entries,
    rank_systems,
    select_ranked_data,
)
from lit_cfl.experiment import Experiment
from lit_cfl.statistics import interval

COMMITTED = Path(__file__).parents[1] / "docs" / "which_method"
PROTOCOL = Protocol.read()
# one option of each system
OPTIONS = {"FedAvg": "algorithm.weights", "IFCA": "algorithm.weights", "StoCFL": "algorithm.tau"}
SMALL = replace(
    PROTOCOL,
    trials=3,
    seeds=(1, 2),
    common={"task.optimizer.lr": [0.1, 0.03]},
    edges=[],
    systems={
        name: PROTOCOL.systems[name] | {"options": {option: PROTOCOL.systems[name]["options"][option][:2]}}
        for name, option in OPTIONS.items()
    },
    data={name: PROTOCOL.data[name] for name in ("Rotated MNIST", "Hybrid MNIST")},
)


def add(ledger: Ledger, setting: Setting, seed: int, **scores: object) -> Ledger:
    """Returns a copy of the ledger with an additional run that has these scores."""
    command = setting.command(seed)
    row = {"run": command, "command": command, "algorithm": setting.method, "results_version": 99, "seconds": 1.0}
    row |= {"traffic": 100, "ari": None, "worst10_accuracy": 50.0, "newcomers_accuracy": 60.0, "num_clusters": 2}
    return Ledger(ledger.folder, {**ledger.rows, command: row | scores})


def ledger_of(accuracy: dict[str, list[float]], validation: dict[str, list[float]]) -> Ledger:
    """Makes a ledger with all runs of the small protocol.

    Args:
        accuracy: Accuracies of each system on both data sets, under both seeds.
        validation: Validation accuracies of each system's first trials; later trials have 0.
    """
    ledger = Ledger(Path("nowhere"), {})
    for data, system in SMALL.cells():
        number = list(SMALL.data).index(data)
        while runs := runs_to_come(data, system, ledger):
            for setting, seed in runs:
                kind, _, trial = setting.variant.partition(" ")
                known = validation[system][int(trial) : int(trial) + 1] if kind == "trial" else []
                tested = None if kind == "trial" else accuracy[system][2 * number + SMALL.seeds.index(seed)]
                ledger = add(ledger, setting, seed, validation_accuracy=[*known, 0.0][0], test_accuracy=tested)
    return ledger


def runs_to_come(data: str, system: str, ledger: Ledger) -> list[tuple[Setting, int]]:
    settings = SMALL.settings(ledger, data, system)
    return [(setting, seed) for setting in settings for seed in setting.seeds if not find_run(ledger, setting, seed)]


ACCURACY = {"FedAvg": [60.0, 62.0, 70.0, 70.0], "IFCA": [80.0, 81.0, 69.0, 70.0], "StoCFL": [79.0, 83.0, 65.0, 64.0]}
VALIDATION = {"FedAvg": [1.0, 3.0, 2.0], "IFCA": [5.0, 5.0, 5.0], "StoCFL": [1.0, 2.0, 3.0]}


FIRST_SYSTEMS = [name for name, what in PROTOCOL.systems.items() if "since" not in what]
FIRST_DATA = [name for name, what in PROTOCOL.data.items() if "since" not in what]


@pytest.mark.parametrize("system", FIRST_SYSTEMS)
def test_trials_are_the_default_and_others_of_the_grid(system: str):
    trials = PROTOCOL.draw_trials(system)
    grid = {**PROTOCOL.common, **PROTOCOL.systems[system]["options"]}
    assert len(trials) == PROTOCOL.trials == len({tuple(trial.items()) for trial in trials})
    assert trials[0] == {name: values[0] for name, values in grid.items()}
    assert all(trial[name] in values for trial in trials for name, values in grid.items())
    assert len(PROTOCOL.systems[system]["options"]) <= 3
    assert trials == PROTOCOL.draw_trials(system)


@pytest.mark.parametrize("data", PROTOCOL.data)
def test_every_first_trial_parses_and_is_the_system_s_default(data: str):
    cells = [cell for cell in PROTOCOL.cells() if cell[0] == data]
    for _, system in cells if data == "Rotated MNIST" else cells[list(PROTOCOL.data).index(data) :][:1]:
        first, *_, last = PROTOCOL.settings(Ledger(Path("nowhere"), {}), data, system)
        built = first.build(0)
        what = PROTOCOL.systems[system]
        assert type(built.algorithm).__name__ == what.get("algorithm", system)
        assert built.rounds == (60 if data == "MNIST by writer" else 100)
        named = {"shift_threshold": 0.2} if system == "FlexCFL" else {}  # with a metric of labels, null means 0.2
        named |= {name.rpartition(".")[2]: value for name, value in what.get("always", {}).items()}
        named |= {"num_clusters": PROTOCOL.data[data]["clusters"]} if what.get("needs_clusters") else {}
        assert repr(built.algorithm) == repr(type(built.algorithm)(**named))
        last.build(0)


def test_best_trial_is_that_of_validation_data_and_the_first_of_equals():
    ledger = ledger_of(ACCURACY, VALIDATION)
    for system, best in {"FedAvg": 1, "IFCA": 0, "StoCFL": 2}.items():
        assert SMALL.search("Rotated MNIST", system, ledger).chosen == SMALL.draw_trials(system)[best]


def searched(
    protocol: Protocol, data: str, system: str, validation: Callable[[dict[str, Any]], float], ledger: Ledger
) -> tuple[Search, Ledger]:
    """Completes a search in which the validation accuracy is a function of a trial's options."""
    while (search := protocol.search(data, system, ledger)).chosen is None:
        settings = protocol.settings(ledger, data, system)
        for setting, options in zip(settings, search.trials, strict=True):
            ledger = add(ledger, setting, 0, validation_accuracy=validation(options))
    return search, ledger


RATE, WEIGHTS = "task.optimizer.lr", "algorithm.weights"


def test_new_system_tries_every_rate_then_one_option_at_the_best_then_the_edge():
    def validation(options: dict[str, Any]) -> float:
        return 50 + min(options[RATE], 1.0) - 100 * (options[RATE] > 1) + 5 * (options[WEIGHTS] == "equal")

    search, _ = searched(PROTOCOL, "Mixture", "FedAvg", validation, Ledger(Path("nowhere"), {}))
    tried = [(trial[RATE], trial[WEIGHTS]) for trial in search.trials]
    assert tried == [
        *((rate, "examples") for rate in (0.03, 0.003, 0.01, 0.1, 0.3)),
        *((0.3, "equal"), (1.0, "equal"), (3.0, "equal")),
    ]
    assert search.chosen == {RATE: 1.0, WEIGHTS: "equal"}


def test_smallest_rate_is_followed_by_smaller_ones_as_far_as_there_are_any():
    search, _ = searched(PROTOCOL, "Mixture", "Local", lambda options: -options[RATE], Ledger(Path("nowhere"), {}))
    assert [trial[RATE] for trial in search.trials] == [0.03, 0.003, 0.01, 0.1, 0.3, 0.001, 0.0003]
    assert search.chosen == {RATE: 0.0003}


def test_fesem_no_longer_chooses_one_start_for_all_and_keeps_its_trials():
    start = "algorithm.start_partition"

    def validation(options: dict[str, Any]) -> float:
        return {"same": 90.0, "random": 80.0, "loss": 85.0}[options[start]] + options[RATE] * (options[RATE] < 0.3)

    data = "Rotated MNIST"
    search, ledger = searched(PROTOCOL, data, "FeSEM", validation, Ledger(Path("nowhere"), {}))
    assert search.trials[: PROTOCOL.trials] == PROTOCOL.draw_trials("FeSEM")
    assert search.chosen is not None
    assert search.chosen[start] == "loss"
    first = PROTOCOL.first_choice(data, "FeSEM", ledger)
    assert first is not None
    assert first[start] == "same"
    names = [(setting.variant, options[start]) for setting, options in PROTOCOL.list_reported(data, "FeSEM", ledger)]
    assert names[:2] == [("best", "loss"), ("first edition", "same")]
    assert {options for _, options in names[2:]} == {"loss"}


def test_runs_of_0_2_run_again_where_they_are_renewed():
    for data, open_seeds in (("Hybrid MNIST", [0]), ("Rotated MNIST", [])):
        setting, *_ = PROTOCOL.settings(Ledger(Path("nowhere"), {}), data, "CFL")
        ledger = Ledger(Path("nowhere"), {})
        assert PROTOCOL.open_seeds(ledger, setting, [0, 1]) == [0]
        assert PROTOCOL.open_seeds(add(ledger, setting, 0, version="0.2.0"), setting, [0, 1]) == open_seeds
        assert PROTOCOL.open_seeds(add(ledger, setting, 0, version="0.3.0"), setting, [0, 1]) == []


def test_accuracies_after_fine_tuning_are_those_of_the_system_that_fine_tunes():
    setting, *_ = PROTOCOL.settings(Ledger(Path("nowhere"), {}), "Mixture", "FedAvg + FT")
    scores = {"tuned_accuracy": 7.0, "worst10_tuned_accuracy": 3.0, "tuned_validation_accuracy": 5.0}
    row = find_run(add(Ledger(Path("nowhere"), {}), setting, 0, test_accuracy=1.0, **scores), setting, 0)
    assert row is not None
    assert (row["test_accuracy"], row["worst10_accuracy"], row["validation_accuracy"]) == (7.0, 3.0, 5.0)


def test_new_data_sets_run_first_and_oracle_only_where_there_are_true_clusters():
    cells = PROTOCOL.cells()
    new = {name for name in PROTOCOL.data if name not in FIRST_DATA}
    assert {data for data, _ in cells[: 22 * 4 - 2]} == new
    assert {data for data, system in cells if system == "Oracle"} == {*PROTOCOL.data} - {
        *("Dirichlet MNIST", "FEMNIST", "MNIST by writer", "Mixture")
    }


def test_statements_about_the_new_choice_follow_from_its_runs():
    found = {(e.data, e.system, e.variant): e for e in collect_entries(PROTOCOL, Ledger.read(COMMITTED))}
    means = [found["Shifting MNIST", "IFCA", variant] for variant in ("choose anew", "best")]
    accuracies = [interval([row["test_accuracy"] for row in entry.rows.values()]) for entry in means]
    shown = [f"{one.mean:.1f} ± {one.margin:.1f}" for one in accuracies]
    page = COMMITTED.with_suffix(".md").read_text()
    assert re.findall(r"^\| IFCA,? who.* \| (.*) \|$", page, flags=re.MULTILINE) == [shown[1], shown[0]]


def test_nothing_is_reported_before_all_trials_are_over():
    ledger = ledger_of(ACCURACY, VALIDATION)
    lacking = next(s for s in SMALL.settings(ledger, "Rotated MNIST", "IFCA") if s.variant == "trial 1").command(0)
    ledger = Ledger(ledger.folder, {name: row for name, row in ledger.rows.items() if name != lacking})
    assert SMALL.list_reported("Rotated MNIST", "IFCA", ledger) == []
    assert list(select_ranked_data(SMALL, best_of_data(SMALL, collect_entries(SMALL, ledger)))) == ["Hybrid MNIST"]


def test_choice_of_the_first_edition_remains_until_the_search_is_completed(tmp_path: Path):
    ledger = ledger_of(ACCURACY, VALIDATION)
    later = next(s for s in SMALL.settings(ledger, "Hybrid MNIST", "FedAvg") if s.variant == "trial 3").command(0)
    ledger = Ledger(ledger.folder, {name: row for name, row in ledger.rows.items() if name != later})
    assert SMALL.search("Hybrid MNIST", "FedAvg", ledger).chosen is None
    found = {(e.data, e.system): e.completed for e in collect_entries(SMALL, ledger) if e.variant == "best"}
    assert [cell for cell, completed in found.items() if not completed] == [("Hybrid MNIST", "FedAvg")]
    assert write_page(tmp_path / "which_method", SMALL, ledger).endswith(" runs, 5 of 6 cells")
    assert "| FedAvg † | 70.0 |" in (tmp_path / "which_method.md").read_text()


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[PlannedRun]:
    """Makes all runs fail; returns a list that records the runs that a command starts."""
    asked: list[PlannedRun] = []

    def run(recorder: LedgerRecorder, todo: list[PlannedRun], *_: object) -> dict[PlannedRun, str]:
        asked.extend(todo)
        return dict.fromkeys(todo, "it diverged")

    monkeypatch.setattr(Protocol, "read", lambda: SMALL)
    monkeypatch.setattr(LedgerRecorder, "run", run)
    return asked


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


def test_trial_that_diverges_has_been_tried_and_cannot_be_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Only divergence counts as a result; other failures are reported, and the trial runs again."""
    errors = ["client 3 diverged in round 2: training loss nan", "no space left"]
    settings = list(SMALL.settings(Ledger(tmp_path, {}), "Hybrid MNIST", "FedAvg"))[:2]
    todo = [PlannedRun(setting, 0, f"key{number}", "FedAvg", 5) for number, setting in enumerate(settings)]

    def run_many(experiments: dict[Path, Experiment], *_: object) -> dict[Path, str]:
        return {folder / "seed-0": error for folder, error in zip(experiments, errors, strict=True)}

    monkeypatch.setattr(recorder, "run_many", run_many)
    keeper = LedgerRecorder("which-method", Ledger(tmp_path, {}), tmp_path / "runs", lambda ledger: "")
    assert keeper.run(todo, None, 1) == {todo[1]: "no space left"}
    rows = Ledger.read(tmp_path).rows
    assert [(key, row["validation_accuracy"]) for key, row in rows.items()] == [("key0", None)]


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
    # trials come from the committed files, although the runs are written elsewhere
    monkeypatch.chdir(COMMITTED.parents[2])
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


def test_page_has_means_paired_intervals_and_ranks(tmp_path: Path):
    ledger = ledger_of(ACCURACY, VALIDATION)
    (tmp_path / "which_method").mkdir()
    (tmp_path / "which_method" / "in_short.txt").write_text("By hand.\n")
    shown = write_page(tmp_path / "which_method", SMALL, ledger)
    assert shown.endswith(" runs, 6 of 6 cells")
    page = (tmp_path / "which_method.md").read_text()
    # 79 - 60 and 83 - 62: mean 20, standard deviation sqrt(2), t(0.975, 1) = 12.706, so 12.706 * sqrt(2) / sqrt(2)
    assert "| StoCFL | 81.0 | +20.00 ± 12.71 |  |  | 50.0 | 2 |" in page
    assert "\n\nBy hand.\n\n**Second edition: 6 of 6 cells**" in page
    assert "\n\n![Accuracy of every" in page
    assert "* **Rotated MNIST**: StoCFL (81.0 %), not significantly better than IFCA" in page
    assert "* **Hybrid MNIST**: FedAvg (70.0 %)" in page
    assert (tmp_path / "which_method" / "systems.png").stat().st_size > 5000
    groups = best_of_data(SMALL, collect_entries(SMALL, ledger))
    assert rank_systems(groups).mean_ranks == {"FedAvg": 2.0, "IFCA": 2.0, "StoCFL": 2.0}
    alone = {"Rotated MNIST": groups["Rotated MNIST"]}  # accuracies 81, 80.5 and 61
    assert rank_systems(alone).mean_ranks == {"StoCFL": 1.0, "IFCA": 2.0, "FedAvg": 3.0}


def test_picture_colours_only_significant_differences_from_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    drawn = []

    def draw(texts: np.ndarray, values: np.ndarray, rows: list[str], *others: object, linear: float) -> Figure:
        drawn.append(dict(zip(rows, values.tolist(), strict=True)))
        return Figure()

    monkeypatch.setattr("experiments.which_method_page.heat_table", draw)
    write_page(tmp_path / "which_method", SMALL, ledger_of(ACCURACY, VALIDATION))
    # on Hybrid, IFCA's differences are -1 and 0 (+- 6.4), StoCFL's are -5 and -6 (+- 6.4)
    assert drawn == [{"FedAvg": [0, 0], "IFCA": [19.5, 0], "StoCFL": [20, 0]}]


def test_page_marks_runs_that_end_with_one_cluster():
    rows = {seed: {"num_clusters": count} for seed, count in enumerate([1, 4, 1], 1)}
    entry = Entry("Mixture", "IFCA", "best", {}, True, rows)
    assert (entry.clusters, entry.num_degenerate) == ([1, 4, 1], 2)
    # a system with one model by design does not count as degenerate
    assert replace(entry, system="FedAvg").num_degenerate == 0


def test_share_of_oracles_gain(tmp_path: Path):
    """StoCFL gains 20 of the 26 points that Oracle gains over FedAvg; Oracle does not count as the best."""
    protocol = replace(SMALL, systems={**SMALL.systems, "Oracle": {"since": 2, "options": {}}})
    ledger = ledger_of(ACCURACY, VALIDATION)
    for data in SMALL.data:
        while runs := [
            (setting, seed)
            for setting in protocol.settings(ledger, data, "Oracle")
            for seed in setting.seeds
            if not find_run(ledger, setting, seed)
        ]:
            for setting, seed in runs:
                ledger = add(ledger, setting, seed, validation_accuracy=0.0, test_accuracy=84.0 + 2 * seed)
    write_page(tmp_path / "which_method", protocol, ledger)
    with (tmp_path / "which_method" / "results.csv").open(newline="") as file:
        rows = {(row["data"], row["system"]): row for row in csv.DictReader(file) if row["variant"] == "best"}
    assert float(rows["Rotated MNIST", "Oracle"]["to_fedavg"]) == pytest.approx(26)
    assert float(rows["Rotated MNIST", "StoCFL"]["of_oracle"]) == pytest.approx(100 * 20 / 26, abs=0.01)
    assert rows["Rotated MNIST", "FedAvg"]["of_oracle"] == ""
    assert rows["Rotated MNIST", "StoCFL"]["to_best"] == ""
