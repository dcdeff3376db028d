"""Tests `lit-cfl compare --search`: spaces, budgets, and that only runs under the search seeds choose anything."""

import contextlib
import io
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from inside_shown import page_of, table_on
from small_comparison import SMALL

import lit_cfl
from lit_cfl.cli.main import main
from lit_cfl.compare.arguments import read_arguments
from lit_cfl.compare.command import requested_comparison
from lit_cfl.compare.comparison import Comparison, plan_comparison
from lit_cfl.config.catalogue import classes
from lit_cfl.errors import InputError, Notice
from lit_cfl.progress.screen import Screen
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tune import search_first
from lit_cfl.tune.check import check_study
from lit_cfl.tune.search_first import plan_searches, read_search

pytestmark = pytest.mark.usefixtures("no_figures", "in_empty_folder")
RATE = "task.optimizer.lr"
OWN = """
from dataclasses import dataclass
from torch import nn
from lit_cfl.algorithms import FedAvg
from lit_cfl.tasks import Classification

@dataclass(frozen=True)
class Fails(FedAvg):
    def round(self, state, cohort, work, rng):
        raise RuntimeError("own trouble")

class Fixed(Classification):  # its learning rate is no option
    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
"""


@cache
def compared(algorithms: tuple[str, ...], rest: tuple[str, ...]) -> Comparison:
    """Plans a comparison without its searches, which takes a second."""
    words = ("--config", "quickstart", "--num_cpus", "1", "--seeds", "0", "1", "--search", "--algorithms", *algorithms)
    return plan_comparison(read_arguments([*words, *rest]))[0]


def planned(*words: str) -> Comparison:
    given = read_arguments([*SMALL[1:], "--seeds", "0", "1", *words])
    comparison = compared(tuple(given.algorithms), tuple(given.rest))
    return plan_searches(comparison, given.search_groups or [], given.search or [])


def studies(comparison: Comparison) -> dict[str, Any]:
    return {name: search_first._study(comparison, name) for name in comparison.names}


# what is searched


def test_options_of_words_replace_those_of_files():
    files = [{"trials": 4, "stopping": {"eta": 2}, "spaces": {"A": {"x": 1}}}, {"trials": 5}]
    words = ["--search.seeds=5 6", "--search.stopping.first=3", "--search.spaces.B=b.yaml", "--search.rates=[0.1]"]
    found = read_search(files, words)
    assert (found.trials, found.seeds, found.rates) == (5, [5, 6], [0.1])
    assert (found.stopping.eta, found.stopping.first) == (2, 3)
    assert found.spaces == {"A": {"x": 1}, "B": "b.yaml"}


def test_all_have_the_same_budget_seeds_and_rates_and_try_every_rate_with_their_own_setting():
    found = studies(planned("--algorithms", "FedAvg", "StoCFL", "--StoCFL.tau", "0.9", "--search.trials", "9"))
    assert [study.limits.trials for study in found.values()] == [4, 9]  # FedAvg has nothing but the rates
    with pytest.warns(Notice, match="search.trials is 3, but the first trials are those of the 4 learning rates"):
        few = studies(planned("--algorithms", "FedAvg", "StoCFL", "--search.trials", "3"))
    assert [(study.limits.trials, len(study.points or [])) for study in few.values()] == [(3, 2), (3, 2)]
    assert [study.seeds for study in found.values()] == [[2], [2]]  # one above the comparison's
    spaces = [study.space for study in found.values()]
    assert spaces[0] == {RATE: {"choice": [0.01, 0.03, 0.1, 0.3]}}
    assert spaces[1][RATE] == spaces[0][RATE]
    assert found["FedAvg"].points == [{RATE: rate} for rate in (0.01, 0.03, 0.3)]  # 0.1 is the first trial
    own = {"algorithm.tau": 0.1, "algorithm.lambda_": 0.05}  # tau 0.9 lies outside of the packaged space
    assert found["StoCFL"].points == [own | {RATE: rate} for rate in (0.01, 0.03, 0.3)]


