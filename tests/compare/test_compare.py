"""Tests comparisons from the command line and from Python: paired runs, the table, and early errors."""

import contextlib
import io
import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from small_comparison import SMALL

import lit_cfl
from lit_cfl.algorithms import FLHC, IFCA, FedAvg
from lit_cfl.cli.main import main
from lit_cfl.compare.arguments import read_arguments
from lit_cfl.compare.comparison import plan_comparison
from lit_cfl.compare.from_python import ComparisonTables
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.ray import cluster
from lit_cfl.runs.many import Job, processes
from lit_cfl.storage.checkpoint import read_fingerprint
from lit_cfl.storage.csv_log import read_table

pytestmark = pytest.mark.usefixtures("no_figures", "in_empty_folder")

OWN = """
from dataclasses import dataclass
from pathlib import Path
from lit_cfl.algorithms import FedAvg

@dataclass(frozen=True)
class Fails(FedAvg):
    def round(self, state, cohort, work, rng):
        if work.round == 1 and not Path("fixed").exists():
            raise RuntimeError("own | trouble")
        return super().round(state, cohort, work, rng)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Runs a comparison of FedAvg and Ditto; returns its directory, which tests must not change, and its output."""
    path, out = tmp_path_factory.mktemp("finished") / "c", io.StringIO()
    words = ("--algorithms", "FedAvg", "Ditto", "--pictures.formats", "[]", "--compare_dir", str(path), "--quiet")
    with contextlib.redirect_stdout(out):
        assert main([*SMALL, *words]) == 0
    return path, out.getvalue()


@pytest.fixture
def copied(finished: tuple[Path, str], in_empty_folder: None) -> None:
    """Copies the finished comparison to `c` in the test's folder."""
    shutil.copytree(finished[0], "c")


def table(path: str) -> list[dict[str, Any]]:
    return read_table(Path(path))


def test_all_algorithms_have_the_same_clients_cohorts_and_initial_weights(monkeypatch: pytest.MonkeyPatch):
    seen = defaultdict(list)  # of each round by class: the cohort and w_0

    def watch(kind: Any, plain: Any) -> None:
        def round(self: Any, state: Any, cohort: Any, work: Any, rng: Any) -> Any:
            seen[kind].append((tuple(cohort.tolist()), work.initial(0).numpy().tobytes()))
            return plain(self, state, cohort, work, rng)

        monkeypatch.setattr(kind, "round", round)

    for kind in (FedAvg, IFCA):
        watch(kind, kind.round)
    words = ("--algorithms", "FedAvg", "IFCA", "--seeds", "3", "5", "--selection", "uniform", "--compare_dir", "c")
    assert main([*SMALL, *words]) == 0
    assert seen[FedAvg] == seen[IFCA]
    cohorts, initial = zip(*seen[FedAvg], strict=True)
    assert (len(cohorts), len(set(cohorts)), len(set(initial))) == (6, 6, 2)
    one, other = ([read_fingerprint(Job(Path("c"), n, s, 3).folder) for s in (3, 5)] for n in ("FedAvg", "IFCA"))
    assert one == other
    assert one[0] != one[1]


def test_data_shift_in_the_same_way_for_all_algorithms():
    words = ["compare", "--config", "flexcfl/digits", "--rounds", "4", "--local.epochs", "1", "--num_cpus", "1"]
    assert main([*words, "--algorithms", "FedAvg", "FlexCFL", "--seeds", "0", "1", "--compare_dir", "c"]) == 0
    moved = {name: [table(f"c/{name}/seed-{seed}/shift.csv") for seed in (0, 1)] for name in ("FedAvg", "FlexCFL")}
    assert moved["FedAvg"] == moved["FlexCFL"]
    assert moved["FedAvg"][0]
    assert moved["FedAvg"][0] != moved["FedAvg"][1]


COLUMNS = {
    "test_accuracy": "test/weighted_accuracy",
    "val_accuracy": "val/weighted_accuracy",
    "clusters": "clusters/count",
    "ari": "clusters/ari",
    "unplaced": "clusters/unobserved",
    "mib": "traffic/mib",
    "seconds": "time/elapsed_seconds",
}


