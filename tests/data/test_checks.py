"""Tests the checks of examples and divisions from user data modules: errors and warnings."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from quadratic import ids

from lit_cfl.data import ClientIndex, Division, Examples, FederatedData, View
from lit_cfl.data.shift import Shift, ShiftContext, ShiftLog, apply_shifts
from lit_cfl.datamodules import FederatedDataModule
from lit_cfl.errors import InputError, Notice


class Own(FederatedDataModule):
    """Data module of six clients with 8 training and 2 test examples each; `change` may alter the division."""

    def __init__(self, examples: Any = None, change: Callable[[Division], Any] = lambda division: division) -> None:
        super().__init__(allow_unseen_labels=True)
        self.given, self.change = examples, change

    def load(self) -> Examples:
        return pool() if self.given is None else self.given

    def divide(self, examples: Examples, rng: np.random.Generator) -> Division:
        parts = torch.arange(60).split(10)
        lists = [ClientIndex.from_lists([part[rows] for part in parts]) for rows in (slice(8), slice(8, 10))]
        return self.change(Division(lists[0], lists[1], torch.arange(6) % 2, "feature"))


def pool(**changes: Any) -> Examples:
    return replace(Examples(torch.arange(120.0).view(60, 2), torch.arange(60) % 3, 3), **changes)


def lists(**changed: list[int]) -> Callable[[Division], Division]:
    """Returns a function that replaces lists in a division; the keyword `train2` sets client 2's training list."""

    def change(division: Division) -> Division:
        parts = {"train": list(division.train), "test": list(division.test)}
        for name, entries in changed.items():
            parts[name[:-1]][int(name[-1])] = ids(*entries)
        train, test = (ClientIndex.from_lists(parts[name]) for name in ("train", "test"))
        return replace(division, train=train, test=test)

    return change


def notes(module: Own) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module.federated(0)
    return [str(one.message) for one in caught if one.category is Notice]


def test_division_without_a_fault_is_taken_in_silence():
    assert notes(Own()) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lists(train2=[500, 501]), "Own: train: client 2 has the example 500, but examples are 0 to 59"),
        (lists(train3=[-1, 31]), "Own: train: client 3 has the example -1, but examples are 0 to 59"),
        (lists(test5=[60]), "Own: test: client 5 has the example 60, but examples are 0 to 59"),
        (lambda d: replace(d, true_clusters=torch.arange(3)), r"dtype torch.int64 and shape \(3,\); give int64 \[6\]"),
        (lambda d: replace(d, true_clusters=torch.zeros(6)), r"true_clusters has dtype torch.float32"),
        (
            lambda d: replace(d, true_clusters=torch.arange(6) - 2),
            "true_clusters holds -2; give numbers from 0, and -1",
        ),
        (lambda d: replace(d, test=d.test.select(ids(0, 1))), "train has lists for 6 clients, but test for 2"),
        (lambda d: replace(d, train=ClientIndex.from_lists([]), test=ClientIndex.from_lists([])), "returns no clients"),
        (lambda d: replace(d, names=("a", "b")), "names has 2 names for 6 clients"),
        (lambda d: replace(d, skew="features"), "skew is 'features'; give feature, label or other"),
        (lambda d: replace(d, train=replace(d.train, values=d.train.values.int())), "ClientIndex of torch.int32"),
        (
            lambda d: replace(d, train=replace(d.train, starts=d.train.starts + 5)),
            "lists that reach beyond its 48 values",
        ),
        (
            lambda d: replace(d, test=replace(d.test, sizes=d.test.sizes - 3)),
            "test has lists that reach beyond its 12 values",
        ),
        (lambda d: (d.train, d.test), "divide returns a tuple; return Division"),
    ],
)
def test_division_that_does_not_fit_is_refused(change: Callable[[Division], Any], expected: str):
    with pytest.raises(InputError, match=expected):
        Own(change=change).federated(0)


def test_examples_are_counted_under_all_views():
    views = pool(views=(View(), View(label_map=(1, 2, 0))))
    assert notes(Own(views, lists(train2=[119]))) == []
    with pytest.raises(
        InputError, match=r"client 2 has the example 120, but examples are 0 to 119 \(60 examples under 2 views"
    ):
        Own(views, lists(train2=[119, 120])).federated(0)


def test_what_nobody_holds_may_be_anything():
    def with_rest(division: Division) -> Division:
        index = division.train
        return replace(division, train=replace(index, values=torch.cat([index.values, ids(700, -3)])))

    assert notes(Own(change=with_rest)) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lists(train1=[10, 11, 10]),
            "Own: train: 1 client with repeated examples, and each repeat counts (1; such as example 10)",
        ),
        (
            lists(test4=[48, 48]),
            "Own: test: 1 client with repeated examples, and each repeat counts (4; such as example 48)",
        ),
        (
            lists(train1=[10, 18]),
            "Own: 1 client tested on training examples, so the scores are too good (1; such as example 18)",
        ),
    ],
)
def test_repeats_and_overlaps_in_a_client_are_noted(change: Callable[[Division], Division], expected: str):
    (note,) = notes(Own(change=change))
    assert note.startswith(expected)


def test_clients_may_share_examples():
    assert notes(Own(change=lists(train1=[0, 1, 2], test2=[0, 1], train0=[9, 2]))) == ["Own: 1 client tested on "
        "training examples, so the scores are too good (0; such as example 9)"]  # fmt: skip


