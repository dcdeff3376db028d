"""Tests several labels per example: reading, counting, display, and errors where a single label is needed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, List, Value
from hub import write_split
from own_arrays import assert_refused
from quadratic import ids

from lit_cfl.datamodules import ArrayData, Dirichlet, HFDataset, LabelDrift, LabelShifts

pytestmark = pytest.mark.usefixtures("caches")

X = np.arange(12.0).reshape(6, 2)
Y = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 1], [1, 0, 0]])
CLIENT = np.array([0, 0, 0, 1, 1, 1])


def own(y: Any = Y, **options: Any) -> ArrayData:
    return ArrayData(X, y, CLIENT, **({"test": 0.0} | options))


@pytest.mark.parametrize("dtype", [bool, int, np.uint8, np.float32])
def test_zeros_and_ones_are_kept_as_bool_and_handed_out_as_floats(dtype: type):
    examples = own(Y.astype(dtype), num_labels=3).load()
    assert (examples.label_kind, examples.num_labels, examples.num_outputs) == ("multi-label", 0, 3)
    assert examples.labels.dtype == torch.bool
    assert examples.batch(ids(3, 1), torch.float64)[1].tolist() == [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    assert examples.batch(ids(3), torch.bfloat16)[1].dtype == torch.float32


def test_labels_are_counted_for_each_client_and_soft_ones_above_a_half():
    soft = np.where(Y == 1, 0.6, 0.4)
    assert own(soft).load().batch(ids(0))[1].tolist() == torch.tensor(soft[:1]).float().tolist()
    for labels in (Y, soft):
        assert own(labels).federated(0).label_counts.tolist() == [[1, 1, 1], [2, 1, 2]]


SETS = [[0, 2], [], [1], [0, 1, 2], [2], [0]]
WORDS = [["a", "c"], [], ["b"], ["b", "c", "a"], ["c"], ["a"]]
PAIRS, NAMED = [[0, 1], [1, 0], [0, 1], [1, 1]], ClassLabel(names=["p", "q"])


def tags(folder: Path, feature: Any, values: list[Any], **options: Any) -> HFDataset:
    """Writes a data set with these labels; the first four rows are its training part."""
    features = {"x": List(Value("float32")), "tags": List(feature)}
    path = write_split(folder / "tags", features, {"x": [[1.0, 2.0]] * len(values), "tags": values}, train=4)
    return HFDataset(str(path), "x", "tags", **options)


@pytest.mark.parametrize(
    ("feature", "values", "options", "expected"),
    [
        (Value("int64"), SETS, {}, Y),
        (Value("string"), WORDS, {}, Y),
        (ClassLabel(names=["a", "b", "c"]), SETS, {}, Y),
        (Value("bool"), Y.astype(bool).tolist(), {}, Y),
        (Value("float32"), (Y * 0.5).tolist(), {}, Y * 0.5),
        (Value("int64"), PAIRS, {}, PAIRS),  # lists of zeros and ones are columns
        (NAMED, PAIRS, {}, [[1, 1], [1, 1], [1, 1], [0, 1]]),  # lists of named labels are sets
        (Value("int64"), [[0], [1], [1], [0]], {}, [[1, 0], [0, 1], [0, 1], [1, 0]]),  # and so are lists of one entry
        (Value("int64"), PAIRS, {"num_labels": 3}, [[1, 1, 0], [1, 1, 0], [1, 1, 0], [0, 1, 0]]),
    ],
)
def test_lists_are_the_labels_of_an_example_or_an_entry_for_each(feature, values, options, expected, tmp_path: Path):
    pool = tags(tmp_path, feature, values, **options).pool()
    assert pool.labels.tolist() == np.asarray(expected).tolist()
    names = feature.names if isinstance(feature, ClassLabel) else ["a", "b", "c"] if values is WORDS else []
    assert (list(pool.examples.label_names), pool.num_train) == (names, 4)


@pytest.mark.parametrize(
    ("feature", "values", "words"),
    [
        (Value("int64"), [[0, 2], None, [1], [0]], "None | row 1"),
        (Value("int64"), [[0, 2], [-1], [1], [0]], "-1 | row 1 | 0 to 2"),
        (Value("float32"), [[0.5, 0.1], [0.2], [1.0], [0.0]], "whole number | one length"),
        (Value("int64"), [[], [], [], []], "empty"),
    ],
)
def test_lists_of_invalid_labels_are_refused(feature: Any, values: list[Any], words: str, tmp_path: Path):
    assert_refused(tags(tmp_path, feature, values).pool, f"label column 'tags' | {words}")


@pytest.mark.parametrize(
    ("y", "options", "words"),
    [
        (Y * 2, {}, "y | 2 | row 0, column 0"),
        (Y, {"num_labels": 4}, "y | 3 labels | num_labels is 4"),
        (Y, {"partition": Dirichlet(2, alpha=1.0)}, "Dirichlet | 3 | IID"),
        (Y, {"skew": LabelShifts((0, 1))}, "LabelShifts | 3 | Rotations"),
        (Y, {"shift": LabelDrift()}, "LabelDrift | 3 | IID"),
    ],
)
def test_invalid_labels_and_what_needs_one_label_are_refused(y: np.ndarray, options: dict[str, Any], words: str):
    assert_refused(own(y, **options), words)
