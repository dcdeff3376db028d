"""A comparison whose runs train in Ray loads its data once, and every run trains on the same examples."""

from pathlib import Path

import pytest
import yaml

from lit_cfl.cli.main import main
from lit_cfl.storage import read_table

MODULE = """
from pathlib import Path
from lit_cfl.datamodules import Digits

class Counted(Digits):
    def load(self):
        with Path(__file__).with_name("loads.txt").open("a") as file:
            file.write("loaded\\n")
        return super().load()
"""


@pytest.mark.ray
@pytest.mark.nightly
def test_data_are_loaded_once_for_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: None):
    (tmp_path / "counted_digits.py").write_text(MODULE)
    data = {"class_path": "counted_digits.Counted", "init_args": {"num_clients": 8}}
    content = {"data": data, "rounds": 1, "cohort_size": 4, "pictures": {"formats": []}}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path)
    configs = ("--config", "quickstart", "--config", "own.yaml", "--num_cpus", "2", "--quiet")
    options = ("--algorithms", "FedAvg", "FedProx", "--FedProx.mu", "0", "--seeds", "3", "4", "--compare_dir", "all")
    assert main(["compare", *configs, *options]) == 0
    assert (tmp_path / "loads.txt").read_text() == "loaded\n"
    one, other = (read_table(tmp_path / "all" / name / "seed-4" / "metrics.csv") for name in ("FedAvg", "FedProx"))
    assert one[-1]["test/loss"] == other[-1]["test/loss"]  # without a proximal term, on the same examples