def test_a_number_of_clusters_is_searched_only_if_none_is_given():
    given = planned("--algorithms", "IFCA", "FeSEM", "--search")  # the quickstart has 4
    assert {one.algorithm.num_clusters for one in given.experiments.values()} == {4}
    assert [list(study.space) for study in studies(given).values()] == [[RATE], [RATE]]
    content = lit_cfl.load_experiment("fedavg/digits").to_dict()
    words = ("--algorithms", "IFCA", "two=IFCA", "--two.num_clusters", "2", "--search", "--rounds", "2")
    comparison, _ = requested_comparison(read_arguments(words, content), Screen(quiet=True))
    assert [list(study.space) for study in studies(comparison).values()] == [[RATE, "algorithm.num_clusters"], [RATE]]


def test_a_list_of_settings_is_all_that_is_tried():
    points = [{"algorithm.tau": 0.3, "algorithm.layers": None}, {"algorithm.tau": 0.4, "algorithm.layers": ["*"]}]
    assert search_first._choices(points) == {
        "algorithm.tau": {"choice": [0.3, 0.4]},
        "algorithm.layers": {"choice": [None, ["*"]]},
    }
    Path("space.yaml").write_text(yaml.safe_dump({"points": [{"algorithm.tau": 0.3}, {"algorithm.tau": 0.4}]}))
    words = ("--algorithms", "FedAvg", "StoCFL", "--search.trials", "9", "--search.spaces.StoCFL", "space.yaml")
    study = studies(planned(*words))["StoCFL"]
    assert study.limits.trials == 3  # with its own setting
    assert study.space == {"algorithm.tau": {"choice": [0.3, 0.4]}}


def test_a_space_of_ones_own_has_the_common_rates_unless_it_names_others():
    space = {"algorithm.tau": {"choice": [0.3, 0.4]}}
    words = ("--algorithms", "A=StoCFL", "B=StoCFL", "--search.rates", "0.1", "0.2", f"--search.spaces.A={space}")
    other = space | {RATE: {"loguniform": [0.01, 1.0]}}
    found = studies(planned(*words, f"--search.spaces.B={other}"))
    assert found["A"].space == space | {RATE: {"choice": [0.1, 0.2]}}
    assert (found["B"].space, found["B"].points) == (other, [])


@pytest.mark.nightly
def test_every_packaged_space_builds_at_its_corners():
    spaces = yaml.safe_load(search_first._PACKAGED.read_text())
    assert spaces.keys() == classes("algorithms").keys()
    words = ["--config", "fedavg/digits", "--rounds", "12", "--algorithms", *spaces]
    comparison, _ = plan_comparison(read_arguments([*words, "--search"]))
    assert set(comparison.open_clusters) == {
        name for name, space in spaces.items() if "algorithm.num_clusters" in space
    }
    names = [name for name in spaces if spaces[name]]
    some = replace(comparison, experiments={name: comparison.experiments[name] for name in names})
    rates = [0.01, 0.1]
    full = {name: search_first._space(some, name, None, rates) for name in names}
    content = {"seeds": [1], "rates": rates, "spaces": full}
    for name in names:
        study = search_first._study(replace(some, search=content), name)
        assert len(check_study(study)[2]) > len(spaces[name])
        assert {point[RATE] for point in study.points or []} == {0.01}


