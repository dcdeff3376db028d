"""Tests the reproduction of tables: cells, keys of runs, the ledger, and a command resumed after a kill."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from recorded import recorded

from experiments.cells import Setting, load_table, table_names
from experiments.command import main
from experiments.ledger import Ledger
from experiments.pages import COLUMNS, judge_cells, write_pages
from experiments.plan import (
    PlannedRun,
    estimate_seconds,
    find_missing,
    group_keys,
    plan_runs,
    select_cells,
)
from experiments.result_key import compute_key
from experiments.results import RecordedResults
from experiments.scores import read_scores
from lit_cfl import load_experiment, run
from lit_cfl.config.tiny import shrink
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError
from lit_cfl.runs.many import Job
from lit_cfl.storage import read_table

ROOT = Path(__file__).parents[2]
FACTS = ROOT.parent / "shared" / "design" / "paper_tables.yaml"
PAPERS = {"FlexCFL": {"1", "3", "4"}, "FedGroup": {"III"}, "StoCFL": {"1", "2", "3", "4", "5"}}


@pytest.mark.skipif(not FACTS.exists(), reason="the papers' tables as they were transcribed are not at hand")
def test_cells_are_those_of_the_papers():
    records = yaml.safe_load(FACTS.read_text())["records"]
    facts = {r["id"]: r["value"] for r in records if r["table"] in PAPERS.get(r["paper"], ())}
    cells = [cell for name in table_names() for cell in load_table(name).cells]
    assert {cell.id: cell.value for cell in cells} == facts


def test_there_are_447_cells():
    ids = [cell.id for name in table_names() for cell in load_table(name).cells]
    assert len(ids) == len(set(ids)) == 447


@pytest.mark.parametrize("name", table_names())
def test_every_cell_names_an_experiment_and_a_method_of_its_table(name: str):
    table = load_table(name)
    for cell in (*table.cells, *table.extras):
        assert cell.experiment in table.experiments
        assert cell.method in table.methods
        settings = table.settings(cell)
        assert bool(settings) == (table.not_run(cell) is None and (cell.value is not None or cell.extra))
        assert [setting.variant for setting in settings][:1] in ([], ["default"])
        assert ("published" in [setting.variant for setting in settings]) <= bool(table.why(cell))


def settings_of(name: str) -> Iterator[Setting]:
    """Yields settings that cover each method and each experiment of a table at least once."""
    table = load_table(name)
    cells = [cell for cell in (*table.cells, *table.extras) if table.settings(cell)]
    first = [{key(cell): cell for cell in reversed(cells)} for key in (attrgetter("method"), attrgetter("experiment"))]
    for cell in {cell.id: cell for found in first for cell in found.values()}.values():
        yield from table.settings(cell)


@pytest.mark.parametrize("name", table_names())
def test_longest_command_of_a_table_runs_tiny(name: str, tmp_path: Path):
    longest = max(settings_of(name), key=lambda setting: len(setting.command(0)))
    experiment = longest.build(longest.seeds[0])
    try:
        experiment.data.federated(longest.seeds[0])
    except InputError as error:
        if "LITCFL_DATA" not in str(error):
            raise
        pytest.skip(str(error))
    run(shrink(experiment), tmp_path / "run")
    assert read_scores(tmp_path / "run")["test_accuracy"] is not None


def test_pattern_that_fits_no_cell_is_named():
    with pytest.raises(InputError, match=r"no cell of flexcfl-1 matches \*-cnn-\*; there are flexcfl-t1-"):
        select_cells(load_table("flexcfl-1"), ["flexcfl-t1-*", "*-cnn-*"])  # fails although the first pattern matches


def test_key_follows_what_decides_the_result_and_nothing_else():
    def of(*words: str) -> str:
        return compute_key(load_experiment("fedgroup/digits", ["--seed", "1", *words]).to_dict())

    key, config = of(), load_experiment("fedgroup/digits", ["--seed", "1"]).to_dict()
    same = ["--name", "other", "--plan.threads", "2", "--engine", "trainer", "--tracking.wandb", "disabled"]
    assert of(*same) == key
    elsewhere = dict(config["algorithm"]) | {"class_path": "lit_cfl.algorithms.fedgroup.FedGroup"}
    assert compute_key(config | {"algorithm": elsewhere}) == key
    for words in (
        ["--seed", "2"],
        ["--rounds", "7"],
        ["--algorithm.eta_g", "0.1"],
        ["--task.optimizer.lr", "0.011"],
        ["--data.validation", "0.2"],
        ["--selection", "uniform", "--cohort_size", "7"],
        ["--task.starting_weights", "pytorch"],
        ["--local.last_batch", "drop"],
    ):
        assert of(*words) != key, words


def test_defaults_of_later_options_leave_a_key_unchanged():
    config = load_experiment("fedgroup/digits", ["--seed", "1"]).to_dict()
    task, local = dict(config["task"]["init_args"]), dict(config["local"])
    assert (task.pop("starting_weights"), local.pop("last_batch")) == ("net", "keep")
    earlier = config | {"task": config["task"] | {"init_args": task}, "local": local}
    assert compute_key(earlier) == compute_key(config)


def test_earlier_runs_with_the_default_threshold_of_migration_are_found():
    def of(threshold: float | None) -> str:
        return compute_key({"algorithm": {"class_path": "FlexCFL", "init_args": {"shift_threshold": threshold}}})

    assert of(None) == of(0.2) != of(0.3)


def test_population_of_synthetic_is_drawn_again_for_each_seed():
    table = load_table("flexcfl-3")
    (cell,) = select_cells(table, ["flexcfl-t3-synthetic_1_1-mclr-flexcfl-*"])
    runs = plan_runs(table, [cell])
    assert [run.seed for run in runs] == [2077, 2078, 2079, 2080, 2081]
    for planned in runs:
        config = planned.setting.build(planned.seed).to_dict()
        assert (config["data"]["init_args"]["population_seed"], config["seeds"]) == (planned.seed, [planned.seed])
        assert planned.key == compute_key(config)  # also for other seeds than that for which the command was parsed


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replaces the papers' tables with a table of two cells on the digits data."""
    folder = tmp_path / "tables"
    folder.mkdir()
    cells = [
        {"id": f"t-{method.lower()}", "experiment": "Digits MCLR", "method": method, "metric": metric, "value": 50.0}
        for method, metric in (("FedAvg", "max_weighted_test_accuracy"), ("Two", "accuracy_max"))
    ]
    quick = {"config": "quickstart", "options": "--algorithm FedAvg --data.num_clients 8 --cohort_size 2 --rounds 2"}
    content = {"paper": "P", "table": "1", "seeds": [1, 2], "experiments": {"Digits MCLR": quick}, "cells": cells}
    content["methods"] = {"FedAvg": {"published": "--local.epochs 2", "why": "C1"}, "Two": {}}
    (folder / "t.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setattr("experiments.cells._FOLDER", folder)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("tiny")
def test_table_is_filled_run_by_run_and_resumed(capsys: pytest.CaptureFixture[str]):
    assert main(["t", "--dry-run"]) == 0
    assert "4 runs are missing: 4 runs of unknown length" in capsys.readouterr().out
    assert main(["t", "--dry-run", "--variants", "publ*"]) == 0
    assert "2 runs are missing" in capsys.readouterr().out
    assert main(["t", "--seeds", "1", "--jobs", "1"]) == 0
    ledger, table = Ledger.read(Path("experiments/docs/reproduction")), load_table("t")
    assert len(ledger.rows) == 2  # both cells share the run with the default options
    rows = {row["id"]: row for row in read_table(Path("experiments/docs/reproduction/t.csv"))}
    assert tuple(rows["t-two"]) == COLUMNS
    assert rows["t-two"]["seeds"] == 1
    assert rows["t-fedavg"]["option"].startswith("published: --algorithm FedAvg")
    before = Path("experiments/docs/reproduction/runs.csv").read_bytes()
    assert main(["t", "--seeds", "1"]) == 0  # nothing is left to do
    assert Path("experiments/docs/reproduction/runs.csv").read_bytes() == before
    assert main(["t", "--jobs", "1"]) == 0
    assert len(Ledger.read(Path("experiments/docs/reproduction")).rows) == 4
    runs = plan_runs(table, table.cells)
    assert find_missing(runs, Ledger.read(Path("experiments/docs/reproduction"))) == []
    results = RecordedResults.read(Path("experiments/docs/reproduction"))
    assert [[row["seed"] for row in results.rows(*known)] for known in results.cells("t-*")] == [[1, 2], [1, 2]]
    assert "2 cells: " in capsys.readouterr().out


def test_time_of_a_run_is_that_of_the_recorded_ones_most_like_it(tmp_path: Path):
    def run(words: str, core_hours: float | None = None) -> PlannedRun:
        setting = Setting(
            "t", "Digits MCLR", "FedAvg", "default", "quickstart", tuple(words.split()), (9,), None, core_hours
        )
        return PlannedRun(setting, 9, "", "FedAvg", int(words.split()[1]))

    ledger = Ledger.read(tmp_path)
    assert estimate_seconds(run("--rounds 5"), ledger) is None
    assert estimate_seconds(run("--rounds 5", 0.5), ledger) == 1800
    recorded = {
        "--rounds 5 --seed 1": 10,
        "--rounds 5 --seed 2": 30,
        "--rounds 5 --seed 3 --data.seed 3": 12,
        "--rounds 10 --cohort_size 99 --seed 1": 1000,
    }
    for words, seconds in recorded.items():
        command = f"lit-cfl run --config quickstart {words}"
        ledger = ledger.with_run({"run": words, "command": command, "rounds": words.split()[1], "seconds": seconds})
    # a recorded run takes precedence over the estimate
    assert estimate_seconds(run("--rounds 5", 0.5), ledger) == pytest.approx(12)
    assert estimate_seconds(run("--rounds 20 --cohort_size 99"), ledger) == pytest.approx(2000)
    assert estimate_seconds(run("--rounds 20 --cohort_size 99", 0.5), ledger) == 1800


@pytest.mark.usefixtures("tiny")
def test_run_that_ended_before_it_was_recorded_is_recorded_without_running_again():
    assert main(["t", "--seeds", "1", "--only", "t-two", "--jobs", "1"]) == 0
    recorded = Path("experiments/docs/reproduction/runs.csv").read_text()
    summary = next(Path("runs/reproduction").rglob("summary.json"))
    written = summary.stat().st_mtime_ns
    # removes the file, as if the process had been killed before it was written
    Path("experiments/docs/reproduction/runs.csv").unlink()
    assert main(["t", "--seeds", "1", "--only", "t-two", "--jobs", "1"]) == 0
    assert Path("experiments/docs/reproduction/runs.csv").read_text() == recorded
    assert summary.stat().st_mtime_ns == written


@pytest.mark.usefixtures("tiny")
def test_killed_command_resumes_and_runs_nothing_twice():
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # a fork lacks the threads that OpenMP has started, and would wait for them
        os._exit(main(["t", "--jobs", "1"]))
    deadline = time.monotonic() + 120
    while not Path("experiments/docs/reproduction/runs.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    before = Ledger.read(Path("experiments/docs/reproduction")).rows
    assert 0 < len(before) < 4
    assert main(["t", "--jobs", "1"]) == 0
    after = Ledger.read(Path("experiments/docs/reproduction")).rows
    assert len(after) == 4
    assert {key: after[key] for key in before} == before  # their seconds are unchanged, too


@pytest.mark.usefixtures("tiny")
def test_run_of_an_algorithm_whose_results_changed_is_stale(monkeypatch: pytest.MonkeyPatch):
    assert main(["t", "--seeds", "1", "--only", "t-two", "--jobs", "1"]) == 0
    table, ledger = load_table("t"), Ledger.read(Path("experiments/docs/reproduction"))
    runs = [run for run in plan_runs(table, table.cells[1:]) if run.seed == 1]
    assert find_missing(runs, ledger) == []
    monkeypatch.setattr("experiments.ledger._read_versions", lambda: {"FedAvg": 2})
    assert find_missing(runs, ledger) == runs
    everything = plan_runs(table, table.cells)
    write_pages(Path("experiments/docs/reproduction"), table, ledger, group_keys(everything))
    assert "stale" in Path("experiments/docs/reproduction/t.md").read_text()
    assert Ledger.read(Path("experiments/docs/reproduction")).by_command == {}
    assert main(["t", "--seeds", "1", "--only", "t-two", "--jobs", "1"]) == 0
    # the run was trained again, not only read again
    assert len(list(Path("runs/reproduction").rglob("summary.json"))) == 2
    assert find_missing(runs, Ledger.read(Path("experiments/docs/reproduction"))) == []


def test_rows_that_another_command_has_recorded_meanwhile_are_kept(tmp_path: Path):
    mine = Ledger.read(tmp_path)
    Ledger.read(tmp_path).with_run({"run": "theirs", "algorithm": "IFCA"})
    assert set(mine.with_run({"run": "mine", "algorithm": "IFCA"}).rows) == {"mine", "theirs"}
    assert set(Ledger.read(tmp_path).rows) == {"mine", "theirs"}


def test_ledger_after_a_run_is_what_its_file_holds(tmp_path: Path):
    row = {"run": "a", "algorithm": "IFCA", "plan": {"compile": True}, "commit": "123456e00012"}
    ledger = Ledger.read(tmp_path).with_run(row).with_run({"run": "b", "algorithm": "IFCA"})
    assert ledger.rows == Ledger.read(tmp_path).rows
    assert (ledger.rows["a"]["plan"], ledger.rows["a"]["commit"]) == ('{"compile": true}', "123456e00012")


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("words", "gpus", "device"), [([], 1, "cuda:0"), (["--device", "cpu"], 1, "cpu"), ([], 0, "cpu")]
)
def test_runs_at_once_are_as_many_as_their_device_has_room_for(
    words: list[str], gpus: int, device: str, monkeypatch: pytest.MonkeyPatch
):
    found: list[str | None] = []

    def noted(jobs: Sequence[Job], plan: Plan, *others: Any) -> dict[Job, str]:
        found.append(plan.device)  # on a CPU, cores are counted; otherwise GPUs
        return dict.fromkeys(jobs, "not tried")

    monkeypatch.setattr("lit_cfl.engines.choose_plan.count_gpus", lambda: gpus)
    monkeypatch.setattr("lit_cfl.runs.many.run_jobs", noted)
    assert main(["t", *words]) == 1
    assert found == [device]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("layercfl", "there is no table 'layercfl'; there are fedgroup-3, flexcfl-1,"),
        ("tables", "stocfl-5, which-method, summary, flux-table, record-configs"),
        ("flexcfl-1 --check", "flexcfl-1 takes no --check; leave it out"),
        ("summary --dry-run", "summary takes no --dry-run; leave it out"),
        ("flexcfl-1 --variants publish", "no variant matches publish; there are default, equal sizes"),
        ("which-method --seeds 7", "--seeds 7 is not a seed of this table; its seeds: (0, 1, 2, 3, 4, 5)"),
        ("which-method --pages --seeds 1", "which-method --pages takes no --seeds; leave it out"),
        (
            "which-method --only FEMNIST typo",
            "no data set, or data set/system, matches typo; there are Rotated MNIST, Label-swapped MNIST",
        ),
    ],
)
def test_options_without_effect_and_unknown_names_are_refused(
    words: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    assert main([*words.split(), "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def page_of(folder: Path, table: str) -> str:
    """Reads the page of a table, with non-breaking spaces replaced by plain ones."""
    return (folder / f"{table}.md").read_text().replace("\N{NO-BREAK SPACE}", " ")


def test_page_shows_what_ran_besides_the_table(tmp_path: Path):
    mig = "flexcfl-f6-mnist-mclr-ifca_mig-sswap_all"
    runs = [{"max_weighted_test_accuracy": value} for value in (91.0, 92.0)]
    results = recorded(tmp_path, {mig: runs})
    table = load_table("flexcfl-4")
    cells = write_pages(tmp_path, table, results.ledger, results.keys)
    assert len(cells) == 180
    page = page_of(tmp_path, "flexcfl-4")
    assert "| MNIST MCLR, swap all | IFCA-MIG | max weighted test accuracy | default | 91.50 ± 0.71 (2) |" in page
    assert mig not in (tmp_path / "flexcfl-4.csv").read_text()


def test_page_shows_clusters_next_to_accuracy_if_the_true_ones_are_known(tmp_path: Path):
    stocfl, fedavg = (
        f"stocfl-t1-rotated_mnist_k_4-mlp_2048-{name}-test_accuracy-n1200-d200-p10" for name in ("stocfl", "fedavg")
    )
    found = {stocfl: [{"num_clusters": 4, "ari": 1.0}, {"num_clusters": 5, "ari": 0.5}], fedavg: [{"ari": None}]}
    scores = {cell: [{"test_accuracy": 90.0} | run for run in runs] for cell, runs in found.items()}
    results = recorded(tmp_path, scores)
    results = recorded(tmp_path, {fedavg: [{"global_accuracy": 94.0}]}, variant="published", before=results)
    write_pages(tmp_path, load_table("stocfl-1"), results.ledger, results.keys)
    page = page_of(tmp_path, "stocfl-1")
    assert "| StoCFL | test accuracy | 96.71 ± 0.04 | 90 ± 0 (2) |  | not reproduced | 4.5 | 0.75 |" in page
    assert (
        "| FedAvg | test accuracy | 94.96 ± 0.11 | 90 (1) | 94 (1), global accuracy | not reproduced | 1 |  |" in page
    )
    # no run of this experiment is recorded
    assert "| StoCFL | test accuracy | 52.84 ± 0.74 |  |  | not run |\n" in page
    row = next(row for row in read_table(tmp_path / "stocfl-1.csv") if row["id"] == stocfl)
    assert (row["clusters"], row["ari"]) == (4.5, 0.75)


@pytest.mark.parametrize("default", [86.0, 88.0], ids=["not reproduced", "matches"])
def test_page_lists_every_option_of_a_cell(default: float, tmp_path: Path):
    cell = "flexcfl-t3-mnist-mclr-flexcfl_rac-max_weighted_test_accuracy"  # the paper has 88.2
    variants = {"default": default, "C19": 86.5, "without C10": 88.1}
    results = None
    for variant, value in variants.items():
        runs = [{"max_weighted_test_accuracy": value}] * 3
        results = recorded(tmp_path, {cell: runs}, variant=variant, before=results)
    write_pages(tmp_path, load_table("flexcfl-3"), results.ledger, results.keys)
    listed = page_of(tmp_path, "flexcfl-3").partition("## Options tried")[2]
    rows = [line for line in listed.splitlines() if "FlexCFL-RAC" in line]
    assert rows == [
        f"| MNIST MCLR | FlexCFL-RAC | max weighted test accuracy | 88.2 | {variant} | {value:g} ± 0 (3) |"
        for variant, value in variants.items()
    ]


@pytest.mark.usefixtures("tiny")
def test_option_that_the_experiment_has_anyway_is_not_listed_as_tried():
    file = Path("tables/t.yaml")
    content = yaml.safe_load(file.read_text())
    content["methods"]["Two"] = {"tried": {"same": "--rounds 2", "longer": "--local.epochs 7"}}
    file.write_text(yaml.safe_dump(content))
    assert main(["t", "--seeds", "1", "--only", "t-two", "--jobs", "1"]) == 0
    table, ledger = load_table("t"), Ledger.read(Path("experiments/docs/reproduction"))
    runs = plan_runs(table, table.cells)
    (judged,) = (one for one in judge_cells(table, ledger, group_keys(runs)) if one.cell.id == "t-two")
    assert list(judged.found) == ["default", "longer"]
