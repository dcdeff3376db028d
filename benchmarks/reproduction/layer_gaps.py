"""Measures which layers separate different clients: the Gaps of LayerCFL's figures.

One joint model is trained by all clients, as in FedAvg. Each round computes every layer's Gap for six distances, with
the TRUE clusters: the minimum similarity within a cluster minus the maximum across clusters. A layer with a Gap above 0
separates the clusters.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.reproduction.files import Row, append_compressed, read_yaml, round_floats
from lit_cfl.aggregation import mean_by_cluster
from lit_cfl.algorithms import FedAvg, LayerCFL
from lit_cfl.clustering import cosine_similarity, distances, separation_gap
from lit_cfl.datamodules import CIFAR10, IID, DominantClass, FashionMNIST, ImageSet, Rotations
from lit_cfl.experiment import Experiment, LocalTraining
from lit_cfl.local_work import LocalWork
from lit_cfl.nets import VGG16, LeNet, Net
from lit_cfl.storage import read_table
from lit_cfl.tasks import Classification

_FILE = Path(__file__).with_name("layer_figures.yaml")
DISTANCES = ("cos", "l2", "delta_cos", "delta_l2")
DRAWN = ("cos", "l2", "delta_cos")  # distances whose matrices are kept; the paper draws the first two
PAIRS = ("layer", "distance", "i", "j", "value")
WHOLE = "whole"  # all layers together: FMTL with delta_cos, AdaCFL with l2
AUTO = "auto"  # column with the layer that `layers: auto` would choose
_IMAGES: dict[str, Callable[..., ImageSet]] = {"cifar10": CIFAR10, "fashionmnist": FashionMNIST}
_TOTAL = {"cifar10": 60_000, "fashionmnist": 70_000}
_NETS: dict[str, Callable[..., Net]] = {
    "vgg16": partial(VGG16, [64, 64], 0.0, width=8),
    "vgg16_full": VGG16,
    "lenet": LeNet,
}
_LAYERCFL = LayerCFL(layers="auto")
GAPS, MATRICES = "gaps/layercfl.csv.xz", "gaps/matrices.csv.xz"
GAP_COLUMNS = ("measurement", "round", "column", "value")
Similarities = dict[tuple[str, str], Tensor]  # matrices of all pairs of clients, by layer and distance


def read_plan() -> dict[str, Any]:
    """Reads the planned measurements, and the figures' statements about them."""
    content: dict[str, Any] = read_yaml(_FILE)
    return content


@dataclass(frozen=True)
class GapMeasurement:
    """A planned measurement of Gaps over rounds, with one net, one data set and one seed.

    Args:
        measured: Key in the file's `measured`, which has the settings.
        net, images: Values in the file's `nets` and `images`.
        examples: Number of training images per client.
        seed: Seed of the whole measurement.
    """

    measured: str
    net: str
    images: str
    examples: int
    seed: int

    @property
    def key(self) -> str:
        """Returns the measurement's name in the recorded files."""
        return f"{self.measured.replace(' ', '_')}-{self.net}-{self.images}-{self.examples}-seed{self.seed}"

    def has_matrices(self, what: Mapping[str, Any]) -> bool:
        """Returns whether the distance matrices of the last round are kept."""
        return self.images in what.get("matrices", {}) and self.seed == what["seeds"][0]

    def __str__(self) -> str:
        return f"{self.measured}: {self.net}, {self.images}, {self.examples} images per client, seed {self.seed}"


GapCurves = Mapping[GapMeasurement, Sequence[Row]]  # rows of measurements, one per round


def list_measurements(content: Mapping[str, Any]) -> list[GapMeasurement]:
    """Returns all planned measurements, starting with LeNet's, which are short."""
    found = [
        GapMeasurement(name, content["nets"][net], images, examples, seed)
        for name, what in content["measured"].items()
        for net, images, examples, seed in product(
            content["nets"], content["images"].values(), what["examples"], what["seeds"]
        )
    ]
    return sorted(found, key=lambda m: m.net)


def estimate_core_hours(content: Mapping[str, Any], measurement: GapMeasurement) -> float:
    """Returns the approximate core-hours of a measurement."""
    what = content["measured"][measurement.measured]
    images = measurement.examples * what["clients"] * what["rounds"]
    hours: float = images * content["core_ms"][measurement.net] / 3_600_000
    return hours


def build_experiment(measurement: GapMeasurement, what: Mapping[str, Any], device: str) -> Experiment:
    """Builds the experiment of a measurement."""
    return Experiment(
        _data(measurement, what),
        lambda: Classification(_net(measurement), partial(torch.optim.Adam, lr=0.001)),
        FedAvg(),
        seeds=[measurement.seed],
        rounds=what["rounds"],
        cohort_size=what["clients"],
        local=LocalTraining(1, 50),
        device=device,
    )


def _net(measurement: GapMeasurement) -> Net:
    return _NETS[measurement.net](input_shape=[3 if measurement.images == "cifar10" else 1, 32, 32], num_labels=10)


def count_parameters(measurement: GapMeasurement) -> dict[str, int]:
    """Returns the number of parameters of each layer of a measurement's net, and of the whole net (`whole`)."""
    layers = {name: sum(p.numel() for p in layer.parameters()) for name, layer in _net(measurement).named_children()}
    return layers | {WHOLE: sum(layers.values())}


