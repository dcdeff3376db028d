from pathlib import Path

import pytest


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses empty caches for one test, and unsets LITCFL_DATA."""
    from hub import fresh_caches  # loads `datasets`, which pytest-xdist's own process does not need

    fresh_caches(tmp_path, monkeypatch)