REFUSED = {
    "--search.trails 3": "search has no option 'trails' (did you mean trials?)",
    "--search.rates 0.1 --task=own.Fixed --task.net=MCLR": "task: Fixed has no option 'optimizer'",
    "--search --task=own.Fixed --task.net=MCLR": "FedAvg has no option to search, since its task has no "
    "task.optimizer.lr; give its space: --search.spaces.FedAvg FILE",
    "--search.trials 0": "search.trials is 0; give 1 or more",
    "--search.trials many": "search.trials is 'many'; give a whole number",
    "--search.minutes -1": "search.minutes is -1; give a number above 0",
    "--search.seeds 1 5": "seed 1 is the comparison's, whose runs must not choose anything; "
    "give others: --search.seeds 2",
    "--search.spaces.StoCLF x.yaml": "search.spaces has 'StoCLF' (did you mean StoCFL?), but the algorithms here "
    "are FedAvg, StoCFL",
    "--search.spaces.StoCFL none.yaml": "search.spaces.StoCFL: there is no file 'none.yaml'",
    "--search.spaces.StoCFL 3": "search.spaces.StoCFL is 3; write options and their values, as in a study's space",
    "--search.spaces.StoCFL={'algorithm.tua':{'choice':[1]}}": "search of StoCFL: space: task.optimizer.lr = 0.01, "
    "algorithm.tua = 1: algorithm: StoCFL has no option 'tua' (did you mean tau?)",
    "--search.spaces.StoCFL={'points':[]}": "points is []; write a list of settings",
    "--search.trials 2 --search.spaces.StoCFL={'points':[{'algorithm.tau':0.1},{'algorithm.tau':0.2}]}": "search of "
    "StoCFL: search.trials is 2, but the base's setting, the points and the grid make 3 trials; give 3 or more",
    "--search --data.validation 0": "search of FedAvg: the base's data have no validation part, and test data must not "
    "choose anything; set data.validation, for example to 0.25",
    "--search.stopping.eta 0.5": "stopping.eta is 0.5; give 1 (no trial is stopped) or more",
    "--search --own=own.Fails": "no space is packaged for own, whose class Fails is your own; give its space: "
    "--search.spaces.own FILE",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_searched_is_refused_in_one_line(words: str):
    Path("own.py").write_text(OWN)
    names = ["FedAvg", "StoCFL"]
    if " --own" in words:
        words, names = "--search", ["own=own.Fails"]
    with pytest.raises(InputError) as raised:
        planned("--algorithms", *names, *words.split())
    message = str(raised.value)
    assert REFUSED.get(words if names[0] == "FedAvg" else "--search --own=own.Fails", "") in message
    assert "\n" not in message


def test_a_resume_takes_no_options_of_the_search():
    with pytest.raises(InputError, match=r"leave out --search\.trials"):
        read_arguments(["--resume", "c", "--search.trials", "3"])


def test_core_minutes_are_spent_by_trials_of_the_mean_cost(monkeypatch: pytest.MonkeyPatch):
    """Studies that only count: trials cost 10, 3, 3, ... core seconds, and a space may have no further settings."""
    comparison = planned("--algorithms", "FedAvg", "--search.minutes", "1", "--search.resources.cpus", "2")
    asked: list[int] = []
    costs, most = [5.0, *[1.5] * 99], 99

    def run_study(request: Any, say: Any, like: Any) -> Any:
        asked.append(request.study.limits.trials)
        return SimpleNamespace(trained=[{"seconds": one} for one in costs[: min(most, asked[-1])]])

    def spent() -> tuple[list[int], float]:
        asked.clear()
        study, result = search_first._search(comparison, "FedAvg", Path("none"), None, Screen(quiet=True))
        return asked, search_first._core_seconds(study, result)

    monkeypatch.setattr(search_first, "run_study", run_study)
    trials, seconds = spent()
    assert trials[0] == 4  # its own setting at each rate
    assert len(trials) < 6
    assert 60 <= seconds < 60 + 3
    most = 7
    assert spent()[0][1:] == [trials[1]]
    costs = [0.0] * 99
    assert spent()[0] == [4]


# whole searches


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, cluster: None) -> tuple[Path, str]:
    """Searches and compares two algorithms, one of which always fails; returns the directory and the output."""
    path, out = tmp_path_factory.mktemp("searched"), io.StringIO()
    (path / "own_broken.py").write_text(OWN)
    spaces = {"Broken": {"algorithm.weights": {"choice": ["equal"]}}}
    content = {"search": {"trials": 3, "rates": [0.01, 0.1, 0.3], "spaces": spaces}}
    (path / "search.yaml").write_text(yaml.safe_dump(content))
    names = ("IFCA", "Broken=own_broken.Fails")
    words = ("--config", "search.yaml", "--seeds", "0", "1", "--compare_dir", "c", "--algorithms", *names)
    with contextlib.chdir(path), contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path))
        assert main([*SMALL, *words]) == 1  # since one algorithm is left out
    return path / "c", out.getvalue()


