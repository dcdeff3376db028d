"""One round of local training by every engine: the same work, ratios from one run.

    [LITCFL_DATA=DIR] python benchmarks/engines.py [--models linear mlp cnn] [--bf16] [--workers] [--repeats 5]
                                                   [--out FILE.json]

Cohorts, trained in batches of 10, 10 epochs a round, with SGD:

* even: 20 clients of 60 images of 28 x 28 (random numbers: the time does not depend on them), 1,200 client-steps;
* MNIST-1000: 20 of the 1,000 clients of Li et al. (FedProx, 2020), other ones each round, most of them with a few tens
  of digits and some with many hundreds; where DIR holds `mnist`.

Engines: `trainer`, one Lightning fit a client; `plain loop`; `by rule`, as `choose_plan` has it; `..., 2 processes`, on
one core each, side by side; `plain loop, bf16`, precision `bf16-mixed` (only where --bf16 is given); `1 worker` and `2
workers`, the plain loop in Ray actors with a core each (only where --workers is given). The first round, which starts
Ray, is stated apart.

* of the core's rate: of the fastest of four large computations on this machine and one core, see `core_rates` (2 x 3 x
  parameters x examples operations a step; convolutions counted as such);
* waste: share of the mini-batches that the stack computed, but nobody trained on: those of idle lanes, and behind a
  client's last step (`engine.effort`); in brackets what a stack padded to the longest client would waste.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.base import Engine
from lit_cfl.engines.choose_plan import choose_plan
from lit_cfl.engines.cohort_fit import Effort
from lit_cfl.engines.factory import build_engine
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.engines.plan import Plan, PlanOptions
from lit_cfl.engines.workload import measure_workload
from lit_cfl.metric_names import Row
from lit_cfl.nets import MCLR, MLP
from lit_cfl.rounds import Cohorts
from lit_cfl.tasks import Classification

SHAPE, CLIENTS, IMAGES, BATCH, EPOCHS = [1, 28, 28], 20, 60, 10, 10
COLUMNS = (
    "model",
    "cohort",
    "engine",
    "ms a client-step",
    "against trainer",
    "against plain loop",
    "first round s",
    "of the core's rate",
    "waste",
)
_TWICE = ", 2 processes"
KINDS = ("trainer", "plain loop", "plain loop" + _TWICE, "by rule", "by rule" + _TWICE)
BF16 = ("plain loop, bf16",)
WORKERS = ("1 worker", "2 workers")


class PeerCNN(nn.Module):
    """conv 5 x 5 x 32, conv 5 x 5 x 64, both pooled, 512, 10: 1,663,370 parameters, as in the peers' benchmarks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.fc1, self.fc2 = nn.Linear(3136, 512), nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in (self.conv1, self.conv2):
            x = nn.functional.max_pool2d(nn.functional.relu(conv(x)), 2)
        return self.fc2(nn.functional.relu(self.fc1(x.flatten(1))))


NETS = {"linear": lambda: MCLR(SHAPE, 10), "mlp": lambda: MLP(128, SHAPE, 10), "cnn": PeerCNN}
OPERATIONS = {"linear": 7_850, "mlp": 101_770, "cnn": 28 * 28 * 25 * 32 + 14 * 14 * 25 * 32 * 64 + 3136 * 512 + 5120}


def data(cohort: str = "even") -> FederatedData:
    if cohort != "even":
        from lit_cfl.datamodules import MNIST
        from lit_cfl.datamodules.partition import MNIST1000

        return MNIST(partition=MNIST1000()).federated(0)
    rng = torch.Generator().manual_seed(0)
    total = CLIENTS * IMAGES
    images = torch.randint(0, 255, (total, *SHAPE), generator=rng, dtype=torch.uint8)
    examples = Examples(images, torch.randint(0, 10, (total,), generator=rng), 10, 1 / 255)
    train = ClientIndex.from_sizes(torch.arange(total), torch.full((CLIENTS,), IMAGES))
    none = ClientIndex.empty(CLIENTS)
    return FederatedData(examples, train, none, none, torch.zeros(CLIENTS, dtype=torch.int64))


def engine(model: str, kind: str) -> Engine:
    task = lambda: Classification(NETS[model](), partial(torch.optim.SGD, lr=0.03))  # noqa: E731
    local = LocalTraining(EPOCHS, BATCH)
    work = measure_workload(task, 0, local, data(), 1, CLIENTS)
    plans = {
        "trainer": Plan("trainer"),
        "plain loop": Plan("loop"),
        "by rule": choose_plan("auto", "cpu", "32-true", work, PlanOptions(threads=1)),
        "plain loop, bf16": Plan("loop", precision="bf16-mixed"),
        "1 worker": Plan("loop", workers=1),
        "2 workers": Plan("loop", workers=2),
    }
    return build_engine(task, plans[kind], 0, local)


