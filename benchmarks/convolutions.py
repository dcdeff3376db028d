"""Convolutions of few channels with ReLU and pooling in one function, against PyTorch's three.

    python benchmarks/convolutions.py [--batch 50] [--repeats 15]

On one core: first each layer of our nets alone (milliseconds, medians; forward, and backward from the outputs'
gradient), then a step of LeNet on images of 3 x 32 x 32: in a compiled stack of four clients, in a plain loop with
PyTorch's layers and with ours, and the same for a client that trains alone, as StoCFL's published code hands its global
model from one to the next.
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter

import torch

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines import convolutions
from lit_cfl.engines.convolutions import OwnConv2dPooled
from lit_cfl.engines.factory import build_engine
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.engines.plan import Plan, set_up_torch
from lit_cfl.nets import LeNet
from lit_cfl.nets.cnn import Conv2dPooled
from lit_cfl.tasks import Classification

LAYERS = {  # channels in and out, kernel, padding, height of the images
    "LeNet 1": (3, 6, 5, 0, 32),
    "LeNet 2": (6, 16, 5, 0, 14),
    "MNISTCNN 1": (1, 32, 3, 1, 28),
    "MNISTCNN 2": (32, 64, 3, 1, 14),
    "FashionCNN 1": (1, 32, 5, 2, 28),
    "FashionCNN 2": (32, 64, 5, 2, 14),
}
SHAPE, LABELS, CLIENTS, EXAMPLES, EPOCHS = [3, 32, 32], 10, 4, 500, 2
PLANS = {
    "compiled stack": Plan("stacked", lanes=4, narrow=2, steps_per_call=5, compile=True, products="own"),
    "plain loop, PyTorch's layers": Plan("stacked", products="torch"),
    "plain loop, ours": Plan("stacked", products="own"),
}


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """Measures the median of some repetitions after two."""
    times = []
    for _ in range(2 + repeats):
        begin = perf_counter()
        work()
        times.append(1e3 * (perf_counter() - begin))
    return median(times[2:])


def of_layer(name: str, batch: int, repeats: int) -> list[tuple[float, float]]:
    """Measures a layer forward and backward, PyTorch's and ours."""
    before, after, kernel, padding, size = LAYERS[name]
    layer, found = Conv2dPooled(before, after, kernel, padding=padding), []
    for of in (layer, OwnConv2dPooled(layer)):
        images = torch.randn(batch, before, size, size, requires_grad=not name.endswith("1"))
        outputs = of(images)
        wanted = [*layer.parameters(), *([images] if images.requires_grad else [])]
        gradient = torch.randn_like(outputs)
        with torch.no_grad():
            forward = milliseconds(partial(of, images), repeats)
        backward = partial(torch.autograd.grad, outputs, wanted, gradient, retain_graph=True)
        found.append((forward, milliseconds(backward, repeats)))
    return found


def of_step(plan: Plan, clients: int, batch: int, repeats: int) -> float:
    """Measures a client-step of LeNet."""
    rng, total = torch.Generator().manual_seed(0), CLIENTS * EXAMPLES
    images = torch.randint(0, 256, (total, *SHAPE), generator=rng, dtype=torch.uint8)
    examples = Examples(images, torch.randint(0, LABELS, (total,), generator=rng), LABELS, 1 / 255)
    train = ClientIndex.from_sizes(torch.arange(total), torch.full((CLIENTS,), EXAMPLES))
    none = ClientIndex.empty(CLIENTS)
    data = FederatedData(examples, train, none, none, torch.zeros(CLIENTS, dtype=torch.int64))

    def task() -> Classification:
        return Classification(LeNet(SHAPE, LABELS), partial(torch.optim.SGD, lr=0.1))

    engine = build_engine(task, plan, 0, LocalTraining(EPOCHS, batch))
    models, chosen = engine.initial(0)[None], torch.arange(clients)
    steps = clients * EPOCHS * -(-EXAMPLES // batch)
    return milliseconds(lambda: engine.at(0, data).fit(models, chosen), repeats) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    set_up_torch(PLANS["plain loop, ours"], deterministic=False)
    convolutions.load()
    print("layer          PyTorch's forward, backward   ours")
    for name in LAYERS:
        theirs, ours = of_layer(name, args.batch, args.repeats)
        print(f"{name:14} {theirs[0]:17.2f}, {theirs[1]:8.2f}   {ours[0]:.2f}, {ours[1]:.2f}", flush=True)
    print("LeNet, ms a client-step         four clients   one")
    for name, plan in PLANS.items():
        times = [of_step(plan, clients, args.batch, max(3, args.repeats // 5)) for clients in (CLIENTS, 1)]
        print(f"{name:30} {times[0]:13.2f}   {times[1]:.2f}", flush=True)


if __name__ == "__main__":
    main()
