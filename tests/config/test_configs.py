"""Tests that every YAML file in configs/ can be parsed, built and run with `--tiny`."""

import warnings
from pathlib import Path

import pytest
from hub import skipped_without_data

from lit_cfl.config import catalogue, tiny
from lit_cfl.config.parser import parse_run
from lit_cfl.errors import Notice
from lit_cfl.runs.run import run

CONFIGS = catalogue.configs()
RUNS = [name for name in CONFIGS if not name.startswith("tune/")]  # test_tune_study.py checks the studies
SHORT = [name for name in RUNS if name.endswith(("digits", "quickstart"))]
LONG = [pytest.param(name, marks=pytest.mark.nightly) for name in RUNS if name not in SHORT]


def test_every_file_of_the_folder_is_found():
    folder = Path(__file__).parents[2] / "configs"
    assert {path.relative_to(folder) for path in folder.rglob("*.yaml")} == {Path(f"{name}.yaml") for name in CONFIGS}


@pytest.mark.parametrize("name", CONFIGS)
def test_first_line_says_what_to_expect(name: str):
    first = CONFIGS[name].read_text().splitlines()[0]
    assert first.startswith("# ")
    assert "expect" in first or "paper" in first


@pytest.mark.parametrize("name", [*SHORT, *LONG])
def test_configuration_builds_and_runs_tiny(name: str, tmp_path: Path):
    request = parse_run(["--config", name])
    with skipped_without_data():
        prepared = request.experiment.prepare(request.experiment.seeds[0])
    assert prepared.engine.layout.num_parameters > 0
    assert request.notices == []
    run(tiny.shrink(request.experiment), tmp_path / "run")  # as `--tiny` does; the data are loaded once for both tests
    assert (tmp_path / "run" / "summary.json").exists()


def test_numbers_of_clusters_that_are_found_run_tiny(tmp_path: Path):
    """With a threshold, `num_clusters` is null, which must not affect the number of clients of a tiny run."""
    words = ["--config", "flhc/digits"]
    for option in ("--algorithm", "--baseline"):
        words += [option, "FLHC", f"{option}.num_clusters", "null", f"{option}.threshold", "1.0"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)  # such as that FLHC does not cluster in the one round
        experiment = tiny.shrink(parse_run(words).experiment)
    run(experiment, tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").exists()
