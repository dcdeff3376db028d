"""Tests when the local models of a fit are trained and known, held in memory or read once; and budgets of a fit.

What a fit answers is stated by `test_local_work.py`.
"""

from collections.abc import Iterator
from math import isnan, nan
from typing import Any

import pytest
import torch
from quadratic import ids

from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget, Chunk, Fitted

ROWS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def chunks(done: list[int], trained: tuple[bool, ...] = (True, True, True)) -> Iterator[Chunk]:
    """Yields a chunk of two clients and a chunk of one, with the losses 3, 7 and 10; NaN for untrained clients."""
    rows, mask = torch.tensor(ROWS), torch.tensor(trained)
    losses = torch.where(mask, torch.tensor([3.0, 7.0, 10.0]), nan)
    for part in (slice(0, 2), slice(2, 3)):
        done.append(part.start)
        yield Chunk(part.start, rows[part], losses[part], mask[part])


def fit(*trained: bool, held: bool, done: list[int] | None = None) -> Fitted:
    return Fitted(chunks([] if done is None else done, trained or (True, True, True)), ids(1, 5, 2), held=held)


def test_a_held_fit_trains_at_once_and_is_read_as_often_as_wanted():
    done: list[int] = []
    fitted = fit(held=True, done=done)
    assert done == [0, 2]
    for _ in range(2):
        assert [chunk.start for chunk in fitted.chunks()] == [0, 2]
    assert fitted.rows.tolist() == ROWS
    assert fitted.losses.tolist() == [3, 7, 10]  # no client is counted twice


def test_a_fit_that_is_not_held_trains_while_it_is_read_and_cannot_be_restarted():
    done: list[int] = []
    fitted = fit(held=False, done=done)
    reader = fitted.chunks()
    assert done == []
    assert next(reader).models.tolist() == ROWS[:2]
    assert done == [0]
    for name in ("losses", "trained", "loss", "skipped"):
        with pytest.raises(RuntimeError, match="read the chunks"):
            getattr(fitted, name)
    with pytest.raises(RuntimeError, match="read already"):
        next(fitted.chunks())
    list(reader)
    assert fitted.loss == (1 * 3 + 5 * 7 + 2 * 10) / 8
    with pytest.raises(RuntimeError, match=r"chunks\(\)"):
        _ = fitted.rows


def test_the_loss_leaves_out_who_did_not_train():
    fitted = fit(True, False, True, held=True)
    assert fitted.loss == pytest.approx((1 * 3 + 2 * 10) / 3)
    nobody = fit(False, False, False, held=True)
    assert isnan(nobody.loss)
    assert (fitted.skipped, nobody.skipped) == (1, 3)
    assert isnan(Fitted(iter(()), ids(), held=True).loss)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ((0, "steps"), "0 steps"),
        ((1.5, "epochs"), r"length is 1\.5"),
        ((1, "epochs", 0), "batch_size is 0"),
    ],
)
def test_a_budget_that_trains_nothing_is_refused(options: Any, named: str):
    with pytest.raises(InputError, match=named):
        Budget(*options)
