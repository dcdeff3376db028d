"""Tests how data sets are found and read: Hub ids, local folders, columns, fingerprints, and errors."""

import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import pytest
from datasets import ClassLabel, Value, load_dataset
from hub import DIGITS, files_up_to, fresh_caches, picture, pixels, write, write_images
from mixed import MIXED, ROWS

from lit_cfl.datamodules.source import find
from lit_cfl.errors import InputError


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_caches(tmp_path, monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "data" / "mixed", MIXED, train=ROWS, test={name: rows[:1] for name, rows in ROWS.items()})


def test_table_holds_plain_values(folder: Path):
    assert find(str(folder)).table("train", ["label", "text", "reading"]) == {
        "label": [1, 0, 1],
        "text": ["a b", None, "c"],
        "reading": [[1, 2], [3, 4], [5, 6]],
    }


def test_images_are_read_over_the_splits_in_blocks(tmp_path: Path):
    files = [f"file {row}".encode() for row in range(2500)]
    folder = write(
        tmp_path / "files", {"raw": Value("binary")}, train={"raw": files[:2100]}, test={"raw": files[2100:]}
    )
    source = find(str(folder))
    assert source.kind("raw") == "image"
    assert list(source.images("raw", ["train", "test"])) == files
    rows = np.array([0, 999, 1000, 2099, 2100, 2499])
    assert list(source.images("raw", ["train", "test"], rows)) == [files[row] for row in rows]
    assert list(source.images("raw", ["train", "test"], np.array([2400]))) == files[2400:2401]


def test_column_without_images_is_refused(folder: Path):
    with pytest.raises(InputError, match=r"column 'text' of .*mixed holds text, not images"):
        next(find(str(folder)).images("text", ["train"]))


def test_source_says_what_it_holds(folder: Path):
    source = find(str(folder))
    assert [source.has(split) for split in ("train", "test", "validation")] == [True, True, False]
    assert [source.size(split) for split in ("train", "test")] == [3, 1]
    assert source.label_names("label") == ["cat", "dog"]
    assert source.label_names("weight") is None
    kinds = [source.kind(column) for column in MIXED]
    assert kinds == ["image", "numbers", "text", "numbers", "numbers"]


def test_splits_are_joined_in_the_order_asked_for(folder: Path):
    assert find(str(folder)).join_splits(["label", "text"], ["train", "test"]) == {
        "label": [1, 0, 1, 1],
        "text": ["a b", None, "c", "a b"],
    }


def test_number_columns_are_arrays(folder: Path):
    source = find(str(folder))
    assert source.array("train", "weight").tolist() == [0.5, 1.5, -2.0]
    assert source.array("train", "reading").tolist() == [[1, 2], [3, 4], [5, 6]]


