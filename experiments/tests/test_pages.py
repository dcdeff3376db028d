"""Tests that links in the pages of the experiments lead to files and headings."""

import re
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[1]
PAGES = [EXPERIMENTS / "README.md", *sorted((EXPERIMENTS / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([\w-]+))?\)")


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub makes for the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_exist(page: Path):
    for target, anchor in LINK.findall(page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


def test_links_are_found():
    assert len(PAGES) > 15
    assert sum(bool(LINK.search(page.read_text())) for page in PAGES) > 12


@pytest.mark.parametrize("config", sorted((EXPERIMENTS / "configs").rglob("*.yaml")), ids=lambda file: file.stem)
def test_configuration_is_of_a_data_set_of_the_protocol(config: Path):
    protocol = (EXPERIMENTS / "which_method.yaml").read_text()
    assert f"config: which_method/{config.stem}" in protocol
