"""Training an MLP: the first layer in dual form, and a compiled stack, against the plain loop, by examples of a client.

    python benchmarks/dual.py [--examples 50 100 200 600] [--batch full] [--hidden 2048] [--repeats 5]

A fit is 5 epochs of SGD on a client's images of 28 x 28 (random numbers), on one core, alone and pulled towards a
centre (StoCFL trains both). Prints milliseconds a fit, medians of rounds of eight clients, taken in turn; the loop with
our own products of matrices and with PyTorch's, and how many times as fast as the quicker of both the others are.
"""

import argparse
from functools import partial
from statistics import median
from time import perf_counter
from typing import Literal

import torch

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.factory import build_engine
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.engines.plan import Plan, set_up_torch
from lit_cfl.nets import MLP
from lit_cfl.tasks import Classification

SHAPE, LABELS, CLIENTS, EPOCHS = [1, 28, 28], 10, 8, 5
PLANS = {
    "loop, own": Plan("stacked", products="own"),
    "loop, MKL": Plan("stacked"),
    "stack": Plan("stacked", lanes=4, narrow=1, compile=True, products="own"),
    "dual": Plan("stacked", products="own", dual=True),
    "dual, tf32": Plan("stacked", precision="tf32", products="own", dual=True),
}


def clients_of(examples: int) -> FederatedData:
    """Returns clients of so many random images each."""
    rng, total = torch.Generator().manual_seed(0), CLIENTS * examples
    images = torch.randint(0, 256, (total, *SHAPE), generator=rng, dtype=torch.uint8)
    labels = torch.randint(0, LABELS, (total,), generator=rng)
    train = ClientIndex.from_sizes(torch.arange(total), torch.full((CLIENTS,), examples))
    none = ClientIndex.empty(CLIENTS)
    return FederatedData(
        Examples(images, labels, LABELS, 1 / 255), train, none, none, torch.zeros(CLIENTS, dtype=torch.int64)
    )


def milliseconds(
    examples: int, batch: int | Literal["full"], hidden: int, prox: float, repeats: int
) -> dict[str, float]:
    """Measures a fit under each plan."""

    def task() -> Classification:
        return Classification(MLP(hidden, SHAPE, LABELS), partial(torch.optim.SGD, lr=0.1))

    data, everyone = clients_of(examples), torch.arange(CLIENTS)
    engines = {name: build_engine(task, plan, 0, LocalTraining(EPOCHS, batch)) for name, plan in PLANS.items()}
    times: dict[str, list[float]] = {name: [] for name in PLANS}
    for _ in range(1 + repeats):
        for name, engine in engines.items():
            models, centers = engine.initial(0)[None], engine.initial(1)[None] if prox else None
            begin = perf_counter()
            engine.at(0, data).fit(models, everyone, prox=prox, centers=centers)
            times[name].append(1e3 * (perf_counter() - begin) / CLIENTS)
    return {name: median(found[1:]) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, nargs="+", default=[50, 100, 200, 600])
    parser.add_argument("--batch", type=lambda word: word if word == "full" else int(word), default="full")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    set_up_torch(PLANS["dual"], deterministic=False)
    print(f"examples  prox  {'  '.join(f'{name:>10}' for name in PLANS)}  times as fast")
    for examples in args.examples:
        for prox in (0.0, 0.05):
            own, mkl, *others = milliseconds(examples, args.batch, args.hidden, prox, args.repeats).values()
            times = "  ".join(f"{time:10.1f}" for time in (own, mkl, *others))
            faster = ", ".join(f"{min(own, mkl) / other:.2f}" for other in others)
            print(f"{examples:8}  {prox:4}  {times}  {faster}", flush=True)


if __name__ == "__main__":
    main()
