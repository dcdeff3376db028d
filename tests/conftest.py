"""Fixtures shared by several test files.

PyTorch and Lightning are imported where they are needed: pytest-xdist's own process, which runs no test, starts six
seconds earlier.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lit_cfl.testing import QuadraticWork

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"
if SHARED_DATA.is_dir():
    os.environ.setdefault("LITCFL_DATA", str(SHARED_DATA))
# Threads of PyTorch that wait for each other leave their cores to other tests: three times as fast in parallel.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default of 15 would make its workers wait for other tests
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a missing copy is an error at once, without retries
# tests of tracking set their own mode; with an API key, all other tests would go online
os.environ["WANDB_MODE"] = "disabled"


@pytest.fixture(scope="session", autouse=True)
def _no_pictures() -> None:
    if sys.modules.keys() & {"torch", "lit_cfl.cli.main"}:  # else no test can train, and this would load both
        from drawing import let_runs_draw

        let_runs_draw(False)


@pytest.fixture
def pictures() -> Iterator[None]:
    """Enables the pictures of runs, which are off by default in tests."""
    from drawing import let_runs_draw

    let_runs_draw(True)
    yield
    let_runs_draw(False)


@pytest.fixture
def no_figures() -> Iterator[pytest.MonkeyPatch]:
    """Disables the figures of comparisons and studies, which take a second each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lit_cfl.pictures.files.write_figure", lambda *_, **options: [])
        yield patch


@pytest.fixture
def figures(no_figures: pytest.MonkeyPatch) -> None:
    """Enables figures for a single test in a file that uses `no_figures`."""
    no_figures.undo()


@pytest.fixture
def two_sides() -> QuadraticWork:
    """Makes eight clients of unequal sizes, alternately around (+3, 0, 0, 0) and (-3, 0, 0, 0)."""
    from quadratic import quadratic_clients

    return quadratic_clients(8)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs an experiment without interruption; returns its directory, which tests must not change."""
    from processes import start

    from lit_cfl.cli.main import main

    path = tmp_path_factory.mktemp("whole") / "run"
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(start(path)) == 0
    return path


@pytest.fixture
def ended(whole: Path, tmp_path: Path) -> Path:
    """Copies the finished run `whole` to `run` in the test's folder."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes to the test's folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")  # module scope, since other files start their own Ray in the same process
def cluster() -> Iterator[None]:
    """Runs Ray with two cores and a simulated GPU for the tests of a file."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        for folder in ("helpers", "tune"):  # workers import trainables from these
            patch.setenv("PYTHONPATH", str(Path(__file__).with_name(folder)), prepend=os.pathsep)
        quiet: Any = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
        ray.init("local", num_cpus=2, num_gpus=1, **quiet)
    yield
    ray.shutdown()


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sets and returns the file to which child processes write their output."""
    monkeypatch.setenv("CHILD_OUTPUT", str(tmp_path / "output.txt"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "output.txt"


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the tests of a file that share Ray in one process."""
    for item in items:
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