@pytest.mark.usefixtures("figures")
def test_the_tables_hold_what_the_runs_left(capsys: pytest.CaptureFixture[str]):
    words = ("--algorithms", "FedAvg", "IFCA", "--IFCA.num_clusters", "2", "--seeds", "0", "1", "--target", "0.12")
    assert main([*SMALL, *words, "--compare_dir", "c"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-2:] == ["Files: c", "As a page: lit-cfl report c"]  # paths are printed as they were given
    order = ["1/4  FedAvg seed 0", "2/4  IFCA seed 0", "3/4  FedAvg seed 1", "4/4  IFCA seed 1"]
    assert re.findall(r"^\d/4  \w+ seed \d", out, flags=re.MULTILINE) == order
    runs = {(row["algorithm"], row["seed"]): row for row in table("c/runs.csv")}
    for (name, seed), run in runs.items():
        rows = table(f"c/{name}/seed-{seed}/metrics.csv")
        assert run["status"] == "finished"
        assert {column: run[column] for column in COLUMNS} == {c: rows[-1][metric] for c, metric in COLUMNS.items()}
        counted = [row for row in rows if not row["clusters/unobserved"] and row["test/weighted_accuracy"] >= 0.12]
        first = (counted[0]["round"], counted[0]["traffic/mib"]) if counted else (None, None)
        assert (run["rounds_to_target"], run["mib_to_target"]) == first
    _, mine = table("c/results.csv")
    gains = [runs["IFCA", seed]["test_accuracy"] - runs["FedAvg", seed]["test_accuracy"] for seed in (0, 1)]
    assert mine["difference"] == pytest.approx(sum(gains) / 2)
    files = {file.name for file in Path("c").iterdir() if file.is_file()}
    assert files == {
        ".lock",
        "compare.yaml",
        "results.md",
        "results.csv",
        "results.tex",
        "runs.csv",
        "client_gains.csv",
    }
    assert Path("c/pictures/curve.png").stat().st_size > 5000
    assert not Path("c/pictures/curve.pdf").exists()  # PDF was not asked for
    assert main(["run", "--resume", "c/IFCA/seed-1", "--quiet"]) == 0  # each run has a complete run directory


def test_one_seed_has_no_interval_and_a_method_that_needs_all_is_marked(capsys: pytest.CaptureFixture[str]):
    words = ("--algorithms", "FedAvg", "FLHC", "--FLHC.warmup_rounds", "1", "--FLHC.num_clusters", "2")
    assert main([*SMALL, *words, "--compare_dir", "c"]) == 0
    out = capsys.readouterr().out
    assert "† FLHC trains every client in 1 of 3 rounds" in out
    assert "± " not in out
    first, second = table("c/results.csv")
    assert (second["pairs"], second["difference_low"], second["test_sd"]) == (1, None, None)
    assert (first["rounds_with_all_clients"], second["rounds_with_all_clients"]) == (0, 1)
    assert FLHC.needs_all(FLHC(warmup_rounds=1), 1)


def test_a_failed_run_does_not_lose_the_others(capsys: pytest.CaptureFixture[str]):
    Path("own_failing.py").write_text(OWN)
    words = ("--algorithms", "FedAvg", "own_failing.Fails", "Ditto", "--seeds", "1", "--compare_dir", "c")
    assert main([*SMALL, *words]) == 1
    assert "Fails seed 1  failed: RuntimeError: own | trouble" in capsys.readouterr().out
    assert [row["status"] for row in table("c/runs.csv")] == ["finished", "failed", "finished"]
    assert [(row["runs"], row["failed"]) for row in table("c/results.csv")] == [(1, 0), (0, 1), (1, 0)]
    assert table("c/results.csv")[2]["difference"] is not None
    assert "line 10, in round" in Path("c/Fails/seed-1/error.txt").read_text()
    Path("fixed").touch()
    assert main(["compare", "--resume", "c", "--num_cpus", "1"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if "/3  " in line]) == 1
    assert not list(Path("c").rglob("error.txt"))
    # the other options are those of FedAvg
    assert table("c/results.csv")[1]["test_mean"] == table("c/results.csv")[0]["test_mean"]


@pytest.mark.usefixtures("copied")
def test_a_finished_comparison_is_not_run_again(finished: tuple[Path, str]):
    assert finished[1] == f"{finished[0]}\n"
    before = {file: file.stat().st_mtime_ns for file in Path("c").rglob("seed-*/*")}
    tables = {file: file.read_bytes() for file in Path("c").glob("r*.*")}
    assert len(tables) == 4
    assert main(["compare", "--resume", "c"]) == 0
    assert before == {file: file.stat().st_mtime_ns for file in Path("c").rglob("seed-*/*")}
    assert tables == {file: file.read_bytes() for file in Path("c").glob("r*.*")}
    assert main(["compare", "--resume", "c", "--target", "0.05", "--table", "ari", "losing"]) == 0
    assert r"algorithm & ARI & clients that lose \\" in Path("c/results.tex").read_text()
    assert main(["compare", "--resume", "c", "--target", "80"]) == 2
    assert {row["target"] for row in table("c/results.csv")} == {0.05}


def test_the_number_of_clusters_is_the_files_or_has_to_be_given():
    names, own = ("IFCA", "two", "l2", "FLUX"), ("--two.num_clusters", "2", "--l2.reassign_at_evaluation", "true")
    plan, notices = plan_comparison(
        read_arguments([*SMALL[1:], "--algorithms", "IFCA", "two=IFCA", "l2=IFCA", "FLUX", *own])
    )
    noted = [name for name in names if f"{name} runs with num_clusters 4, like the file's algorithm" in notices]
    assert noted == ["IFCA", "l2", "FLUX"]  # setting another option of IFCA changes nothing
    configs = [plan.experiments[name].to_dict() for name in names]
    assert [config["algorithm"]["init_args"]["num_clusters"] for config in configs] == [4, 2, 4, 4]
    assert {config["plan"]["threads"] for config in configs} == {1}
    assert len({id(one.data) for one in plan.experiments.values()}) == 1  # the data are loaded once


@pytest.mark.usefixtures("copied")
def test_other_clients_under_one_seed_are_noted(capsys: pytest.CaptureFixture[str]):
    saved = torch.load("c/Ditto/seed-0/checkpoint.pt", weights_only=True)
    saved["fingerprint"]["partition"] = "another"
    torch.save(saved, "c/Ditto/seed-0/checkpoint.pt")
    capsys.readouterr()
    assert main(["compare", "--resume", "c"]) == 0
    assert "Warning: under seed 0 the runs do not share one partition: nothing is paired." in capsys.readouterr().out


def test_tables_in_python_are_those_of_the_command():
    words = [*SMALL[3:], "--pictures.formats", "[]"]
    found = lit_cfl.compare("quickstart", ["FedAvg", "Ditto"], [0, 1], words, compare_dir="python")
    assert isinstance(found, ComparisonTables)
    command = [*SMALL, *words[-2:], "--algorithms", "FedAvg", "Ditto", "--seeds", "0", "1", "--compare_dir", "command"]
    assert main([*command, "--quiet"]) == 0
    timeless = [column for column in found.results if column != "seconds"]
    expected = pd.read_csv("command/results.csv")
    pd.testing.assert_frame_equal(found.results[timeless], expected[timeless])
    timeless = [column for column in found.runs if column != "seconds"]
    pd.testing.assert_frame_equal(found.runs[timeless], pd.read_csv("command/runs.csv")[timeless])
    assert list(found.runs["seed"]) == [0, 1, 0, 1]
    assert any(note.startswith("Difference to FedAvg") for note in found.notes)
    last = found.rounds.query("algorithm == 'Ditto' and seed == 1").iloc[-1]
    row = table("command/Ditto/seed-1/metrics.csv")[-1]
    assert [last[name] for name in ("round", "test/weighted_accuracy")] == [3, row["test/weighted_accuracy"]]
    again = lit_cfl.compare(resume="python", target=0.01)
    assert list(again.results["target"]) == [0.01, 0.01]
    content = lit_cfl.load_experiment("quickstart", ["--seeds", "[3]"]).to_dict()
    found = lit_cfl.compare(content, "FedAvg", words=words)
    assert list(found.runs["seed"]) == [3]
    assert found.path.parent.name == "runs"


@pytest.mark.usefixtures("copied")
def test_lost_files_of_a_finished_run_are_named_or_written_again(capsys: pytest.CaptureFixture[str]):
    tables = [Path("c", name).read_bytes() for name in ("results.csv", "runs.csv")]
    Path("c/Ditto/seed-0/clients.csv").unlink()
    assert main(["compare", "--resume", "c"]) == 0
    assert Path("c/Ditto/seed-0/clients.csv").exists()
    Path("c/Ditto/seed-0/checkpoint.pt").unlink()  # the user may delete checkpoints to save space
    Path("c/FedAvg/seed-0/metrics.csv").write_text("round\n")
    assert main(["compare", "--resume", "c"]) == 0
    assert "unknown whether the runs of Ditto are paired" in capsys.readouterr().out
    assert [Path("c", name).read_bytes() for name in ("results.csv", "runs.csv")] == tables


def test_as_many_runs_at_once_as_there_are_cores_for_their_threads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster, "count_cores", lambda: 8)
    one, gpu = Plan(threads=1), Plan(device="cuda:0")
    assert [processes(one, asked, runs) for asked, runs in ((None, 30), (3, 30), (None, 5))] == [8, 3, 5]
    others = (Plan(threads=3), Plan(threads=16), Plan(workers=2, threads=1), gpu)  # this machine has no GPU
    assert [processes(plan, None, 30) for plan in others] == [2, 1, 1, 1]
    room = [{"CPU": 5.0, "GPU": 2.0}, {"CPU": 6.0, "GPU": 1.0}]
    monkeypatch.setattr(cluster, "is_there", lambda: True)
    monkeypatch.setattr(cluster, "_join", lambda plan: None)
    monkeypatch.setattr(cluster, "_room", lambda: room)
    assert [processes(plan, None, 30) for plan in (one, Plan(threads=2), Plan(threads=6), gpu)] == [11, 5, 1, 3]


@pytest.mark.usefixtures("figures")
def test_full_disk_at_the_end_leaves_what_is_known_on_the_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if target.parent == Path("c/pictures"):
            raise OSError(28, "No space left on device")
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        assert main([*SMALL, "--algorithms", "FedAvg", "IFCA", "--compare_dir", "c"]) == 2
    said = capsys.readouterr()
    assert "IFCA" in said.out
    assert "pictures/curve.png could not be written (No space left on device)" in said.err
    assert len(list(Path("c").glob("r*.*"))) == 4  # results and runs
    assert main(["compare", "--resume", "c"]) == 0
    assert Path("c/pictures/curve.png").exists()
