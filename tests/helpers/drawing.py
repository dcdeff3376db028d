"""Switches pictures of runs on and off: most tests do without them, since they take two seconds per run."""

from pathlib import Path

from lit_cfl.pictures.folder import PictureFolder
from lit_cfl.pictures.round_view import RoundView
from lit_cfl.runs import run

_DRAW, _DRAW_BOTH = PictureFolder.draw, run.draw_both


def _draw_nothing(folder: PictureFolder, view: RoundView) -> dict[str, Path]:
    folder.ended = view.last
    return {}


def let_runs_draw(yes: bool) -> None:
    PictureFolder.draw = _DRAW if yes else _draw_nothing
    run.draw_both = _DRAW_BOTH if yes else lambda *files: []
