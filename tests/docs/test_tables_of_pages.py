"""Tests that tables of pages are complete and right: metrics, keys, attributes, algorithms, disputed points, paths."""

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import pytest

import lit_cfl.algorithms
from lit_cfl.config import catalogue
from lit_cfl.datamodules.partition import FedProxFEMNIST
from lit_cfl.early_stopping import StopRule
from lit_cfl.experiment import CheckpointPlan, EvaluationPlan, Experiment, LocalTraining, Pictures
from lit_cfl.metric_names import CHOSEN, CLIENTS, CLUSTERS, ENTROPY, METRICS, RATE, SHIFTS, tuned_columns
from lit_cfl.runs.load_run import SavedRun
from lit_cfl.scores import CLASSIFIER
from lit_cfl.tasks import Classification

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README, RESULTS = (ROOT / "README.md").read_text(), (DOCS / "results.md").read_text()
ALL = {name: getattr(lit_cfl.algorithms, name) for name in catalogue.names("algorithms")}
GROUPS = {"local": LocalTraining, "evaluation": EvaluationPlan, "stop": StopRule}
GROUPS |= {"checkpoint": CheckpointPlan, "pictures": Pictures}
POINTS = re.findall(r"^\| C(\d+):.*?\| (.*?) \|.*?\|.*?\| (.*?) \|", (DOCS / "disputed_points.md").read_text(), re.M)


def names_under(heading: str, column: int) -> list[list[str]]:
    """Returns the names in a column of the table under a heading of docs/results.md, row by row."""
    section = RESULTS.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    return [re.findall(r"`([^`]+)`", row[column]) for row in rows]


def test_all_metrics_are_explained_and_no_others():
    own = (name for kind in ALL.values() for name in kind.score_columns)
    found = [name for names in names_under("`metrics.csv`", 1) for name in names]
    assert sorted(found) == sorted({*METRICS, RATE, CHOSEN, ENTROPY, *tuned_columns(CLASSIFIER), *own})


@pytest.mark.parametrize("name", [*CLUSTERS, *CLIENTS, *SHIFTS])
def test_every_column_is_explained(name: str):
    assert f"`{name}`" in RESULTS


def test_all_tables_of_algorithms_are_explained_and_no_others():
    files, columns = names_under("Tables of algorithms", 1), names_under("Tables of algorithms", 3)
    found = {(file.removesuffix(".csv"), tuple(names)) for (file,), names in zip(files, columns, strict=True)}
    assert found == {(name, tuple(columns)) for kind in ALL.values() for name, columns in kind.tables.items()}


def keys_and_defaults() -> Iterator[tuple[str, str]]:
    """Yields each key of an experiment file with its default, in the order of the classes."""
    for field in fields(Experiment):
        if field.name == "stop" or field.name not in GROUPS:
            yield field.name, written_default(field)
        for part in fields(GROUPS[field.name]) if field.name in GROUPS else ():
            yield f"{field.name}.{part.name}", written_default(part)


def written_default(field: Field[Any]) -> str:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return default if isinstance(default, str) else "-" if default is MISSING else json.dumps(default, default=str)


def test_the_page_of_an_experiment_file_has_every_key_and_its_default():
    page = (DOCS / "experiment_file.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)` \| `?(.*?)`? \|", page, flags=re.MULTILINE))
    assert rows.pop("tracking") == "see there"
    assert rows == {key: default for key, default in keys_and_defaults() if key not in ("config", "tracking")}


def test_every_attribute_of_a_run_is_on_its_page():
    page = (DOCS / "opening_runs.md").read_text()
    named = re.findall(r"^\| `(\w+)(?:\(.*?\))?`(?:, `(\w+)`)? \|", page, flags=re.MULTILINE)
    public = {name for name in vars(SavedRun) if not name.startswith("_")} | {one.name for one in fields(SavedRun)}
    assert {name for pair in named for name in pair if name} == public - {"path", "lists", "table", "prepared"}


@pytest.mark.parametrize("name", ALL)
def test_an_algorithm_is_in_both_lists_and_its_page_names_its_configuration_and_tables(name: str):
    config, kind = f"{name.lower()}/digits", ALL[name]
    assert re.search(rf"^\| {name} \|.*`{config}`", README, flags=re.MULTILINE)
    assert f"\n| [{name}]({name.lower()}.md) |" in (DOCS / "algorithms" / "README.md").read_text()
    assert re.search(rf"class_path: {name}\b", catalogue.configs()[config].read_text())
    page = (DOCS / "algorithms" / f"{name.lower()}.md").read_text()
    assert f"lit-cfl run --config {config}\n" in page
    linked = (DOCS / "algorithms" / link for link in re.findall(r"\((\w+\.md)\)", page))
    text = page + "".join(one.read_text() for one in linked)
    for word in (*kind.score_columns, *(f"{table}.csv" for table in kind.tables)):
        assert f"`{word}`" in text, word


@pytest.mark.parametrize(("number", "options", "default"), POINTS, ids=[f"C{number}" for number, *_ in POINTS])
def test_options_of_a_disputed_point_exist_with_the_default_that_the_table_says(number: str, options: str, default):
    owners = ALL | {kind.__name__: kind for kind in (Classification, FedProxFEMNIST)}
    for owner, option in re.findall(r"`(\w+)\.(\w+)`", options):
        if not owner.startswith("Published"):  # experiments/tests/test_published.py
            found = inspect.signature(owners[owner]).parameters[option].default
            if number == "8":  # each algorithm has a separate default budget
                assert dataclasses.is_dataclass(found)
            else:
                assert default.startswith(f"`{found if isinstance(found, str) else json.dumps(found)}`"), owner


def test_versions_of_the_installation_page_are_those_that_are_tested():
    named = re.findall(r"\btorch\w*==[\d.]+", (DOCS / "install.md").read_text())
    assert len(named) == 2
    assert set(named) <= set((ROOT / "constraints.txt").read_text().splitlines())


def test_files_named_on_pages_exist():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    path = re.compile(r"`((?:lit_cfl|tune|datamodules|tests|benchmarks|configs|docs)/(?:[\w/-]*/|[\w/-]+\.[a-z]+))`")
    named = {(page.name, found) for page in pages for found in path.findall(page.read_text())}
    assert len(named) > 50
    assert [(page, found) for page, found in sorted(named) if not (ROOT / found).exists()] == []
