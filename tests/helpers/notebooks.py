"""Runs a notebook of docs/notebooks/ and compares its output with the page."""

import re
from pathlib import Path

import pytest
from benchmark_scripts import loaded

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"


def require_same_output(page: Path, folder: Path) -> None:
    """Runs a notebook and compares its output with the page; decimal numbers may differ by 0.1."""
    outputs = loaded("gallery").run_blocks(page, folder)
    assert outputs
    for said, printed in outputs:
        assert re.sub(r"\d+\.\d", "x.x", said) == re.sub(r"\d+\.\d", "x.x", printed), printed
        figures = [[float(figure) for figure in re.findall(r"\d+\.\d", text)] for text in (said, printed)]
        assert figures[0] == pytest.approx(figures[1], abs=0.11)
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text())
    assert all((folder / name).exists() and (NOTEBOOKS / name).exists() for name in pictures)
