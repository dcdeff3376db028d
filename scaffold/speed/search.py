"""Measures the overhead of Ray Tune in a search, and the speedup by one trial per core.

Prints, for trials of one core each on this machine:

* overhead: time of one trial at a time in Ray Tune relative to the same trials in a plain loop, without the cluster's
  start and the workers' imports, in per cent (aim: below 15);
* speedup: time of the plain loop over that of one trial per core at the same time (aim: 1.7 or more on two cores).

    python scaffold/speed/search.py [--trials 4] [--rounds 480]
"""

import argparse
import csv
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lit_cfl.config.variants import base_config, build
from lit_cfl.runs.run import run
from lit_cfl.tune.options import StudyRequest
from lit_cfl.tune.search import run_study
from lit_cfl.tune.study import Limits, Study


def main() -> None:
    parser = argparse.ArgumentParser(description="Overhead and speedup of a search.")
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=480)
    given = parser.parse_args()
    base = base_config("fedgroup/digits") | {"rounds": given.rounds}
    base["data"]["init_args"]["validation"] = 0.25
    with TemporaryDirectory() as folder:
        one = measure_study(base, Path(folder) / "one", given.trials, 1)
        values = read_values(Path(folder) / "one")
        plain = run_in_loop(base, values, Path(folder) / "plain")
        all_at_once = measure_study(base, Path(folder) / "all", given.trials, None)
    overhead, speedup = 100 * (one / plain - 1), plain / all_at_once
    print(
        f"{given.trials} trials of {given.rounds} rounds: {plain:.1f} s in a loop, {one:.1f} s one at a time in Ray, "
        f"{all_at_once:.1f} s all at once"
    )
    print(json.dumps({"overhead_percent": round(overhead, 1), "speedup": round(speedup, 2)}))


def measure_study(base: dict[str, Any], path: Path, trials: int, concurrent: int | None) -> float:
    """Runs a study; returns the seconds from the start of its earliest trial to the end of its last one."""
    # the first value, 0, is the base's own
    space = {"algorithm.eta_g": {"grid": [0.01 * number for number in range(trials)]}}
    study = Study(base, space, scheduler="FIFOScheduler", num_repeats=0, limits=Limits(concurrent=concurrent))
    run_study(StudyRequest(study, path), say=lambda line: None)
    return measure_span(path / "trials")


def measure_span(path: Path) -> float:
    """Returns the seconds from the start of the earliest run in a folder to the end of the last one."""
    begun = min(file.stat().st_mtime for file in path.glob("*/environment.json"))
    return max(file.stat().st_mtime for file in path.glob("*/summary.json")) - begun


def read_values(path: Path) -> list[str]:
    """Returns the searched value of each trial, leaving out trials that repeat an earlier setting."""
    with (path / "trials.csv").open() as file:
        return [row["algorithm.eta_g"] for row in csv.DictReader(file) if not row["repeats"]]


def run_in_loop(base: dict[str, Any], values: list[str], path: Path) -> float:
    """Runs a trial per value without Ray; returns their seconds, not counting a warm-up trial."""
    run(build(base, ["--algorithm.eta_g", values[0]]), path / "warm", mode="resume")
    for number, value in enumerate(values):
        run(build(base, ["--algorithm.eta_g", value]), path / "trials" / str(number), mode="resume")
    return measure_span(path / "trials")


if __name__ == "__main__":
    main()
