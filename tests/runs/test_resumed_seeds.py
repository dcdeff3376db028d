"""Tests that runs of several seeds are resumed and extended together, under the configuration they started with."""

from dataclasses import replace
from pathlib import Path

import pytest
from digits_experiment import digits
from same_files import find_differences

from lit_cfl import run
from lit_cfl.early_stopping import StopRule
from lit_cfl.errors import InputError

pytestmark = pytest.mark.usefixtures("no_figures")


def test_edited_configuration_of_several_seeds_is_refused_with_the_name_of_the_option(tmp_path: Path):
    experiment = digits(seeds=[0, 1], rounds=2)
    run(experiment, tmp_path)
    file = tmp_path / "config.yaml"
    for old, new, changes in (
        ("rounds: 2", "rounds: 3", {"rounds": 3}),
        ("cohort_size: 5", "cohort_size: 6", {"cohort_size": 6}),
        ("seeds:\n- 0\n- 1", "seeds:\n- 0\n- 2", {"seeds": [0, 2]}),
        ("seeds:\n- 0\n- 1", "seeds:\n- 0", {"seeds": [0]}),
    ):
        before = file.read_text()
        file.write_text(before.replace(old, new))
        with pytest.raises(InputError, match=rf"config.yaml is not the file .* saved with: {old.partition(':')[0]}: "):
            run(replace(experiment, **changes), tmp_path, mode="resume")
        file.write_text(before)
    for seeds in ([0, 2], [0]):  # asked for, while the file is unchanged
        with pytest.raises(InputError, match=rf"different configuration: seeds: \[0, 1\] -> \{seeds}"):
            run(replace(experiment, seeds=seeds), tmp_path, mode="resume")
    assert sorted(found.name for found in tmp_path.glob("seed-*")) == ["seed-0", "seed-1"]
    run(experiment, tmp_path, mode="resume")


def test_killed_extension_of_several_seeds_goes_on_to_its_rounds(tmp_path: Path):
    experiment = digits(seeds=[0, 1], rounds=3)
    run(experiment, tmp_path / "whole")
    path = tmp_path / "parts"
    run(replace(experiment, rounds=2), path)
    before = (path / "config.yaml").read_text()
    run(experiment.for_seed(0), path / "seed-0", mode="resume")  # as if killed before the second seed
    assert (path / "config.yaml").read_text() == before
    first = (path / "seed-0" / "checkpoint.pt").stat().st_mtime_ns
    run(replace(experiment, rounds=2), path, mode="resume")  # the rounds in config.yaml
    assert (path / "seed-0" / "checkpoint.pt").stat().st_mtime_ns == first
    assert (path / "config.yaml").read_text() == (tmp_path / "whole" / "config.yaml").read_text()
    assert not find_differences(path, tmp_path / "whole")


def test_seeds_that_stopped_early_keep_their_rounds(tmp_path: Path):
    experiment = digits(seeds=[0, 1], rounds=4, stop=StopRule(metric="val/weighted_accuracy", target=0.01))
    run(experiment, tmp_path)
    before = (tmp_path / "config.yaml").read_text()
    for _ in range(2):
        run(replace(experiment, rounds=6), tmp_path, mode="resume")
        assert (tmp_path / "config.yaml").read_text() == before
