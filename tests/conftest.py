"""What several tests share. PyTorch and Lightning are imported where they are needed: pytest-xdist's own process, which
runs no test, begins six seconds earlier.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from studies import cluster  # noqa: F401  # a fixture

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from lit_cfl.testing import QuadraticWork

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"
if SHARED_DATA.is_dir():
    os.environ.setdefault("LITCFL_DATA", str(SHARED_DATA))
# Threads of PyTorch that wait for each other leave their cores to the tests beside them: three times as fast.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray gives its workers 15: they would wait for other tests
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a missing copy is an error at once, not after retries
os.environ["WANDB_MODE"] = "disabled"  # tests of tracking set their own; with a key, all the others would go online


@pytest.fixture(scope="session", autouse=True)
def _no_pictures() -> None:
    from drawing import let_runs_draw

    let_runs_draw(False)


@pytest.fixture
def pictures() -> Iterator[None]:
    """Lets runs draw their pictures, as they do outside of the tests."""
    from drawing import let_runs_draw

    let_runs_draw(True)
    yield
    let_runs_draw(False)


@pytest.fixture(autouse=True)
def _no_summary_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies and comparisons draw theirs where a test asks for `summary_pictures`: each takes a second or two.

    It is here, for two folders, because a second file of this name would hide this one from `from conftest import`.
    """
    drawing = {"tune": "lit_cfl.tune.study_result.draw", "compare": "lit_cfl.compare.command.write_picture"}
    folder = request.path.parent.name
    if folder in drawing and "summary_pictures" not in request.fixturenames:
        monkeypatch.setattr(drawing[folder], lambda *_: True)


@pytest.fixture
def summary_pictures() -> None:
    """Lets studies and comparisons draw their pictures."""


@pytest.fixture
def two_sides() -> QuadraticWork:
    """Eight clients around (+3, 0, 0, 0) and (-3, 0, 0, 0) in turn, of unequal sizes, spread a little."""
    return quadratic_clients(8)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never killed. Not to be changed."""
    from processes import start

    from lit_cfl.cli.main import main

    path = tmp_path_factory.mktemp("whole") / "run"
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(start(path)) == 0
    return path


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where children write what they say."""
    monkeypatch.setenv("CHILD_OUTPUT", str(tmp_path / "output.txt"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "output.txt"


def quadratic_clients(clients: int, **options: object) -> QuadraticWork:
    import torch

    from lit_cfl.testing import QuadraticWork

    rng = torch.Generator().manual_seed(1)
    sides = torch.where(torch.arange(clients) % 2 == 0, 3.0, -3.0)
    spread = 0.1 * torch.randn(clients, 4, generator=rng, dtype=torch.float64)
    centers = spread + torch.stack([sides, *[torch.zeros(clients)] * 3], dim=1).double()
    settings = {"learning_rate": 0.25, "steps": 3} | options
    return QuadraticWork(centers, torch.arange(1, clients + 1), **settings)


def ids(*clients: int) -> Tensor:
    import torch

    return torch.tensor(clients, dtype=torch.int64)


def rng(seed: int = 0) -> Generator:
    import torch

    return torch.Generator().manual_seed(seed)
