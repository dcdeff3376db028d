"""Tests that a run records which commit of a Hub data set it loaded."""

import shutil
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from datasets import ClassLabel, Dataset, DatasetDict, Value
from hub import fresh_caches, write

from lit_cfl.cli.main import main
from lit_cfl.datamodules import HFDataset, Hybrid
from lit_cfl.datamodules.partition import IID
from lit_cfl.datamodules.source import find

SHA = "0123456789abcdef0123456789abcdef01234567"
FEATURES = {"a": Value("float32"), "b": Value("float32"), "label": ClassLabel(names=["no", "yes"])}
ROWS = {"a": [float(row % 7) for row in range(80)], "b": [1.0] * 80, "label": [row % 2 for row in range(80)]}
RUN = (
    "run --config quickstart --baseline null --algorithm FedAvg --cohort_size 2 --data HFDataset --data.source me/mine "
    "--data.input_column [a,b] --data.label_column label --data.partition IID --data.partition.num_clients 4 "
)


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a Hub with one data set, cached by `datasets` in a folder named after the commit."""
    fresh_caches(tmp_path, monkeypatch)
    local = write(tmp_path / "mine", FEATURES, train=ROWS)
    made = datasets.load_dataset(str(local))["train"].cache_files[0]["filename"]
    kept = tmp_path / "hf" / "me___mine" / "default" / "0.0.0" / SHA / "mine-train.arrow"
    kept.parent.mkdir(parents=True)
    shutil.copy(made, kept)

    def load(name: str, subset: str | None = None, revision: str | None = None, cache_dir: str | None = None) -> Any:
        here = name != "me/mine"
        return real(name, subset, cache_dir=cache_dir) if here else DatasetDict({"train": Dataset.from_file(str(kept))})

    real = datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.chdir(tmp_path)


def test_source_has_its_commit_and_a_folder_has_none():
    assert find("me/mine").commit == SHA
    assert find("mine").commit is None


def test_run_records_the_commit_and_is_resumed_and_repeated_from_its_configuration():
    assert main((RUN + "--rounds 1 --run_dir run").split()) == 0
    assert yaml.safe_load(Path("run/config.yaml").read_text())["data_commit"] == SHA
    assert main(["run", "--resume", "run", "--rounds", "2"]) == 0
    assert main(["run", "--config", "run/config.yaml", "--run_dir", "again"]) == 0
    assert yaml.safe_load(Path("again/config.yaml").read_text())["data_commit"] == SHA


def test_run_on_a_folder_records_none():
    assert main((RUN + "--rounds 1 --run_dir run --data.source ./mine").split()) == 0
    assert "data_commit" not in yaml.safe_load(Path("run/config.yaml").read_text())


def test_commits_of_the_parts_of_a_hybrid_are_recorded():
    options = {"input_column": ["a", "b"], "label_column": "label", "partition": IID(4)}
    data = Hybrid([HFDataset("me/mine", **options), HFDataset("mine", **options)])
    assert len(data.examples) == 160
    assert data.commit == SHA
