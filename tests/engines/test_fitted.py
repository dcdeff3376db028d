"""Tests the local models of a fit, held in memory or read once, and the budget of a fit."""

from collections.abc import Iterator
from math import isnan, nan

import pytest
import torch
from quadratic import ids

from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget, Chunk, Fitted

ROWS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
NUM_EXAMPLES = ids(1, 5, 2)


def chunks(trained: tuple[bool, bool, bool] = (True, True, True)) -> Iterator[Chunk]:
    """Yields a chunk of two clients and a chunk of one, with the losses 3, 7 and 10; NaN for untrained clients."""
    rows, done = torch.tensor(ROWS), torch.tensor(trained)
    losses = torch.where(done, torch.tensor([3.0, 7.0, 10.0]), nan)
    for part in (slice(0, 2), slice(2, 3)):
        yield Chunk(part.start, rows[part], losses[part], done[part])


def fit(trained: tuple[bool, bool, bool] = (True, True, True), *, held: bool) -> Fitted:
    return Fitted(chunks(trained), NUM_EXAMPLES, held=held)


def read(fitted: Fitted) -> list[int]:
    return [chunk.start for chunk in fitted.chunks()]


def nobody(*, held: bool) -> Fitted:
    return Fitted(iter(()), ids(), held=held)


def test_held_fit_has_all_rows_at_once():
    fitted = fit(held=True)
    assert fitted.rows.tolist() == ROWS
    assert fitted.losses.tolist() == [3, 7, 10]
    assert fitted.trained.tolist() == [True, True, True]


def test_held_fit_is_read_as_often_as_wanted():
    fitted = fit(held=True)
    assert read(fitted) == read(fitted) == [0, 2]
    assert fitted.losses.tolist() == [3, 7, 10]  # no client is counted twice


def test_held_fit_trains_before_it_is_asked():
    done = []
    Fitted((done.append(chunk.start) or chunk for chunk in chunks()), NUM_EXAMPLES, held=True)
    assert done == [0, 2]


def test_fit_that_is_not_held_trains_while_it_is_read():
    done = []
    fitted = Fitted((done.append(chunk.start) or chunk for chunk in chunks()), NUM_EXAMPLES, held=False)
    reader = fitted.chunks()
    assert done == []
    assert next(reader).models.tolist() == ROWS[:2]
    assert done == [0]


def test_fit_that_is_not_held_is_read_once():
    fitted = fit(held=False)
    assert read(fitted) == [0, 2]
    with pytest.raises(RuntimeError, match="was read already"):
        read(fitted)


def test_a_partly_read_fit_cannot_be_restarted():
    fitted = fit(held=False)
    next(fitted.chunks())
    with pytest.raises(RuntimeError, match="was read already"):
        next(fitted.chunks())


def test_fit_that_is_not_held_has_no_rows():
    fitted = fit(held=False)
    read(fitted)
    with pytest.raises(RuntimeError, match=r"read chunks\(\) instead"):
        _ = fitted.rows


@pytest.mark.parametrize("name", ["losses", "trained", "loss", "skipped"])
def test_losses_are_known_after_reading_only(name: str):
    fitted = fit(held=False)
    with pytest.raises(RuntimeError, match="read the chunks of this fit first"):
        getattr(fitted, name)
    next(reader := fitted.chunks())
    with pytest.raises(RuntimeError, match="read the chunks of this fit first"):
        getattr(fitted, name)
    list(reader)
    getattr(fitted, name)


@pytest.mark.parametrize("held", [True, False])
def test_loss_is_weighted_by_examples(held: bool):
    fitted = fit(held=held)
    read(fitted)
    assert fitted.loss == (1 * 3 + 5 * 7 + 2 * 10) / 8


def test_loss_leaves_out_who_did_not_train():
    fitted = fit((True, False, True), held=True)
    assert fitted.loss == pytest.approx((1 * 3 + 2 * 10) / 3)
    assert fitted.losses[1].isnan()
    assert fitted.skipped == 1


def test_loss_is_nan_if_nobody_trained():
    fitted = fit((False, False, False), held=True)
    assert isnan(fitted.loss)
    assert fitted.skipped == 3


@pytest.mark.parametrize("held", [True, False])
def test_fit_of_nobody_has_no_losses(held: bool):
    fitted = nobody(held=held)
    assert (len(fitted.losses), len(fitted.trained), fitted.skipped, read(fitted)) == (0, 0, 0, [])
    assert isnan(fitted.loss)


def test_fit_of_nobody_has_no_rows():
    with pytest.raises(RuntimeError, match="no client was asked to train"):
        _ = nobody(held=True).rows


@pytest.mark.parametrize("length", [0, -2])
def test_budget_that_trains_nothing_is_refused(length: int):
    with pytest.raises(InputError, match=f"a budget of {length} steps trains nothing; give 1 or more"):
        Budget(length, "steps")


@pytest.mark.parametrize("size", [0, -1])
def test_batch_without_examples_is_refused(size: int):
    with pytest.raises(InputError, match=f"batch_size is {size}; give 1 or more, or 'full'"):
        Budget(1, "epochs", size)


@pytest.mark.parametrize("size", [1, "full", None])
def test_batch_size_may_be_a_number_full_or_the_runs(size: int | str | None):
    assert Budget(3, "steps", size).batch_size == size
