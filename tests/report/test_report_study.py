"""Tests the page of a study, from records like those that a search writes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from studies import STUDY
from test_sources import page_of

from lit_cfl.pictures.figure import Figure
from lit_cfl.pictures.panels import plain
from lit_cfl.report.blocks import Table, Text
from lit_cfl.report.page import as_html
from lit_cfl.report.study import _repeats_table, headline, read_study
from lit_cfl.scores import Score
from lit_cfl.storage.lock import lock_directory
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.record import TrialRecord, write_record
from lit_cfl.tune.study import Study

pytestmark = pytest.mark.nightly  # a table of tests states these facts

METRIC = "val/weighted_accuracy"


def made_study(path: Path) -> Path:
    """Writes a study with ten finished trials, a stopped one, a failed one, and one that repeats the first."""
    path.mkdir(parents=True)
    Study(**(STUDY | {"limits": {}})).write(path / "study.yaml", "89abcdef")
    usual = {"rounds": 4, "seconds": 1.0, "finished": True}
    for number in range(10):
        values = {"algorithm.eta_g": 0.03 * number, "algorithm.num_clusters": 2 + number % 2}
        figures = usual | {METRIC: 0.9 - 0.02 * number, "traffic/mib": 3.0 - number / 4}
        write_record(path / "trials", TrialRecord(number, "search", values, None, "finished", figures), "89abcdef")
    values = {"algorithm.eta_g": 0.3, "algorithm.num_clusters": 2}
    stopped = TrialRecord(
        10, "search", values, None, "stopped", usual | {METRIC: 0.1, "rounds": 1, "traffic/mib": 0.25}
    )
    failed = TrialRecord(11, "search", values, None, "failed", {"error": "<script>hacked = 1</script>"})
    again = TrialRecord(12, "search", {}, 0, "finished", {})
    for record in (stopped, failed, again):
        write_record(path / "trials", record, "89abcdef")
    return path


def texts_of(path: Path) -> str:
    return "\n".join(block.text for part in page_of(path).sections for block in part.blocks if isinstance(block, Text))


def test_history_importance_and_front_of_a_study(tmp_path: Path):
    page = page_of(made_study(tmp_path / "study"))
    figures = {figure.name.removeprefix("study-1-"): figure for figure in page.figures}
    assert set(figures) == {"history", "importance", "pareto", "slices"}
    history = figures["history"].first_panel
    assert {points.name: len(points.x) for points in history.points} == {"finished": 10, "stopped": 1, "failed": 1}
    assert set(history.curves[0].y) == {0.9}
    (shares,) = figures["importance"].first_panel.points
    assert shares.notes[-1]["parameter"] == "algorithm.eta_g"
    assert sum(shares.x) == pytest.approx(1.0, abs=0.002)
    front = figures["pareto"].first_panel.points[0].notes
    # all trials are Pareto-optimal, since each costs less than the one before
    assert [note["trial"] for note in front] == [f"{number:04d}" for number in range(9, -1, -1)]
    assert page.lines[0].startswith(f"12 trials, 10 of them finished. The best, 0000, has {METRIC} 0.9000: ")


@pytest.mark.parametrize("order", [1, -1])
def test_panels_of_parameters_are_in_the_order_of_the_space_as_in_the_folder_of_pictures(tmp_path: Path, order: int):
    path, space = made_study(tmp_path / "study"), list(STUDY["space"].items())
    turned = STUDY | {"limits": {}, "space": dict(space[::order])}
    Study(**turned).write(path / "study.yaml", "89abcdef")
    (slices,) = (figure for figure in page_of(path).figures if figure.name.endswith("slices"))
    axes = [panel.x for line in slices.rows for panel in line if panel is not None]
    assert axes == [plain(key) for key, _ in space][::order]


def test_a_started_trial_counts_as_running_only_while_a_process_works_on_its_study(tmp_path: Path):
    path = made_study(tmp_path / "study")
    began = TrialRecord(13, "search", {"algorithm.eta_g": 0.1, "algorithm.num_clusters": 2}, None, "running", {})
    write_record(path / "trials", began, "89abcdef")
    assert read_study(path).rows[-1]["status"] == "interrupted"
    assert "13 trials: 10 finished, 1 stopped early, 1 interrupted, 1 failed" in texts_of(path)
    with lock_directory(path):
        assert read_study(path).rows[-1]["status"] == "running"


def test_a_study_whose_best_was_not_trained_on_new_seeds_says_so(tmp_path: Path):
    path = made_study(tmp_path / "study")
    for repeats in (0, 2):
        Study(**(STUDY | {"limits": {}, "num_repeats": repeats})).write(path / "study.yaml", "89abcdef")
        said = "have not been trained on new seeds yet."
        resume = f"resume it with: lit-cfl tune --resume {path}"
        assert (said in texts_of(path)) == (resume in texts_of(path)) == (repeats > 0)


def test_trials_are_listed_with_their_errors_escaped(tmp_path: Path):
    page = page_of(made_study(tmp_path / "study"))
    trials = next(figure for figure in page.figures if figure.name.endswith("history")).first_panel.points
    assert sum(len(dots.notes) for dots in trials) == 12
    assert trials[-1].notes[-1]["error"] == "<script>hacked = 1</script>"
    texts = [block.text for section in page.sections for block in section.blocks if isinstance(block, Text)]
    assert texts[1] == "Failed: 0011: <script>hacked = 1</script>."
    assert "<script>hacked" not in as_html(page).decode()


def test_a_damaged_trial_is_named_and_the_others_are_shown(tmp_path: Path):
    path = made_study(tmp_path / "study")
    file = path / "trials" / "0003" / "trial.json"
    content = json.loads(file.read_text())
    content["last_result"][METRIC] = 0.99
    file.write_text(json.dumps(content))
    found = read_study(path)
    assert len(found.rows) == 12
    assert [problem.partition(" cannot")[0] for problem in found.problems] == [str(file)]


def test_a_study_without_a_trial_says_so(tmp_path: Path):
    path = tmp_path / "study"
    path.mkdir()
    Study(**(STUDY | {"limits": {}})).write(path / "study.yaml", "89abcdef")
    page = page_of(path)
    assert page.problems == [f"{path} has no trial yet."]
    assert not page.figures


def test_the_best_on_new_seeds_is_shown_next_to_the_default(tmp_path: Path):
    path = made_study(tmp_path / "study")
    (path / "repeats").mkdir()
    summaries = {
        name: {str(seed): {METRIC: value, "test/weighted_accuracy": value + seed / 100} for seed in (1, 2)}
        for name, value in (("best", 0.75), ("default", 0.5))
    }
    (path / "repeats" / "repeats.json").write_text(json.dumps(summaries))
    tables = [b for s in page_of(path).sections for b in s.blocks if isinstance(b, Table)]
    assert [list(row)[:2] for row in tables[0].rows] == [["best", 2], ["default", 2]]
    assert "seed by seed: 0.2500 ± 0.0000" in tables[0].note


# A study whose stopped trial has the best value; all numbers of a trial differ

TRIALS = [  # status, repeats, metric, MiB, rounds, eta_g, num_clusters
    ("finished", None, 0.5, 3.0, 4, 0.05, 2),
    ("stopped", None, 0.9, 0.25, 1, 0.2, 3),
    ("finished", None, 0.75, 2.0, 5, 0.1, 3),
    ("failed", None, None, None, 0, 0.25, 2),
    ("finished", None, 0.625, 1.0, 6, 0.15, 2),
    ("finished", 2, None, None, 0, 0.1, 3),
]


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    path = tmp_path / "study"
    path.mkdir()
    Study(**(STUDY | {"limits": {}})).write(path / "study.yaml", "89abcdef")
    for number, (status, repeats, figure, mib, rounds, eta, clusters) in enumerate(TRIALS):
        values = {"algorithm.eta_g": eta, "algorithm.num_clusters": clusters}
        result = {"rounds": rounds, "seconds": 60.0 + number} | ({} if figure is None else {METRIC: figure})
        result |= {} if mib is None else {"traffic/mib": mib}
        record = TrialRecord(number, "search", values, repeats, status, {"error": "gone"} if figure is None else result)
        write_record(path / "trials", record, "89abcdef")
    return path


def drawn(path: Path) -> dict[str, Figure]:
    return {figure.name.removeprefix("study-1-"): figure for figure in page_of(path).figures}


def test_the_best_so_far_is_that_of_the_trials_that_ran_to_their_end(uneven: Path):
    history = drawn(uneven)["history"]
    (curve,) = history.first_panel.curves
    assert list(zip(curve.x, curve.y, strict=True)) == [
        (0, 0.5),
        (1, 0.5),
        (1, 0.5),
        (2, 0.5),
        (2, 0.75),  # the best value rises at this trial
        (3, 0.75),
        (3, 0.75),
        (4, 0.75),
        (4, 0.75),
    ]
    assert history.alt == "Scatter plot of 4 trials; the best so far goes from 0.5 to 0.75."
    shown = {dots.name: list(zip(dots.x, dots.y, strict=True)) for dots in history.first_panel.points}
    finished = [(0, 0.5), (2, 0.75), (4, 0.625)]
    # the failed trial is drawn at the lower edge
    assert shown == {"finished": finished, "stopped": [(1, 0.9)], "failed": [(3, 0.5)]}
    (stopped,) = [dots for dots in history.first_panel.points if dots.name == "stopped"]
    values = {"algorithm.eta_g": "0.2", "algorithm.num_clusters": "3"}
    note = {
        "trial": "0001",
        "status": "stopped",
        "origin": "search",
        "rounds": "1",
        "traffic/mib": "0.25",
        METRIC: "0.9",
    }
    assert list(stopped.notes) == [note | values | {"error": None}]


def test_the_front_is_of_finished_trials_with_traffic_before_the_figure(uneven: Path):
    front = drawn(uneven)["pareto"]
    (line,) = front.first_panel.curves
    assert (list(line.x), list(line.y)) == ([1.0, 2.0], [0.625, 0.75])
    assert {dots.name: (list(dots.x), list(dots.y)) for dots in front.first_panel.points} == {
        "finished": ([3.0], [0.5]),
        "Pareto front": ([1.0, 2.0], [0.625, 0.75]),
    }
    assert front.alt == f"Scatter plot of 3 trials by traffic and {METRIC}; on the front: 0004, 0002."


def test_a_slice_places_trials_by_their_value_of_the_parameter(uneven: Path):
    slices = drawn(uneven)["slices"]
    ((by_eta, by_clusters),) = slices.rows
    assert {dots.name: list(zip(dots.x, dots.y, strict=True)) for dots in by_eta.points} == {
        "finished": [(0.05, 0.5), (0.1, 0.75), (0.15, 0.625)],
        "stopped": [(0.2, 0.9)],
    }
    assert {dots.name: list(dots.x) for dots in by_clusters.points} == {"finished": [2, 3, 2], "stopped": [3]}
    assert (by_eta.x, by_clusters.x) == ("algorithm.eta_g", "algorithm.num_clusters")
    assert slices.alt == f"Scatter plots of 4 trials by algorithm.eta_g, algorithm.num_clusters and {METRIC}."


def test_the_counts_and_the_table_of_the_trials_are_of_those_that_were_trained(uneven: Path):
    page = page_of(uneven)
    blocks = [block for section in page.sections for block in section.blocks]
    assert next(block.text for block in blocks if isinstance(block, Text)) == (
        f"5 trials: 3 finished, 1 stopped early, 1 failed; 1 setting had been tried before. Judged by {METRIC}."
    )
    assert page.lines[0] == (
        f"5 trials, 3 of them finished. The best, 0002, has {METRIC} 0.7500: "
        "algorithm.eta_g = 0.1, algorithm.num_clusters = 3."
    )
    trials = [note for dots in drawn(uneven)["history"].first_panel.points for note in dots.notes]
    (row,) = [note for note in trials if note["trial"] == "0002"]
    assert row == {
        "trial": "0002",
        "status": "finished",
        "origin": "search",
        "rounds": "5",
        "traffic/mib": "2",
        METRIC: "0.75",
        "algorithm.eta_g": "0.1",
        "algorithm.num_clusters": "3",
        "error": None,
    }


def test_the_headline_says_if_the_best_setting_is_the_bases(uneven: Path):
    study = read_study(uneven)
    assert "base's own setting" not in headline(study)
    base = replace(study, rows=[row | {"origin": "default"} for row in study.rows])
    assert f"The best, 0002, the base's own setting, has {METRIC} 0.7500: " in headline(base)


def test_figures_on_new_seeds_have_separate_columns_and_the_gain_is_of_test_data(uneven: Path):
    (uneven / "repeats").mkdir()
    # values on validation and test data
    figures = {"best": [(0.75, 0.5), (0.8125, 1.0)], "default": [(0.5, 0.375), (0.5, 0.625)]}
    summaries = {
        name: {str(seed): {METRIC: val, "test/weighted_accuracy": test} for seed, (val, test) in enumerate(found, 1)}
        for name, found in figures.items()
    }
    (uneven / "repeats" / "repeats.json").write_text(json.dumps(summaries))
    tables = [b for s in page_of(uneven).sections for b in s.blocks if isinstance(b, Table)]
    # half-width of the interval: t(0.975, 1) = 12.706 times half the difference of the two values
    assert list(tables[0].head) == ["", "seeds", METRIC, "test/weighted_accuracy"]
    assert [list(row) for row in tables[0].rows] == [
        ["best", 2, "0.7812 ± 0.3971", "0.7500 ± 3.1766"],
        ["default", 2, "0.5000 ± 0.0000", "0.5000 ± 1.5883"],
    ]
    assert tables[0].note.endswith("seed by seed: 0.2500 ± 1.5883.")


def test_a_smaller_error_of_the_best_on_new_seeds_is_a_gain_and_an_unknown_mean_is_a_dash(tmp_path: Path):
    study = made_study(tmp_path / "study")
    objective = Objective.of(None, (Score("error", higher_is_better=False),))
    (study / "repeats").mkdir()
    # values on validation and test data
    figures = {"best": [(2.0, 1.0), (None, 1.5)], "default": [(2.5, 3.0), (2.5, 3.5)]}
    summaries = {
        name: {str(seed): {objective.metric: val, objective.test: test} for seed, (val, test) in enumerate(found, 1)}
        for name, found in figures.items()
    }
    (study / "repeats" / "repeats.json").write_text(json.dumps(summaries))
    table = _repeats_table(replace(read_study(study), objective=objective))
    assert table is not None
    assert [row[2] for row in table.rows] == ["-", "2.5000 ± 0.0000"]
    assert table.note.endswith("Gain (positive = better) on test data, seed by seed: 2.0000 ± 0.0000.")


def test_a_page_without_importance_says_how_many_trials_it_needs(tmp_path: Path):
    path = made_study(tmp_path / "study")
    said = (
        "Importance of the parameters: unknown; it needs 8 finished trials with settings in the search space, whose "
        "scores differ."
    )
    assert said not in texts_of(path)
    for number in range(3):
        (path / "trials" / f"{number:04d}" / "trial.json").unlink()
    assert said in texts_of(path)


def test_importance_is_drawn_and_described_by_its_share(tmp_path: Path):
    found = drawn(made_study(tmp_path / "study"))["importance"]
    (dots,) = found.first_panel.points
    shares = {note["parameter"]: float(note["share"]) for note in reversed(dots.notes)}
    assert shares["algorithm.eta_g"] > shares["algorithm.num_clusters"]
    ticks = found.first_panel.y_ticks
    for line in found.first_panel.curves:
        assert list(line.x) == [0.0, pytest.approx(shares[ticks[line.y[0]]], abs=5e-4)]
    assert {ticks[y]: x for x, y in zip(dots.x, dots.y, strict=True)} == pytest.approx(shares, abs=5e-4)
    listed = ", ".join(f"{key} {share:.2f}" for key, share in shares.items())
    assert found.alt == f"Dot plot of importance: {listed}."
