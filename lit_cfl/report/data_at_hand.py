"""The clients' data, where they are at hand: labels and images. Nothing is downloaded, and texts are never shown."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO

import numpy as np
import torch

from lit_cfl.data import FederatedData
from lit_cfl.report.blocks import Image, Images
from lit_cfl.report.run_files import RunFiles, known

_CLIENTS, _CLUSTERS = 8, 16  # images of a cluster, and clusters with images
_MOST_LABELS = 6  # of a client, in words
_PIXELS = 56  # of a side, at least


@dataclass(frozen=True, eq=False)
class DataAtHand:
    """The data of a run.

    Args:
        data: as at the end of the run; None = they are not at hand.
        problem: why they are not, in a sentence; empty where nobody asked for them.
    """

    data: FederatedData | None = None
    problem: str = ""

    @cached_property
    def _counts(self) -> np.ndarray | None:
        if self.data is None or not self.data.examples.num_labels:
            return None
        counts: np.ndarray = self.data.label_counts.numpy()
        return counts

    def labels_of(self, client: int) -> str | None:
        """Says how many training examples of each label a client has, most first; None where it is not known."""
        counts = self._counts
        if counts is None or not 0 <= client < len(counts):
            return None
        order = np.argsort(-counts[client], kind="stable")
        shown = [f"{label}: {counts[client, label]}" for label in order[:_MOST_LABELS] if counts[client, label]]
        rest = int((counts[client] > 0).sum()) - len(shown)
        return ", ".join(shown) + (f", {rest} more" if rest > 0 else "")

    def images(self, run: RunFiles) -> Images | None:
        """Returns an image of each of some clients of each cluster; None where the data are no images."""
        if self.data is None or not _are_images(self.data):
            return None
        members: dict[int, list[int]] = {}
        for row in run.table("clients"):
            cluster, client = known(row.get("cluster")), known(row.get("client"))
            if cluster is not None and client is not None and client < self.data.num_clients:
                members.setdefault(int(cluster), []).append(int(client))
        rows = {}
        for cluster in sorted(members)[:_CLUSTERS]:
            step = max(1, len(members[cluster]) // _CLIENTS)
            chosen = members[cluster][::step][:_CLIENTS]
            found = [image for client in chosen if (image := self._image(client)) is not None]
            if found:
                rows[f"cluster {cluster}"] = found
        if not rows:
            return None
        some = f" {len(rows)} of {len(members)} clusters." if len(rows) < len(members) else ""
        caption = f"A training image of each of up to {_CLIENTS} clients of a cluster, as the client sees it.{some}"
        return Images("What clients of a cluster hold", rows, caption)

    def _image(self, client: int) -> Image | None:
        if self.data is None or not len(self.data.train[client]):
            return None
        entries = self.data.train[client]
        inputs, targets = self.data.examples.batch(entries[len(entries) // 2][None])
        label = f", label {int(targets[0])}" if self.data.examples.num_labels else ""
        return Image(f"client {client}{label}", _png(inputs[0]))


def _are_images(data: FederatedData) -> bool:
    shape = data.examples.input_shape
    return len(shape) == 3 and shape[0] in (1, 3) and not data.examples.vocabulary


def _png(image: torch.Tensor) -> bytes:
    from PIL import Image as Picture

    pixels = image.detach().float().permute(1, 2, 0)
    low, high = pixels.min(), pixels.max()
    bits = ((pixels - low) / (high - low).clamp(min=1e-9) * 255).round().to(torch.uint8).numpy()
    drawn = Picture.fromarray(bits if bits.shape[2] == 3 else bits[..., 0])
    times = -(-_PIXELS // max(drawn.size))
    file = BytesIO()
    drawn.resize((drawn.width * times, drawn.height * times), Picture.Resampling.NEAREST).save(file, "png")
    return file.getvalue()


def load_data(run: RunFiles) -> DataAtHand:
    """Loads the data of a run, as they are after its last round, from files of this machine alone."""
    from lit_cfl.runs.load_run import load_run

    try:
        with _offline():
            return DataAtHand(load_run(run.path).data)
    except Exception as error:  # data that are gone raise nearly anything
        why = (str(error).splitlines() or [type(error).__name__])[0].partition(";")[0].rstrip(".")
        return DataAtHand(problem=f"Labels and images of {run.path} are left out: its data are not at hand ({why}).")


@contextmanager
def _offline() -> Iterator[None]:
    """Keeps `datasets` from the network within the block."""
    names = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
