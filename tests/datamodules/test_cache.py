"""Tests the cache of arrays: entries are complete or absent, and damaged entries are repaired."""

import warnings
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread

import numpy as np
import pytest
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


def entry_of(folder: Path) -> Path:
    assert same(read_or_make(["a"], Maker()))
    (entry,) = folder.iterdir()
    return entry


def test_arrays_are_made_once_for_each_key_and_read_back_equal():
    make = Maker()
    keys = (["a", "b"], ["ab"], ["b", "a"], ["a", "b", ""])
    for _ in range(2):
        assert all(same(read_or_make(key, make)) for key in keys)
    assert make.calls == len(keys)


def test_the_cache_may_be_off_or_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("LITCFL_CACHE", "off")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    make = Maker()
    assert [same(read_or_make(["a"], make)) for _ in range(2)] == [True, True]
    assert (make.calls, list(tmp_path.iterdir())) == (2, [])
    monkeypatch.delenv("LITCFL_CACHE")
    read_or_make(["a"], make)
    assert len(list((tmp_path / ".cache" / "lit-cfl").iterdir())) == 1


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda entry: entry.write_bytes(entry.read_bytes()[:900]),
    "foreign": lambda entry: entry.write_bytes(b"something else"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_entry_is_made_again(damage: Callable[[Path], object], folder: Path):
    entry, make = entry_of(folder), Maker()
    damage(entry)
    assert [same(read_or_make(["a"], make)) for _ in range(2)] == [True, True]
    assert (make.calls, list(folder.iterdir())) == (1, [entry])


def test_full_folder_is_a_clear_error_and_holds_nothing_half_written(folder: Path):
    read_or_make(["small"], lambda: {"images": np.arange(4)})
    before = sorted(folder.rglob("*"))
    with files_up_to(3000), pytest.raises(InputError, match=f"{folder} .* LITCFL_CACHE"):
        read_or_make(["a"], Maker())
    assert sorted(folder.rglob("*")) == before
    assert same(read_or_make(["a"], Maker()))


def test_folder_that_cannot_be_written_is_named_before_the_work_is_done_and_may_be_read(folder, monkeypatch):
    entry_of(folder)
    make = Maker()
    monkeypatch.setattr(Path, "mkdir", lambda *args, **kwargs: (_ for _ in ()).throw(PermissionError(13, "denied")))
    assert same(read_or_make(["a"], make))
    with pytest.raises(InputError, match=f"{folder} .*denied.* LITCFL_CACHE"):
        read_or_make(["b"], make)
    assert make.calls == 0


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
    assert [same(result) for result in [*results, read_or_make(["a"], dict)]] == [True] * 3
    assert len(list(folder.iterdir())) == 1


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
