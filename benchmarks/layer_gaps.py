"""In which layer do clients of two kinds differ? Under rotation in a convolution, by LayerCFL, under label skew in an
FC layer. (LayerCFL, Figures 4, 5, 8 and 9)

    LITCFL_DATA=DIR python benchmarks/layer_gaps.py --out FILE.csv [--nets vgg16 lenet] [--images cifar10 mnist]
                                                    [--skews rotation "label .5" "label .8"] [--seeds 0 1 2 3 4]

As in the paper: 10 clients in 2 true clusters, one joint model for 30 rounds, Adam, batches of 50; rotated by 0 and 180
degrees, or half (80 %) of a client's images have its cluster's label; 500 images a client (the paper: 100 to 1,500).
Otherwise than in the paper: NOT the whole VGG16 but one an eighth as wide (with a head of 64, 64, 10), or LeNet (2
convolutions, 3 FC layers). The paper does not state its learning rate and epochs: 0.001 and 1 a round here.

In each round the gap of every layer is measured with the TRUE clusters: least cosine of two updates within a cluster
minus the greatest across (Delta-cos; above 0 = the layer tells the clusters apart). A cell is a net, a set of images,
a skew and a seed; its rows (a round and a layer each) are added to the file when it has ended, and it is not run again.

Prints a row a cell: the training loss of the last round, and for each layer the mean gap over all rounds, and in how
many of them it is above 0.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean

import torch
from cells import run_cells

from lit_cfl.aggregation import mean_by_cluster
from lit_cfl.algorithms import FedAvg
from lit_cfl.clustering import cosine_similarity, separation_gap
from lit_cfl.datamodules import CIFAR10, IID, MNIST, Rotations
from lit_cfl.datamodules.image_sets import ImageSet
from lit_cfl.datamodules.partition import DominantClass
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.experiment import Experiment
from lit_cfl.metric_names import Row
from lit_cfl.nets import VGG16, LeNet, Net
from lit_cfl.tasks import Classification

CELL = ("net", "images", "skew", "seed")
COLUMNS = ("round", "layer", "gap", "loss")
IMAGES: dict[str, Callable[..., ImageSet]] = {"cifar10": CIFAR10, "mnist": MNIST}
SKEWS = ("rotation", "label .5", "label .8")
NETS: dict[str, Callable[..., Net]] = {"vgg16": partial(VGG16, [64, 64], 0.0, width=8), "lenet": LeNet}
CLIENTS, EXAMPLES, ROUNDS = 10, 500, 30


def data(images: str, skew: str) -> ImageSet:
    kind, pad = IMAGES[images], 2 if images == "mnist" else 0  # LeNet's 32 x 32
    if skew == "rotation":
        size = (60_000 if images == "cifar10" else 70_000) / CLIENTS
        return kind(partition=IID(CLIENTS, test=1 - EXAMPLES / size), skew=Rotations([0, 180]), pad=pad)
    beta = float(skew.removeprefix("label "))
    return kind(partition=DominantClass(CLIENTS, 0.0, 2, beta, EXAMPLES), pad=pad)


def experiment(net: str, images: str, skew: str, seed: int) -> Experiment:
    shape = [3 if images == "cifar10" else 1, 32, 32]
    return Experiment(
        data(images, skew),
        lambda: Classification(NETS[net](input_shape=shape, num_labels=10), partial(torch.optim.Adam, lr=0.001)),
        FedAvg(),
        seeds=[seed],
        rounds=ROUNDS,
        cohort_size=CLIENTS,
        local=LocalTraining(1, 50),
        device="cpu",
    )


def cell(net: str, images: str, skew: str, seed: int) -> Iterator[Row]:
    """A row a round and layer. Trains as FedAvg does, but looks at all updates."""
    prepared = experiment(net, images, skew, seed).prepare(seed)
    clients, truth = prepared.data.population, prepared.data.true_clusters
    model = prepared.engine.at(0, prepared.data).initial(0)[None]
    for number in range(ROUNDS):
        work = prepared.engine.at(number, prepared.data)
        fitted = work.fit(model, clients)
        updates = fitted.collect() - model
        row: Row = {"net": net, "images": images, "skew": skew, "seed": seed, "round": number + 1, "loss": fitted.loss}
        for layer in work.layout.layers:
            similarity = cosine_similarity(updates[:, work.layout.columns(layer)])
            yield row | {"layer": layer.removeprefix("net."), "gap": separation_gap(similarity, truth)}
        model = model + mean_by_cluster(updates, torch.zeros_like(clients))  # clients of equal sizes


def line(rows: list[Row]) -> str:
    """The row of the table that is printed for a cell."""
    gaps: dict[str, list[float]] = {}
    for row in rows:
        gaps.setdefault(row["layer"], []).append(float(row["gap"]))
    shown = [f"{layer} {fmean(found):+.2f} ({sum(gap > 0 for gap in found)})" for layer, found in gaps.items()]
    loss = f"{float(rows[-1]['loss']):.2f}"
    named = [str(rows[0][column]) for column in CELL]
    return f"| {' | '.join([*named, loss, ', '.join(shown)])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--images", nargs="+", choices=IMAGES, default=list(IMAGES))
    parser.add_argument("--skews", nargs="+", choices=SKEWS, default=list(SKEWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = parser.parse_args()
    shown = [*CELL, "loss", f"mean gap of each layer (rounds above 0, of {ROUNDS})"]
    print(f"| {' | '.join(shown)} |\n|{'---|' * len(shown)}", flush=True)
    wanted = product(options.nets, options.images, options.skews, options.seeds)
    for rows in run_cells(options.out, CELL, COLUMNS, wanted, cell):
        print(line(rows), flush=True)


if __name__ == "__main__":
    main()
