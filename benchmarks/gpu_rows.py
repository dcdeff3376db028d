"""Measures for `gpu.py`, which starts this in processes of its own: a JSON line a row, until the time is up.

    python benchmarks/gpu_rows.py rows|checks|digests DEVICE UNTIL MODEL [MODEL ...]
    python benchmarks/gpu_rows.py real DEVICE UNTIL FOLDER

UNTIL is in seconds since 1970.
"""

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import perf_counter, time
from typing import Any

import torch
from gpu_cases import BATCH, Case, case_of
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from lit_cfl.devices import is_out_of_memory
from lit_cfl.engines.base import Engine
from lit_cfl.engines.choose_plan import choose_plan
from lit_cfl.engines.client_fit import ClientFit, ExamplePool, FitResult
from lit_cfl.engines.factory import build_engine, workload
from lit_cfl.engines.local_training import FitRequest
from lit_cfl.engines.plan import Plan, set_up_torch
from lit_cfl.engines.stacked.compiled import CompiledSteps
from lit_cfl.engines.stacked.cuda_graph import CapturedSteps
from lit_cfl.engines.stacked.engine import StackedEngine
from lit_cfl.engines.stacked.runner import StepFunction
from lit_cfl.engines.steps import Lanes, LaneWork
from lit_cfl.engines.trainer import TrainerEngine
from lit_cfl.local_work import Budget
from lit_cfl.metric_names import Row

OUT_OF_MEMORY = "out of memory"


class Clock:
    """Takes the time of steps while it is on; a GPU's is taken on the GPU, so that nothing waits for it."""

    def __init__(self, on_gpu: bool) -> None:
        self.on_gpu, self.on = on_gpu, False
        self.spans: list[tuple[Any, Any]] = []

    @contextmanager
    def span(self) -> Iterator[None]:
        if not self.on:
            yield
            return
        begun = self._now()
        yield
        self.spans.append((begun, self._now()))

    def _now(self) -> Any:
        if not self.on_gpu:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self) -> float:
        if not self.on_gpu:
            return sum(end - begin for begin, end in self.spans)
        return sum(begin.elapsed_time(end) for begin, end in self.spans) / 1000


class TimedGraphs(CapturedSteps):
    """Captured steps with a clock."""

    clock: Clock

    def __call__(self, lanes: Lanes, work: LaneWork) -> None:
        with self.clock.span():
            super().__call__(lanes, work)


class TimedSteps:
    """Eager steps with a clock."""

    def __init__(self, steps: StepFunction, clock: Clock) -> None:
        self.steps, self.clock = steps, clock

    def __call__(self, lanes: Lanes, work: LaneWork) -> tuple[Lanes, Tensor]:
        with self.clock.span():
            return self.steps(lanes, work)


class Stack(StackedEngine):
    """The stack in any width, even 1, with a clock on its steps; it gives up where memory ends."""

    way = "graph"
    clock: Clock

    def _train(
        self,
        fits: Sequence[ClientFit],
        models: Tensor,
        pool: ExamplePool,
        request: FitRequest,
        ended: Callable[[int], None],
    ) -> list[FitResult]:
        if self._runner is None:
            self.clock = Clock(self.plan.device != "cpu")
            self._stack(self.plan.lanes, BATCH)._advance = self._timed()
        return self._stack(self.plan.lanes, BATCH).run(fits, models, pool, self._capacity, request.prox, ended)

    def _timed(self) -> TimedSteps | TimedGraphs:
        if self.way == "eager":
            return TimedSteps(self._steps, self.clock)
        steps = CompiledSteps(self._steps, "torch") if self.way == "compiled" else self._steps
        graphs = TimedGraphs(steps, self.plan.device)
        graphs.clock = self.clock
        return graphs

    def _shrink(self, clients: int, error: Exception) -> None:
        raise error


def build(case: Case, way: str, width: int, clients: int, device: str) -> Engine:
    task, local = case.task, case.local()
    if way == "trainer":
        return TrainerEngine(task, Plan("trainer", device), 0, local)
    if way == "plain loop":
        return StackedEngine(task, Plan("stacked", device), 0, local)
    rows_mib = 1 + clients * case.parameters * 4 // 2**20  # all of them: a chunk must not be narrower than the stack
    engine = Stack(task, Plan("stacked", device, rows_mib=rows_mib, lanes=width, narrow=width), 0, local)
    engine.way = way
    return engine


def planned(case: Case, clients: int, device: str) -> Engine:
    """Builds the engine that the rule chooses."""
    load = workload(case.task, 0, case.local(), case.data(clients), "32-true", clients, clients, device != "cpu")
    return build_engine(case.task, choose_plan("stacked", device, "32-true", load), 0, case.local())


