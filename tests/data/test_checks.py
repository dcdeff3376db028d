"""Tests the checks of examples, divisions and shifts from users: what is refused, noted, or taken in silence."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from own_arrays import assert_refused
from quadratic import ids

from lit_cfl.data import ClientIndex, Division, Examples, FederatedData, View
from lit_cfl.data.shift import Shift, ShiftContext, ShiftLog, apply_shifts
from lit_cfl.datamodules import FederatedDataModule
from lit_cfl.errors import Notice


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


VIEWED = pool(views=(View(), View(label_map=(1, 2, 0))))


def lists(**changed: list[int]) -> Callable[[Division], Division]:
    """Returns a function that replaces lists in a division; the keyword `train2` sets client 2's training list."""

    def change(division: Division) -> Division:
        parts = {"train": list(division.train), "test": list(division.test)}
        for name, entries in changed.items():
            parts[name[:-1]][int(name[-1])] = ids(*entries)
        train, test = (ClientIndex.from_lists(parts[name]) for name in ("train", "test"))
        return replace(division, train=train, test=test)

    return change


def train(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Division], Division]:
    return lambda d: replace(d, train=replace(d.train, **{name: change(getattr(d.train, name))}))


@pytest.mark.parametrize(
    ("change", "quoted"),
    [
        (lists(train2=[500, 501]), "Own | train: client 2 | example 500 | 0 to 59"),
        (lists(train3=[-1, 31]), "train: client 3 | example -1"),
        (lambda d: replace(d, true_clusters=torch.arange(3)), "true_clusters | int64 | (3,) | [6]"),
        (lambda d: replace(d, test=d.test.select(ids(0, 1))), "train | 6 clients | test for 2"),
        (train("values", torch.Tensor.int), "ClientIndex of torch.int32"),
        (train("starts", lambda starts: starts + 5), "train | beyond its 48 values"),
    ],
)
def test_division_that_does_not_fit_is_refused(change: Callable[[Division], Any], quoted: str):
    assert_refused(lambda: Own(change=change).federated(0), quoted)


@pytest.mark.parametrize(
    ("changes", "quoted"),
    [
        ({"inputs": torch.zeros(60, 2).index_fill(0, ids(7), torch.nan)}, "example 7 | NaN"),
        ({"inputs": torch.zeros(50, 2)}, "inputs | (50, 2) | labels | (60,)"),
        ({"labels": torch.arange(60)}, "example 3 | label 3 | num_labels is 3"),
        ({"labels": torch.full((60,), -1)}, "example 0 | label -1 | num_labels is 3"),
        ({"labels": torch.arange(60), "num_labels": 0}, "example 1 | label 1 | num_labels is 0"),
        ({"labels": torch.full((60,), torch.nan), "num_labels": 0}, "example 0 | finite label"),
        ({"labels": torch.full((60, 2), 1.5), "num_labels": 0}, "1.5 | row 0, column 0"),
        ({"inputs": torch.full((60, 2), 9), "vocabulary": 9}, "token ids from 9 to 9 | vocabulary is 9"),
        ({"views": (View(label_map=(1, 0, 3)),)}, "label_map is (1, 0, 3)"),
    ],
)
def test_examples_that_do_not_fit_are_refused(changes: dict[str, Any], quoted: str):
    assert_refused(lambda: Own(pool(**changes)).federated(0), quoted)


def test_other_mistakes_of_a_data_module_are_refused():
    assert_refused(lambda: View(noise=float("inf")), "a noise level is inf | 0 or more")
    assert_refused(lambda: Own({"x": 1}).federated(0), "load | dict | Examples")
    named = Own(pool(labels=torch.arange(60) // 59, label_names=("cat", "dog", "owl")))
    named.allow_unseen_labels = False
    assert_refused(lambda: named.federated(0), "test | label 1 ('dog') | allow_unseen_labels")
    assert [pool(label_names=("cat", "1", "2")).label_name(label) for label in (0, 1)] == ["0 ('cat')", "1"]
    assert_refused(Own(VIEWED, lists(train2=[119, 120])), "client 2 | example 120 | 0 to 119 | 2 views")


SHARED = ClientIndex(ids(2, 59, 59), torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([2, 2, 2, 2, 2, 0]))


@pytest.mark.parametrize(
    ("examples", "change", "expected"),
    [
        (None, lambda division: division, []),
        (None, train("values", lambda values: torch.cat([values, ids(700, -3)])), []),  # which nobody has
        (VIEWED, lists(train2=[119]), []),
        (VIEWED, lists(train1=[10, 70]), []),  # an image under another view
        (None, lists(train1=[10, 11, 10]), ["train: 1 client | repeated | (1; such as example 10)"]),
        (None, lists(test4=[48, 48]), ["test: 1 client | repeated | (4; such as example 48)"]),
        (None, lists(train1=[10, 18]), ["1 client | tested on training examples | (1; such as example 18)"]),
        (VIEWED, lists(train1=[10, 78]), ["1 client | tested on training examples | (1; such as example 18)"]),
        # clients may share examples
        (None, lists(train1=[0, 1, 2], test2=[0, 1], train0=[9, 2]), ["1 client | tested | (0; such as example 9)"]),
        # clients 0 and 3 have one test list
        (
            None,
            lambda division: replace(lists(train3=[30, 2])(division), test=SHARED),
            ["test: 1 client | repeated | (4; such as example 59)", "2 clients | tested | (0, 3; such as example 2)"],
        ),
    ],
)
def test_repeats_and_overlaps_in_a_client_are_noted(examples: Any, change: Any, expected: list[str], recwarn):
    Own(examples, change).federated(0)
    notes = [str(one.message) for one in recwarn if one.category is Notice]
    assert len(notes) == len(expected)
    for note, quoted in zip(notes, expected, strict=True):
        assert all(part in note for part in ("Own: ", *quoted.split(" | ")))


@dataclass(frozen=True)
class Moving(Shift):
    """Shift that replaces client 4's training list, and keeps the training lists of the first `kept` clients only."""

    entries: Any = ()
    kept: int = 6

    def step(self, data: FederatedData, at: ShiftContext) -> tuple[FederatedData, ShiftLog]:
        changed = data.train.replace_lists(ids(4), ClientIndex.from_lists([ids(*self.entries)]))
        log = ShiftLog("moving", ids(4), ids(-1), ids(1), ids(0), ids(0))
        return replace(data, train=changed.select(torch.arange(self.kept))), log


def test_a_users_shift_is_checked():
    def shifted(shift: Shift) -> FederatedData:
        return apply_shifts(Own().federated(0), [shift], 0, 0, torch.arange(6))[0]

    assert shifted(Moving([59, 0])).train[4].tolist() == [59, 0]
    assert_refused(lambda: shifted(Moving([60])), "Moving | train: client 4 | example 60 | 0 to 59")
    assert_refused(lambda: shifted(Moving([-2])), "Moving | train: client 4 | example -2")
    assert_refused(lambda: shifted(Moving([1], kept=5)), "Moving | train | 5 clients | 6")
