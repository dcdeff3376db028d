"""The pictures of a run as files."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from lit_cfl.metric_names import Row
from lit_cfl.pictures.curves import learning_curve
from lit_cfl.pictures.files import write_figure
from lit_cfl.pictures.layers import layer_scores
from lit_cfl.pictures.options import Format
from lit_cfl.pictures.round_view import Look
from lit_cfl.pictures.run import client_map, histogram, memberships, similarity
from lit_cfl.scores import Score
from lit_cfl.storage.csv_log import read_table

PICTURES = "pictures"  # the folder in a run directory
_LAYERS = {"layer", "cluster", "silhouette", "gap", "chosen"}


class PictureFolder:
    """Draws what has changed, each picture over its own earlier version.

    Args:
        path: the folder; made with the first picture.
        formats: of each picture; empty = nothing is drawn.
    """

    def __init__(self, path: Path, formats: Sequence[Format]) -> None:
        self.path, self.formats = path, formats
        self._compared: int | None = None  # the snapshot that was drawn
        self._layers = 0  # rows that were drawn
        self._ended = False

    def draw(self, look: Look) -> dict[str, Path]:
        """Draws the pictures that changed; those of the end are drawn once. Returns their PNGs by name."""
        if self._ended or not self.formats:
            return {}
        try:
            drawn: dict[str, Path] = {}
            for name, figure in self._due(look).items():
                for file in write_figure(figure(), self.path / name, self.formats):
                    if file.suffix == ".png":
                        drawn[name] = file
        except Exception:
            self._compared, self._layers = None, 0  # all of them are due again
            raise
        self._ended = look.last
        return drawn

    def _due(self, look: Look) -> dict[str, Callable[[], Figure]]:
        due: dict[str, Callable[[], Figure]] = {
            "curve": lambda: learning_curve({look.algorithm: look.rows()}, look.score)
        }
        if look.compared is not None and look.compared != self._compared:
            self._compared, snapshot = look.compared, look.snapshot()
            due["similarity"] = lambda: similarity(snapshot, look.compared or 0)
            due["clients"] = lambda: client_map(snapshot, look.compared or 0)
        due["memberships"] = lambda: memberships(**look.memberships())
        rows = _layer_rows(look)
        if len(rows) > self._layers:
            self._layers = len(rows)
            due["layers"] = lambda: layer_scores(rows)
        if look.last and len(look.values):
            due["histogram"] = lambda: histogram(look.values, look.cluster, look.true_cluster, look.score, look.round)
        return due


def draw_both(path: Path, beside: Path, summary: Row, baseline: Row, formats: Sequence[Format]) -> list[str]:
    """Draws the learning curve of a run anew, with its baseline's, from the files of both.

    Args:
        path, beside: the directories of the run and of its baseline.
        summary, baseline: content of their `summary.json`.

    Returns:
        the files that were drawn, as named in the run's directory.
    """
    score = next((score for score in map(Score.of_best_column, summary) if score is not None), None)
    if score is None or not formats:
        return []
    runs = {
        summary["algorithm"]: read_table(path / "metrics.csv"),
        f"{baseline['algorithm']} (baseline)": read_table(beside / "metrics.csv"),
    }
    drawn = write_figure(learning_curve(runs, score), path / PICTURES / "curve", formats)
    return [str(file.relative_to(path)) for file in drawn]


def _layer_rows(look: Look) -> list[dict[str, object]]:
    rows = look.table("layers")
    return rows if rows and set(rows[0]) >= _LAYERS else []