def measured(case: Case, way: str, width: int, clients: int, device: str) -> Row:
    """Client-steps a second of one way, and its memory."""
    on_gpu = device != "cpu"
    before = torch.cuda.memory_allocated() if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    engine = planned(case, clients, device) if way == "as planned" else build(case, way, width, clients, device)
    data = case.data(clients)
    start, everyone = engine.initial(0)[None], torch.arange(clients)

    def seconds(number: int, budget: Budget | None = None) -> float:
        begun = perf_counter()
        engine.at(number, data).fit(start, everyone[:1] if way == "trainer" and budget else everyone, budget=budget)
        return perf_counter() - begun

    seconds(0, Budget(1, "epochs"))
    times: list[float] = []
    while not times or (len(times) < 5 and sum(times) < (1.5 if on_gpu else 0.2)):
        times.append(seconds(1 + len(times)))
    row: Row = {"client-steps/s": clients * case.steps / median(times)}
    if isinstance(engine, Stack):
        engine.clock.on = True
        whole = seconds(9)
        row["in steps"] = engine.clock.seconds() / whole
        row["waste"] = engine.effort.waste
    if on_gpu:
        row["MiB"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        row["MiB a client"] = row["MiB"] / engine.plan.lanes
        if engine.plan.lanes > 1:
            row["x estimate"] = row["MiB a client"] / (engine.lane_bytes(data) / 2**20)
    return row


def tried(work: Callable[[], Row]) -> Row:
    """Its row, or a note that says what was in the way."""
    try:
        return work()
    except Exception as error:  # whatever it is, the other rows are still to come
        if is_out_of_memory(error):
            return {"note": OUT_OF_MEMORY}
        return {"note": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def ways(case: Case, device: str) -> Iterator[tuple[str, bool, int, int]]:
    """Way, TF32, width and clients of each row, what is wanted most first."""
    few = 3 if device != "cpu" else 2
    yield "trainer", False, 1, few
    yield "plain loop", False, 1, 5 if device != "cpu" else 2
    yield "as planned", False, case.cohort, case.cohort
    widths = [case.cohort, *(width for width in case.widths if width != case.cohort)]
    on_gpu = [("graph", False), ("compiled", False), ("eager", False), ("graph", True)]
    stacks = on_gpu if device != "cpu" else [("eager", False)]
    for way, tf32 in stacks:
        for width in widths:
            times = 1 if width == case.cohort else max(1, min(4, 128 // width)) if device != "cpu" else 1
            yield way, tf32, width, width * times


def rows(name: str, device: str, until: float) -> Iterator[Row]:
    """All rows of a model that fit the time."""
    case, ended = case_of(name, device), dict[tuple[str, bool], int]()
    operations = counted(case)
    torch.set_num_threads(1 if device == "cpu" or case.parameters < 1_000_000 else os.cpu_count() or 1)
    rates: dict[str, float] = {}
    peaks = {tf32: product_rate(tf32, device) for tf32 in ((False, True) if device != "cpu" else (False,))}
    yield {
        "machine": described(device),
        "model": name,
        "operations a client-step": operations,
        "GEMM operations/s": peaks[False],
        "GEMM operations/s in TF32": peaks.get(True),
    }
    for way, tf32, width, clients in ways(case, device):
        row: Row = {"model": name, "way": way, "TF32": tf32, "width": width, "clients": clients}
        expected = 2.5 * clients * case.steps / rates.get(way, float("inf"))  # two rounds and what is around them
        if width > ended.get((way, tf32), width):
            row["note"] = f"{OUT_OF_MEMORY} at a smaller width"
        elif time() + max(2.0, expected) > until:
            row["note"] = "no time left"
        else:
            allow_tf32(tf32)
            row |= tried(partial(measured, case, way, width, clients, device))
        if row.get("note") == OUT_OF_MEMORY:
            ended[way, tf32] = width
        if rate := row.get("client-steps/s"):
            rates[way] = rate
            row["of GEMM"] = rate * operations / peaks[tf32]
            row |= {f"x {other}": rate / rates[other] for other in ("trainer", "plain loop") if other in rates}
        yield row


def allow_tf32(allowed: bool) -> None:
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def counted(case: Case) -> int:
    """Floating-point operations of one step of one client, forwards and backwards."""
    task, inputs = case.task(), torch.zeros(BATCH, *case.shape)
    with FlopCounterMode(display=False) as counter:
        task.losses((inputs, torch.zeros(BATCH, dtype=torch.int64))).mean().backward()
    return int(counter.get_total_flops())


def product_rate(tf32: bool, device: str) -> float:
    """Floating-point operations a second of a product of square matrices."""
    size, times = (512 if device == "cpu" else 8192), []
    allow_tf32(tf32)
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    for _ in range(12):
        if device != "cpu":
            torch.cuda.synchronize()
        begun = perf_counter()
        (a @ b)[0, 0].item()  # waits for it
        times.append(perf_counter() - begun)
    return 2 * size**3 / median(times[2:])


def described(device: str) -> str:
    name = torch.cuda.get_device_name(device) if device != "cpu" else f"CPU, {torch.get_num_threads()} thread(s)"
    return f"{name}, torch {torch.__version__}"


def digests(names: Sequence[str], device: str) -> Iterator[Row]:
    """A hash of what the clients of each model have trained, with deterministic operations alone."""
    allow_tf32(False)
    set_up_torch(Plan("stacked", device), deterministic=True)
    for name in names:
        for way in ("plain loop", "eager" if device == "cpu" else "graph"):
            yield {"model": name, "way": way} | tried(partial(digest, case_of(name, device), way, device))


def digest(case: Case, way: str, device: str) -> Row:
    engine = build(case, way, case.cohort, case.cohort, device)
    clients = torch.arange(4 if way == "plain loop" else case.cohort)
    fitted = engine.at(0, case.data(case.cohort)).fit(engine.initial(0)[None], clients)
    if not fitted.trained.all():
        return {"note": "a client diverged"}
    return {"digest": sha256(fitted.rows.numpy().tobytes()).hexdigest()}


def main() -> None:
    kind, device, until, *names = sys.argv[1:]
    torch.set_num_threads(1)
    if device != "cpu":
        torch.cuda.set_device(device)
    if kind == "digests":
        for row in digests(names, device):
            print(json.dumps(row), flush=True)
        return
    if kind == "checks":
        from gpu_checks import checks  # which needs this module

        for row in checks(names, device, float(until)):
            print(json.dumps(row), flush=True)
        return
    if kind == "real":
        from gpu_real import real  # which needs data sets

        for row in real(Path(names[0]), device, float(until)):
            print(json.dumps(row), flush=True)
        return
    for number, name in enumerate(names):
        share = (float(until) - time()) / (len(names) - number)
        for row in rows(name, device, time() + share):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
