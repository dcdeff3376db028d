"""Comparisons from the command line: paired runs, one table, and mistakes that are said before anything runs."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lit_cfl.algorithms import FLHC, IFCA, Algorithm, FedAvg
from lit_cfl.cli import main
from lit_cfl.compare.entries import Entry, read_entries, with_options
from lit_cfl.compare.jobs import Job, processes
from lit_cfl.compare.results import fingerprint
from lit_cfl.errors import InputError
from lit_cfl.local.plan import Plan
from lit_cfl.tables import read_table

SMALL = (
    "compare", "--config", "quickstart", "--data.num_clients", "12", "--cohort_size", "4", "--local.epochs", "1",
    "--rounds", "3", "--num_cpus", "1",
)  # fmt: skip
OWN = """
from dataclasses import dataclass
from lit_cfl.algorithms import FedAvg

@dataclass(frozen=True)
class Fails(FedAvg):
    \"\"\"Fails in round 1 of all seeds but 0.\"\"\"

    def round(self, state, cohort, work, rng):
        if rng.initial_seed() % 2 ** 64 and self.bad(work):
            raise RuntimeError("own | trouble")
        return super().round(state, cohort, work, rng)

    def bad(self, work):
        return work.round == 1

class Needs(FedAvg):
    \"\"\"Has no default.\"\"\"

    def __init__(self, strength: int) -> None: ...
