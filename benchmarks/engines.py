"""One round of local training by every engine: the same work, ratios from one run.

    python benchmarks/engines.py [--models linear mlp cnn] [--repeats 5] [--out FILE.json]

Work: 20 clients of 60 images of 28 x 28 (random numbers: the time does not depend on them), batches of 10, 10 epochs,
which is 1,200 client-steps a round; SGD. Engines: `trainer`, one Lightning fit a client; `plain loop`; `stacked`,
compiled, on one core; the same in two processes side by side. The first call, which compiles, is stated apart.
`GEMM` is the rate of a matrix product of the model's largest layer on this machine and one core, and the share of
it that the compiled stack reaches (2 x 3 x parameters x examples operations a step; convolutions counted as such).
"""

import argparse
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import nn

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.local.engine import Engine, LocalTraining
from lit_cfl.local.engines import build_engine
from lit_cfl.local.plan import Plan
from lit_cfl.nets import MCLR, MLP
from lit_cfl.tasks import Classification

SHAPE, CLIENTS, IMAGES, BATCH, EPOCHS = [1, 28, 28], 20, 60, 10, 10
STEPS = CLIENTS * EPOCHS * IMAGES // BATCH


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


def data() -> FederatedData:
    rng = torch.Generator().manual_seed(0)
    total = CLIENTS * IMAGES
    images = torch.randint(0, 255, (total, *SHAPE), generator=rng, dtype=torch.uint8)
    examples = Examples(images, torch.randint(0, 10, (total,), generator=rng), 10, 1 / 255)
    train = ClientIndex.from_sizes(torch.arange(total), torch.full((CLIENTS,), IMAGES))
    none = ClientIndex.empty(CLIENTS)
    return FederatedData(examples, train, none, none, torch.zeros(CLIENTS, dtype=torch.int64))


def engine(model: str, kind: str) -> Engine:
    small = model != "cnn"
    plans = {
        "trainer": Plan("trainer"),
        "plain loop": Plan("stacked"),
        "stacked": Plan("stacked", lanes=4, narrow=1 if small else 2, steps_per_call=5 if small else 1, compile=True),
    }
    task = lambda: Classification(NETS[model](), partial(torch.optim.SGD, lr=0.03))  # noqa: E731
    return build_engine(task, plans[kind], 0, LocalTraining(EPOCHS, BATCH))


def seconds(model: str, kind: str, repeats: int) -> tuple[float, float]:
    """Of the first round, and the median of later ones."""
    torch.set_num_threads(1)
    held, made = data(), engine(model, kind)
    start, clients = made.initial(0)[None], torch.arange(CLIENTS)
    times = []
    for number in range(repeats + 1):
        begun = perf_counter()
        made.at(number, held).fit(start, clients)
        times.append(perf_counter() - begun)
    return times[0], median(times[1:])


def side_by_side(model: str, repeats: int) -> float:
    """Seconds of a round where two processes run one each at the same time: the slower one's median."""
    command = [sys.executable, __file__, "--case", model, "stacked", "--repeats", str(repeats)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    return max(json.loads(one.communicate()[0].splitlines()[-1])[1] for one in both)


def gemm_rate() -> float:
    """Floating-point operations a second of a product like the MLP's, on one core."""
    torch.set_num_threads(1)
    a, b = torch.randn(256, 784), torch.randn(784, 512)
    times = []
    for _ in range(30):
        begun = perf_counter()
        a @ b
        times.append(perf_counter() - begun)
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] / median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(NETS), choices=list(NETS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(seconds(*options.case, options.repeats)))
        return
    rows = []
    columns = (
        "| model | engine | ms a client-step | against trainer | against plain loop | first round s | of GEMM rate |"
    )
    print(columns + "\n|---|---|---|---|---|---|---|")
    rate = gemm_rate()
    for model in options.models:
        found = {}
        for kind in ("trainer", "plain loop", "stacked"):
            repeats = 1 if kind == "trainer" else options.repeats
            found[kind] = seconds(model, kind, repeats)
        found["stacked, 2 processes"] = (float("nan"), side_by_side(model, options.repeats) / 2)
        for kind, (first, later) in found.items():
            row = {
                "model": model, "engine": kind, "ms a client-step": 1000 * later / STEPS, "first round s": first,
                "against trainer": found["trainer"][1] / later, "against plain loop": found["plain loop"][1] / later,
                "of GEMM rate": 6 * OPERATIONS[model] * BATCH * STEPS / later / rate,
            }  # fmt: skip
            rows.append(row)
            print(
                f"| {model} | {kind} | {row['ms a client-step']:.4f} | {row['against trainer']:.1f} | "
                f"{row['against plain loop']:.1f} | {first:.1f} | {row['of GEMM rate']:.2f} |", flush=True,
            )  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps({"gemm operations a second": rate, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