def _data(measurement: GapMeasurement, what: Mapping[str, Any]) -> ImageSet:
    kind, pad = _IMAGES[measurement.images], 0 if measurement.images == "cifar10" else 2  # the nets take 32 x 32
    if what["skew"] == "rotation":
        size = _TOTAL[measurement.images] / what["clients"]
        angles = [0, 180] if what["clusters"] == 2 else [0, 90, 180, 270]
        alike = IID(what["clients"], test=1 - measurement.examples / size)
        return kind(partition=alike, skew=Rotations(angles), pad=pad)
    skewed = DominantClass(what["clients"], 0.0, what["clusters"], what["beta"], measurement.examples)
    return kind(partition=skewed, pad=pad)


def measure(
    measurement: GapMeasurement, what: Mapping[str, Any], device: str = "cpu"
) -> Iterator[tuple[Row, list[Row]]]:
    """Trains the clients of a measurement, and yields its Gaps and distances after each round.

    The Gaps are a row with the round, the loss, `auto`, and each Gap in a column such as `conv1 delta_cos`; the
    distances are rows of `PAIRS`, in which the clients of a true cluster have consecutive numbers.
    """
    prepared = build_experiment(measurement, what, device).prepare(measurement.seed)
    clients, truth = prepared.data.population, prepared.data.true_clusters
    model = prepared.engine.at(0, prepared.data).initial(0)[None]
    order = truth.argsort(stable=True)
    try:
        for number in range(what["rounds"]):
            work = prepared.engine.at(number, prepared.data)
            fitted = work.fit(model, clients)
            updates = fitted.collect() - model
            row: Row = {"round": number + 1, "loss": fitted.loss, AUTO: _choose_layer(updates, work)}
            found = _similarities(updates, model[0], work)
            row |= {f"{layer} {distance}": separation_gap(rows, truth) for (layer, distance), rows in found.items()}
            yield row, [pair for key, rows in found.items() for pair in _pairs(*key, rows[order][:, order])]
            # an unweighted mean, since all clients have equally many images
            model = model + mean_by_cluster(updates, torch.zeros_like(clients))
    finally:
        prepared.engine.close()


def _similarities(updates: Tensor, start: Tensor, work: LocalWork) -> Similarities:
    found: Similarities = {}
    for layer in (*work.layout.layers, "*"):
        columns = work.layout.columns(layer)
        name = WHOLE if layer == "*" else layer.removeprefix("net.")
        for distance in DISTANCES:
            rows = updates[:, columns] + (0 if distance.startswith("delta") else start[columns])
            found[name, distance] = cosine_similarity(rows) if distance.endswith("cos") else -distances(rows, "l2")
    return found


def _pairs(layer: str, distance: str, similarity: Tensor) -> Iterator[Row]:
    """Yields a row of `PAIRS` for each pair of clients if the distance is one of `DRAWN`."""
    if distance not in DRAWN:
        return
    values = (1 - similarity if distance.endswith("cos") else -similarity).tolist()
    for i, j in combinations(range(len(values)), 2):
        yield {"layer": layer, "distance": distance, "i": i, "j": j, "value": values[i][j]}


def _choose_layer(updates: Tensor, work: LocalWork) -> str:
    """Returns the layer that `LayerCFL(layers="auto")` would choose, without the true clusters."""
    layer = _LAYERCFL.choose_layers(work.layout, "none", _LAYERCFL.score_layers(updates, work.layout))[0]
    return layer.removeprefix("net.")


def read_curves(out: Path, content: Mapping[str, Any]) -> dict[GapMeasurement, list[Row]]:
    """Reads the rows of all recorded measurements."""
    found = read_by_key(out / GAPS)
    return {m: _rounds(found[m.key]) for m in list_measurements(content) if m.key in found}


def _rounds(cells: Sequence[Row]) -> list[Row]:
    """Joins the recorded values of a measurement into a row per round; later recordings override earlier ones."""
    rows: dict[int, Row] = {}
    for cell in cells:
        rows.setdefault(cell["round"], {"round": cell["round"]})[cell["column"]] = cell["value"]
    return list(rows.values())


def read_by_key(file: Path) -> dict[str, list[Row]]:
    """Reads the rows of a file, grouped by measurement."""
    found: dict[str, list[Row]] = {}
    for row in read_table(file) if file.exists() else ():
        found.setdefault(row["measurement"], []).append(row)
    return found


def find_missing(out: Path, content: Mapping[str, Any]) -> list[GapMeasurement]:
    """Lists the measurements that are not recorded yet, or lack their matrices."""
    gaps, matrices = read_by_key(out / GAPS), read_by_key(out / MATRICES)
    return [
        m
        for m in list_measurements(content)
        if m.key not in gaps or (m.has_matrices(content["measured"][m.measured]) and m.key not in matrices)
    ]


def record_gaps(out: Path, measurement: GapMeasurement, rows: Sequence[Row]) -> None:
    """Records the Gaps of all rounds of a measurement."""
    cells = (
        {"measurement": measurement.key, "round": row["round"], "column": column, "value": value}
        for row in rows
        for column, value in row.items()
        if column != "round"
    )
    append_compressed(out / GAPS, GAP_COLUMNS, (round_floats(cell, 5) for cell in cells))


def record_matrices(out: Path, measurement: GapMeasurement, pairs: Sequence[Row]) -> None:
    """Records the distances of all pairs of clients in a measurement's last round."""
    rows = ({"measurement": measurement.key} | pair for pair in pairs)
    append_compressed(out / MATRICES, ("measurement", *PAIRS), (round_floats(row, 4) for row in rows))
