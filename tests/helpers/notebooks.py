"""Runs a notebook of docs/notebooks/ and compares its output with the page."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from lit_cfl.cli.main import main

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
BLOCK = re.compile(r"^```(bash|python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_blocks(page: Path, folder: Path) -> list[tuple[str, str]]:
    """Runs the blocks of a notebook in order, in a folder.

    Returns:
        For each text block: the page's text, and the output of the Python block before it.
    """
    names: dict[str, object] = {}
    printed, outputs = "", []
    with contextlib.chdir(folder):
        for language, code in BLOCK.findall(page.read_text("utf-8")):
            if language == "text":
                outputs.append((code, printed))
            elif language == "bash":
                for line in code.splitlines():
                    assert main(shlex.split(line.partition("#")[0].removeprefix("lit-cfl "))) == 0, line
            else:
                with contextlib.redirect_stdout(io.StringIO()) as stream:
                    exec(compile(code, page.name, "exec"), names)  # noqa: S102  # our own documentation
                printed = "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())
    return outputs


def require_same_output(page: Path, folder: Path) -> None:
    """Runs a notebook and compares its output with the page; decimal numbers may differ by 0.1."""
    outputs = run_blocks(page, folder)
    assert outputs
    for said, printed in outputs:
        assert re.sub(r"\d+\.\d", "x.x", said) == re.sub(r"\d+\.\d", "x.x", printed), printed
        figures = [[float(figure) for figure in re.findall(r"\d+\.\d", text)] for text in (said, printed)]
        assert figures[0] == pytest.approx(figures[1], abs=0.11)
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text())
    assert all((folder / name).exists() and (NOTEBOOKS / name).exists() for name in pictures)
