"""What a search costs beside its trials: the same trials one after another without Ray, and in Ray Tune.

Prints, for trials of one core each on this machine:

* overhead: one trial at a time in Ray Tune over the same trials in a plain loop, the cluster's start and the workers'
  imports apart, in per cent (aim: below 15);
* speedup: the plain loop over as many trials at once as there are cores (aim: 1.7 or more on two cores).

    python benchmarks/search.py [--trials 4] [--rounds 480]
"""

import argparse
import csv
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lit_cfl.config.variants import base_config, build
from lit_cfl.runs.run import run
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
        one = studied(base, Path(folder) / "one", given.trials, 1)
        values = values_of(Path(folder) / "one")
        plain = in_a_loop(base, values, Path(folder) / "plain")
        all_at_once = studied(base, Path(folder) / "all", given.trials, None)
    overhead, speedup = 100 * (one / plain - 1), plain / all_at_once
    print(
        f"{given.trials} trials of {given.rounds} rounds: {plain:.1f} s in a loop, {one:.1f} s one at a time in Ray, "
        f"{all_at_once:.1f} s all at once"
    )
    print(json.dumps({"overhead_percent": round(overhead, 1), "speedup": round(speedup, 2)}))


def studied(base: dict[str, Any], path: Path, trials: int, concurrent: int | None) -> float:
    """Seconds from the first trial's first round to the end of the last trial."""
    space = {"algorithm.eta_g": {"grid": [0.01 * number for number in range(trials)]}}  # 0 is the base's own
    study = Study(base, space, scheduler="FIFOScheduler", num_repeats=0, limits=Limits(concurrent=concurrent))
    run_study(study, path, say=lambda line: None)
    return span(path / "trials")


def span(path: Path) -> float:
    """Seconds from the first run's first round to the end of the last run in a folder."""
    begun = min(file.stat().st_mtime for file in path.glob("*/environment.json"))
    return max(file.stat().st_mtime for file in path.glob("*/summary.json")) - begun


def values_of(path: Path) -> list[str]:
    """Of the trials that were trained: the base's own setting is the first, and answered where the grid comes to it."""
    with (path / "trials.csv").open() as file:
        return [row["algorithm.eta_g"] for row in csv.DictReader(file) if not row["repeats"]]


def in_a_loop(base: dict[str, Any], values: list[str], path: Path) -> float:
    """Seconds of the same trials without Ray; a first one warms the process up."""
    run(build(base, ["--algorithm.eta_g", values[0]]), path / "warm", mode="resume")
    for number, value in enumerate(values):
        run(build(base, ["--algorithm.eta_g", value]), path / "trials" / str(number), mode="resume")
    return span(path / "trials")


if __name__ == "__main__":
    main()
