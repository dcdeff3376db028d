"""HFDataset: its options, in Python and in a configuration, and rounds."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Features, List, Value
from hub import DIGITS, SHARED, fresh_caches, write
from jsonargparse import ArgumentParser
from one_round import round_of_fedavg

from lit_cfl.config.parser import parse_data
from lit_cfl.datamodules import FederatedDataModule
from lit_cfl.datamodules.hf import HFDataset, ImageOptions, TextOptions
from lit_cfl.datamodules.partition.natural import Natural
from lit_cfl.errors import InputError, Notice


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_caches(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: ImageOptions(size=[4]), r"data.images.size is \[4\]; give height and width, 1 or more"),
        (lambda: ImageOptions(size=[4, 0]), r"data.images.size is \[4, 0\]"),
        (lambda: ImageOptions(size=[4, 4, 3]), r"data.images.size is \[4, 4, 3\]"),
        (lambda: ImageOptions(pad=-1), "data.images.pad is -1; it must be 0 or more"),
        (lambda: TextOptions(length=0), "data.text.length is 0; it must be 1 or more"),
        (lambda: TextOptions(max_words=-2), "data.text.max_words is -2"),
        (
            lambda: HFDataset("any", "photo", "rank", num_labels=-1),
            "data.num_labels is -1; give 1 or more, 0 for",
        ),
    ],
)
def test_numbers_outside_their_range_are_refused(make: Callable[[], object], expected: str):
    with pytest.raises(InputError, match=expected):
        make()


@pytest.mark.long
def test_options_from_the_command_line_are_refused_with_their_names():
    words = ["--data", "HFDataset", "--data.source", "any", "--data.input_column", "a", "--data.label_column", "b"]
    for option, value, expected in [
        ("images.size", "[4, 0]", "data.images.size is [4, 0]"),
        ("images.size", "4", "data.images.size is [4]; give height and width"),
        ("images.pad", "-1", "data.images.pad is -1"),
        ("text.length", "0", "data.text.length is 0"),
        ("kind", "sound", "data.kind: 'sound' is not one of image, text, numbers"),
    ]:
        with pytest.raises(InputError, match=re.escape(expected)):
            parse_data([*words, f"--data.{option}", value])


def test_inputs_that_hold_the_answer_or_a_column_twice_are_refused_and_clients_noted():
    with pytest.raises(InputError, match=r"'y' is the label column and in data\.input_column, too: the net would read"):
        HFDataset("any", ["a", "y"], "y")
    with pytest.raises(InputError, match=r"data\.input_column names 'a' twice"):
        HFDataset("any", ["a", "b", "a"], "y")
    with pytest.warns(Notice, match="'who', which names the clients, is an input of the net, too"):
        HFDataset("any", ["a", "who"], "y", "who")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a;b;y\n1;2;0\n", "has no column 'a', since its columns are separated by ';': save it with commas"),
        ("a,y,who\n1,0,M\u00fcller\n".encode("latin-1"), "is not UTF-8 text .*; save it as"),
        (b"a,b,y\nx,2,0\n", r"data.input_column is \['a', 'b'\], but 'a' holds texts"),
    ],
)
def test_tables_of_other_programs_are_refused_with_the_remedy(text: bytes, said: str, tmp_path: Path):
    (tmp_path / "train.csv").write_bytes(text)
    with pytest.raises(InputError, match=said):
        HFDataset(str(tmp_path), ["a", "b"] if b",b" in text or b";b" in text else "a", "y").federated(0)


def test_options_can_be_configured():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FederatedDataModule, "data")
    given = {
        "source": "someone/something",
        "input_column": ["a", "b"],
        "label_column": "y",
        "client_column": "who",
        "kind": "numbers",
        "splits": ["train", "validation"],
        "images": {"mode": "L", "size": [8, 8]},
        "text": {"length": 9, "padding": "end"},
        "validation": 0.1,
        "newcomers": 0.2,
    }
    read = parser.parse_object({"data": {"class_path": "lit_cfl.datamodules.hf.HFDataset", "init_args": given}})
    built = parser.instantiate(read).data
    assert (built.inputs, built.splits, built.validation) == (["a", "b"], ["train", "validation"], 0.1)
    assert (built.images, built.text) == (ImageOptions(mode="L", size=[8, 8]), TextOptions(9, "end"))
    assert built.partition == Natural()


def test_round_on_made_numbers(tmp_path: Path):
    rng = np.random.default_rng(0)
    features = Features({"x": List(Value("float32")), "y": ClassLabel(names=DIGITS), "who": Value("int64")})
    columns = {"x": rng.normal(size=(80, 7)), "y": rng.integers(0, 10, 80), "who": np.arange(80) % 4}
    folder = write(tmp_path / "numbers", features, train=columns)
    assert round_of_fedavg(HFDataset(str(folder), "x", "y", "who"), tmp_path / "run")["clients/evaluated"] == 4


@pytest.mark.long
def test_round_on_the_first_real_set_by_column_names(tmp_path: Path):
    if not (SHARED / "femnist").exists():
        pytest.skip(f"{SHARED / 'femnist'} holds no copy of this data set")
    few = Natural(max_clients=5)
    data = HFDataset(
        str(SHARED / "femnist"), "image", "character", "writer_id", partition=few, allow_unseen_labels=True
    )
    assert round_of_fedavg(data, tmp_path / "run")["clients/evaluated"] == 5
