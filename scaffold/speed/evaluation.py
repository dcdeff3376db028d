"""Measures the cost of evaluating many clients, relative to evaluating all their examples as one client.

    python scaffold/speed/evaluation.py [--clients 1000] [--models 1 5 50 1000] [--repeats 15] [--out FILE.json]

The clients, with 60 test images of 28 x 28 each, are scored with the models of their clusters; for comparison, the same
images are scored as one client with one model. Each way of training with its own scorer is measured. Clients and union
alternate in one thread; times are CPU times, which other programs on the machine lengthen less than wall times. `ratio`
is the median over the repeats.
"""

import argparse
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from statistics import median
from time import process_time

import torch
from engines import NETS
from tables import print_rows

from lit_cfl.client_scores import score_clients
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.cohort import TrainingWay
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.ways import WAYS
from lit_cfl.metric_names import Row
from lit_cfl.tasks import Classification

IMAGES, COLUMNS = 60, ("net", "scored by", "clients", "models", "clients ms", "union ms", "ratio")


def divide_examples(clients: int, examples: Examples) -> FederatedData:
    """Divides the examples into test sets of equal size, one per client, in a random order."""
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))
    test = ClientIndex.from_sizes(order, torch.full((clients,), len(examples) // clients))
    none = ClientIndex.empty(clients)
    return FederatedData(examples, none, none, test, torch.zeros(clients, dtype=torch.int64))


def make_evaluation(engine: Engine, models: int, data: FederatedData) -> Callable[[], float]:
    """Returns a function that evaluates all clients and returns the CPU seconds taken."""
    rows = torch.stack([engine.initial(number % 10) for number in range(models)])
    everyone = torch.arange(data.num_clients)

    def seconds() -> float:
        begun = process_time()
        score_clients(engine, rows, everyone % models, everyone, data, "test")
        return process_time() - begun

    return seconds


def measure_all(clients: int, models: list[int], repeats: int) -> Iterator[Row]:
    rng, total = torch.Generator().manual_seed(0), clients * IMAGES
    images = torch.randint(0, 255, (total, 1, 28, 28), generator=rng, dtype=torch.uint8)
    examples = Examples(images, torch.randint(0, 10, (total,), generator=rng), 10, 1 / 255)
    ways = [way for way in WAYS if way.name == "loop" or way.scorer is not TrainingWay.scorer]
    for net, way in product(("linear", "mlp"), ways):
        engine = Engine(lambda net=net: Classification(NETS[net]()), Plan(way.name), 0, LocalTraining())
        union = make_evaluation(engine, 1, divide_examples(1, examples))
        for number in models:
            each = make_evaluation(engine, number, divide_examples(clients, examples))
            times = [(each(), union()) for _ in range(repeats)]
            yield {
                "net": net,
                "scored by": way.name,
                "clients": clients,
                "models": number,
                "clients ms": 1000 * median(mine for mine, _ in times),
                "union ms": 1000 * median(whole for _, whole in times),
                "ratio": median(mine / whole for mine, whole in times),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--models", type=int, nargs="*", default=[1, 5, 50, 1000])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_rows(COLUMNS, measure_all(options.clients, options.models, options.repeats), options.out)


if __name__ == "__main__":
    main()
