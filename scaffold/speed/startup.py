"""Measures how long commands take, relative to `import lightning`, which most commands cannot avoid.

    python scaffold/speed/startup.py [--runs 5] [--only run]

Each command is timed right after an import in a separate process; the table has the median of each, and of their
ratios, which other programs on the machine disturb less. CPU seconds are those of the command and its children.
"""

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

IMPORT = [sys.executable, "-c", "import lightning"]
COMMANDS = {
    "run --config quickstart --run_dir run": "a whole run and its baseline, W&B offline",
    "run --config quickstart --tiny --run_dir tiny": "",
    "run --help": "",
    "run --algorithm.help FedGroup": "",
    "run --config quickstart --lr 0.1": "an option that does not exist",
    "list": "",
    "doctor": "",
    "report run --out page.html": "",
    "evaluate run": "",
}  # the order matters: the first command makes the run that the others open
MADE = ("tiny", "page.html")


def measure_command(command: list[str]) -> tuple[float, float]:
    """Returns the wall and CPU seconds of a command."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter() - begun
    if ended.returncode not in (0, 2):
        raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stderr}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_runs(words: str, runs: int) -> list[tuple[float, float, float, float]]:
    """Measures wall and CPU seconds of the import and then of the command, several times."""
    found = []
    for number in range(runs):
        for name in (*MADE, *(["run"] if words.startswith("run --config quickstart --run_dir") else [])):
            rmtree(name, ignore_errors=True)
            Path(name).unlink(missing_ok=True)
        command = [sys.executable, "-m", "lit_cfl", *words.split()]
        if number == 0:
            measure_command(command)  # a warm-up, which fills the caches
            rmtree("run" if "--run_dir run" in words else "tiny", ignore_errors=True)
        found.append((*measure_command(IMPORT), *measure_command(command)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="only commands that start so")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    os.environ |= {"WANDB_MODE": "offline"}
    print("| command | seconds | CPU seconds | times `import lightning` | CPU ratio |\n|---|---|---|---|---|")
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["LITCFL_CACHE"] = str(Path(folder, "cache"))
        for words, note in COMMANDS.items():
            if given.only and not words.startswith((given.only, "run --config quickstart --run_dir")):
                continue
            rows = measure_runs(words, given.runs)
            ratios = [(wall / imported, cpu / of_import) for imported, of_import, wall, cpu in rows]
            figures = [median(row[2] for row in rows), median(row[3] for row in rows)]
            figures += [median(ratio[part] for ratio in ratios) for part in (0, 1)]
            title = f"`lit-cfl {words}`{f', {note}' if note else ''}"
            print(f"| {title} | {' | '.join(f'{figure:.2f}' for figure in figures)} |", flush=True)
        os.chdir("/")


if __name__ == "__main__":
    main()
