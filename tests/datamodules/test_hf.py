"""Tests HFDataset: columns of images, texts and numbers, natural clients, splits, options, and errors."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from datasets import ClassLabel, Features, List, Value
from hub import DIGITS, SHARED, fresh_caches, picture, pixels, write
from jsonargparse import ArgumentParser
from one_round import round_of_fedavg
from torch import nn

from lit_cfl.config.parser import parse_data
from lit_cfl.datamodules import FederatedDataModule
from lit_cfl.datamodules.hf import HFDataset, ImageOptions, TextOptions
from lit_cfl.datamodules.partition import IID
from lit_cfl.datamodules.partition.natural import Natural
from lit_cfl.datamodules.tokens import Vocabulary
from lit_cfl.engines.check_module import mark_tokens
from lit_cfl.errors import InputError, Notice

FEATURES = {
    "photo": datasets.Image(),
    "kind": Value("string"),
    "rank": ClassLabel(names=["low", "mid", "high"]),
    "user": Value("string"),
    "text": Value("string"),
    "reading": List(Value("float32")),
    "heat": Value("float64"),
    "age": Value("int32"),
    "grade": Value("int64"),
}
TEXTS = ["b a b", "a c", "b", "d d d d", "a", "b"]
ROWS = {
    "photo": [picture(image) for image in pixels(6, 5, 5)],
    "kind": ["dog", "ape", "dog", "cat", "ape", "ape"],
    "rank": [2, 0, 0, 2, 0, 2],
    "user": ["u9", "u10", "u9", "u9", "u10", "u9"],
    "text": TEXTS,
    "reading": [[row, row + 0.5] for row in range(6)],
    "heat": [0.5, 1, 1.5, 2, 2.5, 3],
    "age": [30, 31, 32, 33, 34, 35],
    "grade": [0, 1, 4, 0, 1, 4],
}


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_caches(tmp_path, monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(written(tmp_path / "any", **ROWS))


def written(folder: Path, **columns: Any) -> Path:
    """Writes a data set with the first four rows as `train`, and the others as `test`."""
    parts = {
        split: {name: column[rows] for name, column in columns.items()}
        for split, rows in {"train": slice(0, 4), "test": slice(4, None)}.items()
    }
    return write(folder, {name: FEATURES[name] for name in columns}, **parts)


def test_images_stay_uint8_and_strings_are_numbered_in_sorted_order(folder: str):
    pool = HFDataset(folder, "photo", "kind").pool()
    assert np.array_equal(pool.examples.inputs, pixels(6, 5, 5)[:, None])
    assert pool.labels.tolist() == [2, 0, 2, 1, 0, 0]
    assert (pool.examples.num_labels, pool.num_train, pool.owner) == (3, 4, None)
    assert pool.examples.scale == 1 / 255


def test_image_options_reach_the_decoder(folder: str):
    options = ImageOptions(pixels="centred", mode="RGB", size=[4, 2], pad=1)
    examples = HFDataset(folder, "photo", "rank", images=options).pool().examples
    assert (examples.input_shape, examples.offset) == ((3, 6, 4), 127.5)


def test_label_space_is_that_of_the_class_labels_or_as_given(folder: str):
    assert HFDataset(folder, "photo", "rank").pool().examples.num_labels == 3
    assert HFDataset(folder, "photo", "grade").pool().examples.num_labels == 5
    assert HFDataset(folder, "photo", "grade", num_labels=7).pool().examples.num_labels == 7
    with pytest.raises(InputError, match=r"label column 'grade' holds 4 in row 2 .* labels are 0 to 3"):
        HFDataset(folder, "photo", "grade", num_labels=4).pool()


def test_labels_may_be_numbers_or_none(folder: str):
    numbers = HFDataset(folder, "reading", "heat", num_labels=0).pool().examples
    assert (numbers.labels.tolist(), numbers.labels.dtype, numbers.num_labels) == (ROWS["heat"], torch.float32, 0)
    assert numbers.label_kind == "numbers"
    pool = HFDataset(folder, "text", None, client_column="user").pool()
    assert (pool.examples.label_kind, pool.labels.tolist(), len(pool.names)) == ("none", [0] * 6, 2)


def test_missing_label_that_is_a_number_is_named(tmp_path: Path):
    folder = written(tmp_path / "numbers", reading=ROWS["reading"], heat=[0.5, 1, None, 2, 2.5, 3])
    with pytest.raises(InputError, match=r"label column 'heat' holds NaN or an empty value in row 2"):
        HFDataset(str(folder), "reading", "heat", num_labels=0).pool()


def test_client_column_names_the_natural_clients(folder: str):
    module = HFDataset(folder, "photo", "rank", client_column="user")
    pool = module.pool()
    assert (pool.owner.tolist(), pool.names) == ([1, 0, 1, 1, 0, 1], ("u10", "u9"))
    assert module.partition == Natural()
    data = module.federated(0)
    assert [sorted(data.train[client].tolist()) for client in range(2)] == [[1], [0, 2, 3]]
    assert HFDataset(folder, "photo", "rank").partition == IID(num_clients=100)
    assert HFDataset(folder, "photo", "rank", "user", partition=IID(num_clients=2)).partition == IID(num_clients=2)
    both = HFDataset(folder, "heat", "kind", "kind").pool()  # one column may name labels and clients
    assert (both.names, both.owner.tolist()) == (("ape", "cat", "dog"), both.labels.tolist())


def test_texts_become_ids_of_the_training_parts_words(folder: str):
    examples = HFDataset(folder, "text", "rank", text=TextOptions(length=3, padding="end")).pool().examples
    d, b, a, c = 2, 3, 4, 5  # ids by frequency; equally frequent words by name
    assert (examples.vocabulary, examples.words) == (6, Vocabulary(("d", "b", "a", "c")).fingerprint)
    assert examples.inputs.dtype == torch.int32
    rows = [[b, a, b], [a, c, 0], [b, 0, 0], [d, d, d], [a, 0, 0], [b, 0, 0]]
    assert examples.inputs.tolist() == rows


def test_words_of_the_test_part_alone_are_unknown(tmp_path: Path):
    folder = written(tmp_path / "words", text=["a", "a", "a", "a", "new a"], rank=[0] * 5)
    examples = HFDataset(str(folder), "text", "rank", text=TextOptions(2, "front")).pool().examples
    assert examples.inputs.tolist()[-2:] == [[0, 2], [1, 2]]


def test_missing_text_is_named(tmp_path: Path):
    folder = written(tmp_path / "words", text=["a", None, "a", "a", "b"], rank=[0] * 5)
    with pytest.raises(InputError, match="column text holds no text in row 1"):
        HFDataset(str(folder), "text", "rank").pool()


def test_lists_of_numbers_and_scalar_columns_become_float32(folder: str):
    lists = HFDataset(folder, "reading", "rank").pool().examples.inputs
    assert (lists.tolist(), lists.dtype) == (ROWS["reading"], torch.float32)
    scalars = HFDataset(folder, ["heat", "age"], "rank").pool().examples.inputs
    assert scalars.tolist() == [[h, a] for h, a in zip(ROWS["heat"], ROWS["age"], strict=True)]
    assert HFDataset(folder, "heat", "rank").pool().examples.inputs.shape == (6, 1)


def test_large_columns_of_numbers_are_noted_by_name(tmp_path: Path):
    ages = {"age": [51, 52] * 3, "heat": [38.5, 40.0] * 3, "grade": [1] * 6}
    folder = str(written(tmp_path / "patients", **ages, reading=[[0.5, 30.0]] * 6, rank=[0, 1] * 3))
    with pytest.warns(Notice, match="input columns 'age', 'heat': large numbers"):
        found = HFDataset(folder, ["age", "grade", "heat"], "rank").pool().examples
    assert found.input_names == ("age", "grade", "heat")
    with pytest.warns(Notice, match=r"input column 1: large numbers \(root mean square 30\),"):
        HFDataset(folder, "reading", "rank").pool()
    whole = HFDataset(folder, "age", "rank", partition=IID(2)).federated(0)  # integers, which may be token ids
    with pytest.warns(Notice, match="input column 'age': large numbers"):
        mark_tokens(whole, lambda: nn.Linear(1, 2))


@pytest.mark.parametrize(
    ("column", "kind", "held"),
    [
        ("kind", "numbers", "text; set it to 'text', or null"),
        ("kind", "image", "text"),
        ("photo", "text", "image; set it to 'image', or null"),
        ("photo", "numbers", "image"),
        ("age", "text", "numbers; set it to 'numbers', or null"),
        ("reading", "image", "numbers"),
        ("age", "sound", "numbers"),
    ],
)
def test_kind_that_the_column_is_not_is_refused(column: str, kind: Any, held: str, folder: str):
    with pytest.raises(InputError, match=f"data.kind is '{kind}', but column '{column}' holds {held}"):
        HFDataset(folder, column, "rank", kind=kind).pool()


def test_the_kind_of_the_column_may_be_given(folder: str):
    for column, kind in {"kind": "text", "photo": "image", "reading": "numbers"}.items():
        named, unnamed = HFDataset(folder, column, "rank", kind=kind), HFDataset(folder, column, "rank")
        assert torch.equal(named.pool().examples.inputs, unnamed.pool().examples.inputs)


def test_bytes_are_images(tmp_path: Path):
    features = {"raw": Value("binary"), "y": Value("int64")}
    files = [row["bytes"] for row in ROWS["photo"]]
    folder = write(tmp_path / "raw", features, train={"raw": files, "y": [0, 1] * 3})
    assert np.array_equal(HFDataset(str(folder), "raw", "y").pool().examples.inputs, pixels(6, 5, 5)[:, None])


def test_folder_may_be_a_path(folder: str):
    assert len(HFDataset(Path(folder), "photo", "rank").pool().examples) == 6


def test_splits_are_chosen_by_name(folder: str):
    swapped = HFDataset(folder, "heat", "rank", splits=["test", "train"]).pool()
    assert (swapped.num_train, swapped.examples.inputs.flatten().tolist()) == (2, [2.5, 3, 0.5, 1, 1.5, 2])
    alone = HFDataset(folder, "heat", "rank", splits=["train"]).pool()
    assert (alone.num_train, alone.has_test) == (4, False)
    with pytest.raises(InputError, match="has no split 'valid'; it has train, test"):
        HFDataset(folder, "heat", "rank", splits=["train", "valid"]).pool()


def test_source_without_a_test_part_has_none(tmp_path: Path):
    folder = write(
        tmp_path / "train_only", {"x": Value("float32"), "y": Value("int64")}, train={"x": [1, 2], "y": [0, 1]}
    )
    assert not HFDataset(str(folder), "x", "y").pool().has_test


def test_missing_column_lists_the_existing_ones(folder: str):
    for inputs, labels, client in [("img", "rank", None), ("photo", "label", None), ("photo", "rank", "writer")]:
        with pytest.raises(InputError, match=r"no column '(img|label|writer)'.*; it has photo, kind, rank, user"):
            HFDataset(folder, inputs, labels, client).pool()


def test_options_that_make_no_sense_are_refused(folder: str):
    with pytest.raises(
        InputError, match=r"data.input_column is \['photo', 'text'\], but 'photo' holds image; only columns of"
    ):
        HFDataset(folder, ["photo", "text"], "rank").pool()
    with pytest.raises(InputError, match=r"data.input_column is \[\]; give one or more"):
        HFDataset(folder, [], "rank")
    with pytest.raises(InputError, match=r"data.splits is \[\]; give \[TRAIN\], or \[TRAIN, TEST\]"):
        HFDataset(folder, "photo", "rank", splits=[])


@pytest.mark.parametrize("column", ["photo", "text", "reading"])
def test_second_time_nothing_is_loaded(column: str, folder: str, monkeypatch: pytest.MonkeyPatch):
    first = HFDataset(folder, column, "kind", "user").pool()
    monkeypatch.setitem(sys.modules, "datasets", None)  # importing it fails
    again = HFDataset(folder, column, "kind", "user").pool()
    assert again.examples.fingerprint == first.examples.fingerprint
    assert (again.num_train, again.names, again.owner.tolist()) == (4, first.names, first.owner.tolist())
    assert again.examples.vocabulary == first.examples.vocabulary


def test_each_option_that_changes_the_arrays_is_another_entry(folder: str):
    variants = [{}, {"num_labels": 9}, {"splits": ["train"]}, {"text": TextOptions(3)}, {"client_column": "user"}]
    pools = [HFDataset(folder, "text", "rank", **options).pool() for options in variants]
    seen = {(len(p.examples), p.examples.num_labels, p.examples.input_shape, p.owner is None) for p in pools}
    assert len(seen) == len(variants)


# Labels and their names


def labelled(folder: Path, feature: Any, **labels: list[Any]) -> Path:
    """Writes splits with inputs 0, 1, ... and these labels."""
    parts = {split: {"x": [float(i) for i in range(len(values))], "y": values} for split, values in labels.items()}
    return write(folder, {"x": Value("float32"), "y": feature}, **parts)


def test_names_of_labels_are_kept_in_the_order_of_numbers(tmp_path: Path):
    folder = labelled(tmp_path / "named", Value("string"), train=[str(i) for i in range(12)], test=["10", "2"])
    examples = HFDataset(str(folder), "x", "y").pool().examples
    assert examples.label_names == tuple(str(i) for i in range(12))
    assert examples.labels.tolist() == [*range(12), 10, 2]
    again = HFDataset(str(folder), "x", "y").pool().examples  # read from the cache
    assert again.label_names == examples.label_names


def test_names_of_class_labels_are_kept(folder: str):
    assert HFDataset(folder, "photo", "rank").pool().examples.label_names == ("low", "mid", "high")
    assert HFDataset(folder, "heat", "kind").pool().examples.label_names == ("ape", "cat", "dog")
    assert HFDataset(folder, "heat", "rank", num_labels=4).pool().examples.label_names == ("low", "mid", "high", "3")


@pytest.mark.parametrize("names", [["owl", "dog", "cat"], ["cat", "dog"], ["cat", "dog", "ape"]])
def test_files_that_number_their_labels_otherwise_are_refused(tmp_path: Path, names: list[str]):
    labelled(tmp_path / "two", ClassLabel(names=["cat", "dog", "owl"]), train=[0, 1, 2])
    folder = labelled(tmp_path / "two", ClassLabel(names=names), test=[0, 1])
    with pytest.raises(InputError, match=r"labels of column 'y' .* are \['cat', 'dog', 'owl'\] in .*, but \[.*\] in "):
        HFDataset(str(folder), "x", "y").pool()


# What cannot be read


def test_images_in_structs_of_bytes_are_images(tmp_path: Path):
    struct = {"bytes": Value("binary"), "path": Value("string")}
    images = [picture(image) for image in pixels(4, 5, 5)]
    folder = write(tmp_path / "structs", {"x": struct, "y": Value("int64")}, train={"x": images, "y": [0, 1, 0, 1]})
    examples = HFDataset(str(folder), "x", "y").pool().examples
    assert np.array_equal(examples.inputs[:, 0].numpy(), pixels(4, 5, 5))


@pytest.mark.parametrize(
    ("feature", "cells", "held"),
    [
        ({"a": Value("int64")}, [{"a": 1}, {"a": 2}], "structs of a"),
        (Value("timestamp[us]"), [1, 2], r"timestamp\[us\]"),
        (List(Value("timestamp[us]")), [[1], [2]], r"timestamp\[us\]"),
        (Value("duration[s]"), [1, 2], r"duration\[\w+\]"),
    ],
)
def test_column_unfit_as_input_is_refused_by_name(tmp_path: Path, feature: Any, cells: list[Any], held: str):
    columns = {"a": [1, 2], "x": cells, "y": [0, 1]}
    folder = write(tmp_path / "odd", {"a": Value("int64"), "x": feature, "y": Value("int64")}, train=columns)
    for inputs in ("x", ["a", "x"]):
        with pytest.raises(InputError, match=f"column 'x' of .* holds {held}; give one of images, text or numbers"):
            HFDataset(str(folder), inputs, "y").pool()


def test_lists_as_clients_are_refused(folder: str):
    with pytest.raises(
        InputError, match=r"client column 'reading' holds \[0.0, 0.5\] in row 0; give one number or word"
    ):
        HFDataset(folder, "heat", "rank", "reading").pool()


def test_columns_of_integers_may_be_token_ids(folder: str):
    integers = HFDataset(folder, ["age", "grade"], "rank").pool().examples
    assert (integers.inputs.dtype, integers.num_tokens) == (torch.int32, 36)
    assert integers.batch(torch.tensor([2]))[0].tolist() == [[32.0, 4.0]]
    mixed = HFDataset(folder, ["age", "heat"], "rank").pool().examples
    assert (mixed.inputs.dtype, mixed.num_tokens) == (torch.float32, 0)


@pytest.mark.parametrize("background", [-1, 256])
def test_background_is_a_byte(background: int):
    with pytest.raises(InputError, match=f"data.images.background is {background}; give 0 to 255"):
        ImageOptions(background=background)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: ImageOptions(size=[4]), r"data.images.size is \[4\]; give height and width, 1 or more"),
        (lambda: ImageOptions(size=[4, 0]), r"data.images.size is \[4, 0\]"),
        (lambda: ImageOptions(size=[4, 4, 3]), r"data.images.size is \[4, 4, 3\]"),
        (lambda: ImageOptions(pad=-1), "data.images.pad is -1; give 0 or more"),
        (lambda: TextOptions(length=0), "data.text.length is 0; give 1 or more"),
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


def test_options_from_the_command_line_are_refused_with_their_names():
    words = ["--data", "HFDataset", "--data.source", "any", "--data.input_column", "a", "--data.label_column", "b"]
    for option, value, expected in [
        ("images.size", "[4, 0]", "data.images.size is [4, 0]"),
        ("images.size", "4", "data.images.size is [4]; give height and width"),
        ("images.pad", "-1", "data.images.pad is -1"),
        ("text.length", "0", "data.text.length is 0"),
        ("kind", "sound", "data.kind is 'sound'; give image, text, numbers or null"),
    ]:
        with pytest.raises(InputError, match=re.escape(expected)):
            parse_data([*words, f"--data.{option}", value])


def test_inputs_that_hold_the_answer_or_a_column_twice_are_refused():
    with pytest.raises(InputError, match=r"'y' is the label column and in data\.input_column, too: the net would read"):
        HFDataset("any", ["a", "y"], "y")
    with pytest.raises(InputError, match=r"data\.input_column is .*; give one or more columns, each once"):
        HFDataset("any", ["a", "b", "a"], "y")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a;b;y\n1;2;0\n", "has no column 'a'.*; it has a;b;y"),
        (
            "a,y,who\n1,0,M\u00fcller\n".encode("latin-1"),
            "cannot be loaded .*; give a folder of complete Parquet files, or of text in UTF-8",
        ),
        (b"a,b,y\nx,2,0\n", r"data.input_column is \['a', 'b'\], but 'a' holds text;"),
    ],
)
def test_tables_of_other_programs_are_refused_with_the_remedy(text: bytes, said: str, tmp_path: Path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.csv").write_bytes(text)
    with pytest.raises(InputError, match=said):
        HFDataset(str(tmp_path / "own"), ["a", "b"] if b",b" in text or b";b" in text else "a", "y").federated(0)


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


def test_round_on_the_first_real_set_by_column_names(tmp_path: Path):
    if not (SHARED / "femnist").exists():
        pytest.skip(f"{SHARED / 'femnist'} holds no copy of this data set")
    few = Natural(max_clients=5)
    data = HFDataset(
        str(SHARED / "femnist"), "image", "character", "writer_id", partition=few, allow_unseen_labels=True
    )
    assert round_of_fedavg(data, tmp_path / "run")["clients/evaluated"] == 5
