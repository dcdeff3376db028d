"""Measures the cost of saving a checkpoint when every client has its own model (FeSEM, Ditto).

    python scaffold/speed/checkpoint.py [--clients 500 --columns 3274634 --cohort 20 --saves 5 --folder DIR]

The state maps clients to models, as FeSEM's does on FashionMNIST-CNN (500 x 3,274,634 float32, 6.1 GiB in memory).
Each round changes the cohort's models. Prints seconds and bytes of the first save, of the median later one, and of
saving the whole state in one file, which is the cost of a save without increments.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from lit_cfl.storage.checkpoint import Checkpoint


def count_written_bytes(folder: Path, since: dict[Path, int]) -> int:
    """Returns the total size in bytes of the `.pt` files that are new or changed."""
    return sum(f.stat().st_size for f in folder.rglob("*.pt") if since.get(f) != f.stat().st_mtime_ns)


def read_stamps(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*.pt")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--columns", type=int, default=3_274_634)
    parser.add_argument("--cohort", type=int, default=20)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    rng = torch.Generator().manual_seed(0)
    models = {client: torch.randn(options.columns, generator=rng) for client in range(options.clients)}
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder, times, sizes = Path(name), [], []
        checkpoint = Checkpoint(folder)
        for number in range(options.saves + 1):
            before, begun = read_stamps(folder), perf_counter()
            checkpoint.save({"round": number}, {"models": models})
            times.append(perf_counter() - begun)
            sizes.append(count_written_bytes(folder, before))
            cohort = torch.randperm(options.clients, generator=rng)[: options.cohort].tolist()
            models = models | {client: models[client] + 1 for client in cohort}
        rows.append(("first save", times[0], sizes[0]))
        rows.append(
            (
                f"later save, {options.cohort} models changed (median of {options.saves})",
                median(times[1:]),
                median(sizes[1:]),
            )
        )
        begun = perf_counter()
        loaded = Checkpoint(folder).load()
        rows.append(("load", perf_counter() - begun, 0))
        del loaded
        for file in folder.rglob("*.pt"):
            file.unlink()
        begun = perf_counter()
        torch.save(models, folder / "whole.pt")
        rows.append(("the whole state in one file", perf_counter() - begun, (folder / "whole.pt").stat().st_size))
    print("| | seconds | MiB written |\n|---|---|---|")
    for what, seconds, size in rows:
        print(f"| {what} | {seconds:.2f} | {size / 2**20:,.0f} |")


if __name__ == "__main__":
    main()
