"""Tests what readers of pages see, against recorded content (see `helpers/golden.py`)."""

from collections.abc import Callable, Sequence
from pathlib import Path

import golden_cases as cases
import inside_shown
import pytest
from golden import check_golden

from lit_cfl.storage.error_file import write_error

GOLDEN = Path(__file__).with_name("golden")


def comparison(path: Path) -> list[Path]:
    """Writes a comparison in which one run failed, and one seed of Oracle has not started."""
    left = [("IFCA", 2), ("Oracle", 0)]
    cases.compared_runs(path, left)
    why = write_error(path / "IFCA" / "seed-2", ValueError("too warm"))
    inside_shown.results_of(path, cases.compared_experiments(), [0, 1, 2], 0.5, {("IFCA", 2): why})
    return [path]


def data_sets(path: Path) -> list[Path]:
    return [cases.ranked_comparison(path / name, 8 + k, own) for k, (name, own) in enumerate(cases.RANKED.items())]


def two_runs(path: Path) -> list[Path]:
    """Writes two runs of one algorithm with different options, one of them unfinished."""
    return [cases.finished_run(path / "one"), cases.started_run(path / "other", (1, 2), cohort_size=3)[0]]


def study(path: Path) -> list[Path]:
    """Writes a study with its comparison on new seeds."""
    inside_shown.compare_on_new_seeds(cases.searched_study(path))
    return [path]


PAGES: dict[str, Callable[[Path], Sequence[Path]]] = {
    "finished_run": lambda path: [cases.finished_run(path)],
    "unfinished_run": lambda path: [cases.unfinished_run(path)],
    "run_of_layers": lambda path: [cases.run_of_layers(path)],
    "drifting_run": lambda path: [cases.drifting_run(path)],
    "run_with_newcomers": lambda path: [cases.run_with_newcomers(path)],
    "two_runs": two_runs,
    "comparison": comparison,
    "data_sets": data_sets,
    "study": study,
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_was_recorded(name: str, tmp_path: Path):
    page = inside_shown.page_of(*PAGES[name](tmp_path / "shown"))
    check_golden(GOLDEN / f"{name}.json", inside_shown.shown(page), tmp_path)
