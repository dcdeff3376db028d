"""Tests that every experiment of configs/ can be built and run with `--tiny`, and every study prepared."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from lit_cfl.config import catalogue, tiny
from lit_cfl.config.parser import parse_run
from lit_cfl.errors import InputError, Notice
from lit_cfl.runs.run import run
from lit_cfl.tune.check import prepare
from lit_cfl.tune.options import parse_study

CONFIGS = catalogue.configs()
RUNS = [name for name in CONFIGS if not name.startswith("tune/")]
STUDIES = [name for name in CONFIGS if name not in RUNS]


def others_by_night(names: list[str]) -> list[Any]:
    """Leaves the short ones for the day."""
    by_night = pytest.mark.nightly
    return [name if name.endswith(("digits", "quickstart")) else pytest.param(name, marks=by_night) for name in names]


def test_every_file_of_the_folder_is_found():
    folder = Path(__file__).parents[2] / "configs"
    assert {path.relative_to(folder) for path in folder.rglob("*.yaml")} == {Path(f"{name}.yaml") for name in CONFIGS}


@pytest.mark.parametrize("name", others_by_night(RUNS))
def test_configuration_builds_and_runs_tiny(name: str, tmp_path: Path):
    request = parse_run(["--config", name])
    try:
        prepared = request.experiment.prepare(request.experiment.seeds[0])
    except InputError as error:
        if "LITCFL_DATA" not in str(error):
            raise
        pytest.skip(str(error))  # its data are not on this machine
    assert prepared.engine.layout.num_parameters > 0
    assert request.notices == []
    run(tiny.shrink(request.experiment), tmp_path / "run")  # as `--tiny` does; the data are loaded once for both tests
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("name", others_by_night(STUDIES))
def test_study_can_be_searched(name: str, tmp_path: Path):
    assert prepare(parse_study(["--config", name]).study, tmp_path).corners


def test_numbers_of_clusters_that_are_found_run_tiny(tmp_path: Path):
    """With a threshold, `num_clusters` is null, which must not affect the number of clients of a tiny run."""
    words = ["--algorithm", "FLHC", "--algorithm.num_clusters", "null", "--algorithm.threshold", "1.0"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)  # such as that FLHC does not cluster in the one round
        experiment = tiny.shrink(parse_run(["--config", "flhc/digits", "--baseline", "FedAvg", *words]).experiment)
    run(experiment, tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").exists()
