"""Implements `lit-cfl data`: a table of a configuration's data, and pictures."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from lit_cfl.config.parser import parse_data
from lit_cfl.data import FederatedData
from lit_cfl.data.partition_file import partition_hash, save_partition
from lit_cfl.data.shift import Shift
from lit_cfl.errors import InputError, join_ids, join_range
from lit_cfl.pictures.data import example_images, label_distribution, size_histogram
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.progress.console import new_console
from lit_cfl.storage.given_paths import resolve_directory

_AT_ONCE = 20_000  # number of clients whose labels are counted at a time


def show_data(arguments: Sequence[str]) -> int:
    """Shows how the data are divided among clients, before anything is trained: `lit-cfl data`."""
    given, console = parse_data(arguments), new_console()
    folder = Path("runs") / f"{given.name}-data" if given.out is None else resolve_directory(given.out, "--out")
    data = given.module.federated(given.seed)
    show(console, type(given.module).__name__, data, given.module.shift)
    for path in write(folder, data):
        console.print(f"{'written':<18} {path}", soft_wrap=True)
    return 0


def show(console: Console, name: str, data: FederatedData, shifts: tuple[Shift, ...]) -> None:
    """Prints a summary of the data, such as clients, examples, labels and true clusters."""
    labels, sizes = _labels_per_client(data), data.num_examples[data.population]
    several = data.examples.label_kind in ("classes", "multi-label")
    clusters = data.true_clusters[data.true_clusters >= 0].unique(return_counts=True)[1]
    least, most = (int(clusters.min()), int(clusters.max())) if len(clusters) else (0, 0)
    newcomers = data.num_clients - len(data.population)
    lines = {
        "data": f"{name}: {len(data.examples):,} examples of shape {data.examples.input_shape}, "
        + (data.examples.labels_in_words if several else f"labels: {data.examples.label_kind}"),
        **({"inputs": join_ids(list(data.examples.input_names))} if data.examples.input_names else {}),
        "clients": f"{len(data.population):,} in training, {newcomers:,} newcomers",
        "examples": ", ".join(
            f"{int(data.split(split).sizes.sum()):,} {split}" for split in ("train", "validation", "test")
        ),
        "training examples": f"per client: {_quantiles(sizes)}",
        "test examples": f"per client: {_quantiles(data.test.sizes[data.population])}",
        "labels": f"per client: {_quantiles(labels)}" if several else data.examples.label_kind,
        **({"names of labels": _numbered(data.examples.label_names)} if data.examples.label_names else {}),
        "true clusters": f"{len(clusters)}, with {join_range(least, most)} client{'s' if most > 1 else ''} each"
        if len(clusters)
        else "unknown, so agreement with them cannot be measured",
        **({"names of clusters": _numbered(data.cluster_names)} if data.cluster_names else {}),
        **({"skew": "of inputs" if data.skew == "feature" else "of labels"} if data.skew != "other" else {}),
        "shift": ", ".join(type(shift).__name__ for shift in shifts) or "none",
        "fingerprint": partition_hash(data),
    }
    for title, value in lines.items():
        console.print(f"{title:<18} {value}", soft_wrap=True)


def write(folder: Path, data: FederatedData) -> list[Path]:
    """Writes the pictures, and then the partition file. Returns their paths.

    Raises:
        InputError: the folder cannot be written.
    """
    makers = {"labels.png": label_distribution, "sizes.png": size_histogram, "clusters.png": example_images}
    guard = DrawingGuard(passed=(OSError,))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drawn = [guard(name, partial(_draw, folder / name, make, data)) for name, make in makers.items()]
        save_partition(folder / "partition.npz", data)
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}); choose another --out") from error
    return [*filter(None, drawn), folder / "partition.npz"]


def _draw(path: Path, make: Callable[[FederatedData], Any], data: FederatedData) -> Path | None:
    figure = make(data)
    if figure is None:
        return None
    figure.savefig(path, dpi=240)
    return path


def _numbered(names: Sequence[str]) -> str:
    return join_ids([f"{number} {name}" for number, name in enumerate(names)])


def _labels_per_client(data: FederatedData) -> Tensor:
    """Counts the distinct labels in each client's training data, int64 `[clients in training]`."""
    parts = [(data.subset(clients).label_counts > 0).sum(1) for clients in data.population.split(_AT_ONCE)]
    return torch.cat(parts)


def _quantiles(numbers: Tensor) -> str:
    ordered, last = numbers.sort().values.tolist(), len(numbers) - 1
    points = {name: ordered[round(q * last)] for name, q in (("min", 0), ("10 %", 0.1), ("90 %", 0.9), ("max", 1))}
    points["median"] = (ordered[last // 2] + ordered[(last + 1) // 2]) / 2
    names = ("min", "10 %", "median", "90 %", "max")
    return ", ".join(f"{name} {points[name]:,.1f}".removesuffix(".0") for name in names)
