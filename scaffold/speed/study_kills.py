"""Kills the driver or a worker of a search at drawn moments, resumes it, and compares it with an undisturbed one.

    python scaffold/speed/study_kills.py --folder DIR [--seed 0] [--chains 3] [--kills 2] [--workers 1] [--at_once 1]

The study has the base and ten fixed settings of two algorithms, and stops trials at the rungs 2, 4 and 8. A chain
kills its driver by SIGKILL several times, each time up to 0.6 s after a drawn line of the journal, and resumes it. Or
it kills the process of the trial that runs (`--workers`), which Ray starts again. A chain fails on a wrong exit code,
on a process that is left, or if a trial has another end, or other rows in `metrics.csv`, than the undisturbed study's.
With several trials at a time, the moments at which trials reach a rung differ, so the stopped ones are not compared.
"""

import argparse
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from lit_cfl.config.catalogue import config_path
from lit_cfl.tune.record import JOURNAL, TABLE, TRIALS

_POINTS = [
    *({"algorithm": "IFCA", "IFCA.num_clusters": number} for number in (2, 7, 3, 8, 4)),
    *(
        {"algorithm": "StoCFL", "StoCFL.tau": tau, "StoCFL.lambda_": weight}
        for tau, weight in ((0.7, 0.0083), (0.6, 0.01), (0.4, 0.1), (0.55, 0.9), (0.2, 0.02))
    ),
]
_COMPARED = ("status", "rounds", "repeats", "val/weighted_accuracy")
_LEFT_SECONDS = 100  # time for Ray's agents to end


class Command:
    """A search in a separate process, whose descendants are found by a mark in their environment."""

    def __init__(self, words: list[str], mark: str, said: Path) -> None:
        self.mark = f"LITCFL_TEST_MARK={mark}"
        with said.open("a") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lit_cfl", "tune", *words],
                env=os.environ | dict([self.mark.split("=")]),
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def left(self) -> dict[int, str]:
        """Returns the names of the processes that carry the mark, by their ids."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def wait_for_line(self, path: Path, line: int) -> bool:
        """Waits until the journal has this many lines; returns whether the search still runs then."""
        while self.process.poll() is None and count_lines(path) < line:
            time.sleep(0.005)
        return self.process.poll() is None


def count_lines(path: Path) -> int:
    file = path / JOURNAL
    return file.read_bytes().count(b"\n") if file.exists() else 0


def rows_of(path: Path) -> dict[str, dict[str, str]]:
    with (path / TABLE).open() as file:
        return {row["trial_id"]: row for row in csv.DictReader(file)}


def metrics_of(trial: Path) -> list[dict[str, str]]:
    with (trial / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if "seconds" not in k} for row in csv.DictReader(file)]


class Kills:
    """Kills copies of one study, and compares each with the undisturbed one.

    Args:
        folder: Folder for all files.
        at_once: Trials at the same time.
    """

    def __init__(self, folder: Path, at_once: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.at_once, self.reference = folder, at_once, folder / "undisturbed"
        study: dict[str, Any] = yaml.safe_load(Path(config_path("tune/quickstart")).read_text())
        limits = {"trials": 1 + len(_POINTS), "concurrent": at_once}
        study |= {"points": _POINTS, "limits": limits, "stopping": {"eta": 2, "first": 2}, "num_repeats": 0}
        (folder / "study.yaml").write_text(yaml.safe_dump(study))
        if not (self.reference / TABLE).exists():
            shutil.rmtree(self.reference, ignore_errors=True)
            if self._start(self.reference).process.wait():
                raise RuntimeError(f"the undisturbed study failed; see {folder / 'undisturbed.txt'}")
        self.lines = count_lines(self.reference)

    def _start(self, path: Path) -> Command:
        begun = (path / "study.yaml").exists()
        words = ["--config", str(self.folder / "study.yaml"), "--study_dir", str(path)]
        said = self.folder / f"{path.name}.txt"
        return Command(["--resume", str(path)] if begun else words, f"{path}-{time.monotonic_ns()}", said)

    def kill_driver(self, name: str, kills: int, rng: random.Random) -> str:
        """Kills the driver at several lines of its journal; returns what happened, with any fault."""
        path = self._new(name)
        killed = []
        for line in sorted(rng.sample(range(2, self.lines - 2), kills)):
            command, delay = self._start(path), rng.random() * 0.6
            if command.wait_for_line(path, line):
                time.sleep(delay)
                command.process.kill()
                command.process.wait()
                time.sleep(1)
                killed.append(f"{line} (+{delay:.2f} s, {len(command.left())} processes after 1 s)")
        return f"driver killed at {killed}, {self._end(path, self._start(path))}"

    def kill_worker(self, name: str, rng: random.Random) -> str:
        """Kills the process of a trial; returns what happened, with any fault."""
        path, line = self._new(name), rng.randrange(4, self.lines - 8)
        command, killed = self._start(path), ""
        while not killed and command.wait_for_line(path, line):
            trials = [number for number, name in command.left().items() if name.startswith("ray::ImplicitFunc")]
            for number in trials[:1]:
                os.kill(number, signal.SIGKILL)
                killed = f"{count_lines(path)}"
        return f"worker killed at {killed or 'no line'}, {self._end(path, command)}"

    def _new(self, name: str) -> Path:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / f"{name}.txt").unlink(missing_ok=True)
        return self.folder / name

    def _end(self, path: Path, command: Command) -> str:
        """Waits for the end of a study; describes how it differs from the undisturbed one."""
        code, until = command.process.wait(), time.monotonic() + _LEFT_SECONDS
        while command.left() and time.monotonic() < until:
            time.sleep(0.5)
        problems = [f"exit code {code}, left {command.left()}"] if code or command.left() else []
        found, expected, rounds = rows_of(path), rows_of(self.reference), 0
        if found.keys() != expected.keys() or {file.name for file in (path / TRIALS).iterdir()} != expected.keys():
            problems.append(f"trials {sorted(found)}")
        for trial, row in found.items():
            ended = self.at_once == 1 or row["status"] == expected[trial]["status"] == "finished"
            if ended and [row[key] for key in _COMPARED] != [expected[trial][key] for key in _COMPARED]:
                problems.append(f"{trial} has another end")
            mine, other = (metrics_of(folder / TRIALS / trial) for folder in (path, self.reference))
            both = min(len(mine), len(other))
            rounds += both
            if mine[:both] != other[:both]:
                problems.append(f"{trial} has other rows")
        twins = sum(json.loads(line).get("state") == 3 for line in (path / JOURNAL).read_text().splitlines())
        return f"{twins} twins, {rounds} rounds compared: {problems or 'equal'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder for the studies, which stay")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chains", type=int, default=3, help="studies whose driver is killed")
    parser.add_argument("--kills", type=int, default=2, help="kills of each driver")
    parser.add_argument("--workers", type=int, default=1, help="studies of which a worker is killed")
    parser.add_argument("--at_once", type=int, default=1, help="trials at the same time")
    given = parser.parse_args()
    kills, rng, outcomes = Kills(given.folder.absolute(), given.at_once), random.Random(given.seed), []
    for number in range(given.chains):
        outcomes.append(kills.kill_driver(f"driver-{number}", given.kills, rng))
        print(outcomes[-1], flush=True)
    for number in range(given.workers):
        outcomes.append(kills.kill_worker(f"worker-{number}", rng))
        print(outcomes[-1], flush=True)
    wrong = sum(not outcome.endswith("equal") for outcome in outcomes)
    print(f"{len(outcomes) - wrong} of {len(outcomes)} studies equal the undisturbed one")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
