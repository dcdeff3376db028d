"""Measures in which layers clients of different kinds differ: LayerCFL's Gap, by its six distances, round by round.

One joint model is trained by all clients, as FedAvg does. In each round every layer's Gap is taken with the TRUE
clusters: least similarity of two clients within one minus the greatest across. Above 0 the layer tells them apart.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.reproduction.files import Row, read_yaml
from lit_cfl.aggregation import mean_by_cluster
from lit_cfl.algorithms import FedAvg, LayerCFL
from lit_cfl.clustering import cosine_similarity, distances, separation_gap
from lit_cfl.datamodules import CIFAR10, IID, DominantClass, FashionMNIST, ImageSet, Rotations
from lit_cfl.experiment import Experiment, LocalTraining
from lit_cfl.local_work import LocalWork
from lit_cfl.nets import VGG16, LeNet, Net
from lit_cfl.tasks import Classification

_FILE = Path(__file__).with_name("layer_figures.yaml")
DISTANCES = ("cos", "l2", "delta_cos", "delta_l2")
DRAWN = ("cos", "l2", "delta_cos")  # of which matrices are kept: the paper draws the first two
PAIRS = ("layer", "distance", "i", "j", "value")
WHOLE = "whole"  # all layers: delta_cos is FMTL's distance, l2 AdaCFL's
AUTO = "auto"  # column: the layer that `layers: auto` would choose
_IMAGES: dict[str, Callable[..., ImageSet]] = {"cifar10": CIFAR10, "fashionmnist": FashionMNIST}
_TOTAL = {"cifar10": 60_000, "fashionmnist": 70_000}
_NETS: dict[str, Callable[..., Net]] = {
    "vgg16": partial(VGG16, [64, 64], 0.0, width=8),
    "vgg16_full": VGG16,
    "lenet": LeNet,
}
_LAYERCFL = LayerCFL(layers="auto")
_FOURTH = 3  # the convolution that the paper chose for feature skew
Similarities = dict[tuple[str, str], Tensor]  # of all pairs of clients, by layer and distance


def plan() -> dict[str, Any]:
    """Reads what is measured, and what the figures say of it."""
    content: dict[str, Any] = read_yaml(_FILE)
    return content


@dataclass(frozen=True)
class GapMeasurement:
    """One measurement.

    Args:
        measured: key in the file's `measured`, whose settings these are.
        net, images: values of the file's `nets` and `images`.
        examples: training images of each client.
        seed: of everything.
    """

    measured: str
    net: str
    images: str
    examples: int
    seed: int

    @property
    def key(self) -> str:
        """Its name in the files of measurements."""
        return f"{self.measured.replace(' ', '_')}-{self.net}-{self.images}-{self.examples}-seed{self.seed}"

    def has_matrices(self, what: Mapping[str, Any]) -> bool:
        """Tells whether the matrices of its last round are kept."""
        return self.images in what.get("matrices", {}) and self.seed == what["seeds"][0]

    def __str__(self) -> str:
        return f"{self.measured}: {self.net}, {self.images}, {self.examples} images a client, seed {self.seed}"


def measurements(content: Mapping[str, Any]) -> list[GapMeasurement]:
    """Returns all measurements, those of LeNet, which are short, first."""
    found = [
        GapMeasurement(name, content["nets"][net], images, examples, seed)
        for name, what in content["measured"].items()
        for net, images, examples, seed in product(
            content["nets"], content["images"].values(), what["examples"], what["seeds"]
        )
    ]
    return sorted(found, key=lambda m: m.net)


def core_hours(content: Mapping[str, Any], measurement: GapMeasurement) -> float:
    """Returns about how long a measurement takes one core."""
    what = content["measured"][measurement.measured]
    images = measurement.examples * what["clients"] * what["rounds"]
    hours: float = images * content["core_ms"][measurement.net] / 3_600_000
    return hours


def experiment(measurement: GapMeasurement, what: Mapping[str, Any], device: str) -> Experiment:
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


def parameters(measurement: GapMeasurement) -> dict[str, int]:
    """Counts the parameters of each layer of a measurement's net, and of all together (`whole`)."""
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
    """Trains, and yields two things a round.

    They are a row with its number, the loss, `auto`, and each Gap in a column such as `conv1 delta_cos`; and rows of
    `PAIRS`, in which the clients of a true cluster have numbers beside each other.
    """
    prepared = experiment(measurement, what, device).prepare(measurement.seed)
    clients, truth = prepared.data.population, prepared.data.true_clusters
    model = prepared.engine.at(0, prepared.data).initial(0)[None]
    order = truth.argsort(stable=True)
    try:
        for number in range(what["rounds"]):
            work = prepared.engine.at(number, prepared.data)
            fitted = work.fit(model, clients)
            updates = fitted.collect() - model
            row: Row = {"round": number + 1, "loss": fitted.loss, AUTO: _auto(updates, work)}
            found = _similarities(updates, model[0], work)
            row |= {f"{layer} {distance}": separation_gap(rows, truth) for (layer, distance), rows in found.items()}
            yield row, [pair for key, rows in found.items() for pair in _pairs(*key, rows[order][:, order])]
            model = model + mean_by_cluster(updates, torch.zeros_like(clients))  # clients of equal sizes
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
    """Rows of `PAIRS`, with distances: 1 - cosine, or l2."""
    if distance not in DRAWN:
        return
    values = (1 - similarity if distance.endswith("cos") else -similarity).tolist()
    for i, j in combinations(range(len(values)), 2):
        yield {"layer": layer, "distance": distance, "i": i, "j": j, "value": values[i][j]}


def _auto(updates: Tensor, work: LocalWork) -> str:
    """Finds the layer that `LayerCFL(layers="auto")` would choose, which does not see the true clusters."""
    layer = _LAYERCFL.choose_layers(work.layout, "none", _LAYERCFL.score_layers(updates, work.layout))[0]
    return layer.removeprefix("net.")


def hand_chosen(layers: list[str], kind: str) -> str:
    """Returns the layer that the paper chose by hand: the fourth convolution, or the first fully connected layer."""
    of_kind = [layer for layer in layers if layer.startswith(kind)]
    return of_kind[min(_FOURTH, len(of_kind) - 1)] if kind == "conv" else of_kind[0]
