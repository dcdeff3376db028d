"""Draws the README's picture from a run directory with a baseline.

lit-cfl run --config configs/quickstart.yaml --run_dir runs/picture
python benchmarks/picture.py runs/picture docs/quickstart.png
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np
import yaml

from lit_cfl.tables import read_table

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # after the backend is chosen

MARKERS = "os^DvPX*"


def main() -> None:
    run, target = Path(sys.argv[1]), Path(sys.argv[2])
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for path, colour in ((run, "tab:blue"), (run / "baseline", "tab:gray")):
        name = yaml.safe_load((path / "config.yaml").read_text())["algorithm"]["class_path"].rpartition(".")[2]
        rows = read_table(path / "metrics.csv")
        rounds = [row["round"] for row in rows]
        left.plot(rounds, [row["test/weighted_accuracy"] for row in rows], color=colour, label=name)
        left.plot(rounds, [row["test/worst10_accuracy"] for row in rows], color=colour, linestyle=":", linewidth=1.2)
    left.set(xlabel="round", ylabel="test accuracy", ylim=(0, 1), title="all clients, and the worst tenth (dotted)")
    left.xaxis.get_major_locator().set_params(integer=True)
    left.legend(frameon=False, loc="upper left")
    draw_clients(right, run)
    figure.savefig(target, dpi=130)


def draw_clients(axes: plt.Axes, run: Path) -> None:
    """The clients that founded the clusters, by the similarity of their first updates."""
    found = np.load(run / "snapshots" / "1.npz")
    for true in np.unique(found["true_cluster"]):
        mine = found["true_cluster"] == true
        x, y = found["projection"][mine].astype(float).T
        colours = plt.get_cmap("tab10")(found["cluster"][mine])
        axes.scatter(
            x, y, c=colours, marker=MARKERS[true % len(MARKERS)], s=60, label=f"rotated by {90 * true} degrees"
        )
    axes.set(xticks=[], yticks=[], title="first updates of clients (colour: found cluster)")
    legend = axes.legend(frameon=False, fontsize=8, loc="best", labelcolor="black")
    for handle in legend.legend_handles:
        handle.set_facecolor("none")
        handle.set_edgecolor("black")


if __name__ == "__main__":
    main()
