"""Tests what readers of pages and pictures see, against recorded content (see `helpers/golden.py`)."""

from collections.abc import Callable, Sequence
from pathlib import Path

import golden_cases as cases
import pytest
from golden import check_golden
from inside_shown import compare_on_new_seeds, described, page_of, results_of

from lit_cfl.pictures.curves import learning_curve, mean_curves
from lit_cfl.scores import ACCURACY
from lit_cfl.storage.error_file import write_error

GOLDEN = Path(__file__).with_name("golden")


def comparison(path: Path) -> list[Path]:
    """Writes a comparison in which one run failed, and one seed of Oracle has not started."""
    cases.compared_runs(path, [("IFCA", 2), ("Oracle", 0)])
    why = write_error(path / "IFCA" / "seed-2", ValueError("too warm"))
    results_of(path, cases.compared_experiments(), 0.5, {("IFCA", 2): why})
    return [path]


def study(path: Path) -> list[Path]:
    """Writes a study with its comparison on new seeds."""
    compare_on_new_seeds(cases.searched_study(path))
    return [path]


PAGES: dict[str, Callable[[Path], Sequence[Path]]] = {
    "finished_run": lambda path: [cases.finished_run(path)],
    "unfinished_run": lambda path: [cases.unfinished_run(path)],
    "run_of_layers": lambda path: [cases.run_of_layers(path)],
    "drifting_run": lambda path: [cases.drifting_run(path)],
    "run_with_newcomers": lambda path: [cases.run_with_newcomers(path)],
    "two_runs": lambda path: [  # of one algorithm with different options, one of them unfinished
        cases.finished_run(path / "one"),
        cases.started_run(path / "other", (1, 2), cohort_size=3)[0],
    ],
    "comparison": comparison,
    "data_sets": lambda path: [
        cases.ranked_comparison(path / name, 8 + k, own) for k, (name, own) in enumerate(cases.RANKED.items())
    ],
    "study": study,
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_was_recorded(name: str, tmp_path: Path):
    page = page_of(*PAGES[name](tmp_path / "shown"))
    check_golden(GOLDEN / f"{name}.json", described(page), tmp_path)


def test_curves_of_a_run_and_of_a_comparison_show_what_was_recorded(tmp_path: Path):
    runs = {"CFL": cases.usual_rows((1, 2, 3, 4)), "FedAvg (baseline)": cases.usual_rows((1, 2, 3))}
    results = results_of(cases.compared_runs(tmp_path), cases.compared_experiments(), 0.5)
    curves = {"run": learning_curve(runs, ACCURACY), "comparison": mean_curves(results.tables, 0.5)}
    check_golden(GOLDEN / "curves.json", described(curves))
