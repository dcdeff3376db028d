"""Finding and reading data sets: every way it can fail, and what the errors say."""

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import huggingface_hub
import numpy as np
import pytest
from datasets import Value
from hub import files_up_to, fresh_caches, write, write_images
from mixed import MIXED, ROWS

from lit_cfl.datamodules.source import find
from lit_cfl.errors import InputError


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_caches(tmp_path, monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "data" / "mixed", MIXED, train=ROWS, test={name: rows[:1] for name, rows in ROWS.items()})


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """As HF_HUB_OFFLINE=1, which is read at import."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def test_missing_folder_of_litcfl_data_says_how_to_fetch_it(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LITCFL_DATA", str(folder.parent))
    with pytest.raises(InputError) as error:
        find("ylecun/mnist", revision="v1")
    assert f"no folder {folder.parent / 'mnist'} for ylecun/mnist" in str(error.value)
    assert "hf download --repo-type dataset ylecun/mnist --revision v1 --local-dir DIR/mnist" in str(error.value)


@pytest.mark.long
def test_command_that_the_errors_name_exists():
    """With its options, in the huggingface_hub that is installed."""
    hf = Path(sys.executable).with_name("hf")
    shown = subprocess.run([hf, "download", "--help"], capture_output=True, text=True, check=True).stdout
    assert all(option in shown for option in ("--repo-type", "--revision", "--local-dir"))


def test_file_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"test-00000-of-00001.parquet cannot be read \(Permission denied\)"):
        _ = find(str(folder)).fingerprint


def test_missing_column_lists_those_there_are(folder: Path):
    with pytest.raises(
        InputError, match=r"no column 'img' \(did you mean image\?\); it has image, label, text, weight, reading"
    ):
        find(str(folder)).table("train", ["label", "img"])
    for ask in (find(str(folder)).label_names, find(str(folder)).kind):
        with pytest.raises(InputError, match="no column 'y'; it has image, label"):
            ask("y")
    with pytest.raises(InputError, match="no column 'y'; it has image, label"):
        find(str(folder)).array("train", "y")


def test_missing_split_lists_those_there_are(folder: Path):
    with pytest.raises(InputError, match="mixed has no split 'validation'; it has train, test"):
        find(str(folder)).table("validation", ["label"])


@pytest.mark.parametrize("source", ["", "./nothing", "/nowhere/at/all", "a/b/c", "two words", "~/nothing-of-that-name"])
def test_source_that_is_neither_folder_nor_id_is_refused(source: str):
    with pytest.raises(InputError, match=f"source {re.escape(repr(source))} is neither a folder nor an id"):
        find(source)


def test_file_in_place_of_its_folder_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=r"source 'train-00000-of-00001.parquet' is neither a folder"):
        find("train-00000-of-00001.parquet")


@pytest.mark.parametrize("files", [[], ["README.md"]])
def test_folder_without_data_is_named(files: list[str], tmp_path: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in files:
        (empty / name).write_text("hello")
    with pytest.raises(InputError, match=rf"the folder {empty} holds no data files; put the Parquet files there"):
        find(str(empty)).table("train", ["image"])


def scramble(content: bytes) -> bytes:
    """Random bytes in place of the first column's data."""
    return content[:400] + np.random.default_rng(0).bytes(len(content) // 2) + content[400 + len(content) // 2 :]


@pytest.mark.parametrize(
    "damage",
    [lambda content: content[: len(content) // 2], lambda content: b"", lambda content: b"hello" * 100, scramble],
    ids=["truncated", "empty", "foreign", "scrambled"],
)
def test_damaged_parquet_is_named_and_nothing_half_written_is_left(damage: Callable[[bytes], bytes], tmp_path: Path):
    folder = write_images(tmp_path / "images", train=200)
    file = folder / "train-00000-of-00001.parquet"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError, match=f"{file} is damaged or not a Parquet file .*; fetch it again"):
        find(str(folder)).table("test", ["label"])
    assert half_written(tmp_path / "hf") == []


def half_written(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_full_cache_is_named_and_nothing_half_written_is_left(tmp_path: Path):
    folder = write_images(tmp_path / "images", train=200)
    with files_up_to(20_000), pytest.raises(InputError, match=f"{tmp_path / 'hf'}, cannot be written .* HF_HOME"):
        find(str(folder)).table("train", ["label"])
    assert half_written(tmp_path / "hf") == []
    assert len(find(str(folder)).table("train", ["label"])["label"]) == 200


def test_cache_in_a_place_that_cannot_be_written_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file" / "hf")
    with pytest.raises(
        InputError, match=r"file/hf, cannot be written \(Not a directory\); make room there, or set HF_"
    ):
        find(str(folder)).table("train", ["label"])


def test_no_network_is_one_clear_error_without_noise(monkeypatch: pytest.MonkeyPatch, capfd):
    offline(monkeypatch)
    logger = logging.getLogger("datasets")
    monkeypatch.setattr(logger, "level", logging.INFO)
    shown = datasets.are_progress_bars_disabled()
    with pytest.raises(InputError) as error:
        find("ylecun/mnist").table("train", ["image"])
    assert "ylecun/mnist is not a folder here, and cannot be loaded from the Hugging Face Hub (Couldn't reach" in str(
        error.value
    )
    assert "hf download --repo-type dataset ylecun/mnist --local-dir DIR/mnist" in str(error.value)
    assert "set LITCFL_DATA=DIR, or give source: DIR/mnist" in str(error.value)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")
    assert (logger.level, datasets.are_progress_bars_disabled()) == (logging.INFO, shown)


def test_loading_shows_no_progress_bar(folder: Path, capfd):
    find(str(folder)).table("train", ["label"])
    assert capfd.readouterr() == ("", "")
    assert not datasets.are_progress_bars_disabled()


def test_local_script_is_refused_with_the_remedy(tmp_path: Path):
    folder = write(tmp_path / "sent", {"label": Value("int64")}, train={"label": [1]})
    (folder / "sent.py").write_text("import datasets")
    with pytest.raises(InputError, match=r"sent is a script.*--revision refs/convert/parquet --local-dir"):
        find(str(folder)).table("train", ["label"])
