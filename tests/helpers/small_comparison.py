"""The command line of a comparison that takes seconds, without its algorithms; and comparisons without pictures."""

from collections.abc import Iterator

import pytest

SMALL = (
    "compare",
    "--config",
    "quickstart",
    "--data.num_clients",
    "12",
    "--cohort_size",
    "4",
    "--local.epochs",
    "1",
    "--rounds",
    "3",
    "--num_cpus",
    "1",
)


@pytest.fixture
def plain_comparisons() -> Iterator[pytest.MonkeyPatch]:
    """Comparisons draw no picture, which takes a second each. A fixture of `conftest.py`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lit_cfl.compare.command.write_picture", lambda *_: True)
        yield patch


@pytest.fixture
def drawn_comparisons(plain_comparisons: pytest.MonkeyPatch) -> None:
    """A test of a file with `plain_comparisons` looks at the picture all the same."""
    plain_comparisons.undo()
