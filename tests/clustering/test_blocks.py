"""Tests that clustering gives the same result from rows in chunks, on a memory map or in blocks of columns."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratic import rng
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from lit_cfl.aggregation import mean_by_cluster
from lit_cfl.clustering import (
    cosine_similarity,
    cross_distances,
    direction_cosines,
    distances,
    edc,
    merge_by_threshold,
    products,
    random_projection,
    similarity,
)

few = settings(deadline=None, derandomize=True, max_examples=12)
COLUMNS = 40
OTHERS = torch.randn(3, COLUMNS, generator=rng(9), dtype=torch.float64)
FUNCTIONS: dict[str, Callable[[Any], torch.Tensor]] = {
    "cosine_similarity": cosine_similarity,
    "edc": lambda rows: edc(rows, 2),
    "l1": lambda rows: distances(rows, "l1"),
    "l2": lambda rows: distances(rows, "l2"),
    "cosine": lambda rows: distances(rows, "cosine"),
    "cross l1": lambda rows: cross_distances(rows, OTHERS, "l1"),
    "cross l2": lambda rows: cross_distances(rows, OTHERS, "l2"),
    "cross cosine": lambda rows: cross_distances(rows, OTHERS, "cosine"),
    "direction_cosines": lambda rows: direction_cosines(rows, OTHERS),
    "merge_by_threshold": lambda rows: merge_by_threshold(rows, 0.1),
}


def rows_of(n: int, d: int = COLUMNS) -> torch.Tensor:
    return torch.randn(n, d, generator=rng(), dtype=torch.float64)


@contextmanager
def small_blocks(block_bytes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "BLOCK_BYTES", block_bytes)
        patch.setattr(products, "ROWS_AT_ONCE", 4)
        for module in (products, similarity):
            patch.setattr(module, "TILE", 4)
        yield


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@few
@given(cuts=st.lists(st.integers(0, 11), max_size=4).map(sorted), block_bytes=st.sampled_from([1, 500, 2000]))
def test_chunks_and_blocks_change_nothing(function: Callable[[Any], torch.Tensor], cuts: list[int], block_bytes: int):
    rows = rows_of(11)
    expected = function(rows)
    with small_blocks(block_bytes):
        found = function([rows[start:stop] for start, stop in zip([0, *cuts], [*cuts, 11], strict=True)])
    assert_close(found, expected, atol=1e-7, rtol=0)


class Largest(TorchDispatchMode):
    """Dispatch mode that records the number of elements of the largest new tensor."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.elements = max(self.elements, result.numel())
        return result


@pytest.mark.parametrize("name", [*FUNCTIONS, "mean_by_cluster", "random_projection"])
def test_no_copy_of_all_rows_is_made(name: str):
    rows, wide = rows_of(20, 50 * COLUMNS).float(), OTHERS.repeat(1, 50).float()
    functions = FUNCTIONS | {
        "cross l1": lambda rows: cross_distances(rows, wide, "l1"),
        "cross l2": lambda rows: cross_distances(rows, wide, "l2"),
        "cross cosine": lambda rows: cross_distances(rows, wide, "cosine"),
        "direction_cosines": lambda rows: direction_cosines(rows, wide),
        "mean_by_cluster": lambda rows: mean_by_cluster(rows, torch.arange(20) % 2),
        "random_projection": random_projection(50 * COLUMNS, 100, 0),
    }
    with small_blocks(16_000), Largest() as largest:
        functions[name](rows)
    assert 0 < largest.elements <= max(2 * 50 * COLUMNS, 20 * 20)  # the matrix of all rows has 20 * 2,000 elements
