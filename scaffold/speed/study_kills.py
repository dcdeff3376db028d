"""Kills studies, or fills their disk, at random file operations of the driver or a trial, and resumes them.

    python scaffold/speed/study_kills.py --seed S [--how kill full quota] [--draws 40] [--log FILE]

A study of three trials of FedGroup runs undisturbed first, and file operations are counted (`hurt.py`): those of the
driver below the study's directory, except Ray's own folder, and those of each trial's process below the trial's. Then
the driver and a trial are interrupted in turn at a randomly drawn operation. `kill`: SIGKILL right before it; Ray
restarts a killed trial in another process. `full`: from then on all operations of all processes below the study's
directory fail with ENOSPC and no space is free; `quota`: they fail with EDQUOT, although space seems to be free. The
command must then end with an error that names a file and how to resume. An interrupted study is resumed by `lit-cfl
tune --resume`, or started again if it had not started. Finally it is opened once more, which must not train anything. A
chain fails on a wrong exit code, on a traceback, or if a file is missing, left over, or different from the undisturbed
study's (except clocks and identities: `same_files.py`).
"""

import argparse
import csv
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from damage import RUNS, disable_ray
from hurt import NEVER, Hurt
from kills import run_in_child
from same_files import find_damages, read_content

from lit_cfl.tune.record import TRIALS, trial_id

_LIMIT_SECONDS = 1200  # time limit of one command, enough for two starts of Ray on a very busy machine
_HURT = "LITCFL_HURT"  # environment variable with the arguments of `Hurt` for a trial's process
_SITE = f"""
import json, os
from pathlib import Path
if "{_HURT}" in os.environ:
    from hurt import Hurt
    words = json.loads(os.environ["{_HURT}"])
    Hurt(Path(words["folder"]), words["how"], words["at"], record=Path(words["record"]), disk=Path(words["disk"]))
"""  # content of `sitecustomize.py`, which Python imports at startup
_NUM_TRIALS, _STARTS = 3, 5
_DRIVER = "driver"
_WAYS = ("kill", "full", "quota")
_COLUMNS = ("seed", "how", "number", "hurt", "at", "operation", "trouble")
# keys of trial.json that differ between equal studies; the digests cover files with times
_OF_RECORDS = ("study", "sha256", "digests")


class HurtStudies:
    """Interrupts and resumes one study again and again, and compares the results.

    Args:
        folder: Folder for all files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, folder / "output.txt"
        self.path, self.reference, self.record = folder / "it", folder / "undisturbed", folder / "operation.txt"
        site = folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(_SITE)
        shutil.copy(Path(__file__).parents[2] / "benchmarks" / "hurt.py", site)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
        # with Ray's default of 15, trials get too little CPU time on a busy machine
        os.environ.setdefault("RAY_worker_niceness", "0")
        self._write_study()
        self.operations = self._count_operations()

    def _write_study(self) -> None:
        words = ["run", *RUNS["fedgroup"], "--baseline", "null", "--rounds", "3"]
        if run_in_child([*words, "--run_dir", str(self.folder / "base")], self.output):
            raise RuntimeError(self.output.read_text())
        shutil.copy(self.folder / "base" / "config.yaml", self.folder / "base.yaml")
        study = {"name": "small", "base": str(self.folder / "base.yaml"), "scheduler": "FIFOScheduler"}
        study |= {"space": {"algorithm.eta_g": {"uniform": [0.0, 0.3]}}, "search_seed": 1}
        (self.folder / "study.yaml").write_text(
            yaml.safe_dump(study | {"limits": {"trials": _NUM_TRIALS}, "num_repeats": 0})
        )

    def _count_operations(self) -> dict[str, int]:
        """Runs the study undisturbed; returns the number of file operations of the driver and of each trial."""
        driver, trials = (self.folder / f"{name}.txt" for name in ("driver", "trials"))

        def prepare() -> None:
            _hurt_workers(self.reference / TRIALS, "count", NEVER, trials, self.reference)
            Hurt(self.reference, "count", NEVER, apart=self.reference / "ray", record=driver)

        code = self._tune(self._make_words(self.reference), prepare)
        if code:
            raise RuntimeError(f"the undisturbed study ended with {code}: {self.output.read_text()}")
        lines = trials.read_text().splitlines()
        found = {
            name: sum(f"/{TRIALS}/{name}/" in line for line in lines) for name in map(trial_id, range(_NUM_TRIALS))
        }
        return {_DRIVER: len(driver.read_text().splitlines())} | found

    def _make_words(self, path: Path) -> list[str]:
        return ["tune", "--config", str(self.folder / "study.yaml"), "--study_dir", str(path)]

    def _tune(self, words: Sequence[str], prepare: Callable[[], object] = lambda: None) -> int:
        """Runs a study in a child process, up to five times if Ray does not start within its own limit of 30 s."""
        for _ in range(_STARTS):
            code = run_in_child(words, self.output, prepare, _LIMIT_SECONDS)
            if code != 2 or "timed out during startup" not in self.output.read_text():
                break
        return code

    def _make_interruption(self, how: str, who: str, at: int) -> Callable[[], object]:
        def prepare() -> None:
            folder, trial = (self.path, NEVER) if who == _DRIVER else (self.path / TRIALS / who, at)
            _hurt_workers(folder, how, trial, self.record, self.path)
            Hurt(self.path, how, at if who == _DRIVER else NEVER, self.path / "ray", self.record)

        return prepare

    def chain(self, how: str, who: str, at: int) -> tuple[str, str]:
        """Interrupts the driver or a trial and resumes the study; returns the operation and the fault ("" if none)."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.record.unlink(missing_ok=True)
        code = self._tune(self._make_words(self.path), self._make_interruption(how, who, at))
        said = self.output.read_text()
        operation = self.record.read_text().strip().replace(f"{self.path}/", "") if self.record.exists() else "none"
        ended = how != "kill" or who == _DRIVER
        if "Traceback" in said or code != ((-signal.SIGKILL if how == "kill" else 2) if ended else 0):
            return operation, f"exit {code}: {said[-600:]}"
        begun = (self.path / "study.yaml").exists()
        if how != "kill" and not (str(self.path) in said and (not begun or f"--resume {self.path}" in said)):
            return operation, f"the error does not name a file and how to resume: {said[-600:]}"
        if ended:
            words = ["tune", "--resume", str(self.path)] if begun else self._make_words(self.path)
            if self._tune(words):
                return operation, f"not resumed: {self.output.read_text()[-600:]}"
        code = run_in_child(["tune", "--resume", str(self.path)], self.output, disable_ray)
        if code:
            return operation, f"the resumed study was not finished: {self.output.read_text()[-600:]}"
        return operation, "; ".join([*self._find_differences(), *find_damages(self.path)][:6])

    def _find_differences(self) -> list[str]:
        mine, other = _list_files(self.path), _list_files(self.reference)
        found = [f"{name} is missing" for name in sorted(other - mine)]
        found += [f"{name} is left over" for name in sorted(mine - other)]
        return found + [
            f"{name} differs"
            for name in sorted(mine & other)
            if self._read_content(self.path, name) != self._read_content(self.reference, name)
        ]

    def _read_content(self, path: Path, name: str) -> Any:
        """Reads the part of a study file's content that must be equal in the resumed and the undisturbed study."""
        found = read_content(path / name)
        if name.endswith("trial.json"):
            found = {key: value for key, value in found.items() if key not in _OF_RECORDS}
            found["last_result"] = {key: value for key, value in found["last_result"].items() if key != "seconds"}
        return found


