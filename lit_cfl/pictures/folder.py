"""The folder of a run's pictures, which are redrawn when they change."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from lit_cfl.errors import SaveError
from lit_cfl.metric_names import Row
from lit_cfl.pictures.clusters import histogram, memberships
from lit_cfl.pictures.colours import match_colours
from lit_cfl.pictures.curves import learning_curve
from lit_cfl.pictures.events import layers
from lit_cfl.pictures.figure import Figure
from lit_cfl.pictures.files import write_figure
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.options import Format
from lit_cfl.pictures.round_view import RoundView
from lit_cfl.pictures.similar_clients import client_map, similarity
from lit_cfl.scores import read_scores
from lit_cfl.storage.csv_log import read_table

PICTURES = "pictures"  # the folder in a run directory


class PictureFolder:
    """Draws the pictures of a run that have changed, replacing their earlier versions.

    Args:
        path: Folder, made with the first picture.
        formats: File formats of each picture; empty = no pictures.
    """

    def __init__(self, path: Path, formats: Sequence[Format]) -> None:
        self.path, self.formats = path, formats
        self.ended = not formats  # True once the final pictures are drawn
        self._guard = DrawingGuard()
        self._compared: int | None = None  # number of the snapshot that was drawn
        self._layers = 0  # size in bytes of the layers table when it was last drawn

    @property
    def unwritten(self) -> SaveError | None:
        """Why the latest pictures could not be written; None if they were."""
        return self._guard.unwritten

    def draw(self, view: RoundView) -> dict[str, Path]:
        """Draws the changed pictures, and those that failed before; does nothing once the final ones are drawn.

        Returns:
            PNGs of the drawn pictures by name, without pictures that cannot be drawn or would be empty.
        """
        if self.ended:
            return {}
        self._guard.unwritten = None
        due = self._guard("pictures", lambda: self._due(view))
        drawn = {
            name: self._guard(f"pictures/{name}", partial(self._write, name, f)) for name, f in (due or {}).items()
        }
        whole = due is not None and None not in drawn.values()
        if not whole:
            self._compared, self._layers = None, 0  # all pictures have to be drawn again
        self.ended = whole and view.last
        return {name: file for name, files in drawn.items() for file in files or () if file.suffix == ".png"}

    def _write(self, name: str, make: Callable[[], Figure | None]) -> list[Path]:
        figure = make()
        return [] if figure is None else write_figure(figure, self.path / name, self.formats)

    def _due(self, view: RoundView) -> dict[str, Callable[[], Figure | None]]:
        known = cache(view.memberships)
        match = cache(lambda: match_colours(known()["cluster"], known()["true_cluster"]))
        due: dict[str, Callable[[], Figure | None]] = {
            "curve": lambda: learning_curve({view.algorithm: view.rows()}, view.score)
        }
        compared = view.compared
        if compared is not None and compared != self._compared:
            self._compared = compared
            due["similarity"] = lambda: similarity({compared: view.snapshot()})
            due["clients"] = lambda: client_map(compared, view.snapshot(), match(), true_names=view.true_names)
        due["memberships"] = lambda: memberships(
            known()["rounds"], known()["cluster"], known()["true_cluster"], match(), true_names=view.true_names
        )
        rows, size = view.table("layers"), view.tables["layers"][1] if "layers" in view.tables else 0
        if rows and size > self._layers:  # sizes are compared, since only the end of a long table is read
            self._layers = size
            due["layers"] = lambda: layers(rows)
        if view.last and len(view.values):
            due["histogram"] = lambda: histogram(view.values, view.cluster, match(), view.score)
        return due


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
