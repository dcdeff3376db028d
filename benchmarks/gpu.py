"""Tests in a few minutes whether local training is correct on a GPU, and measures its cost.

    python benchmarks/gpu.py [--device auto] [--minutes 5] [--only PART ...] [--out FILE.json]

It ends within `--minutes` plus half a minute, in one process, and needs only torch, lightning, numpy and scikit-learn.
Every row is printed at once, and written to FILE.json or to $OUT/gpu.json. Without a GPU a small version runs on one
core. The parts, most important first:

* parity: models, losses and gradients against a loop on the CPU: the largest difference, relative to the change;
* graphs: steps of a cohort in CUDA graphs, float32 and TF32; eager: without graphs, and one client after another;
* evaluation: losses of four models; memory: per client, and relative to the estimate of `lane_memory.py`;
* refused: a loss that cannot be captured, and a capture after it; deterministic: whether two fits have the same bits;
* host: CPU time for drawing mini-batches, and for the rest of a stack whose steps do nothing;
* short: whether a run with too little memory continues with fewer lanes.

Workload: random images, batches of 10, SGD in float32, medians of up to five rounds after a first one, which captures.
"""

import argparse
import gc
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from threading import Timer
from time import perf_counter, time
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # makes lit_cfl importable if it is not installed

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.agreement import Trial
from lit_cfl.engines.cohort import FitRequest
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan, set_up_torch
from lit_cfl.engines.stacked.way import StackWay
from lit_cfl.nets import MCLR, MLP, VGG16, Sent140LSTM
from lit_cfl.tasks import Classification

COLUMNS = ("part", "net", "what", "result", "unit", "note")
WAYS = ("stack", "loop", "trainer")
GREY, COLOUR, BATCH = [1, 28, 28], [3, 32, 32], 10
Row = dict[str, Any]


def make_row(net: str, what: str, result: float, unit: str) -> Row:
    return {"net": net, "what": what, "result": result, "unit": unit}


def build_cnn() -> nn.Module:
    """Builds the CNN of `experiments/peers`: two 5 x 5 convolutions, 512 hidden units, 1,663,370 parameters."""
    first = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10))


class LossWithHostCopy(Classification):
    """Classification whose loss copies a number to the GPU, which blocks the host and prevents graph capture."""

    def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        scale = torch.tensor(1.0, device=batch[0].device)
        return cross_entropy(self(batch[0]), batch[1], reduction="none") * scale


