import warnings
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from datasets import ClassLabel, List, Value
from hub import picture, pixels, write, write_split
from own_arrays import assert_refused
from PIL import Image

from lit_cfl.datamodules import IID, HFDataset, Natural
from lit_cfl.datamodules.hf import ImageOptions, TextOptions
from lit_cfl.datamodules.tokens import Vocabulary
from lit_cfl.errors import InputError, Notice

pytestmark = pytest.mark.usefixtures("caches")

WHOLE = {"x": Value("float32"), "y": Value("int64")}
TIME, CUBE = Value("timestamp[us]"), List(List(List(Value("int64"))))
ONE: dict[str, list[object]] = {"x": [1.0], "z": [1], "y": [0]}
# a column of each kind: images, labels, clients, texts, numbers, lists
COLUMNS = {
    "photo": (datasets.Image(), [picture(image) for image in pixels(6, 5, 5)]),
    "kind": (Value("string"), ["dog", "ape", "dog", "cat", "ape", "ape"]),
    "rank": (ClassLabel(names=["low", "mid", "high"]), [2, 0, 0, 2, 0, 2]),
    "user": (Value("string"), ["u9", "u10", "u9", "u9", "u10", "u9"]),
    "text": (Value("string"), ["b a b", "a c", "b", "d d d d", "a new", "b"]),
    "reading": (List(Value("float32")), [[row, row + 0.5] for row in range(6)]),
    "heat": (Value("float64"), [0.5, 1, 1.5, 2, 2.5, 3]),
    "age": (Value("int32"), [30, 31, 32, 33, 34, 35]),
    "grade": (Value("int64"), [0, 1, 4, 0, 1, 4]),
}
FEATURES, ROWS = ({name: column[k] for name, column in COLUMNS.items()} for k in (0, 1))


def mixed(folder: Path, **changes: Any) -> str:
    """Writes the first four rows in the Hub's format as `train`, the others as `test`; `changes` replace columns."""
    return str(write_split(folder, FEATURES, ROWS | changes, train=4))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return mixed(tmp_path / "any")


