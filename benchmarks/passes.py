"""Measures the time to score examples on a CPU by the number of examples in a forward pass.

    python benchmarks/passes.py [--sizes 1024 512 256 128 64] [--examples 1024] [--repeats 9] [--out FILE.json]

The same examples are scored with each size in turn, in one thread; times are CPU times, which other programs on the
machine lengthen less than wall times. The table has the median time with the first size, and the median ratio of each
other size to it.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import process_time

import torch
from engines import PeerCNN
from flux_table import LeNet5
from tables import print_rows
from torch import nn
from torchvision.models import resnet18

from lit_cfl.data import Examples
from lit_cfl.engines import scorer
from lit_cfl.engines.base import Engine
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.metric_names import Row
from lit_cfl.nets import FEMNISTCNN, MCLR, MLP, MNISTCNN, LeNet
from lit_cfl.tasks import Classification

GREY, COLOUR = [1, 28, 28], [3, 32, 32]
NETS: Mapping[str, tuple[Callable[[], nn.Module], list[int]]] = {
    "linear": (lambda: MCLR(GREY, 10), GREY),
    "MLP(128)": (lambda: MLP(128, GREY, 10), GREY),
    "LeNet-5 of FLUX": (lambda: LeNet5(1), GREY),
    "LeNet": (lambda: LeNet(COLOUR, 10), COLOUR),
    "MNISTCNN": (lambda: MNISTCNN(GREY, 10), GREY),
    "FEMNISTCNN": (lambda: FEMNISTCNN(GREY, 10), GREY),
    "PeerCNN": (PeerCNN, GREY),
    "ResNet-18": (lambda: resnet18(num_classes=10), COLOUR),
}


def measure_all(sizes: Sequence[int], number: int, repeats: int) -> Iterator[Row]:
    rng = torch.Generator().manual_seed(0)
    for name, (net, shape) in NETS.items():
        images = torch.randint(0, 255, (number, *shape), generator=rng, dtype=torch.uint8)
        examples = Examples(images, torch.randint(0, 10, (number,), generator=rng), 10, 1 / 255)
        engine = Engine(lambda net=net: Classification(net()), Plan("loop"), 0, LocalTraining())
        model, index = engine.initial(0)[None], torch.arange(number)
        times: dict[int, list[float]] = {size: [] for size in sizes}
        for _ in range(repeats + 1):
            for size in sizes:
                scorer.PASS_ON_CPU = size
                score = engine.way.scorer(lambda first: None)
                begun = process_time()
                score.losses_of_all(model, index, examples)
                times[size].append(process_time() - begun)
        first, *others = (times[size][1:] for size in sizes)  # the first repeat warms up
        row: Row = {"net": name, f"{sizes[0]}, ms": 1000 * median(first)}
        for size, own in zip(sizes[1:], others, strict=True):
            row[str(size)] = median(mine / base for mine, base in zip(own, first, strict=True))
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 512, 256, 128, 64])
    parser.add_argument("--examples", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    columns = ["net", f"{options.sizes[0]}, ms", *map(str, options.sizes[1:])]
    print_rows(columns, measure_all(options.sizes, options.examples, options.repeats), options.out)


if __name__ == "__main__":
    main()
