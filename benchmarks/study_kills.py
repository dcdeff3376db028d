"""Kills of studies: the driver or a trial is killed at a drawn file operation, and the study ends as if undisturbed.

    python benchmarks/study_kills.py --seed S [--kills 40] [--log FILE]

A study of three trials of FedGroup runs undisturbed first, and file operations are counted (`hurt.py`): those of the
driver below the study's directory, without Ray's own folder, and those of the process of each trial below the trial's.
Then the driver and a trial are killed in turn, by SIGKILL right before a drawn operation. Ray begins a killed trial
again in another process; a killed driver is resumed by `lit-cfl tune --resume`, or begun again where no study had
begun. At the end the study is opened once more, where it must have nothing left to train. A chain fails where an exit
code or a traceback says so, or where a file is missing, left over, or other than the undisturbed study's (clocks and
identities apart: `same_files.py`).
"""

import argparse
import csv
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from damage import RUNS, without_ray
from hurt import Hurt
from kills import in_child
from same_files import content, damages

from lit_cfl.tune.check import TRIALS
from lit_cfl.tune.record import trial_id

_LIMIT_SECONDS = 1200  # for one command: two starts of Ray on a very busy machine
_HURT = "LITCFL_HURT"  # in the environment of a trial's process: the arguments of `Hurt`
_SITE = f"""
import json, os
from pathlib import Path
if "{_HURT}" in os.environ:
    from hurt import Hurt
    words = json.loads(os.environ["{_HURT}"])
    Hurt(Path(words["folder"]), words["how"], words["at"], record=Path(words["record"]))
"""  # `sitecustomize.py`: Python imports it at its start
_NUM_TRIALS, _STARTS = 3, 5
_DRIVER = "driver"
_OF_RECORDS = ("study", "sha256", "digests")  # identities in trial.json; the digests are of files with clocks


