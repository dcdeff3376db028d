"""Tests what a study shows: importance, pictures, and its final table."""

import json
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rich.console import Console
from studies import ALGORITHMS, STUDY

from lit_cfl.pictures.figure import Figure
from lit_cfl.pictures.figure import draw as draw_figure
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.search import short_labels
from lit_cfl.statistics import interval
from lit_cfl.tune.command import closing_table
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.pictures import FEWEST_TRIALS, build_study, draw, importance, list_figures
from lit_cfl.tune.repeats import Repeated
from lit_cfl.tune.space_file import parse_space
from lit_cfl.tune.spaces import Space
from lit_cfl.tune.study import Study
from lit_cfl.tune.study_result import StudyResult

pytestmark = pytest.mark.nightly  # a table of tests states these facts

METRIC = "val/weighted_accuracy"
PLAIN = parse_space(
    {
        "algorithm.eta_g": {"loguniform": [0.001, 1.0]},
        "algorithm.layers": {"choice": [["conv*"], None]},
        "algorithm.num_clusters": {"randint": [2, 5]},
    }
)
SEVERAL = parse_space({"algorithm": ALGORITHMS})
PARAMETERS = list(PLAIN.distributions())
STRICT = DrawingGuard(passed=(Exception,))  # a figure that cannot be drawn fails the test


def row(number: int, figure: float | None, mib: float = 1.0, status: str = "finished", **values: Any) -> dict[str, Any]:
    last_result = {METRIC: figure, "traffic/mib": mib, "error": None}
    return {"trial_id": str(number), "status": status, "origin": "search", "repeats": ""} | last_result | values


def plain_rows(count: int) -> list[dict[str, Any]]:
    """Makes trials whose score depends on the number of clusters alone."""
    rng, rows = Random(0), []
    for number in range(count):
        values = {
            "algorithm.eta_g": 10 ** rng.uniform(-3, 0),
            "algorithm.layers": rng.choice(['["conv*"]', "null"]),
            "algorithm.num_clusters": rng.randrange(2, 5),
        }
        rows.append(row(number, 0.2 * values["algorithm.num_clusters"], 1.0 + number, **values))
    return rows


