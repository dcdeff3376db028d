"""Trains on real images for `gpu.py --data FOLDER`, and writes that folder.

    LITCFL_DATA=DIR python benchmarks/gpu_real.py FOLDER [--mib 40]

writes `mnist.npz` and `cifar10.npz`, each with as many training images as take so many MiB before they are packed: a
machine with a GPU may lack the package `datasets`, and bound what is sent to it.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, time

import numpy as np
import torch
from engines import NETS
from gpu_cases import PflCNN
from torch import nn

from lit_cfl import Experiment
from lit_cfl.algorithms import FedAvg
from lit_cfl.datamodules import IID, ArrayData
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.engines.plan import PlanOptions, Precision
from lit_cfl.metric_names import Row
from lit_cfl.rounds import rounds
from lit_cfl.tasks import Classification

HELD = 60  # images of a client, a sixth of them for testing


@dataclass(frozen=True)
class Setting:
    """What is trained on a set of images: batches of 10, one epoch a round, clients of 50 images.

    Args:
        net: builds the model.
        lr: of SGD.
        rounds: of the whole training; on a CPU three.
        cohort: clients of a round.
    """

    net: Callable[[], nn.Module]
    lr: float
    rounds: int
    cohort: int = 50

    def experiment(self, file: Path, device: str, precision: Precision) -> Experiment:
        with np.load(file) as held:
            clients = len(held["y"]) // HELD
        return Experiment(
            data=ArrayData(source=file, partition=IID(clients, 1 / 6)),
            task=lambda: Classification(self.net(), partial(torch.optim.SGD, lr=self.lr)),
            algorithm=FedAvg(),
            rounds=3 if device == "cpu" else self.rounds,
            cohort_size=min(self.cohort, clients),
            local=LocalTraining(1, 10),
            device=device,
            plan=PlanOptions(compile=False, products="torch")
            if device == "cpu"
            else None,  # which a minute does not pay
            precision=precision,
        )


# CIFAR-10: the IID setting of pfl-research (Granqvist et al., 2024), whose 1,000 clients need all 50,000 images.
SETTINGS = {"mnist": Setting(NETS["mlp"], 0.1, 500), "cifar10": Setting(PflCNN, 0.1, 1500)}


def real(folder: Path, device: str, until: float) -> Iterator[Row]:
    """Yields a row for each file that is there, in single precision and on a GPU in TF32, in equal times."""
    precisions: list[Precision] = ["32-true", "tf32"] if device != "cpu" else ["32-true"]
    cases = [(name, precision) for name in SETTINGS if (folder / f"{name}.npz").exists() for precision in precisions]
    for number, (name, precision) in enumerate(cases):
        end = time() + (until - time()) / (len(cases) - number)
        experiment = SETTINGS[name].experiment(folder / f"{name}.npz", device, precision)
        yield {"data": name, "precision": precision} | trained(experiment, end)


def trained(experiment: Experiment, until: float) -> Row:
    """Trains as many rounds as the time allows, after a first one, which captures; all of them where it does."""
    prepared = experiment.prepare(0)
    engine, data, begun = prepared.engine, prepared.data, 0.0
    for last in rounds(experiment.algorithm, engine, data, prepared.cohorts, seed=0, num_rounds=experiment.rounds):
        if last.number == 1:
            begun = perf_counter()
        elif time() > until:
            break
    each = (perf_counter() - begun) / max(1, last.number - 1)
    test = data.test.entries
    return {
        "clients": data.num_clients,
        "cohort": prepared.cohorts.size,
        "lanes": engine.plan.lanes,
        "rounds": last.number,
        "s a round": each,
        "whole, min": each * experiment.rounds / 60,
        "accuracy": float(engine.outcomes(last.state.models[0], test, data).values.mean()),
    }


def write(folder: Path, mib: float) -> None:
    """Writes both files."""
    from lit_cfl.datamodules import CIFAR10, MNIST  # they read with the package `datasets`

    folder.mkdir(parents=True, exist_ok=True)
    for name, kind in (("mnist", MNIST), ("cifar10", CIFAR10)):
        examples = kind().examples
        inputs = examples.inputs[: int(mib * 2**20 // examples.inputs[0].nbytes)]
        np.savez_compressed(folder / f"{name}.npz", x=inputs.numpy(), y=examples.labels[: len(inputs)].numpy())
        size = (folder / f"{name}.npz").stat().st_size / 2**20
        print(f"{name}.npz: {len(inputs):,} of {len(examples):,} images, {size:.1f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mib", type=float, default=40.0)
    options = parser.parse_args()
    write(options.folder, options.mib)