def test_hub_id_is_a_folder_of_litcfl_data(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LITCFL_DATA", str(folder.parent))
    assert find("someone/mixed").table("train", ["label"]) == {"label": [1, 0, 1]}
    assert find("someone/mixed").fingerprint == find(str(folder)).fingerprint
    assert find("mixed", revision="v1").folder == folder


def test_images_may_be_files_that_the_table_names(tmp_path: Path):
    expected = []
    for number, (split, label) in enumerate([("train", "a"), ("train", "b"), ("test", "a")]):
        place = tmp_path / "pictures" / split / label
        place.mkdir(parents=True)
        expected.append(picture(pixels(3, 4, 4)[number])["bytes"])
        (place / "0.png").write_bytes(expected[-1])
    source = find(str(tmp_path / "pictures"))
    assert list(source.images("image", ["train", "test"])) == expected
    assert source.join_splits(["label"], ["train", "test"]) == {"label": [0, 1, 0]}


def test_parquet_copy_that_the_hub_makes_of_a_script_is_read(tmp_path: Path):
    """In refs/convert/parquet, each subset has a folder per split, with numbered files."""
    for split, rows in {"train": slice(0, 2), "test": slice(2, 3)}.items():
        part = {name: column[rows] for name, column in ROWS.items()}
        write(tmp_path / "made", MIXED, all=part)
        (tmp_path / "sent" / "sentiment" / split).mkdir(parents=True)
        (tmp_path / "made" / "all-00000-of-00001.parquet").rename(
            tmp_path / "sent" / "sentiment" / split / "0000.parquet"
        )
    assert find(str(tmp_path / "sent")).table("test", ["label"]) == {"label": [1]}


def test_subset_is_chosen_by_name(tmp_path: Path):
    for name, value in {"small": 1, "large": 2}.items():
        write(tmp_path / "both" / name, {"label": Value("int64")}, train={"label": [value]})
    (tmp_path / "both" / "README.md").write_text(
        "---\nconfigs:\n- config_name: small\n  data_files: small/*\n- config_name: large\n  data_files: large/*\n---\n"
    )
    assert find(str(tmp_path / "both"), subset="large").table("train", ["label"]) == {"label": [2]}
    with pytest.raises(InputError, match=r"both has several subsets: set data.subset to one of \["):
        find(str(tmp_path / "both")).table("train", ["label"])


def test_fingerprint_is_of_names_and_bytes_and_needs_no_datasets(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "datasets", None)  # importing it fails
    before = find(str(folder)).fingerprint
    shutil.copytree(folder, tmp_path / "copy")
    copy = tmp_path / "copy"
    assert find(str(copy)).fingerprint == before
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


def hub_script(local: Path) -> Callable[..., Any]:
    """Returns a stand-in for `load_dataset` that refuses a Hub repository's script and reads its Parquet copy."""

    def load(name: str, subset: str | None, revision: str | None) -> Any:
        assert name == "stanfordnlp/sentiment140"
        if revision != "refs/convert/parquet":
            raise RuntimeError("Dataset scripts are no longer supported, but found sentiment140.py")
        return load_dataset(str(local), subset)

    return load


def test_script_on_the_hub_is_refused_and_its_parquet_copy_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(datasets, "load_dataset", hub_script(folder))
    with pytest.raises(
        InputError, match=r"sentiment140 is not a folder here.*\(Dataset scripts are no longer .*fetch it"
    ):
        find("stanfordnlp/sentiment140").table("train", ["label"])
    source = find("stanfordnlp/sentiment140", revision="refs/convert/parquet")
    assert source.table("train", ["label"]) == {"label": [1, 0, 1]}
    assert source.fingerprint.startswith("stanfordnlp/sentiment140 ")


def test_fingerprint_of_a_hub_copy_changes_with_its_content(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    prints = []
    other = write_images(tmp_path / "other", 10, 5, labels=ClassLabel(names=DIGITS))
    for local in (folder, folder, other):
        monkeypatch.setattr(datasets, "load_dataset", hub_script(local))
        prints.append(find("stanfordnlp/sentiment140", "refs/convert/parquet").fingerprint)
    assert prints[0] == prints[1] != prints[2]


def test_folders_of_one_name_whose_readme_names_their_files_are_kept_apart(tmp_path: Path):
    """`datasets` distinguishes such folders only by their names and by the patterns in their READMEs."""
    readme = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: train-*\n---\n"
    # the last one reads the first folder again after a change
    for where, labels in (("a", [0, 1]), ("b", [2, 3]), ("a", [4, 5])):
        folder = write(tmp_path / where / "mine", {"label": Value("int64")}, train={"label": labels})
        (folder / "README.md").write_text(readme)
        assert find(str(folder)).table("train", ["label"]) == {"label": labels}


def test_linked_files_count_in_the_fingerprint(tmp_path: Path):
    elsewhere = write(tmp_path / "bulk", {"label": Value("int64")}, train={"label": [0, 1]})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data").symlink_to(elsewhere)
    before = find(str(tmp_path / "mine")).fingerprint
    write(elsewhere, {"label": Value("int64")}, train={"label": [2, 3]})
    assert find(str(tmp_path / "mine")).fingerprint != before


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the Hub's libraries offline; they read HF_HUB_OFFLINE only at import."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def test_missing_folder_of_litcfl_data_says_how_to_fetch_it(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LITCFL_DATA", str(folder.parent))
    with pytest.raises(InputError) as error:
        find("ylecun/mnist", revision="v1")
    assert f"no folder {folder.parent / 'mnist'} for ylecun/mnist" in str(error.value)
    assert "hf download --repo-type dataset ylecun/mnist --revision v1 --local-dir DIR/mnist" in str(error.value)


def test_command_that_the_errors_name_exists():
    """The installed huggingface_hub has the command and its options."""
    hf = Path(sys.executable).with_name("hf")
    shown = subprocess.run([hf, "download", "--help"], capture_output=True, text=True, check=True).stdout
    assert all(option in shown for option in ("--repo-type", "--revision", "--local-dir"))


def test_file_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"test-00000-of-00001.parquet cannot be read \(Permission denied\)"):
        _ = find(str(folder)).fingerprint


def test_missing_column_lists_the_existing_ones(folder: Path):
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
    with pytest.raises(
        InputError,
        match=r"'train-00000-of-00001.parquet' is neither a folder nor an id .*; put a single file into a folder",
    ):
        find("train-00000-of-00001.parquet")
    with pytest.raises(InputError, match=r"source 'absent\.csv' is neither a folder nor an id"):  # the Hub is not asked
        find("absent.csv")


@pytest.mark.parametrize("files", [[], ["README.md"]])
def test_folder_without_data_is_named(files: list[str], tmp_path: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in files:
        (empty / name).write_text("hello")
    with pytest.raises(InputError, match=rf"{empty} cannot be loaded \(.*\); give a folder of complete Parquet files"):
        find(str(empty)).table("train", ["image"])


def scramble(content: bytes) -> bytes:
    """Replaces half of a file's bytes, from byte 400 on, with random bytes."""
    return content[:400] + np.random.default_rng(0).bytes(len(content) // 2) + content[400 + len(content) // 2 :]


@pytest.mark.parametrize(
    "damage",
    [lambda content: content[: len(content) // 2], lambda content: b"", lambda content: b"hello" * 100, scramble],
    ids=["truncated", "empty", "foreign", "scrambled"],
)
def test_damaged_parquet_is_refused_and_nothing_half_written_is_left(damage: Callable[[bytes], bytes], tmp_path: Path):
    folder = write_images(tmp_path / "images", train=200)
    file = folder / "train-00000-of-00001.parquet"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError, match=f"{folder} cannot be loaded .*; give a folder of complete Parquet files"):
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
        InputError, match=r"file/hf, cannot be written \(Not a directory\); free some disk space there, or set HF_"
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


def test_local_script_is_refused(tmp_path: Path):
    folder = write(tmp_path / "sent", {"label": Value("int64")}, train={"label": [1]})
    (folder / "sent.py").write_text("import datasets")
    with pytest.raises(
        InputError,
        match=r"sent cannot be loaded \(Dataset scripts are no longer .*\); give a folder of complete Parquet files",
    ):
        find(str(folder)).table("train", ["label"])
