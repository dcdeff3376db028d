"""The pictures of a run as files."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from lit_cfl.checkpoint import write_atomically
from lit_cfl.look import Look
from lit_cfl.pictures.layers import layer_scores
from lit_cfl.pictures.run import accuracies, client_map, memberships, similarity

_LAYERS = {"layer", "cluster", "silhouette", "gap", "chosen"}


class PictureFolder:
    """Draws what has changed, each picture over its own earlier version.

    Args:
        path: the folder; made with the first picture.
        only_layers: draw nothing but the layers' scores, which belong to their table.
    """

    def __init__(self, path: Path, only_layers: bool = False) -> None:
        self.path, self.only_layers = path, only_layers
        self._compared: int | None = None  # the snapshot that was drawn
        self._layers = 0  # rows that were drawn
        self._ended = False

    def draw(self, look: Look) -> dict[str, Path]:
        """The pictures that changed, by name; those of the end are drawn once."""
        if self._ended:
            return {}
        self._ended = look.last
        return {name: self._written(name, figure()) for name, figure in self._due(look).items()}

    def _due(self, look: Look) -> dict[str, Callable[[], Figure]]:
        due: dict[str, Callable[[], Figure]] = {}
        rows = _layer_rows(look)
        if len(rows) > self._layers:
            self._layers = len(rows)
            due["layers"] = lambda: layer_scores(rows)
        if self.only_layers:
            return due
        if look.compared is not None and look.compared != self._compared:
            self._compared, snapshot = look.compared, look.snapshot()
            due["similarity"] = lambda: similarity(snapshot, look.compared or 0)
            due["clients"] = lambda: client_map(snapshot, look.compared or 0)
        due["memberships"] = lambda: memberships(**look.memberships())
        if look.last and len(look.accuracy):
            due["accuracy"] = lambda: accuracies(look.accuracy, look.cluster, look.round)
        return due

    def _written(self, name: str, figure: Figure) -> Path:
        self.path.mkdir(exist_ok=True)
        path = self.path / f"{name}.png"
        write_atomically(path, lambda file: figure.savefig(file, dpi=100))
        return path


def _layer_rows(look: Look) -> list[dict[str, object]]:
    rows = look.table("layers")
    return rows if rows and set(rows[0]) >= _LAYERS else []
