"""Measures time and memory of the functions that compare clients, and the error of sketched cosines.

    python scaffold/speed/clustering.py [--clients 1200 --columns 1628170 --only NAME ...] [--folder DIR] [--json FILE]

StoCFL's largest setting is 4,800 clients of 1,628,170 columns: 29 GiB of float32 in a temporary file in DIR, deleted
at the end. `peak` is the maximum of anonymous memory minus its value before the call, so pages of the file do not
count. `l1` is not a matrix product and very slow: it is measured on `--l1_columns` columns. Linux only.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import perf_counter

import torch
from tables import print_rows
from torch import Tensor

from lit_cfl import clustering
from lit_cfl.aggregation import mean_by_cluster, mix_clusters
from lit_cfl.metric_names import Row

NUM_GROUPS = 4  # true clusters, as in rotated MNIST
MEASURED = ("function", "size", "seconds", "peak MiB")
ERRORS = ("columns", "sketch_dim", "1/sqrt", "error within", "error across", "greatest", "ms a row")


def measure_anonymous_mib() -> float:
    """Returns this process's memory in MiB, excluding pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


@contextmanager
def measure_peak_memory() -> Iterator[dict[str, float]]:
    """Measures the largest rise of memory during the block, sampled every 5 ms, as `mib` of the yielded dictionary."""
    before, done, found = measure_anonymous_mib(), Event(), {"mib": 0.0}

    def watch() -> None:
        while not done.wait(0.005):
            found["mib"] = max(found["mib"], measure_anonymous_mib() - before)

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()


def draw_updates(n: int, columns: int, rng: torch.Generator, scale: Tensor | float = 1.0) -> Tensor:
    """Draws updates `[n, columns]` of four groups, with cosines of about 0.7 within and 0 across groups."""
    groups = torch.randn(NUM_GROUPS, columns, generator=torch.Generator().manual_seed(1))
    noise = torch.randn(n, columns, generator=rng).mul_(0.65)
    return noise.add_(groups[torch.arange(n) % NUM_GROUPS]).mul_(scale)


def map_rows(file: Path, n: int, columns: int) -> Tensor:
    rows = torch.from_file(str(file), shared=True, size=n * columns).view(n, columns)
    rng = torch.Generator().manual_seed(0)
    for start in range(0, n, 40):  # 40 rows at a time, a multiple of the number of groups
        part = rows[start : start + 40]
        part.copy_(draw_updates(len(part), columns, rng))
    return rows


def list_row_functions(rows: Tensor, l1_columns: int) -> dict[str, Callable[[], object]]:
    n, columns = rows.shape
    directions = rows[:NUM_GROUPS].clone()
    labels = torch.arange(n) % NUM_GROUPS
    sketch = clustering.random_projection(columns, min(8192, columns), 0)
    return {
        "cosine_similarity": lambda: clustering.cosine_similarity(rows),
        "edc_embedding (m = 4)": lambda: clustering.edc_embedding(rows, NUM_GROUPS),
        "merge_by_threshold": lambda: clustering.merge_by_threshold(rows, 0.5),
        "distances l2": lambda: clustering.distances(rows, "l2"),
        f"distances l1, {l1_columns:,} columns": lambda: clustering.distances(rows[:, :l1_columns], "l1"),
        "direction_cosines (4)": lambda: clustering.direction_cosines(rows, directions),
        "cross_distances l2 (4)": lambda: clustering.cross_distances(rows, directions, "l2"),
        "mean_by_cluster (4)": lambda: mean_by_cluster(rows, labels),
        "mix_clusters (4)": lambda: mix_clusters(directions, 0.1),
        "random_projection to 8,192": lambda: sketch(rows),
    }


def list_pair_functions(n: int) -> dict[str, Callable[[], object]]:
    sketched = draw_updates(n, 512, torch.Generator().manual_seed(0))
    similarity, labels = clustering.cosine_similarity(sketched), torch.arange(n) % NUM_GROUPS
    apart = clustering.distances(sketched, "l2")
    cuts = {
        f"agglomerate {linkage}": lambda linkage=linkage: clustering.agglomerate(
            apart, linkage=linkage, num_clusters=NUM_GROUPS
        )
        for linkage in ("single", "complete", "average", "ward")
    }
    return cuts | {
        "madc": lambda: clustering.madc(similarity),
        "bipartition": lambda: clustering.bipartition(similarity),
        "separation_gap": lambda: clustering.separation_gap(similarity, labels),
    }


def measure(functions: dict[str, Callable[[], object]], size: str, only: list[str]) -> Iterator[Row]:
    for name, function in functions.items():
        if only and not any(name.startswith(wanted) for wanted in only):
            continue
        with measure_peak_memory() as memory:
            begun = perf_counter()
            function()
            seconds = perf_counter() - begun
        yield {"function": name, "size": size, "seconds": round(seconds, 2), "peak MiB": round(memory["mib"])}


def measure_sketch_errors(columns: int, dims: list[int], n: int = 100, seeds: int = 5) -> Iterator[Row]:
    """Yields the RMS and maximum error of sketched cosines, for even and very uneven column scales."""
    rng = torch.Generator().manual_seed(0)
    uneven = torch.randn(columns, generator=rng).mul_(2).exp_()  # 1 % of the columns are more than 100 times the median
    upper = torch.triu_indices(n, n, 1)
    for name, scale in (("even", 1.0), ("uneven", uneven)):
        rows = draw_updates(n, columns, rng, scale)
        exact = clustering.cosine_similarity(rows)[upper[0], upper[1]]
        for dim in dims:
            begun = perf_counter()
            sketched = [clustering.random_projection(columns, dim, seed)(rows) for seed in range(seeds)]
            seconds = (perf_counter() - begun) / (n * seeds)
            error = torch.stack([clustering.cosine_similarity(s)[upper[0], upper[1]] - exact for s in sketched])
            yield {
                "columns": name,
                "sketch_dim": dim,
                "1/sqrt": round(dim**-0.5, 4),
                "error within": round(float(error[:, exact > 0.5].square().mean().sqrt()), 4),
                "error across": round(float(error[:, exact < 0.5].square().mean().sqrt()), 4),
                "greatest": round(float(error.abs().max()), 4),
                "ms a row": round(1000 * seconds, 2),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1200)
    parser.add_argument("--columns", type=int, default=1_628_170)
    parser.add_argument("--l1_columns", type=int, default=2000)
    parser.add_argument("--sketch_dims", type=int, nargs="*", default=[1024, 8192])
    parser.add_argument("--only", nargs="*", default=[], help="only functions whose names start so")
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    print(f"{torch.get_num_threads()} threads; {options.clients:,} clients x {options.columns:,} columns, float32")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        begun = perf_counter()
        rows = map_rows(Path(name) / "rows", options.clients, options.columns)
        print(f"file of {rows.nbytes / 2**30:.1f} GiB written in {perf_counter() - begun:.0f} s")
        size = f"{options.clients:,} x {options.columns:,}"
        table = print_rows(MEASURED, measure(list_row_functions(rows, options.l1_columns), size, options.only))
    pairs = f"{options.clients:,} x {options.clients:,}"
    table += print_rows(MEASURED, measure(list_pair_functions(options.clients), pairs, options.only))
    errors = print_rows(ERRORS, measure_sketch_errors(options.columns, options.sketch_dims))
    if options.json:
        options.json.write_text(json.dumps({"functions": table, "sketch": errors}, indent=1))


if __name__ == "__main__":
    main()
