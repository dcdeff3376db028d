"""Tests FEMNIST: writers as clients, with all characters or ten letters."""

from pathlib import Path

import numpy as np
import pytest
from hub import DIGITS, SHARED, fresh_caches, pixels, write_writers
from one_round import round_of_fedavg

from lit_cfl.datamodules.femnist import CHARACTERS, FEMNIST
from lit_cfl.errors import InputError

WRITERS = ["f1", "f0", "f1", "f2", "f0", "f1"]
WRITTEN = ["a", "7", "j", "Z", "b", "k"]


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_caches(tmp_path, monkeypatch)


@pytest.fixture
def writers(tmp_path: Path) -> Path:
    return write_writers(tmp_path / "femnist", WRITTEN, WRITERS, list(CHARACTERS))


def test_writers_are_clients_and_all_characters_are_labels(writers: Path):
    pool = FEMNIST(str(writers)).pool()
    assert pool.examples.num_labels == 62
    assert pool.labels.tolist() == [36, 7, 45, 35, 37, 46]
    assert (pool.owner.tolist(), pool.names) == ([1, 0, 1, 2, 0, 1], ("f0", "f1", "f2"))
    assert (pool.num_train, pool.has_test) == (6, False)
    assert FEMNIST(str(writers)).federated(0).num_clients == 3


@pytest.mark.parametrize(("labels", "outputs"), [("a-j", 10), ("a-j_26", 26)])
def test_ten_letters_are_labels_0_to_9_of_their_writers_alone(labels: str, outputs: int, writers: Path):
    pool = FEMNIST(str(writers), labels=labels).pool()
    assert pool.examples.num_labels == outputs
    assert pool.labels.tolist() == [0, 9, 1]
    assert (pool.owner.tolist(), pool.names) == ([1, 1, 0], ("f0", "f1"))
    assert np.array_equal(pool.examples.inputs, pixels(6, 28, 28)[[0, 2, 4], None])
    assert pool.num_train == 3


def test_characters_may_stand_in_another_order(tmp_path: Path):
    folder = write_writers(tmp_path / "other", WRITTEN, WRITERS, list(reversed(CHARACTERS)))
    assert FEMNIST(str(folder)).pool().labels.tolist() == [36, 7, 45, 35, 37, 46]
    assert FEMNIST(str(folder), labels="a-j").pool().labels.tolist() == [0, 9, 1]


def test_other_characters_are_refused(tmp_path: Path):
    folder = write_writers(tmp_path / "digits", ["1", "2"], ["f0", "f1"], DIGITS)
    with pytest.raises(InputError, match=r"has the characters 0 1 2 .*; FEMNIST has 0-9, A-Z and a-z"):
        FEMNIST(str(folder)).pool()


def test_source_without_the_ten_letters_is_refused(tmp_path: Path):
    folder = write_writers(tmp_path / "digits", ["1", "2"], ["f0", "f1"], list(CHARACTERS))
    with pytest.raises(InputError, match="holds no image with one of these labels"):
        FEMNIST(str(folder), labels="a-j").pool()


def test_paper_is_white_around_padded_characters(writers: Path):
    assert (FEMNIST(str(writers), pad=2).pool().examples.inputs[:, :, :2] == 255).all()


def test_labels_of_no_known_choice_are_refused():
    with pytest.raises(InputError, match=r"data.labels is 'b'; give one of all, a-j, a-j_26"):
        FEMNIST(labels="b")


@pytest.mark.parametrize("labels", ["all", "a-j"])
def test_round_on_real_writers(labels: str, tmp_path: Path):
    if not (SHARED / "femnist").exists():
        pytest.skip(f"{SHARED / 'femnist'} holds no copy of this data set")
    round_of_fedavg(FEMNIST(str(SHARED / "femnist"), labels=labels), tmp_path / "run")