"""


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def table(path: str) -> list[dict[str, Any]]:
    return read_table(Path(path))


def seen_by(monkeypatch: pytest.MonkeyPatch, *kinds: type[Algorithm]) -> dict[str, list[tuple[list[int], bytes]]]:
    """What each class is given in its rounds from now on: the cohort, and w_0."""
    seen = defaultdict(list)
    for kind in kinds:

        def spy(self: Any, state: Any, cohort: Any, work: Any, rng: Any, round: Any = kind.round) -> Any:
            seen[type(self).__name__].append((cohort.tolist(), work.initial(0).numpy().tobytes()))
            return round(self, state, cohort, work, rng)

        monkeypatch.setattr(kind, "round", spy)
    return seen


def test_all_algorithms_have_the_same_clients_cohorts_and_initial_weights(monkeypatch: pytest.MonkeyPatch):
    seen = seen_by(monkeypatch, FedAvg, IFCA)
    words = ("--algorithms", "FedAvg", "IFCA", "--seeds", "3", "5", "--selection", "uniform", "--compare_dir", "c")
    assert main([*SMALL, *words]) == 0
    assert seen["FedAvg"] == seen["IFCA"]
    assert len(seen["FedAvg"]) == 6
    assert len({tuple(cohort) for cohort, _ in seen["FedAvg"]}) == 6
    assert len({initial for _, initial in seen["FedAvg"]}) == 2
    prints = {
        (name, seed): fingerprint(Job(Path("c"), name, seed).folder) for name in ("FedAvg", "IFCA") for seed in (3, 5)
    }
    assert prints["FedAvg", 3] == prints["IFCA", 3] != prints["FedAvg", 5] == prints["IFCA", 5]


def test_the_tables_hold_what_the_runs_left(capsys: pytest.CaptureFixture[str]):
    words = ("--algorithms", "FedAvg", "IFCA", "--IFCA.num_clusters", "2", "--seeds", "0", "1", "--target", "0.12")
    assert main([*SMALL, *words, "--compare_dir", "c"]) == 0
    out = capsys.readouterr().out
    assert [line.split("  ")[:2] for line in out.splitlines()[:4]] == [
        ["1/4", "FedAvg seed 0"], ["2/4", "IFCA seed 0"], ["3/4", "FedAvg seed 1"], ["4/4", "IFCA seed 1"],
    ]  # fmt: skip
    runs = {(row["algorithm"], row["seed"]): row for row in table("c/runs.csv")}
    for (name, seed), run in runs.items():
        rows = table(f"c/{name}/seed-{seed}/metrics.csv")
        assert run["status"] == "finished"
        assert run["test_accuracy"] == rows[-1]["test/weighted_accuracy"]
        counted = [row for row in rows if not row["clusters/unobserved"] and row["test/weighted_accuracy"] >= 0.12]
        first = (counted[0]["round"] + 1, counted[0]["traffic/mib"]) if counted else (None, None)
        assert (run["rounds_to_target"], run["mib_to_target"]) == first
    _, mine = table("c/results.csv")
    gains = [runs["IFCA", seed]["test_accuracy"] - runs["FedAvg", seed]["test_accuracy"] for seed in (0, 1)]
    assert mine["difference"] == pytest.approx(sum(gains) / 2)
    assert [mine["difference_low"], mine["difference_high"]] == pytest.approx(sorted(gains))
    assert {file.name for file in Path("c").iterdir() if file.is_file()} == {
        ".lock", "compare.yaml", "results.md", "results.csv", "results.tex", "runs.csv",
    }  # fmt: skip
    assert Path("c/pictures/accuracy.png").stat().st_size > 5000
    assert main(["run", "--resume", "c/IFCA/seed-1", "--quiet"]) == 0  # a whole run directory


def test_one_seed_has_no_interval_and_a_method_that_needs_all_is_marked(capsys: pytest.CaptureFixture[str]):
    words = ("--algorithms", "FedAvg", "FLHC", "--FLHC.warmup_rounds", "1", "--FLHC.num_clusters", "2")
    assert main([*SMALL, *words, "--compare_dir", "c"]) == 0
    out = capsys.readouterr().out
    assert "One seed: no deviation and no interval." in out
    assert "† FLHC trains every client in 1 of 3 rounds" in out
    assert "\nFLHC†" in out
    assert "± " not in out
    first, second = table("c/results.csv")
    assert (second["pairs"], second["difference_low"], second["test_sd"]) == (1, None, None)
    assert (first["rounds_with_all_clients"], second["rounds_with_all_clients"]) == (0, 1)
    assert FLHC.needs_all(FLHC(warmup_rounds=1), 1)


def test_a_failed_run_does_not_lose_the_others(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    Path("own_failing.py").write_text(OWN)
    words = ("--algorithms", "FedAvg", "own_failing.Fails", "Ditto", "--seeds", "0", "1", "--compare_dir", "c")
    assert main([*SMALL, *words]) == 1
    out = capsys.readouterr().out
    assert "Fails seed 0  failed: RuntimeError: own | trouble" in out
    assert "Fails, seed 1, failed: RuntimeError: own | trouble" in out
    assert [row["status"] for row in table("c/runs.csv")] == ["finished"] * 2 + ["failed"] * 2 + ["finished"] * 2
    assert [(row["runs"], row["failed"]) for row in table("c/results.csv")] == [(2, 0), (0, 2), (2, 0)]
    assert table("c/results.csv")[2]["difference"] is not None
    assert "line 11, in round" in Path("c/Fails/seed-0/error.txt").read_text()
    monkeypatch.setattr("own_failing.Fails.bad", lambda self, work: False)
    assert main(["compare", "--resume", "c", "--num_cpus", "1"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if "/6  " in line]) == 2
    assert not list(Path("c").rglob("error.txt"))
    assert table("c/results.csv")[1]["test_mean"] == table("c/results.csv")[0]["test_mean"]  # it is FedAvg otherwise


def test_a_finished_comparison_is_not_run_again(capsys: pytest.CaptureFixture[str]):
    assert main([*SMALL, "--algorithms", "FedAvg", "Ditto", "--compare_dir", "c", "--quiet"]) == 0
    assert capsys.readouterr().out == f"{Path('c').absolute()}\n"
    before = {file: file.stat().st_mtime_ns for file in Path("c").rglob("seed-*/*")}
    tables = [Path("c", name).read_bytes() for name in ("results.csv", "results.md", "results.tex", "runs.csv")]
    assert main(["compare", "--resume", "c"]) == 0
    assert before == {file: file.stat().st_mtime_ns for file in Path("c").rglob("seed-*/*")}
    assert tables == [Path("c", name).read_bytes() for name in ("results.csv", "results.md", "results.tex", "runs.csv")]
    assert main(["compare", "--resume", "c", "--target", "0.05"]) == 0
    assert {row["target"] for row in table("c/results.csv")} == {0.05}


def test_an_entry_is_a_class_a_configuration_or_a_file():
    Path("mine.yaml").write_text("class_path: IFCA\ninit_args: {num_clusters: 7}\n")
    Path("x=1.yaml").write_text("name: whole\nalgorithm: FedProx\n")
    own = {"class_path": "FedGroup", "init_args": {"num_clusters": 4}}
    found = read_entries(["FedAvg", "FedGroup", "ifca/digits", "seven=mine.yaml", "x=1.yaml", "me=a.B"], own)
    assert [(entry.name, entry.section["class_path"]) for entry in found] == [
        ("FedAvg", "FedAvg"), ("FedGroup", "FedGroup"), ("IFCA", "IFCA"), ("seven", "IFCA"), ("FedProx", "FedProx"),
        ("me", "a.B"),
    ]  # fmt: skip
    clusters = [entry.section.get("init_args", {}).get("num_clusters") for entry in found]
    assert clusters == [None, 4, 8, 7, None, None]


def test_options_go_to_the_algorithm_that_they_name():
    entries = [Entry(name, {"class_path": "IFCA"}) for name in ("A", "A.B", "C")]
    words = ["--rounds", "3", "--A.x", "-1", "--C.y=2", "--A.B.z", "[1, 2]", "--tiny"]
    found, rest = with_options(entries, words)
    assert [entry.words for entry in found] == [
        ("--algorithm.x", "-1"), ("--algorithm.z", "[1, 2]"), ("--algorithm.y=2",),
    ]  # fmt: skip
    assert rest == ["--rounds", "3", "--tiny"]


def test_the_number_of_clusters_is_the_files_or_has_to_be_given(capsys: pytest.CaptureFixture[str]):
    assert main([*SMALL, "--algorithms", "IFCA", "two=IFCA", "--two.num_clusters", "2", "--compare_dir", "c"]) == 0
    assert "Note: IFCA runs with num_clusters 4, as the file's algorithm." in capsys.readouterr().out
    configs = [yaml.safe_load(Path("c", name, "config.yaml").read_text()) for name in ("IFCA", "two")]
    assert [config["algorithm"]["init_args"]["num_clusters"] for config in configs] == [4, 2]
    assert [config["name"] for config in configs] == ["quickstart-IFCA", "quickstart-two"]
    assert {config["plan"]["threads"] for config in configs} == {1}


def test_dry_run_checks_and_writes_nothing(capsys: pytest.CaptureFixture[str]):
    assert main([*SMALL, "--algorithms", "FedAvg", "IFCA", "--seeds", "[0,1,2]", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "6, 1 at a time" in out
    assert "12 in training" in out
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--algorithms FedAvg", "give a file: --config quickstart"),
        ("--config quickstart", "give --algorithms"),
        ("--config quickstrat --algorithms FedAvg", "(did you mean quickstart?)"),
        ("--config quickstart --algorithms FedAvg FedAvgg", "(did you mean FedAvg?)"),
        ("--config quickstart --algorithms FedAvg ifca/digitz", "(did you mean ifca/digits?)"),
        ("--config quickstart --algorithms FedAvg tune/quickstart", "names no algorithm"),
        ("--config quickstart --algorithms FedAvg ifca", "ifca: 'ifca' is not known (did you mean IFCA?)"),
        ("--config quickstart --algorithms IFCA IFCA", "IFCA twice; give each a name of its own: A=IFCA B=IFCA"),
        ("--config quickstart --algorithms a/b=IFCA", "'a/b' cannot be a name"),
        ("--config quickstart --algorithms data=IFCA", "'data' is an option of experiments"),
        ("--config fedavg/digits --algorithms FedAvg IFCA", "give it: --IFCA.num_clusters 4"),
        ("--config quickstart --algorithms own_failing.Needs", "needs strength; give --Needs.strength VALUE"),
        ("--config quickstart --algorithms IFCA --IFAC.num_clusters 4", "'IFAC' (did you mean IFCA?)"),
        ("--config quickstart --algorithms IFCA --IFCA.num_cluster 4", "(did you mean num_clusters?)"),
        ("--config quickstart --algorithms IFCA --IFCA.num_clusters x", "IFCA.num_clusters: 'x' is not a whole number"),
        ("--config quickstart --algorithms FedAvg IFCA --IFCA.num_clusters 41", "IFCA, seed 0: num_clusters is 41"),
        ("--config quickstart --algorithms IFCA --seeds 0 0", "seeds is [0, 0]"),
        ("--config quickstart --algorithms IFCA --seeds 0 x", "'x' is no seed"),
        ("--config quickstart --algorithms IFCA --seed 3", "give --seeds"),
        ("--config quickstart --algorithms IFCA --algorithm.num_clusters 3", "options by its name"),
        ("--config quickstart --algorithms IFCA --round 3", "(did you mean rounds?)"),
        ("--config quickstart --algorithms IFCA --cohort_size 41", "cohort_size is 41, but there are 40 clients"),
        ("--config quickstart --algorithms IFCA --target 80", "--target is 80"),
        ("--config quickstart --algorithms IFCA --num_cpus 4096", "this machine has"),
        (
            "--config quickstart --algorithms IFCA --compare_dir run",
            "already holds a run; choose another --compare_dir",
        ),
        ("--resume nowhere", "holds no comparison to resume"),
        ("--resume nowhere --rounds 3", "leave out --rounds"),
    ],
)
def test_mistakes_are_said_before_anything_runs(capsys: pytest.CaptureFixture[str], arguments: str, expected: str):
    Path("own_failing.py").write_text(OWN)
    Path("run").mkdir()
    Path("run/config.yaml").write_text("")
    assert main(["compare", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.count("\n") == 1
    assert not list(Path().rglob("compare.yaml"))
    assert not list(Path().rglob("metrics.csv"))


def test_a_comparison_is_neither_begun_twice_nor_resumed_when_damaged(capsys: pytest.CaptureFixture[str]):
    words = [*SMALL, "--algorithms", "FedAvg", "--compare_dir", "c"]
    assert main(words) == 0
    assert main(words) == 2
    assert "already holds a comparison; choose another --compare_dir, or go on with --resume" in capsys.readouterr().err
    Path("c/FedAvg/config.yaml").unlink()
    assert main(["compare", "--resume", "c"]) == 2
    assert "config.yaml is missing" in capsys.readouterr().err
    Path("c/compare.yaml").write_text("name: [")
    assert main(["compare", "--resume", "c"]) == 2
    assert "compare.yaml is damaged" in capsys.readouterr().err


def test_other_clients_under_one_seed_are_said(capsys: pytest.CaptureFixture[str]):
    assert main([*SMALL, "--algorithms", "FedAvg", "Ditto", "--compare_dir", "c"]) == 0
    saved = torch.load("c/Ditto/seed-0/checkpoint.pt", weights_only=True)
    saved["fingerprint"]["partition"] = "another"
    torch.save(saved, "c/Ditto/seed-0/checkpoint.pt")
    capsys.readouterr()
    assert main(["compare", "--resume", "c"]) == 0
    assert "Warning: under seed 0 the runs do not share one partition: nothing is paired." in capsys.readouterr().out


def test_as_many_runs_at_once_as_there_are_cores_for_their_threads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert processes(Plan(threads=1), None, 30) == 8
    assert processes(Plan(threads=1), 3, 30) == 3
    assert processes(Plan(threads=3), None, 30) == 2
    assert processes(Plan(threads=16), None, 30) == 1
    assert processes(Plan(threads=1), None, 5) == 5
    assert processes(Plan("ray", threads=1), None, 30) == 1
    monkeypatch.setattr("lit_cfl.compare.jobs.find_spec", lambda name: None)
    assert processes(Plan(threads=1), None, 30) == 1


def test_an_unreadable_entry_is_quoted():
    Path("bad.yaml").write_text("a: [1")
    with pytest.raises(InputError, match=r"bad\.yaml is no YAML file"):
        read_entries(["bad.yaml"], None)


def test_a_tiny_comparison_says_that_it_is_not_paired():
    assert main([*SMALL, "--algorithms", "FedAvg", "--seeds", "4", "--compare_dir", "c", "--tiny"]) == 0
    (row,) = table("c/runs.csv")
    assert (row["algorithm"], row["seed"], row["rounds"]) == ("FedAvg", 4, 1)
    assert "not paired" in Path("c/results.md").read_text()