def several_rows(count: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(count):
        if number % 2:
            rows.append(row(number, 0.5, algorithm="IFCA", **{"IFCA.num_clusters": 2 + number % 4 // 2}))
        else:
            own = {"FedGroup.num_clusters": 2 + number % 4 // 2, "FedGroup.eta_g": 0.01}
            rows.append(row(number, 0.6 + 0.01 * number, 2.0, algorithm="FedGroup", **own))
    return rows


def test_what_alone_decides_is_the_most_important():
    rows = plain_rows(24)
    shares = importance(rows, PLAIN, Objective())
    assert list(shares) == sorted(shares, key=lambda key: -shares[key])
    assert max(shares, key=lambda key: shares[key]) == "algorithm.num_clusters"
    assert shares["algorithm.num_clusters"] > 0.6
    assert sum(shares.values()) == pytest.approx(1)
    turned = [row | {"val/loss": -row[METRIC]} for row in rows]
    assert importance(turned, PLAIN, Objective("val/loss")) == shares


def test_the_algorithm_matters_where_it_decides():
    shares = importance(several_rows(16), SEVERAL, Objective())
    assert set(shares) == {"algorithm", "IFCA.num_clusters", "FedGroup.num_clusters", "FedGroup.eta_g"}
    assert shares["algorithm"] == max(shares.values())


def test_a_trial_that_was_stopped_early_does_not_count_for_importance():
    rows = plain_rows(24)
    slow = [row | {"status": "stopped", METRIC: 0.01, "algorithm.eta_g": 0.9} for row in plain_rows(24)]
    assert importance([*rows, *slow], PLAIN, Objective()) == importance(rows, PLAIN, Objective())


def test_a_default_outside_the_space_is_shown_but_does_not_count():
    rows = plain_rows(24)
    outside = row(99, 0.9, 30.0, **rows[0] | {"trial_id": "99", "algorithm.num_clusters": 9, METRIC: 0.9})
    assert importance([*rows, outside], PLAIN, Objective()) == importance(rows, PLAIN, Objective())


def test_importance_is_unknown_with_few_trials_or_equal_figures():
    rows = plain_rows(FEWEST_TRIALS)
    assert importance(rows, PLAIN, Objective())
    assert importance([*rows[1:], rows[0] | {"status": "failed", METRIC: None}], PLAIN, Objective()) == {}
    same = [row | {METRIC: 0.5, "algorithm.num_clusters": 3} for row in rows]
    assert importance(same, parse_space({"algorithm.num_clusters": {"choice": [3]}}), Objective()) == {}


@pytest.mark.parametrize(
    ("space", "rows", "drawn"),
    [
        (PLAIN, [*plain_rows(9), row(9, None, status="failed")], "history importance pareto slices"),
        (PLAIN, plain_rows(1), "history"),
        (SEVERAL, several_rows(9), "history importance pareto slices"),
        (SEVERAL, [row | {"status": "stopped"} for row in several_rows(2)], "history slices"),
        (PLAIN, [row(0, None, status="failed")], ""),
        (PLAIN, [row(0, 0.5, **{"algorithm.num_clusters": 9})], "history"),
    ],
)
def test_pictures_without_data_are_skipped(space: Space, rows: list[dict[str, Any]], drawn: str, tmp_path: Path):
    path = tmp_path / "pictures"
    parameters = [*(["algorithm"] if space.algorithms else []), *(p.key for p in space.parameters)]
    draw(path, rows, parameters, Objective(), importance(rows, space, Objective()), STRICT)
    files = sorted(path.glob("*.png"))
    assert [file.stem for file in files] == drawn.split()
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


@pytest.mark.parametrize("broken", ["history", "slices", "importance", "pareto"])
def test_a_picture_that_cannot_be_drawn_leaves_the_others(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> None:
        raise ZeroDivisionError("planted\nmore")

    monkeypatch.setattr(f"lit_cfl.pictures.search.{broken}", fails)
    rows, said = plain_rows(9), list[str]()
    guard, shares = DrawingGuard(said.append), importance(rows, PLAIN, Objective())
    for _ in range(2):  # a study draws its pictures repeatedly
        draw(tmp_path, rows, PARAMETERS, Objective(), shares, guard)
    assert said == [f"pictures/{broken} cannot be drawn and is left out (ZeroDivisionError: planted)"]
    assert {file.stem for file in tmp_path.glob("*.png")} == {"history", "slices", "importance", "pareto"} - {broken}


def test_a_folder_that_cannot_be_made_is_reported_once(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    said: list[str] = []
    draw(tmp_path / "file", plain_rows(2), PARAMETERS, Objective(), {}, DrawingGuard(said.append))
    assert len(said) == 1
    assert said[0].startswith("pictures cannot be drawn and is left out (FileExistsError")


def test_an_earlier_picture_is_removed(tmp_path: Path):
    for count in (12, 3):
        rows = plain_rows(count)
        draw(tmp_path, rows, PARAMETERS, Objective(), importance(rows, PLAIN, Objective()), STRICT)
        assert (tmp_path / "importance.png").exists() == (count == 12)


def test_the_front_holds_what_none_beats_in_both():
    rows = [row(0, 0.5, 3.0), row(1, 0.7, 5.0), row(2, 0.6, 4.0), row(3, 0.6, 6.0), row(4, 0.5, 2.0), row(5, 0.7, 5.0)]
    assert [one["trial_id"] for one in Objective().front(rows)] == ["4", "2", "1"]
    losses = [one | {"val/loss": one[METRIC]} for one in rows]
    assert [one["trial_id"] for one in Objective("val/loss").front(losses)] == ["4"]


def test_the_history_numbers_trials_as_the_tables_do():
    """Repeated settings are not drawn, but keep their trial numbers."""
    rows = [row(0, 0.5), row(3, 0.7), row(4, None, status="failed"), row(6, 0.9, status="stopped"), row(7, 0.6)]
    panel = made(rows, "history").first_panel
    marks = {dots.name: list(zip(dots.x, dots.y, strict=True)) for dots in panel.points}
    assert marks["finished"] == [(0, 0.5), (3, 0.7), (7, 0.6)]
    assert marks["stopped"] == [(6, 0.9)]  # its best value, from an early round
    assert [x for x, _ in marks["failed"]] == [4]
    (best,) = panel.curves
    steps = list(zip(best.x, best.y, strict=True))
    assert steps == [
        (0, 0.5), (3, 0.5), (3, 0.7), (4, 0.7), (4, 0.7), (6, 0.7), (6, 0.7), (7, 0.7), (7, 0.7)
    ]  # fmt: skip


def made(rows: list[dict[str, Any]], name: str, parameters: list[str] = PARAMETERS) -> Figure:
    figure = list_figures(rows, parameters, Objective(), {})[name]()
    assert figure is not None
    return figure


def test_each_parameter_has_a_panel_of_the_trials_that_have_it():
    rows = several_rows(8)
    keys = ["algorithm", "IFCA.num_clusters", "FedGroup.num_clusters", "FedGroup.eta_g"]
    panels = [panel for line in made(rows, "slices", keys).rows for panel in line]
    assert [panel and panel.x for panel in panels] == [*keys[:3], None]  # eta_g does not vary
    assert panels[0].x_ticks == {0.0: "FedGroup", 1.0: "IFCA"}
    assert [sum(len(dots.x) for dots in panel.points) for panel in panels[:3]] == [8, 4, 4]
    assert set(panels[0].points[0].x) == {0, 1}


def test_a_long_name_has_two_lines_under_its_panel():
    keys = ["FedGroup.pretrain_scale", "task.optimizer.momentum"]
    rows = [row(k, 0.5 + k / 10, **dict.fromkeys(keys, 2 + k)) for k in range(3)]
    ((first, second),) = made(rows, "slices", keys).rows
    assert (first.x, second.x) == ("FedGroup.\npretrain_scale", "task.optimizer.\nmomentum")


def test_an_axis_of_values_over_decades_is_logarithmic():
    rows = [row(k, 0.5 + k / 10, **{"algorithm.eta_g": 10.0**-k, "algorithm.num_clusters": 2 + k}) for k in range(3)]
    slices = made(rows, "slices")
    ((decades, plain),) = slices.rows
    note = "Values that differ by more than a factor of 10 have a logarithmic axis."
    assert slices.caption.endswith(note)
    assert note not in made([one | {"algorithm.eta_g": 1.0} for one in rows], "slices").caption
    assert (decades.x, decades.log_x, plain.log_x) == ("algorithm.eta_g", True, False)


def test_labels_of_an_axis_over_little_more_than_a_decade_do_not_touch():
    rates = (0.017, 0.05, 0.2)
    figure = draw_figure(
        made(
            [row(k, 0.5, **{"task.optimizer.lr": rate}) for k, rate in enumerate(rates)],
            "slices",
            ["task.optimizer.lr"],
        )
    )
    figure.canvas.draw()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    ticks = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    assert [label.get_text() for tick, label in ticks if low <= tick <= high] == ["0.03", "0.1"]
    assert not any(label.get_text() for label in axes.get_xticklabels(minor=True))


def test_optuna_gets_finished_trials_under_their_numbers_and_with_their_values():
    rows = [*plain_rows(5)[:2], row(2, None, status="failed"), *plain_rows(5)[3:]]
    study = build_study(rows, PLAIN, Objective())
    assert [trial.number for trial in study.trials if trial.state.name == "COMPLETE"] == [0, 1, 3, 4]
    assert study.trials[4].params == {key: rows[4][key] for key in PLAIN.distributions()}
    assert study.trials[4].value == rows[4][METRIC]


def test_labels_of_choices_are_short_and_distinct():
    optimizers = [
        json.dumps({"class_path": f"torch.optim.{name}", "init_args": {"lr": 0.1}}) for name in ("SGD", "Adam")
    ]
    assert short_labels(optimizers) == ["SGD(lr=0.1)", "Adam(lr=0.1)"]
    assert short_labels(["conv", "null", 0.5]) == ["conv", "null", "0.5"]
    long = [f"{'x' * 30}{k}" for k in range(2)]
    assert short_labels(long) == [f"{k}: {'x' * 17}…" for k in (1, 2)]


def printed(result: StudyResult) -> str:
    console = Console(width=200, file=StringIO())
    closing_table(console, Study(**(STUDY | {"space": {"algorithm.eta_g": {"uniform": [0, 1]}}})), result)
    return console.file.getvalue()


def test_the_table_at_the_end_names_stopped_trials_that_had_a_better_score():
    rows = [row(0, 0.5), row(1, 0.5, status="stopped"), row(2, 0.625, status="stopped") | {"rounds": 8}, row(3, 0.7)]
    line = (
        "Stopped trials that were better than the best one: 2 (0.6250, 8 rounds); only finished trials can be the best"
    )
    assert line in printed(StudyResult(Path("here"), rows, rows[0], {}, None))
    assert "Better when" not in printed(StudyResult(Path("here"), rows, rows[3], {}, None))


def test_the_table_at_the_end_has_best_default_gain_and_importance():
    rows = [row(0, 0.5, **{"algorithm.eta_g": 0.25}), row(1, 0.4, status="stopped"), row(2, None, status="failed")]
    rows[2]["error"] = "RuntimeError: too warm"
    figures = {
        name: {METRIC: interval([f, f + 0.02]), "test/weighted_accuracy": interval([f, f])}
        for name, f in (("best", 0.8), ("default", 0.6))
    }
    repeated = Repeated([4, 5], figures, interval([0.19, 0.21]), ["best, seed 6: gone"])
    text = printed(StudyResult(Path("here"), rows, rows[0], {"algorithm.eta_g": 1.0}, repeated))
    assert "3 trials: 1 finished, 1 stopped early, 1 failed" in text
    assert "Best: algorithm.eta_g = 0.25" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["best", "0.8100", "±", "0.1271", "0.8000", "±", "0.0000"] in lines
    assert ["default", "0.6100", "±", "0.1271", "0.6000", "±", "0.0000"] in lines
    assert "0.2000 ± 0.1271" in text  # half-width of the gain's interval: t(0.975, 1) * 0.01414 / sqrt(2)
    assert "Importance (PED-ANOVA): algorithm.eta_g 1.00" in text
    assert "failed: 2: RuntimeError: too warm" in text
    assert "not repeated: best, seed 6: gone" in text


def test_repeated_settings_are_not_counted_as_trials():
    rows = [row(0, 0.5, origin="default"), row(1, 0.5, repeats="0000"), row(2, 0.4, status="stopped")]
    text = printed(StudyResult(Path("here"), rows, rows[0], {}, None))
    assert "2 trials: 1 finished, 1 stopped early, 0 failed; 1 more repeated an earlier setting" in text
    assert "(the base's own setting)" in text
    assert "Importance of the parameters: unknown; it needs 8 finished trials with settings in" in text


def test_a_study_without_a_best_says_so():
    text = printed(StudyResult(Path("here"), [row(0, 0.4, status="stopped")], None, {}, None))
    assert "No trial finished" in text
    assert "Importance" not in text
