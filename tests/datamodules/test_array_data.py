"""Tests ArrayData: all forms of arrays, tensors and labels, and errors."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from own_arrays import OWNERS, error_of, folder_of, given, owned
from quadratic import ids
from torch import nn

from lit_cfl.algorithms import FedAvg
from lit_cfl.data import ClientIndex, Division, Examples
from lit_cfl.datamodules import FederatedDataModule
from lit_cfl.datamodules.arrays import ArrayData
from lit_cfl.engines.check_module import mark_tokens
from lit_cfl.errors import Notice
from lit_cfl.experiment import Experiment
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification, Regression

# Inputs


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((12, 1, 4, 4), (1, 4, 4)),
        ((12, 3, 4, 4), (3, 4, 4)),
        ((12, 4, 5, 3), (3, 4, 5)),
        ((12, 4, 5, 1), (1, 4, 5)),
        ((12, 4, 5), (1, 4, 5)),
        ((12, 6), (6,)),
        ((12, 2, 3, 4, 5), (2, 3, 4, 5)),
    ],
)
def test_bytes_are_images_with_channels_first(shape: tuple[int, ...], expected: tuple[int, ...]):
    examples = ArrayData(np.zeros(shape, np.uint8), np.zeros(12, int)).load()
    assert (examples.input_shape, examples.inputs.dtype) == (expected, torch.uint8)


def test_channels_that_come_last_are_moved_and_not_mixed():
    x = np.random.default_rng(0).integers(0, 256, (12, 4, 5, 3), np.uint8)
    examples = ArrayData(x, np.zeros(12, int)).load()
    assert examples.inputs[7, 2, 1, 3] == x[7, 1, 3, 2]
    assert torch.equal(examples.batch(ids(7))[0][0, 2, 1, 3], torch.tensor(x[7, 1, 3, 2]) * torch.tensor(1 / 255))


@pytest.mark.parametrize(("channels", "expected"), [("first", (3, 5, 3)), ("last", (3, 3, 5))])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_axis_of_the_channels_can_be_named(channels: str, expected: tuple[int, ...], dtype: type):
    x = np.zeros((12, 3, 5, 3), dtype)
    assert ArrayData(x, np.zeros(12, int), channels=channels).load().input_shape == expected


@pytest.mark.parametrize("shape", [(12, 3, 5, 3), (12, 4, 5, 6), (12, 1, 8, 1)])
def test_channels_that_could_be_anywhere_are_refused(shape: tuple[int, ...]):
    message = error_of(ArrayData(np.zeros(shape, np.uint8), np.zeros(12, int)))
    assert message == f"x has shape {shape}: which axis holds the channels? Set channels to first or last"


def test_floats_stay_unchanged():
    examples = ArrayData(**given()).load()
    assert (examples.inputs.dtype, examples.scale, examples.vocabulary) == (torch.float64, 1.0, 0)
    assert examples.batch(ids(3))[0].tolist() == [[6.0, 7.0]]
    assert ArrayData(**given(x=np.zeros((12, 5, 4), np.float32))).load().input_shape == (5, 4)


def test_bytes_are_scaled_by_1_over_255_unless_a_scale_is_given():
    x = np.full((12, 2, 2), 51, np.uint8)
    assert ArrayData(x, np.zeros(12, int)).load().batch(ids(0))[0].unique().tolist() == pytest.approx([0.2])
    assert ArrayData(x, np.zeros(12, int), scale=0.5).load().batch(ids(0))[0].unique().tolist() == [25.5]
    assert ArrayData(**given(), scale=0.5).load().batch(ids(1))[0].tolist() == [[1.0, 1.5]]


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int16, np.uint16, np.int8, np.uint64])
def test_other_integers_are_numbers_that_may_be_token_ids(dtype: type):
    examples = ArrayData(**given(x=np.arange(24, dtype=dtype).reshape(12, 2))).load()
    numbers = examples.batch(ids(3))[0]
    assert (numbers.tolist(), numbers.dtype) == ([[6.0, 7.0]], torch.float32)
    assert (examples.vocabulary, examples.num_tokens, examples.scale) == (0, 24, 1.0)
    assert examples.inputs.dtype == (torch.int32 if dtype is np.int32 else torch.int64)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64])
def test_vocabulary_makes_them_token_ids(dtype: type):
    examples = ArrayData(**given(x=np.arange(24, dtype=dtype).reshape(12, 2)), vocabulary=30).load()
    tokens = examples.batch(ids(3))[0]
    assert (tokens.tolist(), tokens.is_floating_point(), examples.vocabulary) == ([[6, 7]], False, 30)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"vocabulary": 0}, "vocabulary is 0; give 1 or more, or null"),
        ({"vocabulary": 30}, "vocabulary is 30, so x holds token ids, but it has dtype torch.float64"),
        (
            {"vocabulary": 9, "x": np.arange(24).reshape(12, 2)},
            "inputs hold token ids from 0 to 23, but vocabulary is 9; give 0 to 8",
        ),
        (
            {"vocabulary": 9, "x": np.zeros((12, 2), int) - 1},
            "inputs hold token ids from -1 to -1, but vocabulary is 9; give 0 to 8",
        ),
        ({"vocabulary": 9, "x": np.zeros((12, 2), int), "scale": 0.5}, "and scale is 0.5; give integers without scale"),
    ],
)
def test_token_ids_are_integers_of_the_vocabulary(options: dict[str, Any], expected: str):
    assert expected in error_of(lambda: ArrayData(**given() | options).federated(0))


def test_integers_may_be_negative_scaled_or_bools():
    negative = ArrayData(**given(x=np.array([[3, -4]] * 12))).load()
    assert (negative.batch(ids(3))[0].tolist(), negative.num_tokens) == ([[3.0, -4.0]], 0)
    assert ArrayData(**given(x=np.array([[3, 4]] * 12)), scale=0.5).load().batch(ids(3))[0].tolist() == [[1.5, 2.0]]
    assert ArrayData(**given(x=np.array([[True, False]] * 12))).load().batch(ids(3))[0].tolist() == [[1.0, 0.0]]


def test_scale_of_images_of_large_integers_is_asked_for():
    x = np.full((12, 1, 4, 4), 4000, np.uint16)
    with pytest.warns(
        Notice, match=r"the images: large numbers \(root mean square 4e\+03\), .* or give ArrayData a scale"
    ):
        assert ArrayData(**given(x=x)).load().batch(ids(0))[0].unique().tolist() == [4000.0]
    assert ArrayData(**given(x=x), scale=0.00025).load().batch(ids(0))[0].unique().tolist() == [1.0]


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32, np.float64, np.float16])
def test_images_of_0_to_255_are_noted_unless_they_are_bytes(dtype: type):
    x = np.tile(np.array([0, 255], np.uint8), (12, 3, 4, 2))
    with pytest.warns(Notice) as notices:
        inputs = ArrayData(**given(x=x.astype(dtype))).load().batch(ids(0))[0]
    (note,) = (str(notice.message) for notice in notices)
    assert note.startswith("the images: large numbers (root mean square 180)")  # 255 / sqrt(2)
    assert inputs.max() == 255  # the notice changes no data


def test_images_that_are_scaled_are_not_noted():
    pixels = np.tile(np.array([0, 255], np.uint8), (12, 3, 4, 2))
    for x, scale in ((pixels, None), (pixels.astype(int), 1 / 255), (pixels / 255, None), (pixels // 16, None)):
        assert ArrayData(**given(x=x), scale=scale).load().batch(ids(0))[0].max() <= 15


def test_other_large_inputs_are_noted_as_a_whole():
    with pytest.warns(Notice, match=r"the inputs: large numbers \(root mean square 20\)"):
        ArrayData(**given(x=np.full((12, 5, 2), -20.0))).load()


def test_large_integers_are_noted_if_the_net_takes_them_as_numbers():
    data = ArrayData(**given(x=np.array([[3, 400, -1], [3, 400, 1]] * 6))).federated
    with pytest.warns(Notice, match="input column 1: large numbers"):
        data(0)  # with negative numbers, these are not token ids
    found = ArrayData(**given(x=np.array([[3, 400]] * 12))).federated(0)
    with pytest.warns(Notice, match="input column 1: large numbers"):
        assert not mark_tokens(found, lambda: nn.Linear(2, 3)).examples.vocabulary
    assert mark_tokens(found, lambda: nn.Embedding(401, 3)).examples.vocabulary == 401


def test_arrays_tensors_and_lists_are_the_same():
    arrays = given(client=np.array(OWNERS), cluster=np.array([0, 1, 0]))
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    lists = {name: array.tolist() for name, array in arrays.items()}
    one, other, third = (ArrayData(**form).federated(4) for form in (arrays, tensors, lists))
    for data in (other, third):
        assert torch.equal(data.examples.inputs, one.examples.inputs)
        assert torch.equal(data.examples.labels, one.examples.labels)
        assert torch.equal(data.train.values, one.train.values)
        assert torch.equal(data.true_clusters, one.true_clusters)


def test_arrays_that_torch_cannot_share_are_copied():
    x = given()["x"]
    locked = x.copy()
    locked.flags.writeable = False
    for form in (
        x.astype(">f4"),
        x.astype(np.longdouble),
        np.asfortranarray(x),
        x[::-1][::-1],
        locked,
        torch.from_numpy(x).requires_grad_(),
    ):
        assert ArrayData(**given(x=form)).load().inputs.tolist() == x.tolist()


def test_other_arrays_are_not_copied():
    arrays = given()
    arrays["x"][0, 0] = -5
    module = ArrayData(**arrays)
    assert module.load().inputs.data_ptr() == arrays["x"].ctypes.data


# Labels


def test_label_space_is_as_large_as_the_labels_say():
    assert ArrayData(**given()).load().num_labels == 3
    assert ArrayData(**given(), num_labels=5).load().num_labels == 5
    assert ArrayData(**given(y=(np.arange(12) % 3).astype(np.uint8))).load().labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("label", "num_labels", "expected"),
    [
        (-2, None, "y holds -2 in row 8 (from 0"),
        (-1, 3, "y holds -1 in row 8 (from 0"),
        (7, 3, "but labels are 0 to 2; fix the data, or set num_labels (0 for numbers to predict)"),
        (3, 3, "y holds 3 in row 8 (from 0"),
    ],
)
def test_label_outside_its_range_is_refused(label: int, num_labels: int | None, expected: str):
    y = np.arange(12) % 3
    y[8] = y[10] = label
    assert expected in error_of(ArrayData(**given(y=y), num_labels=num_labels))


def test_labels_of_a_byte_may_be_all_256_or_fewer_than_the_space():
    x, y = np.zeros((256, 2), np.float32), np.arange(256, dtype=np.uint8)
    assert ArrayData(x, y).pool().examples.num_labels == 256
    assert ArrayData(x, y, num_labels=300).pool().examples.num_labels == 300


def test_labels_that_are_all_negative_are_refused():
    assert "y holds -1 in row 0 (from 0, " in error_of(ArrayData(**given(y=-np.ones(12, int))))


def test_label_space_of_a_negative_size_is_refused():
    expected = "num_labels is -3; give 1 or more, 0 for numbers to predict, or null"
    assert error_of(lambda: ArrayData(**given(), num_labels=-3)) == expected


def test_integers_are_numbers_to_predict_if_asked_for():
    counts = np.array([-3, 0, 700000, 12, 12, 12, 12, 12, 12, 12, 12, 12])
    examples = ArrayData(**given(y=counts), num_labels=0).load()
    assert (examples.label_kind, examples.num_outputs, examples.labels.dtype) == ("numbers", 1, torch.float32)
    assert examples.labels.tolist() == counts.tolist()
    words = ArrayData(**given(y=["low", "high"] * 6), num_labels=0)
    assert error_of(words) == "y holds 'low' and num_labels is 0, for numbers to predict; give numbers"


def test_labels_other_than_integers_are_refused():
    whole = error_of(ArrayData(**given(y=np.zeros(12)), num_labels=3))
    assert "y has dtype float64 and num_labels is 3; give classes as y.astype(int)" in whole
    assert "y holds None in row 1 (from 0)" in error_of(ArrayData(**given(y=np.array([0, None] * 6))))
    assert "y has dtype complex128" in error_of(ArrayData(**given(y=np.zeros(12, complex))))


# What else is refused


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"x": np.zeros((3, 2))}, "y has shape (12,) for 3 examples in x; give one label for each, [3]"),
        ({"y": np.zeros((12, 1), int)}, "y has shape (12, 1) for 12 examples"),
        ({"client": np.arange(5)}, "client has 5 entries; give 12"),
        ({"client": np.zeros((12, 1), int)}, "client has shape (12, 1); give one number or word in each row"),
        ({"client": [[1, 2]] * 12}, "client holds [1, 2] in row 0; give one number or word in each row"),
        ({"client": np.array(["a", None] * 6)}, "client holds None in row 1 (from 0); fix the data or drop the row"),
        (
            {"client": ["a", 1] * 6},
            "client holds 1 in row 1; give one number or word in each row, all of one kind",
        ),
        ({"client": np.array([1.0, np.nan] * 6)}, "client holds nan in row 1 (from 0)"),
        ({"cluster": np.zeros(12, int)}, "cluster is given without client"),
        ({"client": np.array(OWNERS), "cluster": [0, 1]}, "cluster has 2 entries; give 12 or 3"),
        (
            {"client": np.array(OWNERS), "cluster": [0, -1, 1]},
            "cluster holds -1; give true clusters as integers from 0",
        ),
        ({"client": np.array(OWNERS), "cluster": [0.0, 1.5, 1.0]}, "cluster holds 1.5 in row 1, not a whole number"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "x has shape (0, 2); give [N, ...]"),
        ({"x": np.zeros(12)}, "x has shape (12,); give [N, ...]"),
        ({"x": np.zeros((12, 0))}, "x has shape (12, 0)"),
        ({"x": 3.0}, "x has shape ()"),
        ({"x": np.array([[0, None]] * 12)}, "x has dtype object; give integers or floats"),
        ({"x": np.full((12, 2), 2**63, np.uint64)}, "x has dtype uint64; give integers or floats"),
        ({"x": np.ma.masked_equal(np.zeros((12, 2)), 0)}, "x is masked in row 0, and masks are not read; fill in"),
        ({"y": np.ma.masked_equal(np.arange(12), 3)}, "y is masked in row 3"),
        ({"x": np.zeros((12, 2), complex)}, "x has dtype complex128; give integers or floats"),
        ({"x": [[1, 2], [3]] * 6}, "x is not an array"),
        ({"x": torch.zeros(12, 2, dtype=torch.bfloat16)}, "x is not an array"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(changes: dict[str, Any], expected: str):
    assert expected in error_of(ArrayData(**given(**changes)))


def test_columns_of_words_are_named():
    table = pandas.DataFrame(
        {"rate": [60.0, 61.0], "stage": ["W", "N1"], "start": pandas.to_datetime(["2025-03-01"] * 2)}
    )
    assert "x has dtype object; leave out 'stage', 'start', or encode them" in error_of(ArrayData(table, [0, 1]))


def test_columns_of_numbers_and_bools_are_read_together():
    table = pandas.DataFrame({"rate": [60.5, 61.0], "asleep": [True, False], "stage": pandas.array([2, 3], "Int64")})
    assert ArrayData(table, [0, 1]).pool().examples.inputs.tolist() == [[60.5, 1, 2], [61, 0, 3]]
    whole = ArrayData(table[["asleep", "stage"]], [0, 1]).pool().examples.inputs
    assert (whole.dtype, whole.tolist()) == (torch.int64, [[1, 2], [0, 3]])
    table["stage"] = pandas.array([2, None], "Int64")
    assert "column 'stage' of x holds" in error_of(ArrayData(table, [0, 1]))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_number_that_is_not_finite_is_found(value: float):
    x = np.zeros((12, 2, 3, 4), np.float32)
    x[5, 1, 2, 3] = x[9, 0, 0, 0] = value
    assert "x holds NaN or infinity in row 5 (from 0);" in error_of(ArrayData(**given(x=x), channels="first"))


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf")])
def test_scale_that_is_not_positive_and_finite_is_refused(scale: float):
    assert f"scale is {scale}; give a number above 0" in error_of(ArrayData(**given(), scale=scale))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "nothing given; give x, and y if you have it, or the path of a source alone"),
        ({"y": [1]}, "y given; give x, and y"),
        (
            given(source="own.npz"),
            "x, y, source (str) given; give x, and y if you have it, or the path of a source alone",
        ),
        ({"client": [1], "source": "own.npz"}, "client, source (str) given"),
        ({"x": "own.npz"}, "x is 'own.npz'; give the array itself, or name a file by source"),
        ({"source": "own.csv", "y": "stage", "client": "ward"}, "y is 'stage'; give the array itself, or name a file"),
        (
            {"source": pandas.DataFrame({"a": [1]})},
            "source (DataFrame) given; give x, and y if you have it, or the path",
        ),
    ],
)
def test_arrays_or_a_source_are_needed_and_not_both(arguments: dict[str, Any], expected: str):
    assert expected in error_of(lambda: ArrayData(**arguments))


# A run


class OfANet(FederatedDataModule):
    """A user's data module, whose inputs and labels are outputs of a net."""

    def load(self) -> Examples:
        features = nn.Linear(2, 3)(torch.arange(24.0).reshape(12, 2) / 24)
        return Examples(features, features.sum(1), 0)

    def divide(self, examples: Examples, rng: np.random.Generator) -> Division:
        index = ClientIndex.from_lists(list(torch.arange(12).split(4)))
        return Division(index, index, torch.full((3,), -1))


