"""Tests that cited knowledge is documented: disputed points C1 to C40, and the checks of the ground truth."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
POINTS = re.findall(r"^\| (C\d+):", (ROOT / "docs" / "disputed_points.md").read_text(), flags=re.MULTILINE)
CHECKS = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "ground_truth.md").read_text(), flags=re.MULTILINE)
FOLDERS = ("lit_cfl", "datamodules", "tune", "tests", "docs", "configs", "benchmarks")
TEXTS = {
    path: path.read_text()
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md", ".yaml") and path.name != "disputed_points.md"
}


def cited_checks(text: str) -> set[int]:
    """Returns the numbers of checks cited as "ground_truth.md, checks 6, 8 and 27" or "checks 12 to 15"."""
    found: set[int] = set()
    for numbers in re.findall(r"ground_truth\.md, checks? ([\d, toand]+)", text):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
            found |= set(range(int(first), int(last or first) + 1))
    return found


def test_points_and_checks_are_numbered_once_and_in_order():
    assert sorted(POINTS, key=lambda point: int(point[1:])) == [f"C{number}" for number in range(1, 41)]
    assert list(map(int, CHECKS)) == list(range(1, len(CHECKS) + 1))


def test_every_point_has_paper_code_default_and_effect():
    options, settled = (ROOT / "docs" / "disputed_points.md").read_text().split("## Points that are settled")
    for text, columns in ((options, 6), (settled, 4)):
        points = re.findall(r"^\| C\d+:.*$", text, flags=re.MULTILINE)
        assert len(points) > 10
        for line in points:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == columns, line
            assert all(cells), line


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_cited_point_is_described(folder: str):
    cited = {
        (point, path.name)
        for path, text in TEXTS.items()
        if path.is_relative_to(ROOT / folder)
        for point in re.findall(r"\bC(?:[1-9]|[1-3][0-9]|40)\b", text)
    }
    assert {point for point, _ in cited} <= set(POINTS), sorted(cited)


def test_every_cited_check_of_the_ground_truth_exists():
    cited = {number for text in TEXTS.values() for number in cited_checks(text)}
    assert len(cited) > 15  # fails if the form of citations changes
    assert cited <= set(map(int, CHECKS))
