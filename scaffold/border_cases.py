"""Runs a folder of cases as a user would, and prints one line per case with what the user sees.

    python scaffold/border_cases.py FOLDER [--only NAME ...] [--seconds 600] [--jobs 1]

FOLDER holds one folder per case, which is copied and left unchanged. A case has an experiment file (*.yaml), passed to
`lit-cfl run --config`, or a script `run.sh`, which finds this checkout as `lit-cfl` on its path; if its comment says
`bash run.sh LIT_CFL` or `bash run.sh .../slurm.sh`, it receives that file. A script `make.py` runs first, to create the
case's data. Files for people, such as a README, are ignored.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_LONGEST = 220  # maximum number of characters of a printed result
_SCORES = re.compile(r"^(\S.*?) +(-?\d+\.\d{3}|-) ")  # a row of the table at the end of a run


class CaseOutcome(NamedTuple):
    """Exit code and relevant output of a case.

    Args:
        name: Name of the case's folder.
        code: Exit code; None if the time limit was exceeded.
        seen: Relevant output.
    """

    name: str
    code: int | None
    seen: str

    def __str__(self) -> str:
        return f"{self.name:<40} {'-' if self.code is None else self.code:>3}  {self.seen}"


def run_case(folder: Path, seconds: float = 600.0) -> CaseOutcome:
    """Runs a copy of a case in a temporary folder.

    Args:
        folder: The case's folder.
        seconds: Time limit of the case.
    """
    with TemporaryDirectory(prefix="border-case-") as temporary:
        case = Path(temporary) / folder.name
        shutil.copytree(folder, case)
        environment = os.environ | {"PATH": f"{_make_command_folder(Path(temporary))}:{os.environ['PATH']}"}
        environment |= {"PYTHONPATH": str(ROOT), "WANDB_MODE": "disabled", "HOME": temporary}
        try:
            if (case / "make.py").is_file():
                _run([sys.executable, "make.py"], case, environment, seconds)
            done = _run(_read_command(case), case, environment, seconds)
        except subprocess.TimeoutExpired:
            return CaseOutcome(folder.name, None, f"it took more than {seconds:g} s")
        return CaseOutcome(folder.name, done.returncode, select_output(done.stdout))


def _run(
    words: Sequence[str], case: Path, environment: dict[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # runs one command of the case
        words,
        cwd=case,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )


def _make_command_folder(folder: Path) -> Path:
    """Creates a folder with an executable `lit-cfl` that runs this checkout."""
    command = folder / "bin" / "lit-cfl"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m lit_cfl "$@"\n', "utf-8")
    command.chmod(0o755)
    return command.parent


def _read_command(case: Path) -> list[str]:
    script = case / "run.sh"
    if script.is_file():
        wanted = re.search(r"bash run\.sh (\S+)", script.read_text("utf-8"))
        given = {"LIT_CFL": case.parent / "bin" / "lit-cfl", "slurm.sh": ROOT / "configs" / "cluster" / "slurm.sh"}
        found = [str(path) for name, path in given.items() if wanted and wanted[1].endswith(name)]
        return ["bash", script.name, *found]
    (config, *_) = sorted(case.glob("*.yaml"))
    return ["lit-cfl", "run", "--config", config.name, "--run_dir", "run-of-the-case"]


def select_output(output: str) -> str:
    """Selects the relevant part of an output: the error, else notices and scores, else its beginning."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("lit-cfl: error: ")]
    if errors:
        return _shorten(errors[-1])
    if any(line.startswith("Traceback ") for line in lines):
        return _shorten(f"TRACEBACK: {lines[-1]}")
    notes = [line for line in lines if line.startswith("Note: ")]
    scores = [f"{row[1]} {row[2]}" for line in lines if (row := _SCORES.match(line))]
    return _shorten(" | ".join([*notes, *scores] or lines))


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the cases")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only cases whose names start with NAME")
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit of a case (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="cases run at the same time (%(default)s)")
    given = parser.parse_args()
    cases = [path for path in sorted(given.folder.iterdir()) if path.is_dir()]
    chosen = [case for case in cases if given.only is None or case.name.startswith(tuple(given.only))]
    if not chosen:
        sys.exit(f"{given.folder} contains no case" + (" of these names" if given.only else ""))
    with ThreadPoolExecutor(given.jobs) as pool:
        for outcome in pool.map(partial(run_case, seconds=given.seconds), chosen):
            print(outcome, flush=True)


if __name__ == "__main__":
    main()
