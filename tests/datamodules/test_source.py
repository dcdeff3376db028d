import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import pytest
import yaml
from datasets import ClassLabel, Dataset, DatasetDict, Value
from hub import files_up_to, write, write_images
from own_arrays import assert_refused

from lit_cfl.cli.main import main
from lit_cfl.datamodules.source import find

pytestmark = pytest.mark.usefixtures("caches")

LABEL = {"label": Value("int64")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rank = {"rank": ClassLabel(names=["low", "mid", "high"])}
    return write(tmp_path / "data" / "mixed", rank, train={"rank": [2, 0, 0, 2]}, test={"rank": [0, 2]})


def labels_in(source: str | Path, split: str = "train", **options: Any) -> list[int]:
    return find(str(source), **options).table(["label"], [split])["label"]


def test_hub_id_is_a_folder_of_litcfl_data(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LITCFL_DATA", str(folder.parent))
    assert find("someone/mixed").table(["rank"], ["train"]) == {"rank": [2, 0, 0, 2]}
    assert find("someone/mixed").fingerprint == find(str(folder)).fingerprint
    assert find("mixed", revision="v1").folder == folder
    fetch = "hf download --repo-type dataset ylecun/mnist --revision v1 --local-dir DIR/mnist"
    assert_refused(lambda: find("ylecun/mnist", revision="v1"), f"{folder.parent / 'mnist'} | ylecun/mnist | {fetch}")


def test_subset_is_chosen_by_name(tmp_path: Path):
    for name, value in {"small": 1, "large": 2}.items():
        write(tmp_path / "both" / name, LABEL, train={"label": [value]})
    (tmp_path / "both" / "README.md").write_text(
        "---\nconfigs:\n- config_name: small\n  data_files: small/*\n- config_name: large\n  data_files: large/*\n---\n"
    )
    assert labels_in(tmp_path / "both", subset="large") == [2]
    assert_refused(lambda: labels_in(tmp_path / "both"), "both | data.subset")


def test_folders_of_one_name_whose_readme_names_their_files_are_kept_apart(tmp_path: Path):
    """`datasets` distinguishes such folders only by their names and by the patterns in their READMEs."""
    readme = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: train-*\n---\n"
    # the last one reads the first folder again after a change
    for where, labels in (("a", [0, 1]), ("b", [2, 3]), ("a", [4, 5])):
        folder = write(tmp_path / where / "mine", LABEL, train={"label": labels})
        (folder / "README.md").write_text(readme)
        assert labels_in(folder) == labels


def test_fingerprint_is_of_names_and_bytes_and_needs_no_datasets(folder: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # importing it fails
    before = find(str(folder)).fingerprint
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / ".cache").mkdir()
    (copy / ".cache" / "note").write_text("of hf download")
    assert find(str(copy)).fingerprint == before
    file = copy / "test-00000-of-00001.parquet"
    content = bytearray(file.read_bytes())
    content[50] ^= 1
    file.write_bytes(content)
    changed = find(str(copy)).fingerprint
    file.rename(copy / "testing-00000-of-00001.parquet")
    assert len({before, changed, find(str(copy)).fingerprint}) == 3


SHA = "0123456789abcdef0123456789abcdef01234567"
RUN = (
    "run --config quickstart --baseline null --algorithm FedAvg --cohort_size 2 --rounds 1 --data HFDataset "
    "--data.input_column [a,b] --data.label_column label --data.partition IID --data.partition.num_clients 4"
)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a Hub with one data set, cached by `datasets` in a folder named after the commit."""
    features = {"a": Value("float32"), "b": Value("float32"), "label": ClassLabel(names=["no", "yes"])}
    rows = {"a": [float(row % 7) for row in range(80)], "b": [1.0] * 80, "label": [row % 2 for row in range(80)]}
    local = write(tmp_path / "mine", features, train=rows)
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


def test_run_records_the_commit_and_is_resumed_and_repeated_from_its_configuration(hub: None):
    assert main(f"{RUN} --run_dir run --data.source me/mine".split()) == 0
    assert main(["run", "--resume", "run", "--rounds", "2"]) == 0
    assert main(["run", "--config", "run/config.yaml", "--run_dir", "again"]) == 0
    assert main(f"{RUN} --run_dir local --data.source ./mine".split()) == 0
    found = {run: yaml.safe_load(Path(run, "config.yaml").read_text()) for run in ("run", "again", "local")}
    assert [one.get("data_commit") for one in found.values()] == [SHA, SHA, None]


@pytest.mark.parametrize("source", ["", "./nothing", "a/b/c", "two words", "here"])
def test_source_that_is_neither_folder_nor_id_is_refused(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").touch()
    assert_refused(lambda: find(source), f"source {source!r} | neither a folder nor an id")


@pytest.mark.parametrize("script", [False, True])
def test_folder_without_data_is_named(script: bool, tmp_path: Path):
    folder = write(tmp_path / "sent", LABEL, **({"train": {"label": [1]}} if script else {}))
    (folder / ("sent.py" if script else "README.md")).write_text("import datasets")
    assert_refused(lambda: labels_in(folder), f"{folder} | Parquet")


def half_written(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize("damage", ["truncated", "scrambled"])
def test_damaged_parquet_is_refused_and_nothing_half_written_is_left(damage: str, tmp_path: Path):
    folder = write_images(tmp_path / "images", train=200)
    file = folder / "train-00000-of-00001.parquet"
    content = file.read_bytes()
    half = len(content) // 2
    scrambled = content[:400] + np.random.default_rng(0).bytes(half) + content[400 + half :]
    damaged = {"truncated": content[:half], "scrambled": scrambled}
    file.write_bytes(damaged[damage])
    assert_refused(lambda: labels_in(folder, "test"), f"{folder} | Parquet")
    assert half_written(tmp_path / "hf") == []


def test_full_cache_is_named_and_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write_images(tmp_path / "images", train=200)
    with files_up_to(20_000):
        assert_refused(lambda: labels_in(folder), f"{tmp_path / 'hf'} | HF_HOME")
    assert half_written(tmp_path / "hf") == []
    assert len(labels_in(folder)) == 200
    (tmp_path / "file").touch()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file" / "hf")
    assert_refused(lambda: labels_in(folder), "file/hf | Not a directory | HF_")


def test_no_network_is_one_clear_error_and_loading_is_quiet(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)  # HF_HUB_OFFLINE is read only at import
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    logger = logging.getLogger("datasets")
    monkeypatch.setattr(logger, "level", logging.INFO)
    shown = datasets.are_progress_bars_disabled()
    fetch = "hf download --repo-type dataset ylecun/mnist --local-dir DIR/mnist | LITCFL_DATA=DIR | source: DIR/mnist"
    assert_refused(lambda: labels_in("ylecun/mnist"), f"Couldn't reach | {fetch}")
    assert len(find(str(folder)).table(["rank"], ["train"])["rank"]) == 4
    assert capfd.readouterr() == ("", "")
    assert (logger.level, datasets.are_progress_bars_disabled()) == (logging.INFO, shown)
