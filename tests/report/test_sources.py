"""Tests which directories are recognised, and errors for incomplete, damaged or incomparable ones."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from made_runs import config, made_run, metric_row, seal, write_table

from lit_cfl.cli.main import main
from lit_cfl.data.partition_file import save_partition
from lit_cfl.datamodules import ArrayData
from lit_cfl.errors import InputError
from lit_cfl.pictures.run_files import read_run
from lit_cfl.report import overview
from lit_cfl.report.assemble import make_page
from lit_cfl.report.blocks import Page, Table, Text
from lit_cfl.report.over_rounds import means
from lit_cfl.report.sources import Group, kind_of, read_source, require_comparable
from lit_cfl.scores import ACCURACY
from lit_cfl.storage.config_file import write_config


def page_of(*paths: Path) -> Page:
    return make_page(paths, ["lit-cfl", "report"])


def results(page: Page) -> Table:
    (table,) = [block for block in page.sections[0].blocks if isinstance(block, Table)]
    return table


def names(page: Page) -> set[str]:
    return {figure.name for figure in page.figures}


def test_a_directory_without_a_run_is_refused_and_runs_inside_it_are_named(tmp_path: Path, capsys):
    with pytest.raises(
        InputError, match=r"there is no directory .*nowhere; give a directory that lit-cfl run, compare"
    ):
        kind_of(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file is a file; give a directory"):
        kind_of(tmp_path / "file")
    with pytest.raises(InputError, match=r"holds no run, comparison or study$"):
        kind_of(tmp_path)
    made_run(tmp_path / "mine")
    with pytest.raises(InputError, match=r"there is no directory .*mien \(did you mean mine\?\); give a directory"):
        kind_of(tmp_path / "mien")
    (tmp_path / "study").mkdir()
    for name in ("mine", "study"):
        assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 2
        message = f"but its folders do: give one of them, such as {tmp_path / name}"
        assert message in capsys.readouterr().err
        (tmp_path / "study" / "study.yaml").touch()
    assert not (tmp_path / "page.html").exists()


def test_runs_on_other_data_are_refused_with_what_differs(tmp_path: Path):
    first = made_run(tmp_path / "first")
    other = made_run(
        tmp_path / "other",
        data={"class_path": "lit_cfl.datamodules.Digits", "init_args": {"num_clients": 9, "partition_seed": None}},
    )
    with pytest.raises(
        InputError, match=r"first and .*other have different data.*data\.init_args\.num_clients: 8 -> 9"
    ):
        page_of(first, other)


def test_runs_with_equal_options_on_changed_data_are_refused(tmp_path: Path):
    def on(folder: str, examples: float, clients: int, seed: int) -> Path:
        x = np.full((12, 2), examples, dtype=np.float32)
        module = ArrayData(x=x, y=np.arange(12) % 2, client=np.arange(12) % clients)
        save_partition(made_run(tmp_path / folder) / "partition.npz", module.federated(seed))
        return tmp_path / folder

    first = on("first", 1.0, 2, 0)
    page_of(first, on("equal", 1.0, 2, 0), on("other-seed", 1.0, 2, 1))
    with pytest.raises(
        InputError, match=r"first and .*edited have different data .*\(equal options, but different exam"
    ):
        page_of(first, on("edited", 2.0, 2, 0))
    with pytest.raises(InputError, match=r"equal options, but different clients under seed 0: SHA-256 \w{12}, \w{12}"):
        page_of(first, on("other-clients", 1.0, 3, 0))


def test_runs_that_differ_in_the_seed_of_the_partition_are_shown_together(tmp_path: Path):
    data = {"class_path": "lit_cfl.datamodules.Digits", "init_args": {"num_clients": 8, "partition_seed": 5}}
    page = page_of(made_run(tmp_path / "a"), made_run(tmp_path / "b", data=data, rounds=9))
    assert [row[0] for row in results(page).rows] == ["CFL (a)", "CFL (b)"]
    (differing,) = [b for b in page.sections[-1].blocks if isinstance(b, Table) and b.title == "Options that differ"]
    assert list(differing.rows) == [["data.init_args.partition_seed", None, "5"], ["rounds", "4", "9"]]


def test_scores_of_two_tasks_are_not_compared(tmp_path: Path):
    first, other = made_run(tmp_path / "first"), made_run(tmp_path / "other", over=False)
    text = (other / "metrics.csv").read_text().replace("_accuracy", "_mae")
    (other / "metrics.csv").write_text(text)
    (other / "environment.json").write_text('{"scores": [{"name": "mae", "higher_is_better": false}]}')
    with pytest.raises(InputError, match=r"first is scored by accuracy, .*other by mae"):
        require_comparable([*read_source(first).groups, *read_source(other).groups])


def test_a_half_written_run_is_shown_as_interrupted(tmp_path: Path):
    run = made_run(tmp_path / "run", over=False)
    with (run / "metrics.csv").open("a") as file:
        file.write("5,0.99,0.9")  # an incomplete row
    page = page_of(run)
    assert results(page).rows[0][:3] == ["CFL", "interrupted, round 4 of 4", 1]
    assert f"CFL, {run}: interrupted, round 4 of 4." in page.problems
    assert {"test-weighted_accuracy", "cfl-similarity", "cfl-map", "cfl-splits"} <= names(page)
    assert "cfl-histogram" not in names(page)


def test_memberships_of_a_run_that_is_not_over_come_from_its_checkpoint(tmp_path: Path):
    run = made_run(tmp_path / "run", over=False)
    np.savez(run / "partition.npz", true_cluster=np.array([0, 1, 1]))
    kept = {1: torch.tensor([0, 0, 0]), 3: torch.tensor([0, 1, -1])}
    torch.save({"memberships": kept}, run / "checkpoint.pt")
    found = read_run(run).memberships
    assert found["rounds"].tolist() == [1, 3]
    assert found["cluster"].tolist() == [[0, 0, 0], [0, 1, -1]]
    assert found["true_cluster"].tolist() == [0, 1, 1]


def test_a_run_that_saved_no_evaluated_round_is_not_damaged(tmp_path: Path):
    run = made_run(tmp_path / "run", over=False)
    torch.save({"memberships": {}}, run / "checkpoint.pt")
    found = read_run(run)
    assert found.memberships is None
    assert found.problems == []


def test_a_run_that_another_process_holds_is_shown_as_running(tmp_path: Path):
    from filelock import FileLock

    run = made_run(tmp_path / "run", over=False)
    with FileLock(run / ".lock"):
        assert read_run(run).status == "running, round 4 of 4"
    assert read_run(run).status == "interrupted, round 4 of 4"


def test_a_run_whose_lock_cannot_be_opened_is_shown_all_the_same(tmp_path: Path):
    run = made_run(tmp_path / "run", over=False)
    (run / ".lock").mkdir()  # a folder of this name cannot be opened, as a file of another user's
    assert read_run(run).status == "interrupted, round 4 of 4"


@pytest.mark.parametrize(
    ("file", "lost"),
    [
        ("memberships.npz", "cfl-memberships"),
        ("clients.csv", "cfl-histogram"),
        ("clusters.csv", "cfl-splits"),
        ("snapshots/2.npz", "cfl-similarity"),
        ("summary.json", None),
        ("config.yaml", None),
        ("metrics.csv", "test-weighted_accuracy"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_shown(file: str, lost: str | None, tmp_path: Path):
    run = made_run(tmp_path / "run")
    if file == "snapshots/2.npz":
        (run / "snapshots/1.npz").unlink()
    (run / file).write_bytes(b"\xff\x00\xfe damaged\n" * 3)
    page = page_of(run)
    assert any(f"{run / file}" in problem for problem in page.problems)
    assert lost not in names(page)
    others = {"cfl-memberships", "cfl-histogram", "cfl-splits", "cfl-similarity"} - {lost}
    assert others <= names(page)


def test_a_table_of_somebody_elses_with_the_same_name_is_left_out_alone(tmp_path: Path):
    run = made_run(tmp_path / "run", over=False)
    write_table(run / "migrations.csv", ("round", "client", "why"), [{"round": 1, "client": 0, "why": "x"}])
    page = page_of(run)
    assert f"{run}: shifts cannot be drawn and is left out (KeyError: 'cluster_before')." in page.problems
    assert "cfl-splits" in names(page)


def test_a_row_with_words_in_place_of_numbers_is_left_out(tmp_path: Path):
    rows = [metric_row(1), metric_row(2, **{"test/loss": "oops"}), metric_row(3)]
    found = read_run(made_run(tmp_path / "run", rows, over=False))
    assert [row["round"] for row in found.rows] == [1, 3]
    assert found.problems == [f"{tmp_path / 'run' / 'metrics.csv'} is damaged: 1 of its 3 rows cannot be read."]


def test_a_directory_that_lost_its_configuration_still_shows_its_rows(tmp_path: Path):
    run = made_run(tmp_path / "run")
    (run / "config.yaml").unlink()
    page = page_of(run)
    assert f"{run / 'config.yaml'} is missing." in page.problems
    assert "test-weighted_accuracy" in names(page)


def test_metrics_with_nan_have_gaps_and_do_not_break_the_page(tmp_path: Path):
    values = [0.25, float("nan"), 0.75, float("inf")]
    rows = [metric_row(k + 1, **{"test/weighted_accuracy": value, "test/loss": None}) for k, value in enumerate(values)]
    page = page_of(made_run(tmp_path / "run", rows, over=False))
    (figure,) = [figure for figure in page.figures if figure.name == "test-weighted_accuracy"]
    (curve,) = figure.first_panel.curves
    assert (list(curve.x), list(curve.y)) == ([1, 3], [0.25, 0.75])
    assert "test-loss" not in names(page)


def test_one_round_only(tmp_path: Path):
    page = page_of(made_run(tmp_path / "run", [metric_row(1)], snapshots=1))
    assert {"cfl-similarity", "cfl-map", "cfl-histogram"} <= names(page)
    assert Text("Only round 1 was scored: its values are in the table of the results.") in page.sections[1].blocks
    assert {
        "test-weighted_accuracy",
        "traffic",
        "clusters-count",
        "cfl-memberships",
        "cfl-splits",
    }.isdisjoint(names(page))


def test_a_run_without_a_round_says_so(tmp_path: Path):
    run = made_run(tmp_path / "run", [], snapshots=0, over=False)
    page = page_of(run)
    assert f"{run} has no round in metrics.csv." in page.problems
    assert not page.figures


def test_seeds_and_their_baselines_are_two_groups(tmp_path: Path):
    top = tmp_path / "top"
    for seed in (0, 10, 2):
        made_run(top / f"seed-{seed}", seeds=[seed])
        made_run(top / f"seed-{seed}" / "baseline", algorithm={"class_path": "lit_cfl.algorithms.FedAvg"})
    mine, others = read_source(top).groups
    assert (mine.name, [run.seed for run in mine.runs]) == ("CFL", [0, 2, 10])
    assert (others.name, len(others.runs)) == ("FedAvg (baseline)", 3)


def test_a_comparison_names_runs_that_did_not_start(tmp_path: Path):
    path = tmp_path / "compare"
    made_run(path / "A" / "seed-0")
    (path / "compare.yaml").write_text("name: x\nalgorithms: [A, B]\nseeds: [0, 1]\ntarget: null\n")
    source = read_source(path)
    assert source.kind == "comparison"
    assert [group.name for group in source.groups] == ["A"]
    assert source.problems == ["A: seed-1 did not start yet.", "B: seed-0, seed-1 did not start yet."]


def test_a_run_of_a_comparison_that_failed_at_once_counts_as_started(tmp_path: Path):
    made_run(tmp_path / "FedAvg" / "seed-0")
    (tmp_path / "compare.yaml").write_text("algorithms: [FedAvg]\nseeds: [0, 3, 4]\n")
    (tmp_path / "FedAvg" / "seed-3").mkdir()
    (tmp_path / "FedAvg" / "seed-3" / "error.txt").write_text("Traceback")
    assert read_source(tmp_path).problems == ["FedAvg: seed-4 did not start yet."]


def test_seeds_of_a_run_that_did_not_start_are_named(tmp_path: Path):
    made_run(tmp_path / "run" / "seed-0")
    write_config(tmp_path / "run", config(seeds=[0, 1, 2]))
    source = read_source(tmp_path / "run")
    assert source.problems == ["seed-1, seed-2 did not start yet."]
    assert [len(group.runs) for group in source.groups] == [1]


def test_runs_under_other_seeds_are_distinguished(tmp_path: Path):
    page = page_of(made_run(tmp_path / "a"), made_run(tmp_path / "b", seeds=[1]))
    (differing,) = [b for b in page.sections[-1].blocks if isinstance(b, Table) and b.title == "Options that differ"]
    assert list(differing.rows) == [["seeds", "0", "1"]]


def group_of(folder: Path, *runs: tuple[list[float], bool], name: str = "A") -> Group:
    """Makes a group of runs with these test scores per round, each finished or not."""
    for seed, (scores, over) in enumerate(runs):
        rows = [metric_row(k, **{"test/weighted_accuracy": score}) for k, score in enumerate(scores, 1)]
        made_run(folder / name / f"seed-{seed}", rows, over=over)
    return Group(name, [read_run(folder / name / f"seed-{seed}") for seed in range(len(runs))], folder / name)


def test_a_run_that_failed_counts_in_no_mean_where_others_are_over(tmp_path: Path):
    good = group_of(tmp_path, ([0.5, 0.7, 0.9], True), ([0.5, 0.7, 0.9], True), ([0.1, 0.2], False))
    weak = group_of(tmp_path, *[([0.5, 0.6, 0.7], True)] * 3, name="B")
    assert overview.headline([weak, good], ACCURACY)[0] == "Test accuracy after the last round: B 0.700, A 0.900."
    table = overview.section([weak, good], ACCURACY).blocks[0]
    assert [row[:4] for row in table.rows] == [
        ["B", "finished", 3, "0.700 ± 0.000"],
        ["A", "2 of 3 runs finished", 2, "0.900 ± 0.000"],
    ]
    assert "of finished runs" in table.note
    assert means(good, "test/weighted_accuracy").mean == [0.5, 0.7, 0.9]


def test_values_are_those_so_far_while_one_has_no_finished_run(tmp_path: Path):
    one, other = group_of(tmp_path, ([0.5], False)), group_of(tmp_path, ([0.4, 0.9], True), name="B")
    assert overview.headline([one, other], ACCURACY)[0] == "Test accuracy so far: A 0.500, B 0.900."


def test_an_algorithm_without_a_score_under_one_seed_has_no_mean_of_the_others(tmp_path: Path):
    whole, partly = group_of(tmp_path, *[([0.7], True)] * 2), group_of(tmp_path, *[([0.9], True)] * 2, name="B")
    partly.runs[1].rows[-1]["test/weighted_accuracy"] = None
    assert overview.headline([whole, partly], ACCURACY)[:2] == [
        "Test accuracy after the last round: A 0.700.",
        "Test accuracy is unknown under some seeds of B.",
    ]


def test_a_stopped_run_says_why(tmp_path: Path):
    run = made_run(tmp_path / "run")
    text = (run / "summary.json").read_text().replace('"stopped": null', '"stopped": "no gain"')
    (run / "summary.json").write_text(text)
    shutil.rmtree(run / "snapshots")
    seal(run)
    assert read_run(run).status == "stopped after round 4 of 4: no gain"
