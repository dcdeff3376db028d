"""The notebooks run from their first block to their last, and print what they say."""

import re
import shlex
from pathlib import Path

import pytest
from benchmark_scripts import loaded

from lit_cfl.cli.main import main

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"


def require_same_output(page: Path, folder: Path) -> None:
    """Compares words and whole numbers exactly, and rounded figures but for their last decimal."""
    outputs = loaded("gallery").play(page, folder)
    assert outputs
    for said, printed in outputs:
        assert re.sub(r"\d+\.\d", "x.x", said) == re.sub(r"\d+\.\d", "x.x", printed)
        figures = [[float(figure) for figure in re.findall(r"\d+\.\d", text)] for text in (said, printed)]
        assert figures[0] == pytest.approx(figures[1], abs=0.11)
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text())
    assert all((folder / name).exists() and (FOLDER / name).exists() for name in pictures)


@pytest.fixture(autouse=True)
def _without_windows_and_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("WANDB_MODE", "disabled")


def test_found_clusters(tmp_path: Path):
    require_same_output(FOLDER / "found_clusters.md", tmp_path)


@pytest.mark.ray
def test_search_and_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    require_same_output(FOLDER / "search_and_launch.md", tmp_path)
    monkeypatch.chdir(tmp_path)  # the commands for a cluster name files that the notebook has made
    (commands,) = re.findall(r"```console\n(.*?)```", (FOLDER / "search_and_launch.md").read_text(), flags=re.DOTALL)
    for line in commands.splitlines():  # right up to the cluster, which is not there
        assert main(shlex.split(line.replace("HOST:8265", "127.0.0.1:9"))[1:]) == 2
        assert "no Ray cluster answers at http://127.0.0.1:9" in capsys.readouterr().err
