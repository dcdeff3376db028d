"""Local training on a GPU: one fit a client, a plain loop, and stacks of every width, eager and as CUDA graphs.

    python benchmarks/gpu.py [--device auto] [--minutes 7] [--models linear mlp cnn vgg16 pfl-cifar10]
                             [--data FOLDER] [--out FILE.json]

It ends within `--minutes` and half a minute, needs nothing but torch, lightning, numpy and scikit-learn, and writes
every row at once, to FILE.json or to $OUT/gpu.json. Without a GPU a small form runs on one core, in under a minute.
The measuring is in `gpu_rows.py`, the models are in `gpu_cases.py` and `engines.py`.

Work: random images, batches of 10, SGD in float32. The three small models of `engines.py` with 60 images a client and
10 epochs; VGG16 (14.7 M parameters) and the CIFAR-10 preset of pfl-research, with its dropout, with 50 images and 1
epoch (5 steps). A row is the median of up to five rounds after a first one, which captures. Its columns:

* way: `trainer` and `plain loop` fit a few clients one after the other; `eager`, `graph` and `compiled` (by Inductor,
  then captured as a graph) in a stack of that width;
* TF32: whether products and convolutions may round their inputs to TF32; all other rows, those that `x trainer` and
  `x plain loop` divide by among them, may not;
* in steps: share of a round that its steps take; the rest cuts batches and moves models to and from the GPU;
* of GEMM: operations of the round, as PyTorch counts them, over those of a product of large matrices in that time;
* MiB: largest memory that a round takes on the GPU, its examples included, and the same divided by the width of the
  stack; x estimate: how many times what `lane_memory.py` says of a lane;
* waste: share of the computed mini-batches that trained nobody.

`as planned` is the engine as the rule of `choose_plan` builds it. Every model has a process and a share of the time of
its own: what does not fit the memory or the time says so. Then models of four clients are compared with those of a
plain loop on the CPU, and runs that change their device after two of four rounds with one on the CPU. At last two
processes train the same clients with deterministic operations alone, and compare the bits of their results.

With --data, a folder that `gpu_real.py` has written, FedAvg trains on MNIST and CIFAR-10 for a minute: seconds a round,
the minutes that the whole training would take, and the accuracy so far. CIFAR-10 is trained as by pfl-research.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Timer
from time import time
from typing import Any

Row = dict[str, Any]
MODELS = ("linear", "mlp", "cnn", "vgg16", "pfl-cifar10")
COLUMNS = (
    "model",
    "way",
    "TF32",
    "width",
    "clients",
    "client-steps/s",
    "x trainer",
    "x plain loop",
    "in steps",
    "of GEMM",
    "MiB",
    "MiB a client",
    "x estimate",
    "waste",
    "note",
)
CELLS = {
    "checks": ("model", "check", "difference", "note"),
    "deterministic": ("model", "way", "rerun"),
    "real": (
        "data",
        "precision",
        "clients",
        "cohort",
        "lanes",
        "rounds",
        "s a round",
        "whole, min",
        "accuracy",
        "note",
    ),
}
REAL_SECONDS = 60.0


class Child:
    """A process that measures until its time is up, or is ended soon after."""

    def __init__(self, kind: str, device: str, seconds: float, models: Sequence[str]) -> None:
        script = Path(__file__).with_name("gpu_rows.py")
        command = [sys.executable, str(script), kind, device, str(time() + seconds), *models]
        paths = [str(script.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]  # Lit-CFL need not be installed
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.timer = Timer(seconds + 10, self.process.kill)
        self.timer.daemon = True
        self.timer.start()

    def rows(self) -> Iterator[Row]:
        yield from (json.loads(line) for line in self.process.stdout or () if line.startswith("{"))
        self.timer.cancel()
        if code := self.process.wait():
            yield {"note": f"the process ended with {code}, or had no time left"}


class Report:
    """Prints rows, and keeps them in a file."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.held = path, {"machines": [], "rows": [], "real": [], "checks": [], "deterministic": []}

    def add(self, kind: str, row: Row) -> None:
        self.held[kind].append(row)
        if self.path:
            self.path.write_text(json.dumps(self.held, indent=1) + "\n")
        if kind == "machines":
            rates = (row["GEMM operations/s"], row["GEMM operations/s in TF32"])
            named = [f"{name} {rate / 1e12:.2f}" for name, rate in zip(("float32", "TF32"), rates, strict=True) if rate]
            print(f"\n{row['model']}: {row['machine']}; GEMM, TFLOP/s: {', '.join(named)}")
            print(f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
        elif kind == "rows":
            print(f"| {' | '.join(_shown(row.get(column)) for column in COLUMNS)} |", flush=True)
        else:
            print(f"| {' | '.join(_shown(row.get(cell)) for cell in CELLS[kind])} |", flush=True)


def _shown(cell: Any) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if cell >= 100 else f"{cell:.3g}"
    return "" if cell is None else str(cell)


def same_bits(first: Row, second: Row) -> Row:
    """What two processes that trained the same clients say to each other."""
    notes = [row["note"] for row in (first, second) if "note" in row]
    same = "the same bits" if first.get("digest") == second.get("digest") else "OTHER bits"
    return first | {"rerun": notes[0] if notes else same, "way": first.get("way"), "model": first.get("model")}


def run_all(names: Sequence[str], device: str, seconds: float, data: Path | None, report: Report) -> None:
    end, on_gpu = time() + seconds, device != "cpu"
    last = min(75.0, seconds / 4)  # for the two processes at the end; as much for the checks before
    real = min(REAL_SECONDS, seconds / 4) if data is not None else 0.0
    groups = [[name] for name in names] if on_gpu else [list(names)]
    for number, group in enumerate(groups):
        share = (end - 2 * last - real - time()) / (
            len(groups) - number
        ) - 10 * on_gpu  # ten seconds until it is killed
        for row in Child("rows", device, share, group).rows():
            report.add("machines" if "machine" in row else "rows", {"model": group[0]} | row)
    if data is not None:
        print(f"\n| {' | '.join(CELLS['real'])} |\n|{'---|' * len(CELLS['real'])}", flush=True)
        for row in Child("real", device, real - 10, [str(data)]).rows():
            report.add("real", row)
    print("\n| model | check | difference, share of what training changed | note |\n|---|---|---|---|", flush=True)
    for row in Child("checks", device, last - 10, names).rows():
        report.add("checks", row)
    print("\n| model | deterministic | rerun in another process |\n|---|---|---|", flush=True)
    both = [Child("digests", device, last - 10, names) for _ in range(2)]
    for first, second in zip(*[list(child.rows()) for child in both], strict=False):
        report.add("deterministic", same_bits(first, second))


def found(device: str) -> str:
    """The device asked for; `auto` is a GPU where there is one."""
    if device not in ("auto", "cuda"):
        return device
    import torch  # takes seconds, and only here needed

    if torch.cuda.is_available():
        return "cuda:0"
    print("no GPU is here: a small form runs on the CPU, and GPU figures are missing", flush=True)
    return "cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda:<number>")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--data", type=Path, help="folder with mnist.npz and cifar10.npz")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ["OUT"], "gpu.json") if "OUT" in os.environ else None
    )
    options = parser.parse_args()
    run_all(options.models, found(options.device), 60 * options.minutes, options.data, Report(options.out))


if __name__ == "__main__":
    main()
