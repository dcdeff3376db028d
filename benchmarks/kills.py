"""Kills and full disks: a run is ended at every file operation, goes on, and must leave what an unhurt run leaves.

    python benchmarks/kills.py [--rounds 3] [--every 1] [--what run compare] [--options ...]

One warm process forks a child for each trial, so that nothing is imported again. `kill`: SIGKILL right before the n-th
operation (open for writing, fsync, rename, remove, mkdir, rmdir); at an fsync half of the file is written. `full`: the
n-th operation and all after it fail with ENOSPC until the command ends. Then the command is resumed, or given again
where no run had begun. A trial fails where an exit code or a traceback says so, or where a file is missing, left over,
or other than the unhurt run's (clocks and identities apart: `same_files.py`).
"""

import argparse
import contextlib
import errno
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from same_files import differences

from lit_cfl.cli import main as command_line

OPTIONS = (
    "--config", "quickstart", "--data.num_clients", "8", "--cohort_size", "4", "--local.epochs", "1",
    "--algorithm.pretrain_scale", "2", "--checkpoint.every_seconds", "0",
)  # fmt: skip
_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}
_WRITING = os.O_WRONLY | os.O_RDWR


class Hurt:
    """Counts the file operations below a folder, and hurts the process at one of them.

    Args:
        folder: below which operations count.
        how: `kill`, `full` or `count`.
        at: number of the operation, from 0.
    """

    def __init__(self, folder: Path, how: str, at: int) -> None:
        self.folder, self.how, self.at, self.count = str(folder.absolute()), how, at, 0
        self._sync = os.fsync
        sys.addaudithook(self._heard)
        os.fsync = self._fsync

    def _heard(self, event: str, details: tuple[object, ...]) -> None:
        writing = event == "open" and isinstance(details[2], int) and details[2] & _WRITING
        if (writing or event in _EVENTS) and os.path.abspath(str(details[0])).startswith(self.folder):
            self._operation()

    def _fsync(self, descriptor: int) -> None:
        if self.how == "kill" and self.count == self.at and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".tmp"):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        self._operation()
        self._sync(descriptor)

    def _operation(self) -> None:
        number, self.count = self.count, self.count + 1
        if self.how == "kill" and number == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "full" and number >= self.at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def in_child(words: Sequence[str], output: Path, prepare: Callable[[], None]) -> int:
    """Runs a command in a fork of this process. Returns its exit code, minus a signal, or 99 after a traceback."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 99
    with output.open("w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
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
    """All kills of one command.

    Args:
        command: `run` or `compare`.
        options: of the command.
        folder: for the files of the trials.
    """

    def __init__(self, command: str, options: Sequence[str], folder: Path) -> None:
        self.command, self.options, self.folder = command, list(options), folder
        self.path, self.reference, self.output = folder / "it", folder / "unhurt", folder / "output.txt"

    def start(self, path: Path) -> list[str]:
        return [self.command, *self.options, "--run_dir" if self.command == "run" else "--compare_dir", str(path)]

    def again(self) -> list[str]:
        begun = (self.path / ("config.yaml" if self.command == "run" else "compare.yaml")).exists()
        return [self.command, "--resume", str(self.path), *self._cores()] if begun else self.start(self.path)

    def _cores(self) -> list[str]:
        return ["--num_cpus", "1"] if self.command == "compare" else []

    def operations(self) -> int:
        """Runs the command unhurt, in a child that counts. Returns how many file operations it made."""
        counter = self.folder / "count"

        def prepare() -> None:
            hurt = Hurt(self.reference, "count", 0)
            end = os._exit
            os._exit = lambda code: (counter.write_text(str(hurt.count)), end(code))  # type: ignore[assignment]

        code = in_child(self.start(self.reference), self.output, prepare)
        if code:
            raise RuntimeError(f"the unhurt command ended with {code}: {self.output.read_text()}")
        return int(counter.read_text())

    def trial(self, how: str, at: int) -> str | None:
        """Hurts the command at one operation, and goes on. Returns what is wrong, or None."""
        shutil.rmtree(self.path, ignore_errors=True)
        first = in_child(self.start(self.path), self.output, lambda: Hurt(self.path, how, at))
        said = self.output.read_text()
        if how == "full" and (first not in (0, 1, 2) or "Traceback" in said or (first == 2 and "error: /" not in said)):
            return f"exit {first}: {said[-300:]}"
        if how == "full" and first and str(self.path) not in said:
            return f"the error names no file: {said[-300:]}"
        second = in_child(self.again(), self.output, lambda: None)
        if second:
            return f"resumed with exit {second}: {self.output.read_text()[-300:]}"
        found = differences(self.path, self.reference)
        return "; ".join(found[:4]) or None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", default=["run", "compare"], choices=["run", "compare"])
    parser.add_argument("--how", nargs="+", default=["kill", "full"], choices=["kill", "full"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--every", type=int, default=1, help="try every n-th operation of a run; of a comparison, 5 n-th"
    )
    parser.add_argument("--first", type=int, default=0, help="number of the first operation")
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="further options of the command")
    given = parser.parse_args(arguments)
    wrong = 0
    for what in given.what:
        more = ["--algorithms", "FedAvg", "FedGroup", "--seeds", "1", "2", "--num_cpus", "1"]
        options = [*OPTIONS, "--rounds", str(given.rounds), *(more if what == "compare" else ()), *given.options]
        with tempfile.TemporaryDirectory(prefix="kills-") as folder:
            trials = Trials(what, options, Path(folder))
            total = trials.operations()
            for how in given.how:
                found: Counter[str] = Counter()
                for at in range(given.first, total, given.every * (5 if what == "compare" else 1)):
                    trouble = trials.trial(how, at)
                    found["wrong" if trouble else "equal"] += 1
                    if trouble:
                        print(f"{what} {how} at {at}: {trouble}", flush=True)
                wrong += found["wrong"]
                tried = found["equal"] + found["wrong"]
                print(f"{what}, {how}: {found['equal']} of {tried} equal ({total} operations)", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
