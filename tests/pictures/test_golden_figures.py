"""Tests the figures that runs, comparisons and searches write, against recorded content (see `helpers/golden.py`)."""

from collections.abc import Callable
from pathlib import Path

import golden_cases as cases
import inside_shown
import pytest
from golden import check_golden

from lit_cfl import algorithms, run
from lit_cfl.config.parser import parse_run
from lit_cfl.pictures.figures import RUN_FIGURES
from lit_cfl.pictures.run_files import read_run

GOLDEN = Path(__file__).with_name("golden")


def of_baseline(path: Path) -> inside_shown.Content:
    """Describes the learning curve of a run and its baseline, whose scores are those of the first three rounds."""
    run = cases.finished_run(path / "run")
    baseline, rows = cases.started_run(path / "run" / "baseline", (1, 2, 3))
    return inside_shown.picture_with_baseline(run, cases.finish(baseline, rows, algorithm="FedAvg"))


def of_comparison(path: Path) -> inside_shown.Content:
    results = inside_shown.results_of(cases.compared_runs(path), cases.compared_experiments(), [0, 1, 2], 0.5)
    return inside_shown.picture_of_comparison(path, results)


FIGURES: dict[str, Callable[[Path], inside_shown.Content]] = {
    "run": lambda path: inside_shown.pictures_of_run(cases.finished_run(path)),
    "run_with_baseline": of_baseline,
    "comparison": of_comparison,
    "data": lambda _: inside_shown.pictures_of_data(cases.named_data()),
}


@pytest.mark.parametrize("name", FIGURES)
def test_pictures_show_what_was_recorded(name: str, tmp_path: Path):
    check_golden(GOLDEN / f"{name}.json", FIGURES[name](tmp_path / "x"), tmp_path)


@pytest.mark.nightly
def test_each_algorithm_has_the_figures_that_were_recorded(tmp_path: Path):
    found = {}
    for name in sorted(set(algorithms.__all__) - {"Algorithm", "Assignment", "Info", "Similarity"}):
        words = ["--config", f"{name.lower()}/digits", "--baseline", "null", "--rounds", "12"]
        path = run(parse_run([*words, "--pictures.formats", "[]"]).experiment, tmp_path / name).path
        found[name] = [kind.name for kind in RUN_FIGURES if kind.draw(read_run(path), 500) is not None]
    check_golden(GOLDEN / "names.json", found)
