"""How long the command line takes to answer, beside the imports that it cannot avoid.

    python benchmarks/startup.py [--runs 5]

Prints the median wall time of each command and, for `run --help`, its ratio to `import torch, lightning`,
measured in turn.
"""

import argparse
import subprocess
import sys
from statistics import median
from time import perf_counter

IMPORTS = [sys.executable, "-c", "import torch, lightning"]
COMMANDS = {
    "lit-cfl --help": ["-m", "lit_cfl", "--help"],
    "lit-cfl list": ["-m", "lit_cfl", "list"],
    "lit-cfl run --help": ["-m", "lit_cfl", "run", "--help"],
}


def seconds(command: list[str]) -> float:
    begun = perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    seconds(IMPORTS)  # once, so that the disk cache is warm for all
    times: dict[str, list[float]] = {"import torch, lightning": [], **{name: [] for name in COMMANDS}}
    for _ in range(runs):
        times["import torch, lightning"].append(seconds(IMPORTS))
        for name, words in COMMANDS.items():
            times[name].append(seconds([sys.executable, *words]))
    print("| command | median s | of the imports |\n|---|---|---|")
    for name, found in times.items():
        ratios = [one / imports for one, imports in zip(found, times["import torch, lightning"], strict=True)]
        print(f"| {name} | {median(found):.2f} | {median(ratios):.2f} |")


if __name__ == "__main__":
    main()
