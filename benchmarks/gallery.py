"""Draws the pictures of the README, docs/gallery.md and the notebooks, from runs with fixed seeds.

    python benchmarks/gallery.py [--only first runs notebooks]

Takes about two minutes on two cores. The pictures of `runs` are drawn by `lit-cfl run` and `lit-cfl data`.
`tests/docs/test_notebooks.py` runs the notebooks with the same function.
"""

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_cfl import load_run
from lit_cfl.cli.main import main as lit_cfl
from lit_cfl.pictures.colours import hex_of, match_colours

DOCS = Path(__file__).resolve().parents[1] / "docs"
RUNS = {  # pictures of each configuration's run
    "stocfl/digits": ["memberships"],
    "cfl/digits": ["memberships", "similarity"],
    "ifca/digits": ["memberships"],
    "flexcfl/digits": ["memberships"],
    "quickstart": ["clients", "histogram", "curve"],
    "layercfl/digits": ["layers"],
}
MARKERS = "os^D"  # in addition to colours, for readers who cannot distinguish them
BLOCK = re.compile(r"^```(bash|python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEXT = re.compile(r"^```text\n.*?^```", re.MULTILINE | re.DOTALL)


def draw_first_picture(folder: Path) -> Figure:
    """Draws the quickstart's clients: some images, a map of their first updates, and accuracy over five seeds."""
    seeds = range(5)
    run_command(f'run --config quickstart --seeds "{list(seeds)}" --run_dir {folder} --pictures.formats []')
    runs = [folder / f"seed-{seed}" for seed in seeds]
    figure = Figure(figsize=(9, 2.9), layout="constrained")
    left, middle, right = figure.subfigures(1, 3, width_ratios=[1, 1, 1.25])
    shown = next(run for run in runs if shows_every_cluster_twice(run))
    draw_digits(left, shown)
    draw_map(middle, shown / "snapshots" / "1.npz")
    draw_accuracy(right.subplots(), runs)
    return figure


def shows_every_cluster_twice(run: Path) -> bool:
    """Returns whether the first snapshot has at least two clients of each true cluster."""
    with np.load(run / "snapshots" / "1.npz") as snapshot:
        clusters, counts = np.unique(snapshot["true_cluster"], return_counts=True)
    return len(clusters) == 4 and counts.min() > 1


def draw_digits(figure: Any, run: Path) -> None:
    """Draws five images of one client per true cluster, framed in the cluster's colour."""
    data = load_run(run).data
    figure.suptitle("What four of the clients hold", fontsize=10)
    for cluster, row in enumerate(figure.subplots(4, 5)):
        client = (data.true_clusters == cluster).nonzero()[0]
        for axes, index in zip(row, data.train.select(client).entries[:5], strict=True):
            axes.imshow(data.examples.batch(index[None])[0][0, 0], cmap="gray_r")
            axes.set(xticks=[], yticks=[])
            for spine in axes.spines.values():
                spine.set(color=hex_of(cluster), linewidth=2.5)


def draw_map(figure: Any, file: Path) -> None:
    """Draws the clients of a snapshot as points in two dimensions, marked by found cluster."""
    with np.load(file) as snapshot:
        found, true, points = snapshot["cluster"], snapshot["true_cluster"], snapshot["projection"]
    match = match_colours(found, true)
    axes = figure.subplots()
    for number, cluster in enumerate(np.unique(found)):
        mine = found == cluster
        look = {"color": hex_of(match.get(int(cluster), -1)), "marker": MARKERS[number], "edgecolors": "white"}
        axes.scatter(*points[mine].astype(float).T, s=55, linewidths=0.4, **look)
    axes.set(xticks=[], yticks=[], xlabel="first principal coordinate", ylabel="second principal coordinate")
    axes.set_title(f"Clusters found by {len(found)} first updates", fontsize=10)


def draw_accuracy(axes: Axes, runs: list[Path]) -> None:
    """Draws test accuracy over the rounds: the mean over runs, and a band from minimum to maximum."""
    for name, part, colour, line in (
        ("FedGroup, four models", ".", "black", "-"),
        ("FedAvg, one model", "baseline", "dimgrey", "--"),
    ):
        tables = [load_run(run / part).metrics for run in runs]
        rounds, scores = tables[0]["round"], np.stack([table["test/weighted_accuracy"] for table in tables])
        axes.fill_between(rounds, scores.min(0), scores.max(0), color=colour, alpha=0.18, linewidth=0)
        axes.plot(rounds, scores.mean(0), line, color=colour)
        axes.annotate(name, (20, scores.mean(0)[-1]), (0, -26), textcoords="offset points", ha="right", color=colour)
    axes.set(xlabel="round", ylim=(0, 1), xlim=(1, 20), xticks=[1, 5, 10, 15, 20])
    axes.set_title("Test accuracy (5 seeds)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def draw_runs(folder: Path) -> None:
    """Runs the configurations in `RUNS` and copies their pictures into docs/gallery/."""
    for config, names in RUNS.items():
        run = folder / config
        options = "--pictures.formats [png] --tracking.snapshots_every 1"
        run_command(f"run --config {config} --run_dir {run} {options}")
        for name in names:
            shutil.copy(run / "pictures" / f"{name}.png", DOCS / "gallery" / f"{config.split('/')[0]}-{name}.png")
    run_command(f"data --config quickstart --out {folder / 'data'}")
    shutil.copy(folder / "data" / "labels.png", DOCS / "gallery" / "data-labels.png")


def run_command(line: str) -> None:
    """Runs `lit-cfl` with the words of a command line."""
    if lit_cfl(shlex.split(line)) != 0:
        raise RuntimeError(f"failed: lit-cfl {line}")


def run_blocks(page: Path, folder: Path) -> list[tuple[str, str]]:
    """Runs the blocks of a notebook in order, in a folder.

    Returns:
        For each text block: the page's text, and the output of the Python block before it.
    """
    names: dict[str, object] = {}
    printed, outputs = "", []
    with contextlib.chdir(folder):
        for language, code in BLOCK.findall(page.read_text("utf-8")):
            if language == "text":
                outputs.append((code, printed))
            elif language == "bash":
                for line in code.splitlines():
                    run_command(line.partition("#")[0].removeprefix("lit-cfl "))
            else:
                with contextlib.redirect_stdout(io.StringIO()) as stream:
                    exec(compile(code, page.name, "exec"), names)  # noqa: S102  # our own documentation
                printed = "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())
    return outputs


def draw_first(folder: Path) -> None:
    draw_first_picture(folder / "first").savefig(DOCS / "gallery" / "first.png", dpi=140)


def insert_outputs(text: str, outputs: Sequence[tuple[str, str]]) -> str:
    """Replaces a notebook's text blocks, in order, by the outputs of its cells."""
    printed = iter(outputs)
    return re.sub(TEXT, lambda _: f"```text\n{next(printed)[1]}```", text)


def draw_notebooks(folder: Path) -> None:
    """Runs the notebooks, writes their outputs into the pages, and copies the pictures that they save."""
    for page in sorted((DOCS / "notebooks").glob("*.md")):
        place = folder / page.stem
        place.mkdir()
        page.write_text(insert_outputs(page.read_text("utf-8"), run_blocks(page, place)), "utf-8")
        for file in place.glob("*.png"):
            shutil.copy(file, DOCS / "notebooks" / file.name)


PARTS: dict[str, Callable[[Path], None]] = {"first": draw_first, "runs": draw_runs, "notebooks": draw_notebooks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parts = parser.parse_args().only
    os.environ.setdefault("WANDB_MODE", "disabled")
    os.environ.setdefault("MPLBACKEND", "agg")
    (DOCS / "gallery").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            PARTS[part](Path(folder))


if __name__ == "__main__":
    main()