@dataclass(frozen=True)
class Case:
    """A net, and the size of the workload on which it is measured."""

    net: Callable[[], nn.Module]
    clients: int = 256
    images: int = 60
    epochs: int = 10
    shape: tuple[int, ...] = (1, 28, 28)
    kind: type[Classification] = Classification

    def task(self) -> Classification:
        return self.kind(self.net(), partial(torch.optim.SGD, lr=0.03))

    def data(self, clients: int) -> FederatedData:
        rng, total = torch.Generator().manual_seed(0), clients * self.images
        images = torch.randint(0, 255, (total, *self.shape), generator=rng, dtype=torch.uint8)
        examples = Examples(images, torch.randint(0, 10, (total,), generator=rng), 10, 1 / 255)
        train = ClientIndex.from_sizes(torch.arange(total), torch.full((clients,), self.images))
        return FederatedData(
            examples, train, ClientIndex.empty(clients), train, torch.zeros(clients, dtype=torch.int64)
        )

    @property
    def steps(self) -> int:
        return self.epochs * -(-self.images // BATCH)

    def engine(self, way: str, device: str, precision: str = "32-true", lanes: int | None = None) -> Engine:
        plan = Plan(way, device, precision, rows_mib=8192, lanes=lanes or self.clients)
        return Engine(self.task, plan, 0, LocalTraining(self.epochs, BATCH, on_divergence="skip"))


CASES = {
    "MCLR": Case(partial(MCLR, GREY, 10), 1024),
    "MLP": Case(partial(MLP, 128, GREY, 10)),
    "MLP 2,048": Case(partial(MLP, 2048, GREY, 10), 128, epochs=2),
    "CNN": Case(build_cnn, 128, epochs=1),
    "VGG16": Case(partial(VGG16, batch_norm=True, input_shape=COLOUR, num_labels=10), 24, 50, 1, (3, 32, 32)),
    "LSTM": Case(partial(Sent140LSTM, [28, 28], 10), 128, epochs=1, shape=(28, 28)),
}


class Bench:
    """Measures parts of the engine on one device, within a time limit."""

    def __init__(self, device: str, until: float) -> None:
        self.device, self.until, self.on_gpu = device, until, device != "cpu"
        small = {} if self.on_gpu else {"clients": 4, "images": 20, "epochs": 1}
        self.cases = {name: replace(case, **small) for name, case in CASES.items()}
        if not self.on_gpu:
            self.cases = {name: self.cases[name] for name in ("MCLR", "LSTM")}

    @property
    def is_late(self) -> bool:
        return time() > self.until

    def seconds(self, work: Callable[[], object], most: float = 4.0) -> float:
        """Returns the median seconds of up to five calls, after one warm-up call."""
        found, begun = [], perf_counter()
        for number in range(6):
            start = perf_counter()
            work()
            if self.on_gpu:
                torch.cuda.synchronize()
            found += [perf_counter() - start] if number else []
            if found and (perf_counter() - begun > most or self.is_late):
                break
        return median(found)

    def fit(self, case: Case, engine: Engine, clients: int) -> Callable[[], object]:
        data, start, everyone = case.data(clients), engine.initial(0)[None], torch.arange(clients)

        def fit() -> None:
            for _ in engine.at(1, data).fit(start, everyone).on_device():
                pass

        return fit

    def parity(self) -> Iterator[Row]:
        clients = torch.tensor([4, 0, 5, 2, 1])
        for precision, (name, case) in product(("32-true", "64-true"), self.cases.items()):
            # 25 images: the last mini-batch is short
            few = replace(case, clients=6, epochs=min(4, case.epochs), images=25)
            data, expected = few.data(6), few.engine("loop", "cpu", precision)
            start = expected.initial(0)
            wanted = expected.at(1, data).fit(start[None], clients).rows
            for way in WAYS:
                engine = few.engine(way, self.device, precision, lanes=4)
                rows = engine.at(1, data).fit(start[None], clients).rows
                yield make_row(name, f"{way}, {precision}", measure_difference(rows, wanted, start), "of the change")
            losses = [one.losses_of_all(start[None], data.train[0], data) for one in (engine, expected)]
            largest = float((losses[0] - losses[1]).abs().max())
            yield make_row(name, f"losses, {precision}", largest, "nats")
            both = few.engine("stack", self.device, precision), expected
            slopes = measure_difference(
                *(one.at(1, data).gradients(start, clients) for one in both), torch.zeros_like(start)
            )
            yield make_row(name, f"gradients, stack, {precision}", slopes, "of all")

    def graphs(self) -> Iterator[Row]:
        for precision in ("32-true", "tf32"):
            set_up_torch(Plan("stack", self.device, precision), False)
            for name, case in self.cases.items():
                yield self.figure(name, case, "stack", precision)
        set_up_torch(Plan("stack", self.device), False)

    def eager(self) -> Iterator[Row]:
        for name, case in self.cases.items():
            yield self.figure(name, case, "stack", captured=False)
            yield self.figure(name, case, "loop", clients=min(8, case.clients))

    def figure(
        self, name: str, case: Case, way: str, precision: str = "32-true", clients: int = 0, captured: bool = True
    ) -> Row:
        engine, clients = case.engine(way, self.device, precision), clients or case.clients
        if not captured and isinstance(engine.way, StackWay):
            engine.way._captured = None
        seconds = self.seconds(self.fit(case, engine, clients))
        what = f"{way}{'' if captured else ', eager'}, {precision}, {clients} clients, {case.epochs} epoch(s)"
        return make_row(name, what, 1e6 * seconds / (clients * case.steps), "us per client-step")

    def evaluation(self) -> Iterator[Row]:
        for name, case in self.cases.items():
            engine, data = case.engine("loop", self.device), case.data(case.clients)
            models, index = torch.stack([engine.initial(number) for number in range(4)]), data.train.entries
            seconds = self.seconds(partial(engine.losses_of_all, models, index, data))
            yield make_row(name, "losses of 4", 1e6 * seconds / len(index) / 4, "us per example")

    def memory(self) -> Iterator[Row]:
        for name, case in self.cases.items() if self.on_gpu else ():
            engine = case.engine("stack", self.device)
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            self.fit(case, engine, case.clients)()
            each = (torch.cuda.max_memory_allocated() - before) / case.clients
            trial = Trial.of(engine.template, case.data(8), engine.local)
            estimate = StackWay.client_bytes(trial, "32-true", BATCH)
            note = f"{each / estimate:.2f} times the estimate"
            yield make_row(name, "stack", each / 2**20, "MiB per client") | {"note": note}

    def refused(self) -> Iterator[Row]:
        case = replace(self.cases["MCLR"], kind=LossWithHostCopy, clients=4, epochs=1)
        for net, one in (("MCLR, a number in its loss", case), ("MCLR", replace(case, kind=Classification))):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                self.fit(one, one.engine("stack", self.device), 4)()
            yield {"net": net, "what": "stack", "note": str(said[0].message)[:120] if said else "captured"}

    def deterministic(self) -> Iterator[Row]:
        set_up_torch(Plan("stack", self.device), True)
        for name, case in self.cases.items():
            few, found = replace(case, clients=4, epochs=2), []
            for _ in range(2):
                engine = few.engine("stack", self.device)
                found.append(engine.at(1, few.data(4)).fit(engine.initial(0)[None], torch.arange(4)).rows)
            yield {"net": name, "what": "stack", "note": "the same bits" if torch.equal(*found) else "OTHER bits"}
        set_up_torch(Plan("stack", self.device), False)

    def host(self) -> Iterator[Row]:
        for epochs in (1, 10):
            case = replace(self.cases["MCLR"], epochs=epochs)
            engine = case.engine("stack", self.device)
            fit = self.fit(case, engine, case.clients)
            fit()
            yield make_row("MCLR", f"draws, {epochs} epoch(s)", self.draws(case, engine), "us per client")
            engine.way._captured = lambda lanes, work: None  # steps that do nothing
            each = 1e6 * self.seconds(fit) / case.clients
            yield make_row("MCLR", f"{epochs} epoch(s)", each, "us per client")

    def draws(self, case: Case, engine: Engine) -> float:
        everyone, data = torch.arange(case.clients), case.data(case.clients)
        zeros, start = torch.zeros_like(everyone), engine.initial(0)[None]
        request = FitRequest(
            start, everyone, zeros, "train", 0.0, None, zeros, engine.local.budget, zeros + case.epochs
        )
        return 1e6 * self.seconds(lambda: engine.describer.fit(request, 1, data)) / case.clients

    def short(self) -> Iterator[Row]:
        whole = torch.cuda.get_device_properties(self.device).total_memory if self.on_gpu else 0
        for gib in (8, 3) if self.on_gpu else ():
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(gib * 2**30 / whole)
            try:
                case = replace(self.cases["VGG16"], clients=48)
                engine = case.engine("stack", self.device)
                self.fit(case, engine, 8)()
            finally:
                torch.cuda.set_per_process_memory_fraction(1.0)
            yield {"net": "VGG16", "what": f"48 lanes in {gib} GiB", "note": f"{engine.plan.lanes} lanes trained"}
            del engine


PARTS = ("parity", "graphs", "eager", "evaluation", "memory", "refused", "deterministic", "host", "short")


def measure_difference(found: Tensor, wanted: Tensor, start: Tensor) -> float:
    """Returns the largest difference between two results, relative to the largest change by training."""
    return float((found - wanted).abs().max() / (wanted - start).abs().max())


def measure_parts(bench: Bench, parts: tuple[str, ...]) -> Iterator[Row]:
    """Yields the rows of these parts, or a note if a part fails or no time is left."""
    for part in parts:
        try:
            for row in getattr(bench, part)() if not bench.is_late else [{"note": "no time left"}]:
                yield {"part": part} | row
                if bench.is_late:
                    break
        except Exception as error:  # a failing part must not end the others
            yield {"part": part, "note": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}
        gc.collect()


def format_cell(cell: Any) -> str:
    return f"{cell:.3g}" if isinstance(cell, float) else "" if cell is None else str(cell)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda:<number>")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ["OUT"], "gpu.json") if "OUT" in os.environ else None
    )
    given = parser.parse_args()
    device = given.device if given.device != "auto" else "cuda:0" if torch.cuda.is_available() else "cpu"
    killer = Timer(60 * given.minutes + 30, os._exit, (1,))
    killer.daemon = True
    killer.start()
    warnings.filterwarnings("ignore")
    set_up_torch(Plan("stack", device), False)
    held: list[Row] = []
    name = torch.cuda.get_device_name(device) if device != "cpu" else "CPU, a small form: GPU figures are missing"
    print(f"{name}, torch {torch.__version__}\n\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    for row in measure_parts(Bench(device, time() + 60 * given.minutes), tuple(given.only)):
        print(f"| {' | '.join(format_cell(row.get(column)) for column in COLUMNS)} |", flush=True)
        held.append(row)
        if given.out:
            given.out.write_text(json.dumps({"device": name, "rows": held}, indent=1) + "\n")


if __name__ == "__main__":
    main()