@pytest.mark.parametrize("form", ["own module", "tensor", "list of tensors"])
@pytest.mark.filterwarnings("ignore::lit_cfl.errors.Notice")
def test_inputs_that_require_a_gradient_are_detached(form: str):
    x = (torch.arange(24.0).reshape(12, 2) / 24).requires_grad_()
    inputs = x * 1 if form == "tensor" else list(x)
    module = OfANet() if form == "own module" else ArrayData(inputs, inputs[0].sum() * torch.ones(12), client=OWNERS)
    experiment = Experiment(
        module,
        lambda: Regression(nn.Linear(module.examples.input_shape[0], 1), partial(torch.optim.SGD, lr=0.1)),
        FedAvg(),
        rounds=1,
        cohort_size=2,
    )
    assert not module.examples.inputs.requires_grad
    assert not module.examples.labels.requires_grad
    assert [np.isfinite(r.info.loss) for r in experiment] == [True]


@pytest.mark.parametrize("form", ["arrays", "folder"])
def test_fedavg_trains_on_it(tmp_path: Path, form: str):
    module = owned() if form == "arrays" else ArrayData(source=folder_of(tmp_path), test=0.0)
    task = lambda: Classification(MCLR([2], 3), partial(torch.optim.SGD, lr=0.1))  # noqa: E731
    experiment = Experiment(module, task, FedAvg(), rounds=1, cohort_size=2)
    assert [np.isfinite(r.info.loss) for r in experiment] == [True]
