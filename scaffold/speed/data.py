"""Measures the time and memory of preparing data, from reading files to a million clients.

    LITCFL_DATA=DIR python scaffold/speed/data.py [--clients 1000 10000 100000 1000000] [--out FILE.json]

DIR holds `fashion_mnist` and `cifar10` in the Hub's schema; without it these rows are left out. Every row is measured
in a fresh process. Seconds exclude the imports of torch and lightning; `peak` is the process's maximum memory with
them, `above imports` is what the work added. "First time" means that our cache and that of `datasets` are empty.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from tables import print_rows, run_in_process

from lit_cfl.metric_names import Row

# Synthetic clients with a few small examples each, so that a million fit into memory.
SMALL_CLIENTS: dict[str, Any] = {
    "dimensions": 20,
    "mean_log_size": 0.5,
    "log_size_deviation": 1.0,
    "min_size": 2,
    "test": 0.1,
    "allow_unseen_labels": True,
}
FASHION, CIFAR = "Fashion-MNIST, 100 clients", "CIFAR-10, 200 clients, 2 rotations"


def measure_peak_mib() -> float:
    """Returns this program's peak memory in MiB; `getrusage` would include the parent process's peak."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def measure(work: Callable[[], Row]) -> Row:
    before = measure_peak_mib()
    begun = perf_counter()
    row = work()
    return (
        {"seconds": perf_counter() - begun}
        | row
        | {"peak MiB": measure_peak_mib(), "above imports MiB": measure_peak_mib() - before}
    )


def measure_fashion_mnist() -> Row:
    from lit_cfl.datamodules import FashionMNIST
    from lit_cfl.datamodules.partition import IID

    def work() -> Row:
        data = FashionMNIST(partition=IID(100)).federated(0)
        return {"clients": data.num_clients, "examples": len(data.examples)}

    return measure(work)


def measure_cifar10() -> Row:
    from lit_cfl.datamodules import CIFAR10
    from lit_cfl.datamodules.partition import IID
    from lit_cfl.datamodules.skew import Rotations

    def work() -> Row:
        data = CIFAR10(partition=IID(100), skew=[Rotations([0, 180])], copies=True).federated(0)
        inputs, _ = data.examples.batch(data.train[150])
        return {"clients": data.num_clients, "examples": len(data.examples), "one client": str(tuple(inputs.shape))}

    return measure(work)


def measure_population(clients: int) -> Row:
    import torch

    from lit_cfl.datamodules import Synthetic
    from lit_cfl.rounds import Cohorts
    from lit_cfl.runs.rows import client_rows
    from lit_cfl.runs.run_directory import RunDirectory

    def work() -> Row:
        module = Synthetic(num_clients=clients, **SMALL_CLIENTS)
        begun = perf_counter()
        examples = module.examples
        made = perf_counter()
        data = module.federated(0)
        divided = perf_counter()
        times = []
        for number in range(7):
            start = perf_counter()
            cohort = Cohorts(min(1000, clients)).at(number, data.population, 0)
            held = data.train.select(cohort)
            inputs, labels = examples.batch(held.entries)
            times.append(perf_counter() - start)
            if not len(inputs) == len(labels) == int(data.num_examples[cohort].sum()):
                raise RuntimeError("the cohort has other data than its clients")
        with tempfile.TemporaryDirectory() as folder:
            start = perf_counter()
            RunDirectory(Path(folder)).write_clients(client_rows(data, []))
            written = perf_counter() - start
        return {
            "clients": clients,
            "examples": len(examples),
            "population s": made - begun,
            "partition s": divided - made,
            "cohort of 1,000 ms": 1000 * median(times[1:]),
            "clients.csv s": written,
        }

    torch.set_num_threads(1)
    return measure(work)


CASES: dict[str, Callable[..., Row]] = {
    "fashion": measure_fashion_mnist,
    "cifar": measure_cifar10,
    "population": measure_population,
}


def measure_all(clients: list[int]) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        caches = {"LITCFL_CACHE": f"{folder}/ours", "HF_HOME": f"{folder}/theirs"}
        for name, case in ((FASHION, "fashion"), (CIFAR, "cifar")):
            if "LITCFL_DATA" in os.environ:
                yield {"what": f"{name}, first time"} | run_in_process(__file__, ["--case", case], caches)
                yield {"what": f"{name}, again"} | run_in_process(__file__, ["--case", case], caches)
    for number in clients:
        yield {"what": f"synthetic, {number:,} clients"} | run_in_process(
            __file__, ["--case", "population", str(number)]
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        name, *numbers = options.case
        print(json.dumps(CASES[name](*map(int, numbers))))
        return
    columns = [
        "what",
        "seconds",
        "population s",
        "partition s",
        "cohort of 1,000 ms",
        "clients.csv s",
        "examples",
        "peak MiB",
        "above imports MiB",
    ]
    print_rows(columns, measure_all(options.clients), options.out)


if __name__ == "__main__":
    main()
