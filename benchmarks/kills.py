"""Interrupts a run at every file operation and resumes it; the files must equal those of an uninterrupted run.

    python benchmarks/kills.py [--what run fesem compare] [--how kill full] [--first 0] [--every 1] [--options ...]

One warm process, which has run the command once, forks a child for each trial. `kill`: SIGKILL right before the n-th
operation (open for writing, write, fsync, rename, remove, mkdir, rmdir); at an fsync, half of the file is written.
`full`: the n-th operation and all later ones fail with ENOSPC until the command ends. Then the command is resumed, or
started again if no run had started. A trial fails on a wrong exit code (0 is right only if all files are complete), on
a traceback, on an error that names no file, or if a file is missing, left over, or different from the uninterrupted
run's (except clocks and identities: `same_files.py`).
"""

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # a fork of a process that has computed in several threads may hang

from hurt import Hurt
from same_files import find_damages, find_differences

from lit_cfl.cli.main import main as command_line
from lit_cfl.pictures import files

SMALL = (
    *("--data.num_clients", "8", "--cohort_size", "4", "--local.epochs", "1", "--pictures.formats", "[png]"),
    *("--tracking.wandb", "disabled", "--tracking.snapshots_every", "1", "--checkpoint.every_seconds", "0"),
)
ALGORITHMS = ("FedAvg", "FedGroup")
COMMANDS = {
    "run": (
        *("run", "--config", "quickstart", *SMALL, "--baseline", "null"),
        *("--algorithm.pretrain_scale", "2", "--algorithm.pretrain.length", "1"),
    ),
    "fesem": ("run", "--config", "fesem/digits", *SMALL, "--baseline", "null"),
    "compare": (
        *("compare", "--config", "quickstart", *SMALL, "--algorithms", *ALGORITHMS, "--seeds", "1", "--num_cpus", "1"),
        *("--FedGroup.pretrain_scale", "2", "--FedGroup.pretrain.length", "1"),
    ),
}
_LIMIT_SECONDS = 300  # time limit of one command
_COARSE = 20  # dots per inch; pictures dominate the cost of a small run


def run_in_child(
    words: Sequence[str], output: Path, prepare: Callable[[], object] = lambda: None, limit: int = _LIMIT_SECONDS
) -> int:
    """Runs a command in a fork of this process, with a time limit.

    Returns:
        The exit code, minus the signal number, or 99 after a traceback.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(limit)
    code = 99
    with output.open("w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        for stream in (1, 2):  # stdout and stderr, to which loggers made before the fork write
            os.dup2(out.fileno(), stream)
        try:
            prepare()
            code = command_line(list(words))
        except BaseException:
            traceback.print_exc()
        finally:
            out.flush()
            os._exit(code)
    return code


class Trials:
    """The trials of one command: each interrupts the command once and resumes it.

    Args:
        words: Command, `run` or `compare`, with its options.
        folder: Folder for the files of the trials.
    """

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        self.words, self.command, self.folder = list(words), words[0], folder
        self.path, self.reference, self.output = folder / "it", folder / "unhurt", folder / "output.txt"

    def start(self, path: Path) -> list[str]:
        return [*self.words, "--run_dir" if self.command == "run" else "--compare_dir", str(path)]

    def resume(self) -> list[str]:
        begun = (self.path / ("config.yaml" if self.command == "run" else "compare.yaml")).exists()
        cores = ["--num_cpus", "1"] if self.command == "compare" else []
        return [self.command, "--resume", str(self.path), *cores] if begun else self.start(self.path)

    def count_operations(self) -> int:
        """Runs the command twice without interruption; returns the number of file operations."""
        with self.output.open("w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = command_line(self.start(self.reference))
        if code:
            raise RuntimeError(f"the uninterrupted command ended with {code}: {self.output.read_text()}")
        counted = self.folder / "operations.txt"
        code = run_in_child(self.start(self.path), self.output, lambda: self._hurt("count", 0, counted))
        trouble = find_differences(self.path, self.reference)
        if code or trouble:
            raise RuntimeError(f"two runs of the command differ: {code}, {trouble}, {self.output.read_text()}")
        return len(counted.read_text().splitlines())

    def _hurt(self, how: str, at: int, record: Path | None = None) -> Hurt:
        return Hurt(self.path, how, at, self.path / "wandb", record)  # W&B writes from a thread

    def trial(self, how: str, at: int) -> str | None:
        """Interrupts the command at one operation and resumes it; returns a description of the fault, or None."""
        shutil.rmtree(self.path, ignore_errors=True)
        first = run_in_child(self.start(self.path), self.output, lambda: self._hurt(how, at))
        said = self.output.read_text()
        if "Traceback" in said or (how == "full" and first not in (0, 1, 2)):
            return f"exit {first}: {said[-600:]}"
        if how == "full" and first and str(self.path) not in said:
            return f"the error names no file: {said[-600:]}"
        if how == "full" and not first and (unfinished := find_damages(self.path)):
            return f"exit 0, but {unfinished}: {said[-600:]}"
        second = run_in_child(self.resume(), self.output)
        if second:
            return f"resumed with exit {second}: {self.output.read_text()[-600:]}"
        return "; ".join([*find_differences(self.path, self.reference), *find_damages(self.path)][:6]) or None


def try_all(trials: Trials, what: str, how: str, numbers: Sequence[int]) -> int:
    """Interrupts the command at each of these operations in turn; returns the number of failed trials."""
    begun, wrong = time.monotonic(), 0
    for tried, at in enumerate(numbers, 1):
        trouble = trials.trial(how, at)
        if trouble:
            wrong += 1
            print(f"{what}, {how} at {at}: {trouble}", flush=True)
        if tried % 10 == 0 or tried == len(numbers):
            seconds = time.monotonic() - begun
            print(f"{what}, {how}: {tried - wrong} of {tried} equal, {seconds:.0f} s", flush=True)
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", default=[*COMMANDS], choices=[*COMMANDS])
    parser.add_argument("--how", nargs="+", default=["kill", "full"], choices=["kill", "full"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=int, help="try every n-th operation (default: 1; 5 for a comparison)")
    parser.add_argument("--first", type=int, default=0, help="number of the first operation")
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="further options of the command")
    given = parser.parse_args(arguments)
    files._DPI, wrong = _COARSE, 0
    for what in given.what:
        words = [*COMMANDS[what], "--rounds", str(given.rounds), *given.options]
        with tempfile.TemporaryDirectory(prefix="kills-") as folder:
            trials = Trials(words, Path(folder))
            total = trials.count_operations()
            print(f"{what}: {total} file operations", flush=True)
            numbers = range(given.first, total, given.every or (5 if what == "compare" else 1))
            wrong += sum(try_all(trials, what, how, numbers) for how in given.how)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
