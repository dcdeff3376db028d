"""Tests that training does not need ray, wandb, datasets, jsonargparse or rich, which GPU machines may lack."""

import os
import subprocess
import sys

import pytest

OPTIONAL = ("ray", "wandb", "datasets", "jsonargparse", "docstring_parser", "optuna")
TRAINING = """
import sys

import pytest
for name in {blocked}:
    sys.modules[name] = None  # importing it fails
import lit_cfl, torch
from functools import partial
from pathlib import Path
from lit_cfl.datamodules import Digits
from lit_cfl.algorithms import FedGroup
from lit_cfl.experiment import Experiment
from lit_cfl.nets import MCLR
from lit_cfl.pictures.options import Pictures
from lit_cfl.runs.run import run
from lit_cfl.tasks import Classification
task = lambda: Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1))
pictures = Pictures([])  # they would take two seconds
run(Experiment(Digits(8), task, FedGroup(2, 2), rounds=1, cohort_size=2, pictures=pictures), Path(sys.argv[1]))
assert "lit_cfl.progress" not in sys.modules  # it alone needs rich, which Lightning uses where it is installed
"""


@pytest.mark.nightly
def test_training_needs_none_of_the_packages_around_it(tmp_path):
    code = TRAINING.format(blocked=OPTIONAL)
    subprocess.run([sys.executable, "-c", code, tmp_path / "run"], check=True)
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.nightly
def test_help_and_the_opening_of_a_run_import_nothing_that_only_others_need():
    """Only the tables of an opened run need pandas."""
    code = (
        "import sys, lit_cfl.runs.load_run, lit_cfl.runs.run\n"
        "from lit_cfl.cli.main import main\n"
        "found = {'pandas'} & set(sys.modules)\n"
        "main(['run', '--help'])\n"
        "found |= {'ray', 'wandb', 'datasets', 'sklearn', 'optuna'} & set(sys.modules)\n"
        "sys.exit(str(found) if found else 0)"
    )
    without_kept_help = os.environ | {"LITCFL_CACHE": "off"}
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=without_kept_help)


@pytest.mark.nightly
def test_what_only_reads_files_or_asks_the_machine_needs_no_lightning():
    """Imports the modules that build a report, and runs `lit-cfl doctor`."""
    code = (
        "import sys, lit_cfl.report.assemble, lit_cfl.report.page, lit_cfl.progress.console\n"
        "from lit_cfl.cli.main import main\n"
        "assert main(['doctor']) == 0\n"
        "sys.exit(str(found) if (found := {'lightning', 'jsonargparse', 'sklearn', 'ray'} & set(sys.modules)) else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