D, B, A, C = 2, 3, 4, 5  # ids by frequency in the training part; equally frequent words by name; 1 = unknown
INPUTS: dict[str, tuple[Any, dict[str, Any], Any, torch.dtype]] = {
    "images": ("photo", {}, pixels(6, 5, 5)[:, None], torch.uint8),
    "texts": (
        "text",
        {"text": TextOptions(length=3, padding="end")},
        [[B, A, B], [A, C, 0], [B, 0, 0], [D, D, D], [A, 1, 0], [B, 0, 0]],
        torch.int32,
    ),
    "texts, padded in front": (
        "text",
        {"text": TextOptions(2, "front", max_words=2)},
        [[B, 1], [1, 1], [0, B], [D, D], [1, 1], [0, B]],
        torch.int32,
    ),
    "two numbers": (["heat", "age"], {}, np.stack([ROWS["heat"], ROWS["age"]], 1), torch.float32),
    "integers": (["age", "grade"], {}, np.stack([ROWS["age"], ROWS["grade"]], 1), torch.int32),
    "other splits": ("heat", {"splits": ["test", "train"]}, [[2.5], [3], [0.5], [1], [1.5], [2]], torch.float32),
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.filterwarnings("ignore::lit_cfl.errors.Notice")
def test_inputs_are_those_of_the_column(name: str, folder: str):
    column, options, expected, dtype = INPUTS[name]
    first = HFDataset(Path(folder), column, "kind", "user", **options).pool()
    assert (first.examples.inputs.tolist(), first.examples.inputs.dtype) == (np.asarray(expected).tolist(), dtype)
    assert first.num_train == (2 if options.get("splits") == ["test", "train"] else 4)
    kind = {"photo": "image", "text": "text"}.get(str(column), "numbers")
    assert HFDataset(folder, column, "kind", "user", kind=kind, **options).kind == kind


def test_vocabulary_and_options_of_images_reach_the_examples(folder: str):
    words = HFDataset(folder, "text", "rank").pool().examples
    assert (words.vocabulary, words.words) == (6, Vocabulary(("d", "b", "a", "c")).fingerprint)
    options = ImageOptions(pixels="centred", mode="RGB", size=[4, 2], pad=1)
    images = HFDataset(folder, "photo", "rank", images=options).pool().examples
    assert (images.input_shape, images.offset) == ((3, 6, 4), 127.5)
    assert HFDataset(folder, ["age", "grade"], "rank").pool().examples.num_tokens == 36


def test_bytes_and_structs_of_bytes_are_images(tmp_path: Path):
    cells = {"bytes": [row["bytes"] for row in ROWS["photo"]], "structs": ROWS["photo"]}
    kinds = {"bytes": Value("binary"), "structs": {"bytes": Value("binary"), "path": Value("string")}}
    for name, feature in kinds.items():
        folder = write(tmp_path / name, {"x": feature, "y": Value("int64")}, train={"x": cells[name], "y": [0, 1] * 3})
        assert np.array_equal(HFDataset(str(folder), "x", "y").pool().examples.inputs, pixels(6, 5, 5)[:, None])


@pytest.mark.parametrize("shape", [(4, 4), (4, 5, 3), (3, 4, 5)])
def test_lists_of_pixels_are_images_with_channels_first(shape: tuple[int, ...], tmp_path: Path):
    images, feature = pixels(6, *shape), Value("int64")
    images.flat[0] = 255
    for _ in shape:
        feature = List(feature)
    folder = write(tmp_path / "own", {"x": feature, "y": Value("int64")}, train={"x": images.tolist(), "y": [0, 1] * 3})
    examples = HFDataset(str(folder), "x", "y").pool().examples
    expected = images[:, None] if len(shape) == 2 else images.transpose(0, 3, 1, 2) if shape[2] == 3 else images
    assert np.array_equal(examples.inputs, expected)
    assert examples.scale == 1 / 255
    numbers = HFDataset(str(folder), "x", "y", kind="numbers").pool().examples
    assert (numbers.inputs.tolist(), numbers.scale) == (images.tolist(), 1)


@pytest.mark.parametrize(
    ("column", "num_labels", "labels", "names"),
    [
        ("kind", None, [2, 0, 2, 1, 0, 0], ("ape", "cat", "dog")),
        ("rank", None, [2, 0, 0, 2, 0, 2], ("low", "mid", "high")),
        ("grade", 7, [0, 1, 4, 0, 1, 4], 7),
        ("age", 0, [30, 31, 32, 33, 34, 35], 0),
    ],
)
def test_label_space_is_that_of_the_class_labels_or_as_given(column: str, num_labels, labels, names, folder):
    examples = HFDataset(folder, "heat", column, num_labels=num_labels).pool().examples
    size, words = (names, ()) if isinstance(names, int) else (len(names), names)
    assert (examples.labels.tolist(), examples.num_labels, examples.label_names) == (labels, size, words)
    assert examples.label_kind == ("classes" if size else "numbers")


def test_client_column_names_the_natural_clients(folder: str):
    module = HFDataset(folder, "photo", "rank", client_column="user")
    assert (module.pool().owner.tolist(), module.pool().names) == ([1, 0, 1, 1, 0, 1], ("u10", "u9"))
    assert module.partition == Natural()
    assert [sorted(one.tolist()) for one in module.federated(0).train] == [[1], [0, 2, 3]]
    assert HFDataset(folder, "photo", "rank").partition == IID(num_clients=100)
    assert HFDataset(folder, "photo", "rank", "user", partition=IID(num_clients=2)).partition == IID(num_clients=2)
    both = HFDataset(folder, "heat", "kind", "kind").pool()  # one column may name labels and clients
    assert (both.names, both.owner.tolist()) == (("ape", "cat", "dog"), both.labels.tolist())


@pytest.mark.parametrize("kind", ["timestamp[us]", "string", "float64"])
def test_each_client_is_tested_on_its_last_examples_by_a_column_of_times(kind: str, tmp_path: Path):
    days, features = [7, 1, 10, 4, 2, 9, 3, 8, 6, 5], WHOLE | {"who": Value("string"), "when": Value(kind)}
    dates = {"timestamp[us]": [datetime(2024, 3, day) for day in days], "string": [f"2024-03-{day:02}" for day in days]}
    rows = {"x": days, "y": [day % 2 for day in days], "who": ["ab"[day > 6] for day in days]}
    rows["when"] = dates.get(kind, [day / 4 for day in days])
    source = str(write(tmp_path / "own", features, train=rows))
    module = HFDataset(source, "x", "y", "who", time_column="when", partition=Natural(test=0.25), validation=0.34)
    data = module.federated(0)
    for lists, expected in (
        (data.train, [[1, 2, 3], [7, 8]]),
        (data.validation, [[4], [9]]),
        (data.test, [[5, 6], [10]]),
    ):
        assert [data.examples.inputs[one % 10].flatten().tolist() for one in lists] == expected
    assert data.examples.labels.tolist() == [1, 0] * 5
    write(tmp_path / "own", features, test=rows)
    message = r"data\.time_column and the split 'test' both .* data\.splits to \[train\]"
    with pytest.raises(InputError, match=message):
        HFDataset(source, "x", "y", "who", time_column="when").pool()


def test_folders_of_images_are_labels_and_a_note_says_how_to_make_them_clients(tmp_path: Path):
    for row, image in enumerate(pixels(6, 4, 4)):
        (tmp_path / "photos" / f"user{row % 3}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "photos" / f"user{row % 3}" / f"{row}.png")
    source = str(tmp_path / "photos")
    with pytest.warns(Notice, match=r"folders .*3 classes \(user0, user1, user2\).*metadata\.csv.*client_column"):
        assert HFDataset(source, "image", "label").pool().examples.label_names == ("user0", "user1", "user2")
    remedy = "has no column 'user'.*metadata.csv.*file_name, label and user"
    with pytest.raises(InputError, match=remedy):
        HFDataset(source, "image", "label", client_column="user").pool()
    lines = [f"user{row % 3}/{row}.png,{'ab'[row // 3]},user{row % 3}" for row in range(6)]
    Path(source, "metadata.csv").write_text("\n".join(["file_name,label,user", *lines]) + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        pool = HFDataset(source, "image", "label", client_column="user").pool()
    assert (pool.names, pool.examples.label_names) == (("user0", "user1", "user2"), ("a", "b"))


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "text as numbers": (lambda at: HFDataset(mixed(at), "kind", "rank", kind="numbers"), "data.kind | 'text'"),
    "two kinds": (lambda at: HFDataset(mixed(at), ["photo", "text"], "rank"), "data.input_column | 'photo' | image"),
    "the answer": (lambda at: HFDataset("any", ["a", "y"], "y"), "'y' | data.input_column"),
    "no split": (lambda at: HFDataset(mixed(at), "heat", "rank", splits=["train", "valid"]), "'valid' | train, test"),
    "no text": (lambda at: HFDataset(mixed(at, text=["a", None, *"aabb"]), "text", "rank"), "text | row 1"),
    "channels anywhere": (
        lambda at: HFDataset(str(write(at, WHOLE | {"x": CUBE}, train={"x": [[[[9]] * 3]], "y": [0]})), "x", "y"),
        "(1, 3, 1) | data.kind",
    ),
    "times": (
        lambda at: HFDataset(str(write(at, WHOLE | {"z": TIME}, train=ONE)), ["x", "z"], "y"),
        "'z' | timestamp[us] | images, text or numbers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore::lit_cfl.errors.Notice")
def test_what_cannot_be_read_is_refused(name: str, tmp_path: Path):
    make, words = REFUSED[name]
    assert_refused(lambda: make(tmp_path / "own").pool(), words)


def test_files_that_number_their_labels_otherwise_are_refused(tmp_path: Path):
    names = ["owl", "dog", "cat"]
    write(tmp_path / "two", WHOLE | {"y": ClassLabel(names=sorted(names))}, train={"x": [0.0] * 3, "y": [0, 1, 2]})
    write(tmp_path / "two", WHOLE | {"y": ClassLabel(names=names)}, test={"x": [0.0] * 2, "y": [0, 1]})
    assert_refused(HFDataset(str(tmp_path / "two"), "x", "y").pool, f"'y' | ['cat', 'dog', 'owl'] | {names}")
