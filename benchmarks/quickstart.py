"""Does the quickstart find its clusters under every seed? Five seeds, FedGroup against FedAvg.

    python benchmarks/quickstart.py [--seeds 0 1 2 3 4]

Prints a table and exits with 1 unless the mean ARI is at least 0.95 and the mean gain in weighted test accuracy over
FedAvg at least 0.15. The seeds were fixed before anything was looked at.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import fmean

from lit_cfl.config.parser import parse_run
from lit_cfl.runs.run import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    seeds = parser.parse_args().seeds
    aris, gains = [], []
    print("| seed | ARI | FedGroup | FedAvg | gain | seconds, both |\n|---|---|---|---|---|---|")
    for seed in seeds:
        request = parse_run(["--config", "quickstart", "--seed", str(seed)])
        with tempfile.TemporaryDirectory() as folder:
            finished = run(request.experiment, Path(folder) / "run")
        mine, theirs = finished.summary, finished.baseline.summary
        accuracies = [one["test/weighted_accuracy"] for one in (mine, theirs)]
        aris.append(mine["clusters/ari"])
        gains.append(accuracies[0] - accuracies[1])
        seconds = mine["time/elapsed_seconds"] + theirs["time/elapsed_seconds"]
        figures = " | ".join(f"{value:.3f}" for value in (aris[-1], *accuracies, gains[-1]))
        print(f"| {seed} | {figures} | {seconds:.1f} |")
    print(f"| mean | {fmean(aris):.3f} | | | {fmean(gains):+.3f} | |")
    return 0 if fmean(aris) >= 0.95 and fmean(gains) >= 0.15 else 1


if __name__ == "__main__":
    sys.exit(main())
