"""What a run carries from round to round, and its checkpoints with it."""

from typing import Any

import pytest
import torch
from quadratic import ids

from lit_cfl.algorithms.base import Info
from lit_cfl.data.shift import ShiftLog
from lit_cfl.rounds import Round, Traffic
from lit_cfl.runs.run_totals import RunTotals, is_due


def moves(*examples: int) -> ShiftLog:
    """A shift of clients, with the number of examples of each."""
    nobody = torch.full((len(examples),), -1)
    return ShiftLog("swap", torch.arange(len(examples)), nobody, ids(*examples), nobody, nobody)


def after(*moved: ShiftLog, skipped: int = 0) -> Round:
    nothing: Any = None  # state and data are not looked at
    return Round(0, nothing, Info(skipped=skipped), nothing, Traffic(), moved)


def test_what_shifted_and_who_was_skipped_is_counted_over_rounds_and_shifts_and_then_anew():
    totals = RunTotals()
    totals.count(after(moves(3, 4), moves(5), skipped=2))
    totals.count(after(moves(10), skipped=1))
    assert totals.row(shifting=True) == {
        "clients/skipped": 3,
        "clusters/silhouette": None,
        "shift/clients": 4,
        "shift/examples": 22,
    }
    assert totals.row(shifting=False) == {"clients/skipped": 0, "clusters/silhouette": None}


def test_a_checkpoint_holds_what_was_carried_then():
    totals = RunTotals(
        members=ids(0, 1), memberships={0: ids(0, 1)}, best={"mae": 0.5}, silhouette=0.25, skipped=3, compared=7
    )
    content = totals.content()
    totals.memberships[10] = ids(1, 1)
    totals.best["mae"] = 0.25
    totals.count(after(moves(1)))
    restored = RunTotals.restore(content | {"round": 7})
    assert list(restored.memberships) == [0]
    assert (restored.best, restored.silhouette, restored.skipped, restored.compared) == ({"mae": 0.5}, 0.25, 3, 7)
    assert restored.shifted == [0, 0]


@pytest.mark.parametrize(
    ("round", "last", "expected"),
    [(1, None, True), (8, None, True), (10, 1, False), (11, 1, True), (11, 10, True), (20, 11, False), (26, 11, True)],
)
def test_every_stretch_of_rounds_has_its_first_evaluation(round: int, last: int | None, expected: bool):
    assert is_due(round, last, 10) is expected
