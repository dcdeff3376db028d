"""Code shared by the benchmarks of the other frameworks: data, models, evaluation, and timing.

Every framework gets the same arrays, the same torch model, the same central
evaluation (outside the timed section) and writes the same JSON report.

    python bench_<fw>.py --preset pfl-cifar10 --rounds 200 --device cuda:0 --out r.json
    python bench_<fw>.py --clients 100 --per-round 10 --rounds 20 --model mlp

Data: synthetic, learnable, MNIST-shaped by default (`--shape 1,28,28`), or
`--data file.npz` with x (n, ...), y (n,), optional client (n,) ids (else IID
equal split) and optional xt, yt for the central test set.
Model: mclr | mlp | conv5 | cnn | package.module:factory, where factory() -> nn.Module.
Only numpy and torch are needed here.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import resource
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np

PRESETS = {
    # pfl-research, publications/pfl/*/cifar10: 1000 users x 50, cohort 50, 5 local steps
    "pfl-cifar10": {
        "clients": 1000,
        "samples": 50,
        "shape": "3,32,32",
        "classes": 10,
        "per_round": 50,
        "rounds": 1500,
        "batch": 10,
        "epochs": 1,
        "lr": 0.1,
        "model": "cnn",
        "eval_every": 10,
        "test": 10000,
    },
    # FLUTE README: LR on MNIST (1000 clients x ~60), 10 clients per round, test every 20
    "flute-lr-mnist": {
        "clients": 1000,
        "samples": 60,
        "shape": "1,28,28",
        "classes": 10,
        "per_round": 10,
        "rounds": 100,
        "batch": 10,
        "epochs": 1,
        "lr": 0.03,
        "model": "mclr",
        "eval_every": 20,
        "test": 10000,
    },
    # FLUTE README: CNN on FEMNIST (3400 clients), 10 clients per round, test every 50
    "flute-cnn-femnist": {
        "clients": 3400,
        "samples": 200,
        "shape": "1,28,28",
        "classes": 62,
        "per_round": 10,
        "rounds": 1500,
        "batch": 20,
        "epochs": 1,
        "lr": 0.1,
        "model": "cnn",
        "eval_every": 50,
        "test": 10000,
    },
    # FlexCFL defaults (utils/trainer_utils.py): 20 clients per round, 10 epochs of batch 10
    "flexcfl-mnist": {
        "clients": 1000,
        "samples": 60,
        "shape": "1,28,28",
        "classes": 10,
        "per_round": 20,
        "rounds": 300,
        "batch": 10,
        "epochs": 10,
        "lr": 0.03,
        "model": "mclr",
        "eval_every": 5,
        "test": 10000,
    },
    # a case that is small enough for two CPU cores
    "smoke": {
        "clients": 100,
        "samples": 60,
        "shape": "1,28,28",
        "classes": 10,
        "per_round": 10,
        "rounds": 12,
        "batch": 10,
        "epochs": 1,
        "lr": 0.05,
        "model": "mlp",
        "eval_every": 4,
        "test": 2000,
    },
}


def parser(description: str) -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--preset", choices=sorted(PRESETS))
    p.add_argument("--clients", type=int, default=100)
    p.add_argument("--per-round", type=int, default=10)
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--samples", type=int, default=60, help="samples per client (synthetic data)")
    p.add_argument("--shape", default="1,28,28")
    p.add_argument("--classes", type=int, default=10)
    p.add_argument("--test", type=int, default=2000, help="size of the central test set")
    p.add_argument("--data", help="npz file instead of synthetic data")
    p.add_argument("--batch", type=int, default=10)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--model", default="mlp")
    p.add_argument("--device", default="cpu", help="cpu or cuda:0")
    p.add_argument("--threads", type=int, default=0, help="torch threads per process (0: PyTorch's default)")
    p.add_argument("--eval-every", type=int, default=10, help="0: only at the end")
    p.add_argument("--warmup", type=int, default=2, help="rounds dropped from the statistics")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", help="JSON report")
    return p


def parse(p: argparse.ArgumentParser, argv=None) -> argparse.Namespace:
    """Parses the command line; a preset sets the defaults of other options."""
    first, _ = p.parse_known_args(argv)
    if first.preset:
        p.set_defaults(**PRESETS[first.preset])
    args = p.parse_args(argv)
    if args.per_round > args.clients:
        p.error("--per-round is larger than --clients")
    return args


@dataclass
class ClientData:
    x: np.ndarray  # (n, *shape) float32
    y: np.ndarray  # (n,) int64
    offsets: np.ndarray  # (clients + 1,) int64: client i owns rows offsets[i]:offsets[i+1]
    xt: np.ndarray
    yt: np.ndarray

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    def client(self, i: int):
        a, b = int(self.offsets[i]), int(self.offsets[i + 1])
        return self.x[a:b], self.y[a:b]


def make_data(args) -> ClientData:
    rng = np.random.default_rng(args.seed)
    if args.data:
        f = np.load(args.data)
        x, y = f["x"].astype(np.float32), f["y"].astype(np.int64)
        if "client" in f:
            order = np.argsort(f["client"], kind="stable")
            _, counts = np.unique(f["client"], return_counts=True)
            offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        else:
            order = rng.permutation(len(y))
            offsets = np.linspace(0, len(y), args.clients + 1).astype(np.int64)
        x, y = np.ascontiguousarray(x[order]), np.ascontiguousarray(y[order])
        if "xt" in f:
            xt, yt = f["xt"].astype(np.float32), f["yt"].astype(np.int64)
        else:
            pick = rng.choice(len(y), min(args.test, len(y)), replace=False)
            xt, yt = x[pick], y[pick]
        args.clients = len(offsets) - 1
        args.shape = ",".join(map(str, x.shape[1:]))
        args.classes = int(max(y.max(), yt.max())) + 1
        return ClientData(x, y, offsets, xt, yt)

    shape = tuple(int(s) for s in args.shape.split(","))
    centres = rng.normal(size=(args.classes, *shape)).astype(np.float32)

    def draw(n):
        y = rng.integers(0, args.classes, n)
        x = 0.35 * centres[y] + rng.standard_normal((n, *shape), dtype=np.float32)
        return x.astype(np.float32), y.astype(np.int64)

    x, y = draw(args.clients * args.samples)
    xt, yt = draw(args.test)
    offsets = np.arange(args.clients + 1, dtype=np.int64) * args.samples
    return ClientData(x, y, offsets, xt, yt)


def make_model(args):
    """Builds a model with the same initial weights in every framework, for the same seed."""
    import torch
    from torch import nn

    torch.manual_seed(args.seed)
    shape = tuple(int(s) for s in str(args.shape).split(","))
    if ":" in args.model:
        module, name = args.model.split(":")
        return getattr(importlib.import_module(module), name)()
    flat = int(np.prod(shape))
    if args.model == "mclr":
        return nn.Sequential(nn.Flatten(), nn.Linear(flat, args.classes))
    if args.model == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(flat, 128), nn.ReLU(), nn.Linear(128, args.classes))
    if args.model == "conv5":  # 1,663,370 parameters on 1x28x28
        c, h, w = shape
        return nn.Sequential(
            nn.Conv2d(c, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (h // 4) * (w // 4), 512),
            nn.ReLU(),
            nn.Linear(512, args.classes),
        )
    if args.model == "cnn":  # pfl-research's simple_cnn; 1,626,442 parameters on 3x32x32
        c, h, w = shape
        hidden = 64 * ((h - 4) // 2) * ((w - 4) // 2)
        net = nn.Sequential(
            nn.Conv2d(c, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(hidden, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, args.classes),
        )
        for m in net.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_uniform_(m.weight)
                nn.init.zeros_(m.bias)
        return net
    raise SystemExit(f"unknown model {args.model!r}")


def set_threads(n: int) -> None:
    import torch

    if n:
        torch.set_num_threads(n)


def sync(device: str) -> None:
    if str(device).startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


class Evaluator:
    """Computes the accuracy on central test data, in the same way for every framework, outside the timed sections."""

    def __init__(self, data: ClientData, device: str, batch: int = 10000):
        import torch

        self.x = torch.from_numpy(data.xt).to(device)
        self.y = torch.from_numpy(data.yt).to(device)
        self.batch = batch

    def __call__(self, model) -> float:
        import torch

        was = model.training
        model.eval()
        right = 0
        with torch.no_grad():
            for i in range(0, len(self.y), self.batch):
                out = model(self.x[i : i + self.batch])
                right += int((out.argmax(1) == self.y[i : i + self.batch]).sum())
        model.train(was)
        return right / len(self.y)


class Clock:
    """Timer of rounds: lap() ends a round, and resume() starts the next one after an evaluation."""

    def __init__(self, args):
        self.args = args
        self.created = time.perf_counter()
        self.rounds: list[float] = []
        self.accuracy: dict[int, float] = {}
        self.first_start: float | None = None
        self._t = None

    def resume(self):
        sync(self.args.device)
        self._t = time.perf_counter()
        if self.first_start is None:
            self.first_start = self._t

    def lap(self):
        sync(self.args.device)
        self.rounds.append(time.perf_counter() - self._t)

    def due(self, rnd: int) -> bool:
        every = self.args.eval_every
        return rnd == self.args.rounds or bool(every and rnd % every == 0)


def report(framework: str, version: str, args, clock: Clock, model, extra=None) -> dict:
    import torch

    kept = clock.rounds[args.warmup :] or clock.rounds
    n_samples = args.samples * args.per_round * args.epochs
    mean = statistics.fmean(kept)
    self_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out = {
        "framework": framework,
        "version": version,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "host_cpus": os.cpu_count(),
        "device": torch.cuda.get_device_name(args.device) if str(args.device).startswith("cuda") else "cpu",
        "settings": dict(vars(args).items()),
        "parameters": sum(p.numel() for p in model.parameters()),
        "setup_s": (clock.first_start or clock.created) - clock.created,
        "rounds_timed": len(kept),
        "total_train_s": sum(clock.rounds),
        "s_per_round_mean": mean,
        "s_per_round_median": statistics.median(kept),
        "clients_per_s": args.per_round / mean,
        "samples_per_s": None if args.data else n_samples / mean,
        "accuracy": clock.accuracy,
        "peak_rss_mib_self": self_rss / 1024,
        "peak_rss_mib_children": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "peak_gpu_mib_self": torch.cuda.max_memory_allocated(args.device) / 2**20
        if str(args.device).startswith("cuda")
        else None,
        "round_s": clock.rounds,
    }
    out.update(extra or {})
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            json.dump(out, f, indent=1)
    short = {k: v for k, v in out.items() if k not in ("round_s", "settings")}
    print(json.dumps(short, indent=1), file=sys.stdout)
    return out
