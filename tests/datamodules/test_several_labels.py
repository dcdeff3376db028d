"""Tests several labels per example: reading, counting, display, and errors where a single label is needed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, List, Value
from hub import fresh_caches, write
from own_arrays import error_of
from quadratic import ids

from lit_cfl.cli.main import main
from lit_cfl.data import Examples, View
from lit_cfl.data.checks import require_examples
from lit_cfl.datamodules import (
    ArrayData,
    Dirichlet,
    FederatedDataModule,
    HFDataset,
    Hybrid,
    LabelDrift,
    LabelShifts,
    LogNormalSizes,
    Natural,
    NoiseLevels,
    SwapPart,
)
from lit_cfl.errors import InputError
from lit_cfl.pictures.data import example_images, label_distribution

X = np.arange(12.0).reshape(6, 2)
Y = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 1], [1, 0, 0]])
CLIENT = np.array([0, 0, 0, 1, 1, 1])


def own(y: Any = Y, **options: Any) -> ArrayData:
    return ArrayData(X, y, CLIENT, **({"test": 0.0} | options))


# Arrays


@pytest.mark.parametrize("dtype", [bool, int, np.uint8, np.float32])
def test_zeros_and_ones_are_kept_as_bool_and_handed_out_as_floats(dtype: type):
    examples = own(Y.astype(dtype)).load()
    assert (examples.label_kind, examples.num_labels, examples.num_outputs) == ("multi-label", 0, 3)
    assert examples.labels.dtype == torch.bool
    assert examples.batch(ids(3, 1), torch.float64)[1].tolist() == [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    assert examples.batch(ids(3), torch.bfloat16)[1].dtype == torch.float32
    assert own(Y, num_labels=3).load().num_outputs == 3


def test_shares_between_are_soft_labels():
    soft = np.where(Y == 1, 0.9, 0.1)
    examples = own(soft).load()
    assert examples.batch(ids(0))[1].tolist() == torch.tensor(soft[:1]).float().tolist()
    assert own(soft).federated(0).label_counts.tolist() == own().federated(0).label_counts.tolist()


def test_labels_are_counted_for_each_client():
    assert own().federated(0).label_counts.tolist() == [[1, 1, 1], [2, 1, 2]]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (Y * 2, "the labels y hold 2 in row 0, column 0; give multi-label values between 0 and 1"),
        (np.where(Y, np.nan, 0), "the labels y hold nan in row 0, column 0"),
        (Y - 1.0, "the labels y hold -1 in row 0, column 1"),
        (Y.astype(str), "y has dtype <U21; give integers or floats"),
        (Y[:, :1], "y has shape (6, 1) for 6 examples in x; give one label for each, [6], or several, [6, L]"),
        (Y[:4], "y has shape (4, 3) for 6 examples in x"),
    ],
)
def test_an_invalid_table_of_labels_is_refused(y: np.ndarray, message: str):
    assert error_of(own(y)).startswith(message)


def test_another_number_of_labels_is_refused():
    assert error_of(own(num_labels=4)) == "y has 3 labels for each example and num_labels is 4; leave out num_labels"


def test_a_folder_of_clients_needs_as_many_labels_in_each(tmp_path: Path):
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    np.savez(tmp_path / "b.npz", x=X, y=1 - Y)
    data = ArrayData(source=tmp_path, test=0.0).federated(0)
    assert data.label_counts.tolist() == [[3, 2, 3], [3, 4, 3]]
    np.savez(tmp_path / "b.npz", x=X, y=Y[:, :2])
    assert (
        "y of integers (2,), but the first file of the folder holds x of float64 (2,), y of integers (3,)"
        in error_of(ArrayData(source=tmp_path))
    )


# A user's own data modules


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (torch.zeros(2, 3), {"num_labels": 3}, r"shape \(2, 3\), and num_labels is 3; .* or num_labels=0"),
        (torch.zeros(2, 3), {"label_names": ("a",)}, "label_names has 1 names for 3 labels for each example"),
        (torch.full((2, 3), 1.5), {}, "Own: labels hold 1.5 in row 0, column 0"),
        (torch.zeros(2, 3, dtype=torch.int64), {}, r"Own: labels have dtype torch.int64 and shape \(2, 3\); give bool"),
        (
            torch.zeros(2, 3, 1),
            {},
            r"labels have shape \(2, 3, 1\); give \[N, ...\] and \[N\] with N at least 1 \(for several .*\[N, L\]",
        ),
        (torch.zeros(2, 3), {"views": (View(label_map=(1, 0, 2)),)}, r"a label_map is \(1, 0, 2\); map each of"),
    ],
)
def test_own_examples_are_checked(labels: torch.Tensor, options: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        require_examples(Examples(torch.zeros(2, 4), labels, **({"num_labels": 0} | options)), "Own")


# Columns of lists


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., HFDataset]:
    fresh_caches(tmp_path, monkeypatch)

    def made(feature: Any, values: list[Any], **options: Any) -> HFDataset:
        parts = {"train": values[:4]} | ({"test": values[4:]} if values[4:] else {})
        columns = {split: {"x": [[1.0, 2.0]] * len(part), "tags": part} for split, part in parts.items()}
        path = write(tmp_path / f"tags {options}", {"x": List(Value("float32")), "tags": List(feature)}, **columns)
        return HFDataset(str(path), "x", "tags", **options)

    return made


@pytest.mark.parametrize(
    ("feature", "values"),
    [
        (Value("int64"), [[0, 2], [], [1], [0, 1, 2], [2], [0]]),
        (Value("string"), [["a", "c"], [], ["b"], ["b", "c", "a"], ["c"], ["a"]]),
        (ClassLabel(names=["a", "b", "c"]), [[0, 2], [], [1], [0, 1, 2], [2], [0]]),
        (Value("bool"), Y.astype(bool).tolist()),
        (Value("int32"), Y.tolist()),
        (Value("float32"), Y.astype(float).tolist()),
    ],
    ids=["numbers", "words", "class labels", "bools", "zeros and ones", "floats"],
)
def test_lists_are_the_labels_of_an_example_or_an_entry_for_each(
    folder: Callable[..., HFDataset], feature: Any, values: list[Any]
):
    pool = folder(feature, values).pool()
    assert pool.labels.tolist() == Y.astype(bool).tolist()
    assert pool.examples.label_names == (("a", "b", "c") if isinstance(feature, ClassLabel) or "a" in values[0] else ())
    assert pool.num_train == 4


def test_lists_of_one_class_label_each_are_numbers(folder: Callable[..., HFDataset]):
    both = ClassLabel(names=["no", "yes"])
    assert folder(both, [[0, 1], [1, 0], [0, 1], [1, 0]]).pool().labels.all()
    assert folder(Value("int64"), [[0], [1], [1], [0]]).pool().labels[:2].tolist() == [[True, False], [False, True]]
    assert folder(Value("int64"), [[0], [1], [1], [0]], num_labels=4).pool().labels.shape == (4, 4)
    assert folder(Value("int64"), [[0, 1], [1, 0], [0, 1], [1, 0]], num_labels=3).pool().labels.shape == (4, 3)


@pytest.mark.parametrize(
    ("feature", "values", "message"),
    [
        (Value("int64"), [[0, 2], None, [1], [0]], "label column 'tags' holds None in row 1"),
        (Value("int64"), [[0, 2], [-1], [1], [0]], "label column 'tags' holds -1 in row 1, but labels are 0 to 2"),
        (
            Value("float32"),
            [[0.5, 0.1], [0.2], [1.0], [0.0]],
            "not a whole number; give lists of one length, with an entry",
        ),
        (Value("int64"), [[], [], [], []], "label column 'tags' holds only empty lists"),
    ],
)
def test_lists_of_invalid_labels_are_refused(
    folder: Callable[..., HFDataset], feature: Any, values: list[Any], message: str
):
    with pytest.raises(InputError, match=message):
        folder(feature, values).pool()


# What needs one label of each example


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Dirichlet", {"partition": Dirichlet(2, alpha=1.0)}),
        ("LabelShifts", {"skew": LabelShifts((0, 1))}),
        ("LabelDrift", {"shift": LabelDrift()}),
        ("SwapPart", {"shift": SwapPart()}),
    ],
)
def test_what_goes_by_one_label_is_refused_with_the_remedy(name: str, options: dict[str, Any]):
    with pytest.raises(InputError) as error:
        own(**options).federated(0)
    assert str(error.value) == (
        f"{name} needs one label per example, but these have 3 each; use a partition by sizes or clients, such as "
        "IID, LogNormalSizes or Natural, and skews of inputs, such as Rotations"
    )


def test_partitions_by_sizes_and_skews_of_inputs_take_them():
    data = ArrayData(X, Y, partition=LogNormalSizes(2, 0.0, min_size=1), skew=NoiseLevels((0.0, 1.0))).federated(0)
    assert int(data.label_counts.sum()) == Y.sum()
    assert own(partition=Natural(test=0.4)).federated(0).test.sizes.tolist() == [1, 1]


def test_parts_of_a_hybrid_have_as_many_labels():
    both = Hybrid([own(), own()]).federated(0)
    assert (both.num_clients, both.examples.labels.shape) == (4, (12, 3))
    with pytest.raises(
        InputError, match=r"parts.0.: 3 labels for each example; of .*: 2 labels for each example; make"
    ):
        _ = Hybrid([own(), own(Y[:, :2])]).examples


# What is shown


class Pictures(ArrayData):
    """Data module of six images, each of which has none, some or all of three labels."""

    def __init__(self, **options: Any) -> None:
        super().__init__(np.arange(6 * 16, dtype=np.uint8).reshape(6, 4, 4), Y, CLIENT, [0, 1], test=0.4, **options)


def test_table_and_pictures_show_several_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["data", "--data", f"{__name__}.Pictures", "--out", str(tmp_path / "d")]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "6 examples of shape (1, 4, 4), 3 labels for each example" in out
    assert "labels             per client: min" in out
    data = Pictures().federated(0)
    figure = label_distribution(data)
    assert figure is not None
    shares = figure.axes[0].images[0].get_array()
    counts = data.label_counts.double()
    assert np.allclose(shares, (counts / counts.sum(1, keepdim=True)).T)
    titles = [axes.get_title() for axes in example_images(data).axes if axes.get_title()]  # type: ignore[union-attr]  # examples are images, so there is a figure
    first = [data.examples.targets(data.train[k][:1])[0].nonzero().flatten().tolist() for k in (0, 1)]
    assert titles == [f"cluster {k}\nlabel {', '.join(map(str, own)) or 'none'}" for k, own in enumerate(first)]


def test_labels_without_training_examples_are_accepted():
    module: FederatedDataModule = own(np.eye(6, 3), test=0.4)
    assert module.federated(0).test.sizes.sum() == 2
