"""The folder of a run's pictures, which are redrawn while it runs."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lit_cfl.metric_names import Row
from lit_cfl.pictures.curves import learning_curve
from lit_cfl.pictures.figures import RUN_FIGURES, Kind
from lit_cfl.pictures.files import write_figure
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.options import Format
from lit_cfl.pictures.round_view import RoundView
from lit_cfl.pictures.run_files import RunFiles, read_run
from lit_cfl.pictures.sample import MOST_CLIENTS
from lit_cfl.scores import read_scores
from lit_cfl.storage.csv_log import read_table

PICTURES = "pictures"  # the folder in a run directory


class PictureFolder:
    """Draws the pictures of a run, replacing their earlier versions.

    Args:
        path: Folder, made with the first picture.
        formats: File formats of each picture; empty = no pictures.
    """

    def __init__(self, path: Path, formats: Sequence[Format]) -> None:
        self.path, self.formats = path, formats
        self.ended = not formats  # True once the final pictures are drawn
        self.guard = DrawingGuard()

    def draw(self, view: RoundView) -> dict[str, Path]:
        """Draws the pictures of a run; does nothing once the final ones are drawn.

        Returns:
            PNGs of the drawn pictures by name, without pictures that cannot be drawn or would be empty.
        """
        if self.ended:
            return {}
        self.guard.unwritten = None
        run = self.guard("pictures", lambda: read_run(view.path, view))
        if run is None:
            return {}
        drawn = {
            kind.name: self.guard(f"pictures/{kind.name}", partial(self._write, kind, run)) for kind in RUN_FIGURES
        }
        self.ended = view.last and None not in drawn.values()
        return {name: file for name, files in drawn.items() for file in files or () if file.suffix == ".png"}

    def _write(self, kind: Kind, run: RunFiles) -> list[Path]:
        figure = kind.draw(run, MOST_CLIENTS)
        return [] if figure is None else write_figure(figure, self.path / kind.name, self.formats)


def draw_both(path: Path, baseline_path: Path, summary: Row, baseline: Row, formats: Sequence[Format]) -> list[str]:
    """Redraws a run's learning curve together with its baseline's.

    Args:
        path, baseline_path: Directories of the run and of its baseline.
        summary, baseline: Content of their `summary.json`.
        formats: File formats; empty = draw nothing.

    Returns:
        The drawn files, relative to the run's directory; none if no round has the score.
    """
    if not formats:
        return []
    runs = {
        summary["algorithm"]: read_table(path / "metrics.csv"),
        f"{baseline['algorithm']} (baseline)": read_table(baseline_path / "metrics.csv"),
    }
    figure = learning_curve(runs, read_scores(summary)[0])
    drawn = [] if figure is None else write_figure(figure, path / PICTURES / "curve", formats)
    return [str(file.relative_to(path)) for file in drawn]
