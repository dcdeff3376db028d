"""Tests the cache of arrays: entries are complete or absent, and damaged entries are repaired."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread
from time import time

import numpy as np
import pytest
import torch
from hub import files_up_to

from lit_cfl.datamodules.cache import read_or_make
from lit_cfl.errors import InputError, Notice

ARRAYS = {
    "images": np.arange(5000, dtype=np.uint8).reshape(50, 1, 10, 10),
    "names": np.array(["Ada", "Bo", "Cé"]),
    "num_train": np.array(40),
}


class Maker:
    """Function that returns `ARRAYS` and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, np.ndarray]:
        self.calls += 1
        return {name: array.copy() for name, array in ARRAYS.items()}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LITCFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def same(arrays: dict[str, np.ndarray]) -> bool:
    return arrays.keys() == ARRAYS.keys() and all(
        array.dtype == ARRAYS[name].dtype and np.array_equal(array, ARRAYS[name]) for name, array in arrays.items()
    )


def test_arrays_are_made_once_and_read_back_equal():
    make = Maker()
    assert all(same(read_or_make(["a", "b"], make)) for _ in range(3))
    assert make.calls == 1


def test_keys_are_distinguished_by_their_parts():
    make = Maker()
    for key in (["a", "b"], ["ab"], ["b", "a"], ["a", "b", ""]):
        read_or_make(key, make)
    assert make.calls == 4


def test_arrays_read_back_belong_to_torch_without_a_warning():
    read_or_make(["a"], Maker())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.from_numpy(read_or_make(["a"], Maker())["images"])[0] = 7
    assert same(read_or_make(["a"], Maker()))  # changes that a run makes to its arrays are not written to the cache


def test_off_keeps_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("LITCFL_CACHE", "off")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    make = Maker()
    assert same(read_or_make(["a"], make))
    assert same(read_or_make(["a"], make))
    assert make.calls == 2
    assert list(tmp_path.iterdir()) == []


