"""Tests that the notebooks run from the first block to the last.

`tests/tune/test_tune_ready.py` runs the one that starts Ray.
"""

from pathlib import Path

import pytest
from notebooks import NOTEBOOKS, require_same_output


def test_found_clusters_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    require_same_output(NOTEBOOKS / "found_clusters.md", tmp_path)


def test_another_number_of_clusters_is_noticed(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint('4 clusters, ARI 0.9')\n```\n\n```text\n4 clusters, ARI 1.0\n```\n")
    require_same_output(page, tmp_path)
    page.write_text(page.read_text().replace("print('4", "print('3"))
    with pytest.raises(AssertionError, match="3 clusters"):
        require_same_output(page, tmp_path)