@pytest.mark.ray
def test_winners_run_with_their_best_settings_on_seeds_that_chose_nothing(searched: tuple[Path, str]):
    path = searched[0]
    row = read_table(path / "search.csv", text=("trial",))[0]
    best, runs = (yaml.safe_load((path / part).read_text()) for part in ("searches/IFCA/best.yaml", "IFCA/config.yaml"))
    assert {option for option in runs if runs[option] != best[option]} == {"name", "seeds", "tracking"}
    assert {folder.name for folder in (path / "IFCA").glob("seed-*")} == {"seed-0", "seed-1"}
    assert best["seeds"] == [2]
    trials = read_table(path / "searches/IFCA/trials.csv", text=("trial_id",))
    assert row["trials"] == len(trials) == 3
    scores = {one["trial_id"]: one["val/weighted_accuracy"] for one in trials if one["status"] == "finished"}
    assert (row["own"], row["best"]) == (scores["0000"], max(scores.values()))
    assert row["rounds"] == sum(one["rounds"] for one in trials)
    assert row["core_seconds"] == pytest.approx(sum(one["seconds"] for one in trials))
    for summary in (path / "searches").rglob("trials/*/summary.json"):
        assert '"seed": 2' in summary.read_text()


@pytest.mark.ray
def test_an_algorithm_without_a_finished_trial_is_left_out_and_named(searched: tuple[Path, str]):
    path, out = searched
    why = "Broken is left out, as no trial of its search has finished: RuntimeError: own trouble"
    assert why in out
    assert [row["algorithm"] for row in read_table(path / "results.csv")] == ["IFCA"]
    broken = read_table(path / "search.csv")[1]
    assert (broken["algorithm"], broken["trials"], broken["failed"], broken["best"]) == ("Broken", 3, 3, None)


@pytest.mark.ray
def test_the_page_has_the_table_and_each_search(searched: tuple[Path, str]):
    page = page_of(searched[0])
    (section,) = (one for one in page.sections if one.title == "Searches")
    assert [part.title for part in section.parts] == ["IFCA", "Broken"]
    assert [row[0] for row in table_on(page, "Chosen settings")] == ["algorithm", "IFCA", "Broken"]
    assert "tune --resume" not in repr(section)  # more trials would not be those that chose


@pytest.mark.ray
def test_a_resume_between_searches_and_runs_gives_the_same_and_trains_no_trial_again(
    searched: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, cluster: None
):
    """As if the process had been killed just before the record of the best settings."""
    monkeypatch.syspath_prepend(str(searched[0].parent))
    shutil.copytree(searched[0], "c")
    record = yaml.safe_load(Path("c/compare.yaml").read_text())
    shutil.copytree("c/searches/Broken/trials/0000", "c/Broken", dirs_exist_ok=True)
    record |= {"searched": None, "algorithms": ["IFCA", "Broken"]}
    Path("c/compare.yaml").write_text(yaml.safe_dump(record))
    trials = {file: file.stat().st_mtime_ns for file in Path("c/searches").rglob("summary.json")}
    for name in ("results.csv", "search.csv", "runs.csv"):
        Path("c", name).unlink()
    assert main(["compare", "--resume", "c", "--num_cpus", "1"]) == 1
    assert {file: file.stat().st_mtime_ns for file in Path("c/searches").rglob("summary.json")} == trials
    for name in ("results.csv", "search.csv", "runs.csv"):
        assert Path("c", name).read_text() == (searched[0] / name).read_text()
    records = [yaml.safe_load((path / "compare.yaml").read_text()) for path in (Path("c"), searched[0])]
    assert records[0] == records[1]


@pytest.mark.nightly
@pytest.mark.ray
def test_the_same_through_python(searched: tuple[Path, str], cluster: None):
    search = {"trials": 3, "rates": [0.01, 0.1, 0.3]}
    words = [*SMALL[3:-2]]
    found = lit_cfl.compare("quickstart", ["IFCA"], [0, 1], words, compare_dir="p", search=search, num_cpus=1)
    same = ["algorithm", "trials", "rounds", "own", "best", "setting"]
    expected = [row for row in read_table(searched[0] / "search.csv", text=("setting",)) if row["best"] is not None]
    assert found.search[same].to_dict("records") == [{name: row[name] for name in same} for row in expected]
    scores = [row["test_mean"] for row in read_table(searched[0] / "results.csv")]
    assert list(found.results["test_mean"]) == scores