class StudyKills:
    """All kills of one study.

    Args:
        folder: for all files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, folder / "output.txt"
        self.path, self.reference, self.record = folder / "it", folder / "undisturbed", folder / "operation.txt"
        site = folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(_SITE)
        shutil.copy(Path(__file__).with_name("hurt.py"), site)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
        os.environ.setdefault("RAY_worker_niceness", "0")  # with Ray's 15, trials starve on a busy machine
        self._write_study()
        self.operations = self._counted()

    def _write_study(self) -> None:
        words = ["run", *RUNS["fedgroup"], "--baseline", "null", "--rounds", "3"]
        if in_child([*words, "--run_dir", str(self.folder / "base")], self.output):
            raise RuntimeError(self.output.read_text())
        shutil.copy(self.folder / "base" / "config.yaml", self.folder / "base.yaml")
        study = {"name": "small", "base": str(self.folder / "base.yaml"), "scheduler": "FIFOScheduler"}
        study |= {"space": {"algorithm.eta_g": {"uniform": [0.0, 0.3]}}, "search_seed": 1}
        (self.folder / "study.yaml").write_text(
            yaml.safe_dump(study | {"limits": {"trials": _NUM_TRIALS}, "num_repeats": 0})
        )

    def _counted(self) -> dict[str, int]:
        """Runs the study undisturbed. Returns how many file operations the driver makes, and each trial."""
        driver, trials = (self.folder / f"{name}.txt" for name in ("driver", "trials"))

        def prepare() -> None:
            _hurt_workers(self.reference / TRIALS, "count", 0, trials)
            Hurt(self.reference, "count", 0, apart=self.reference / "ray", record=driver)

        code = self._tune(self._begin(self.reference), prepare)
        if code:
            raise RuntimeError(f"the undisturbed study ended with {code}: {self.output.read_text()}")
        lines = trials.read_text().splitlines()
        found = {
            name: sum(f"/{TRIALS}/{name}/" in line for line in lines) for name in map(trial_id, range(_NUM_TRIALS))
        }
        return {_DRIVER: len(driver.read_text().splitlines())} | found

    def _begin(self, path: Path) -> list[str]:
        return ["tune", "--config", str(self.folder / "study.yaml"), "--study_dir", str(path)]

    def _tune(self, words: Sequence[str], prepare: Callable[[], object] = lambda: None) -> int:
        """Runs a study in a child, once more where Ray did not start in the 30 s that it gives itself."""
        for _ in range(_STARTS):
            code = in_child(words, self.output, prepare, _LIMIT_SECONDS)
            if code != 2 or "timed out during startup" not in self.output.read_text():
                break
        return code

    def _killing(self, who: str, at: int) -> Callable[[], object]:
        if who == _DRIVER:
            return partial(Hurt, self.path, "kill", at, self.path / "ray", self.record)
        return partial(_hurt_workers, self.path / TRIALS / who, "kill", at, self.record)

    def chain(self, who: str, at: int) -> tuple[str, str]:
        """Kills the driver, or a trial, at an operation. Returns which that was, and what is wrong ("" = nothing)."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.record.unlink(missing_ok=True)
        code = self._tune(self._begin(self.path), self._killing(who, at))
        said = self.output.read_text()
        operation = self.record.read_text().strip().replace(f"{self.path}/", "") if self.record.exists() else "none"
        if code != (-signal.SIGKILL if who == _DRIVER else 0) or "Traceback" in said:
            return operation, f"exit {code}: {said[-600:]}"
        if who == _DRIVER:
            begun = (self.path / "study.yaml").exists()
            words = ["tune", "--resume", str(self.path)] if begun else self._begin(self.path)
            if self._tune(words):
                return operation, f"not resumed: {self.output.read_text()[-600:]}"
        code = in_child(["tune", "--resume", str(self.path)], self.output, without_ray)
        if code:
            return operation, f"something was left to train: {self.output.read_text()[-600:]}"
        return operation, "; ".join([*self._differences(), *damages(self.path)][:6])

    def _differences(self) -> list[str]:
        mine, other = _files(self.path), _files(self.reference)
        found = [f"{name} is missing" for name in sorted(other - mine)]
        found += [f"{name} is left over" for name in sorted(mine - other)]
        return found + [
            f"{name} differs"
            for name in sorted(mine & other)
            if self._content(self.path, name) != self._content(self.reference, name)
        ]

    def _content(self, path: Path, name: str) -> Any:
        """What must be equal in a file of a study."""
        found = content(path / name)
        if name.endswith("trial.json"):
            found = {key: value for key, value in found.items() if key not in _OF_RECORDS}
            found["told"] = {key: value for key, value in found["told"].items() if key != "seconds"}
        return found


def _hurt_workers(folder: Path, how: str, at: int, record: Path) -> None:
    """Lets `sitecustomize.py` hurt the processes of trials, which inherit this environment."""
    os.environ[_HURT] = json.dumps({"folder": str(folder), "how": how, "at": at, "record": str(record)})


def _files(path: Path) -> set[str]:
    names = (file.relative_to(path) for file in path.rglob("*") if file.is_file())
    return {str(name) for name in names if not {"ray", "wandb"} & set(name.parts)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--log", type=Path, help="a CSV row for each chain; those that are there are not tried again")
    given = parser.parse_args(arguments)
    done = list(csv.DictReader(given.log.open())) if given.log and given.log.exists() else []
    wrong, begun = sum(bool(row["trouble"]) for row in done), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="study-kills-") as folder:
        study = StudyKills(Path(folder))
        print(f"file operations: {study.operations}, {time.monotonic() - begun:.0f} s", flush=True)
        for number in range(len(done), given.kills):
            rng = random.Random(f"{given.seed} {number}")
            who = rng.choice(sorted(study.operations.keys() - {_DRIVER})) if number % 2 else _DRIVER
            at = rng.randrange(study.operations[who])
            operation, trouble = study.chain(who, at)
            wrong += bool(trouble)
            row = {
                "seed": given.seed,
                "number": number,
                "killed": who,
                "at": at,
                "operation": operation,
                "trouble": trouble,
            }
            print(f"{row}, {time.monotonic() - begun:.0f} s", flush=True)
            if given.log:
                with given.log.open("a", newline="") as log:
                    writer = csv.DictWriter(log, row, lineterminator="\n")
                    if not number:
                        writer.writeheader()
                    writer.writerow(row)
    print(f"{given.kills - wrong} of {given.kills} studies equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