def _hurt_workers(folder: Path, how: str, at: int, record: Path, disk: Path) -> None:
    """Sets the environment variable from which `sitecustomize.py` reads where to interrupt a trial."""
    words = {"folder": str(folder), "how": how, "at": at, "record": str(record), "disk": str(disk)}
    os.environ[_HURT] = json.dumps(words)


def _list_files(path: Path) -> set[str]:
    names = (file.relative_to(path) for file in path.rglob("*") if file.is_file())
    return {str(name) for name in names if not {"ray", "wandb"} & set(name.parts)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--how", nargs="+", default=[*_WAYS], choices=_WAYS)
    parser.add_argument("--draws", type=int, default=40, help="number of chains of each kind")
    parser.add_argument("--log", type=Path, help="CSV file with a row per chain; those in the file are not tried again")
    given = parser.parse_args(arguments)
    rows = list(csv.DictReader(given.log.open())) if given.log and given.log.exists() else []
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="study-kills-") as folder:
        study = HurtStudies(Path(folder))
        print(f"file operations: {study.operations}, {time.monotonic() - begun:.0f} s", flush=True)
        done = {(row["seed"], row["how"], row["number"]) for row in rows}
        for how, number in itertools.product(given.how, range(given.draws)):
            if (str(given.seed), how, str(number)) in done:
                continue
            row = _interrupt_study(study, given.seed, how, number)
            rows.append(row)
            print(f"{row}, {time.monotonic() - begun:.0f} s", flush=True)
            if given.log:
                _write_log(given.log, rows)
    for how in given.how:
        troubles = [row["trouble"] for row in rows if row["how"] == how]
        print(f"{how}: {sum(not trouble for trouble in troubles)} of {len(troubles)} studies equal")
    return 1 if any(row["trouble"] for row in rows) else 0


def _interrupt_study(study: HurtStudies, seed: int, how: str, number: int) -> dict[str, str]:
    """Draws an operation and interrupts a study there; returns the row of the log."""
    rng = random.Random(f"{seed} {number}")
    who = rng.choice(sorted(study.operations.keys() - {_DRIVER})) if number % 2 else _DRIVER
    at = rng.randrange(study.operations[who])
    operation, trouble = study.chain(how, who, at)
    cells = (seed, how, number, who, at, operation, trouble)
    return dict(zip(_COLUMNS, map(str, cells), strict=True))


def _write_log(path: Path, rows: Sequence[dict[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
