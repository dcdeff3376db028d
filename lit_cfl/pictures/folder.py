"""The folder of a run's pictures, which are drawn anew where they changed."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from lit_cfl.metric_names import Row
from lit_cfl.pictures.curves import learning_curve
from lit_cfl.pictures.files import write_figure
from lit_cfl.pictures.layers import layer_scores
from lit_cfl.pictures.options import Format
from lit_cfl.pictures.round_view import RoundView
from lit_cfl.pictures.run import client_map, histogram, memberships, similarity
from lit_cfl.scores import recorded_scores
from lit_cfl.storage.csv_log import read_table

PICTURES = "pictures"  # the folder in a run directory
_LAYERS = {"layer", "cluster", "silhouette", "gap", "chosen"}


class PictureFolder:
    """Draws the pictures of a run that have changed, each over its own earlier version.

    Args:
        path: the folder; made with the first picture.
        formats: of each picture; empty = nothing is drawn.
    """

    def __init__(self, path: Path, formats: Sequence[Format]) -> None:
        self.path, self.formats = path, formats
        self._compared: int | None = None  # the snapshot that was drawn
        self._layers = 0  # rows that were drawn
        self._ended = False

    def draw(self, view: RoundView) -> dict[str, Path]:
        """Draws the pictures that changed; those of the end are drawn once. Returns their PNGs by name."""
        if self._ended or not self.formats:
            return {}
        try:
            drawn: dict[str, Path] = {}
            for name, figure in self._due(view).items():
                for file in write_figure(figure(), self.path / name, self.formats):
                    if file.suffix == ".png":
                        drawn[name] = file
        except Exception:
            self._compared, self._layers = None, 0  # all of them are due again
            raise
        self._ended = view.last
        return drawn

    def _due(self, view: RoundView) -> dict[str, Callable[[], Figure]]:
        due: dict[str, Callable[[], Figure]] = {
            "curve": lambda: learning_curve({view.algorithm: view.rows()}, view.score)
        }
        if view.compared is not None and view.compared != self._compared:
            self._compared, snapshot = view.compared, view.snapshot()
            due["similarity"] = lambda: similarity(snapshot, view.compared or 0)
            due["clients"] = lambda: client_map(snapshot, view.compared or 0)
        due["memberships"] = lambda: memberships(**view.memberships())
        rows, size = _layer_rows(view), view.tables["layers"][1] if "layers" in view.tables else 0
        if rows and size > self._layers:  # in bytes: only the end of a long table is drawn
            self._layers = size
            due["layers"] = lambda: layer_scores(rows)
        if view.last and len(view.values):
            due["histogram"] = lambda: histogram(view.values, view.cluster, view.true_cluster, view.score, view.round)
        return due


def draw_both(path: Path, baseline_path: Path, summary: Row, baseline: Row, formats: Sequence[Format]) -> list[str]:
    """Draws the learning curve of a run anew, with its baseline's, from the files of both.

    Args:
        path, baseline_path: the directories of the run and of its baseline.
        summary, baseline: content of their `summary.json`.

    Returns:
        the files that were drawn, as named in the run's directory.
    """
    if not formats:
        return []
    runs = {
        summary["algorithm"]: read_table(path / "metrics.csv"),
        f"{baseline['algorithm']} (baseline)": read_table(baseline_path / "metrics.csv"),
    }
    drawn = write_figure(learning_curve(runs, recorded_scores(summary)[0]), path / PICTURES / "curve", formats)
    return [str(file.relative_to(path)) for file in drawn]


def _layer_rows(view: RoundView) -> list[dict[str, object]]:
    rows = view.table("layers")
    return rows if rows and set(rows[0]) >= _LAYERS else []
