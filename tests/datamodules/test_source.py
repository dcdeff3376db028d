"""Finding and reading data sets: Hub ids, local folders, columns, fingerprints."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from datasets import ClassLabel, Value, load_dataset
from hub import DIGITS, fresh_caches, picture, pixels, write, write_images
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
    """The layout of refs/convert/parquet: a folder a subset, a folder a split, numbered files."""
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
    """`load_dataset` as it is for a Hub copy that is a script, with its Parquet copy in a folder."""

    def load(name: str, subset: str | None, revision: str | None) -> Any:
        assert name == "stanfordnlp/sentiment140"
        if revision != "refs/convert/parquet":
            raise RuntimeError("Dataset scripts are no longer supported, but found sentiment140.py")
        return load_dataset(str(local), subset)

    return load


def test_script_on_the_hub_falls_back_to_its_parquet_copy(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(datasets, "load_dataset", hub_script(folder))
    source = find("stanfordnlp/sentiment140", script_revision="refs/convert/parquet")
    assert source.table("train", ["label"]) == {"label": [1, 0, 1]}
    assert source.fingerprint.startswith("stanfordnlp/sentiment140 ")
    with pytest.raises(InputError, match=r"sentiment140 is a script.*give revision: refs/convert/parquet, or fetch it"):
        find("stanfordnlp/sentiment140").table("train", ["label"])
    assert find("stanfordnlp/sentiment140", revision="refs/convert/parquet").has("test")


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
    """`datasets` knows such a folder, as `hf download` makes it, by its name and the README's patterns alone."""
    readme = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: train-*\n---\n"
    for where, labels in (("a", [0, 1]), ("b", [2, 3]), ("a", [4, 5])):  # the last: the first one was changed
        folder = write(tmp_path / where / "mine", {"label": Value("int64")}, train={"label": labels})
        (folder / "README.md").write_text(readme)
        assert find(str(folder)).table("train", ["label"]) == {"label": labels}


def test_files_behind_a_link_count_in_the_fingerprint(tmp_path: Path):
    elsewhere = write(tmp_path / "bulk", {"label": Value("int64")}, train={"label": [0, 1]})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data").symlink_to(elsewhere)
    before = find(str(tmp_path / "mine")).fingerprint
    write(elsewhere, {"label": Value("int64")}, train={"label": [2, 3]})
    assert find(str(tmp_path / "mine")).fingerprint != before