def test_image_under_another_view_overlaps_but_does_not_repeat():
    views = pool(views=(View(), View(label_map=(1, 2, 0))))
    assert notes(Own(views, lists(train1=[10, 70]))) == []
    (note,) = notes(Own(views, lists(train1=[10, 78])))
    assert "(1; such as example 18)" in note


def test_shared_test_lists_are_looked_at_once_and_name_their_clients():
    def shared(division: Division) -> Division:
        few = ClientIndex(ids(2, 59, 59), torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([2, 2, 2, 2, 2, 0]))
        return replace(lists(train3=[30, 2])(division), test=few)  # clients 3 and 0 have the same list

    first, second = notes(Own(change=shared))
    assert first.startswith(
        "Own: test: 1 client with repeated examples, and each repeat counts (4; such as example 59)"
    )
    assert second.startswith(
        "Own: 2 clients tested on training examples, so the scores are too good (0, 3; such as example 2)"
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"inputs": torch.zeros(60, 2).index_fill(0, ids(7), torch.nan)}, "example 7 has NaN or infinite inputs"),
        ({"inputs": torch.zeros(60, 2).index_fill(0, ids(59), torch.inf)}, "example 59 has NaN or infinite inputs"),
        ({"inputs": torch.zeros(60, 2, dtype=torch.int16)}, "inputs have dtype torch.int16"),
        ({"inputs": torch.zeros(60, 2, dtype=torch.bool)}, "inputs have dtype torch.bool"),
        ({"inputs": torch.zeros(50, 2)}, r"inputs have shape \(50, 2\), labels have shape \(60,\)"),
        ({"labels": torch.zeros(60, 1, dtype=torch.int64)}, r"labels have dtype torch.int64 and shape \(60, 1\)"),
        ({"labels": torch.zeros(60, dtype=torch.int32)}, "labels have dtype torch.int32"),
        ({"labels": torch.arange(60)}, "example 3 has label 3, but num_labels is 3"),
        ({"labels": torch.arange(60) % 3 - 1}, "example 0 has label -1, but num_labels is 3: give classes from 0"),
        ({"labels": torch.arange(60), "num_labels": 0}, "example 1 has label 1, but num_labels is 0: give classes"),
        ({"labels": torch.full((60,), torch.nan), "num_labels": 0}, "example 0 has no finite label"),
        (
            {"inputs": torch.full((60, 2), 9), "vocabulary": 9},
            "inputs hold token ids from 9 to 9, but vocabulary is 9; give 0 to 8",
        ),
        ({"inputs": torch.full((60, 2), -1), "vocabulary": 9}, "inputs hold token ids from -1 to -1"),
        (
            {"inputs": torch.zeros(60, 2).int(), "vocabulary": 9, "embeddings": torch.zeros(8, 3)},
            "embeddings has 8 rows, but vocabulary is 9",
        ),
        ({"views": (View(label_map=(1, 0)),)}, r"label_map is \(1, 0\); map each of the 3 labels to one of them"),
        ({"views": (View(label_map=(1, 0, 3)),)}, r"label_map is \(1, 0, 3\)"),
    ],
)
def test_examples_that_do_not_fit_are_refused(changes: dict[str, Any], expected: str):
    with pytest.raises(InputError, match=expected):
        Own(pool(**changes)).federated(0)


def test_what_load_returns_has_to_be_examples():
    with pytest.raises(InputError, match="Own: load returns a dict; return Examples"):
        Own({"x": 1}).federated(0)


def test_names_are_as_many_as_labels():
    with pytest.raises(InputError, match="label_names has 2 names for 3 labels; give one for each"):
        pool(label_names=("cat", "dog"))
    assert [pool(label_names=("cat", "1", "2")).label_name(label) for label in (0, 1)] == ["0 ('cat')", "1"]
    assert pool().label_name(1) == "1"


def test_unseen_label_is_named_in_words():
    named = Own(pool(labels=torch.arange(60) // 59, label_names=("cat", "dog", "owl")))
    named.allow_unseen_labels = False
    with pytest.raises(InputError, match=r"the test data hold label 1 \('dog'\), which no training client has"):
        named.federated(0)


# A user's own shifts


class Moving(Shift):
    """Shift that replaces client 4's training list, and keeps the training lists of the first `kept` clients only."""

    def __init__(self, entries: list[int], kept: int = 6) -> None:
        object.__setattr__(self, "entries", entries)
        object.__setattr__(self, "kept", kept)
        object.__setattr__(self, "participants", "all")

    def step(self, data: FederatedData, at: ShiftContext) -> tuple[FederatedData, ShiftLog]:
        train = data.train.replace_lists(ids(4), ClientIndex.from_lists([ids(*self.entries)])).select(
            torch.arange(self.kept)
        )
        log = ShiftLog("moving", ids(4), ids(-1), ids(1), ids(0), ids(0))
        return replace(data, train=train), log


def test_shift_that_fits_is_taken():
    data, _ = apply_shifts(Own().federated(0), [Moving([59, 0])], 0, 0, torch.arange(6))
    assert data.train[4].tolist() == [59, 0]


@pytest.mark.parametrize(
    ("shift", "expected"),
    [
        (Moving([60]), "Moving: train: client 4 has the example 60, but examples are 0 to 59"),
        (Moving([-2]), "Moving: train: client 4 has the example -2"),
        (Moving([1], kept=5), "Moving: step returns train lists of 5 clients, but there are 6"),
    ],
)
def test_shift_that_does_not_fit_is_refused(shift: Shift, expected: str):
    with pytest.raises(InputError, match=expected):
        apply_shifts(Own().federated(0), [shift], 0, 0, torch.arange(6))