def test_home_is_where_the_cache_is_without_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("LITCFL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    read_or_make(["a"], Maker())
    assert len(list((tmp_path / ".cache" / "lit-cfl").iterdir())) == 1


def rewrite(entry: Path, **arrays: np.ndarray) -> None:
    """Writes an entry with other arrays."""
    with np.load(entry) as file:
        np.savez(entry, **{**file, **arrays})


def other_of(entry: Path) -> Path:
    (other,) = (path for path in entry.parent.iterdir() if path != entry)
    return other


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda entry: entry.write_bytes(entry.read_bytes()[:900]),
    "empty": lambda entry: entry.write_bytes(b""),
    "foreign": lambda entry: entry.write_bytes(b"something else"),
    "another entry": lambda entry: (read_or_make(["b"], dict), other_of(entry).replace(entry)),
    "no directory": lambda entry: entry.write_bytes(entry.read_bytes()[:-30]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_entry_is_made_again(damage: Callable[[Path], object], folder: Path):
    make = Maker()
    read_or_make(["a"], make)
    (entry,) = folder.iterdir()
    damage(entry)
    assert same(read_or_make(["a"], make))
    assert same(read_or_make(["a"], make))
    assert make.calls == 2
    assert list(folder.iterdir()) == [entry]


def test_no_flipped_byte_changes_the_arrays(folder: Path):
    read_or_make(["a"], Maker())
    (entry,) = folder.iterdir()
    content = entry.read_bytes()
    for place in np.random.default_rng(0).permutation(len(content))[:300].tolist():
        entry.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert same(read_or_make(["a"], Maker()))


def test_header_that_declares_more_than_memory_holds_is_damage(folder: Path):
    read_or_make(["a"], Maker())
    (entry,) = folder.iterdir()
    content = entry.read_bytes()
    huge = content.replace(b"(50, 1, 10, 10), }" + 12 * b" ", b"(50000000000, 1, 1000, 10), } ")
    assert len(huge) == len(content)
    assert huge != content
    entry.write_bytes(huge)
    assert same(read_or_make(["a"], Maker()))


def test_file_that_a_killed_process_left_is_removed_after_a_day(folder: Path):
    folder.mkdir(exist_ok=True)
    for name, age in (("killed", 100_000), ("in-use", 80_000)):
        (folder / f".making-{name}").touch()
        os.utime(folder / f".making-{name}", (time() - age,) * 2)
    assert same(read_or_make(["a"], Maker()))
    assert [path.name for path in folder.glob(".*")] == [".making-in-use"]


def test_pickled_objects_are_neither_written_nor_read(folder: Path):
    with pytest.raises(ValueError, match="Object arrays"):
        read_or_make(["a"], lambda: {"names": np.array(["a", None], dtype=object)})
    assert list(folder.iterdir()) == []
    read_or_make(["a"], Maker())
    (entry,) = folder.iterdir()
    rewrite(entry, names=np.array(["a", None], dtype=object))
    assert same(read_or_make(["a"], Maker()))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_nothing_is_left_where_making_fails(error: type[BaseException], folder: Path):
    def fail() -> dict[str, np.ndarray]:
        raise error

    with pytest.raises(error):
        read_or_make(["a"], fail)
    assert list(folder.iterdir()) == []


def test_full_folder_is_a_clear_error_and_holds_nothing_half_written(folder: Path):
    read_or_make(["small"], lambda: {"images": np.arange(4)})
    before = sorted(folder.rglob("*"))
    with files_up_to(3000), pytest.raises(InputError, match=f"{folder} cannot be written .* set LITCFL_CACHE"):
        read_or_make(["a"], Maker())
    assert sorted(folder.rglob("*")) == before
    assert same(read_or_make(["a"], Maker()))


def test_folder_that_cannot_be_written_is_named_before_the_work_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("LITCFL_CACHE", str(tmp_path / "file" / "cache"))
    make = Maker()
    with pytest.raises(InputError, match=r"file/cache cannot be written \(Not a directory\).* or to off"):
        read_or_make(["a"], make)
    assert make.calls == 0


def test_existing_entry_is_read_from_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch):
    read_or_make(["a"], Maker())
    monkeypatch.setattr(Path, "mkdir", lambda *args, **kwargs: (_ for _ in ()).throw(PermissionError(13, "denied")))
    assert same(read_or_make(["a"], Maker()))


def test_entry_of_a_faster_process_is_kept(folder: Path):
    def make() -> dict[str, np.ndarray]:
        read_or_make(["a"], Maker())  # another process makes the entry at the same time
        return Maker()()

    assert same(read_or_make(["a"], make))
    again = Maker()
    assert same(read_or_make(["a"], again))
    assert again.calls == 0
    assert len(list(folder.iterdir())) == 1


def test_two_at_once_leave_one_whole_entry(folder: Path):
    both_making, results = Barrier(2), []

    def make() -> dict[str, np.ndarray]:
        both_making.wait(10)
        return Maker()()

    threads = [Thread(target=lambda: results.append(read_or_make(["a"], make))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert [same(result) for result in results] == [True, True]
    assert len(list(folder.iterdir())) == 1
    again = Maker()
    assert same(read_or_make(["a"], again))
    assert again.calls == 0


def test_what_was_noted_when_arrays_were_made_is_noted_when_they_are_read_again():
    def make() -> dict[str, np.ndarray]:
        warnings.warn("images of 16 bits are scaled", Notice, stacklevel=1)
        warnings.warn("of PyTorch's own", UserWarning, stacklevel=1)
        return {"x": np.arange(3)}

    for times in range(3):
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            assert list(read_or_make(["noted"], make)) == ["x"]
        said = [str(one.message) for one in given]
        assert said == ["images of 16 bits are scaled", *(["of PyTorch's own"] if times == 0 else [])]
        assert given[0].category is Notice
