"""Tests that training does not need ray, wandb, datasets, jsonargparse or rich, which GPU machines may lack."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = """
import sys
for name in ("ray", "wandb", "datasets", "jsonargparse", "docstring_parser", "optuna"):
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


# only the tables of an opened run need pandas
OPENING = """
import sys, lit_cfl.runs.load_run, lit_cfl.runs.run
from lit_cfl.cli.main import main
found = {"pandas"} & set(sys.modules)
main(["run", "--help"])
found |= {"ray", "wandb", "datasets", "sklearn", "optuna"} & set(sys.modules)
sys.exit(str(found) if found else 0)
"""
READING = """
import sys, lit_cfl.report.assemble, lit_cfl.report.page, lit_cfl.progress.console
from lit_cfl.cli.main import main
assert main(["doctor"]) == 0
sys.exit(str(found) if (found := {"lightning", "jsonargparse", "sklearn", "ray"} & set(sys.modules)) else 0)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("code", [TRAINING, OPENING, READING], ids=["training", "help and opening", "report, doctor"])
def test_each_part_imports_no_package_that_only_others_need(code: str, tmp_path: Path):
    env = os.environ | {"LITCFL_CACHE": "off"}  # else a help that was kept would be shown
    subprocess.run([sys.executable, "-c", code, tmp_path / "run"], check=True, capture_output=True, env=env)
    assert code is not TRAINING or (tmp_path / "run" / "summary.json").exists()