def steps_of(clients: Tensor, held: FederatedData) -> Tensor:
    """Of each client in a round, int64 `[n]`."""
    return EPOCHS * -(-held.num_examples[clients] // BATCH)


def measured(model: str, kind: str, cohort: str, repeats: int) -> Row:
    """Seconds of the first round; a client-step's milliseconds in later ones, the median of the rounds."""
    held, made = data(cohort), engine(model, kind)
    torch.set_num_threads(made.plan.threads)
    start, times, padded = made.initial(0)[None], [], Effort()
    for number in range(repeats + 1):
        clients = Cohorts(CLIENTS).at(number, held.population, 0)
        steps = steps_of(clients, held)
        begun = perf_counter()
        made.at(number, held).fit(start, clients)
        times.append((perf_counter() - begun, int(steps.sum())))
        padded.useful += int(steps.sum())
        padded.computed += len(steps) * int(steps.max())
    later = median(seconds / steps for seconds, steps in times[1:])
    row: Row = {"first round s": times[0][0], "ms a client-step": 1000 * later}
    if made.effort.computed:
        row |= {"waste": made.effort.waste, "waste if padded": padded.waste}
    made.close()
    return row


def side_by_side(model: str, kind: str, cohort: str, repeats: int) -> Row:
    """Where two processes train at the same time: the slower one's time, for the work of both."""
    command = [sys.executable, __file__, "--case", model, kind, cohort, "--repeats", str(repeats)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found: list[Row] = [json.loads(one.communicate()[0].splitlines()[-1]) for one in both]
    slower = max(found, key=lambda row: row["ms a client-step"])
    return slower | {"ms a client-step": slower["ms a client-step"] / 2}


def core_rates() -> dict[str, float]:
    """Floating-point operations a second on one core: products by MKL and oneDNN, and a convolution by oneDNN."""
    torch.set_num_threads(1)
    a, b = torch.randn(256, 784), torch.randn(512, 784)
    images, kernels = torch.randn(10, 32, 14, 14), torch.randn(64, 32, 5, 5)
    product_work, convolution_work = 2 * 256 * 784 * 512, 2 * 10 * 14 * 14 * 25 * 32 * 64
    computations: dict[str, tuple[Callable[[], object], int]] = {
        "MKL": (lambda: a @ b.T, product_work),
        "oneDNN": (lambda: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], ""), product_work),
        "convolution": (lambda: torch.conv2d(images, kernels, padding=2), convolution_work),
    }
    found = {}
    for name, (compute, work) in computations.items():
        times = []
        for _ in range(30):
            begun = perf_counter()
            compute()
            times.append(perf_counter() - begun)
        found[name] = work / median(times)
    return found


def bandwidth(mib: float) -> float:
    """Bytes a second read and written by a copy of so many MiB, on one core."""
    source = torch.ones(int(mib * 2**18))
    target, times = torch.empty_like(source), []
    for _ in range(30):
        begun = perf_counter()
        target.copy_(source)
        times.append(perf_counter() - begun)
    return 2 * 4 * len(source) / median(times)


def rows(models: list[str], cohorts: list[str], kinds: Sequence[str], repeats: int, rate: float) -> Iterator[Row]:
    for model, cohort in product(models, cohorts):
        found: dict[str, float] = {}
        for kind in kinds:
            if kind.endswith(_TWICE):
                row = side_by_side(model, kind.removesuffix(_TWICE), cohort, repeats)
            else:
                row = measured(model, kind, cohort, 1 if kind == "trainer" else repeats)
            found[kind] = row["ms a client-step"]
            row |= {
                f"against {other}": found[other] / found[kind] for other in ("trainer", "plain loop") if other in found
            }
            row["of the core's rate"] = 6 * OPERATIONS[model] * BATCH / (found[kind] / 1000) / rate
            yield {"model": model, "cohort": cohort, "engine": kind} | row


def shown(row: Row) -> str:
    cells = [f"{cell:.3g}" if isinstance(cell := row.get(name, ""), float) else cell for name in COLUMNS]
    if "waste" in row:
        cells[-1] = f"{row['waste']:.1%} ({row['waste if padded']:.0%})"
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(NETS), choices=list(NETS))
    cohorts = ["even", "MNIST-1000"] if "LITCFL_DATA" in os.environ else ["even"]
    parser.add_argument("--cohorts", nargs="*", default=cohorts, choices=["even", "MNIST-1000"])
    parser.add_argument("--bf16", action="store_true", help="in bfloat16, too")
    parser.add_argument("--workers", action="store_true", help="Ray's, too")
    parser.add_argument("--kinds", nargs="*", help="these engines alone, by the names above")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measured(*options.case, options.repeats)))
        return
    rates = core_rates()
    found, rate = [], max(rates.values())
    copies = {mib: bandwidth(mib) for mib in (1, 256)}
    told = ", ".join(f"{speed / 1e9:.0f} by {name}" for name, speed in rates.items())
    print(f"one core, billion operations a second: {told}; copies, GB/s: ", end="")
    print(", ".join(f"{speed / 1e9:.0f} of {mib} MiB" for mib, speed in copies.items()), end="\n\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    kinds = options.kinds or [*KINDS, *(BF16 if options.bf16 else ()), *(WORKERS if options.workers else ())]
    for row in rows(options.models, options.cohorts, kinds, options.repeats, rate):
        found.append(row)
        print(shown(row), flush=True)
    if options.out:
        options.out.write_text(
            json.dumps({"operations a second": rates, "bytes a second": copies, "rows": found}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
