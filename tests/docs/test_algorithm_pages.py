"""Tests the page of each algorithm, the index of all algorithms, and the table of disputed points."""

import dataclasses
import inspect
import json
import re
from pathlib import Path

import pytest

import lit_cfl.algorithms
from lit_cfl.algorithms import Algorithm
from lit_cfl.config import catalogue
from lit_cfl.datamodules.partition import FedProxFEMNIST
from lit_cfl.tasks import Classification

FOLDER = Path(__file__).parents[2] / "docs" / "algorithms"
INDEX = (FOLDER / "README.md").read_text()
POINTS_PAGE = (FOLDER.parent / "disputed_points.md").read_text().partition("## Points that are settled")[0]
ALL = {name: getattr(lit_cfl.algorithms, name) for name in catalogue.names("algorithms")}
HEADINGS = ["Paper", "Usage", "What to set", "Metrics", "Departures", "Results"]
DISPUTED = [1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 17, 19, 20, 21, 26, 29]
POINTS = {int(line.split(":")[0][3:]): line for line in POINTS_PAGE.splitlines() if re.match(r"\| C\d+:", line)}


def page(name: str) -> str:
    return (FOLDER / f"{name.lower()}.md").read_text()


def section_of(name: str, heading: str) -> str:
    """Returns the text of a page and of the algorithm pages to which its section `heading` links."""
    section = page(name).partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return "\n".join([page(name), *((FOLDER / link).read_text() for link in re.findall(r"\((\w+\.md)\)", section))])


@pytest.mark.parametrize("name", ALL)
def test_page_has_the_headings_in_their_order(name: str):
    assert re.findall(r"^## (.*)$", page(name), flags=re.MULTILINE) == HEADINGS


@pytest.mark.parametrize("name", ALL)
def test_every_option_is_named(name: str):
    text = section_of(name, "What to set")
    for option in dataclasses.fields(ALL[name]):
        assert re.search(rf"`{option.name}\b", text), option.name


@pytest.mark.parametrize("name", ALL)
def test_configuration_of_the_page_exists_and_is_of_this_algorithm(name: str):
    (command,) = re.findall(
        r"^lit-cfl run --config (\S+)$", page(name).partition("## What to set")[0], flags=re.MULTILINE
    )
    assert command == f"{name.lower()}/digits"
    assert re.search(rf"class_path: {name}\b", catalogue.configs()[command].read_text())


@pytest.mark.parametrize("name", ALL)
def test_scores_and_tables_of_its_own_are_named(name: str):
    kind: type[Algorithm] = ALL[name]
    text = section_of(name, "Metrics")
    tables = [(f"{table}.csv", *columns) for table, columns in kind.tables.items()]
    for word in (*kind.score_columns, *(word for table in tables for word in table)):
        assert f"`{word}`" in text, word


@pytest.mark.parametrize("name", ALL)
def test_index_has_each_algorithm_once(name: str):
    assert INDEX.count(f"\n| [{name}]({name.lower()}.md) |") == 1


def test_every_disputed_point_is_in_the_table():
    assert list(POINTS) == DISPUTED


@pytest.mark.parametrize("number", DISPUTED)
def test_options_of_a_disputed_point_exist_with_the_default_that_the_table_says(number: int):
    _, _, options, _, _, default, _, _ = (cell.strip() for cell in POINTS[number].split("|"))
    owners = ALL | {kind.__name__: kind for kind in (Classification, FedProxFEMNIST)}
    named = re.findall(r"`(\w+)\.(\w+)`", options)
    assert named
    for owner, option in named:
        if owner.startswith("Published"):  # experiments/tests/test_published.py
            continue
        found = inspect.signature(owners[owner]).parameters[option].default
        if number == 8:  # each algorithm has a separate default budget
            assert default == "as the code"
        else:
            text = found if isinstance(found, str) else json.dumps(found)
            assert default.startswith(f"`{text}`"), owner
