"""Tests the mini-batches of a cohort and their permutations against a loop over clients and epochs."""

import ctypes
from itertools import pairwise
from typing import Any

import pytest
import torch

from lit_cfl.engines import steps as compiled
from lit_cfl.engines.mini_batches import (
    BatchSize,
    LastBatch,
    LocalTraining,
    MiniBatches,
    draw_batches,
)
from lit_cfl.engines.steps import draw_permutations, load_library
from lit_cfl.local_work import Budget
from lit_cfl.seeds import derive

SIZES, STEPS = torch.tensor([7, 1, 23, 4, 8, 20]), torch.tensor([5, 3, 7, 1, 2, 6])
SEEDS = [derive(3, "train", 5, client) for client in range(6)]


def one_by_one(seed: int, size: int, steps: int, batch_size: BatchSize, last: LastBatch) -> list[list[int]]:
    """Draws mini-batches one by one: per epoch, a `randperm` of the client's generator is cut into pieces."""
    rng, found = torch.Generator().manual_seed(seed), []
    while len(found) < steps:
        order = torch.randperm(size, generator=rng).tolist()
        width = size if batch_size == "full" else min(batch_size, size)
        pieces = [order[start : start + width] for start in range(0, size, width)]
        if len(pieces[-1]) < width and last != "keep":
            rest = pieces.pop()
            pieces[-1] += rest if last == "join" else []
        found += pieces
    return found[:steps]


def lists_of(batches: MiniBatches) -> list[list[int]]:
    return [one.tolist() for one in batches.lists()]


@pytest.mark.parametrize("last", ["keep", "drop", "join"])
@pytest.mark.parametrize("batch_size", [1, 4, 8, 100, "full"])
def test_a_cohorts_mini_batches_are_those_of_each_clients_own_generator(batch_size: BatchSize, last: LastBatch):
    table = draw_batches(SEEDS, SIZES, STEPS, batch_size, last)
    clients = zip(SEEDS, SIZES.tolist(), STEPS.tolist(), strict=True)
    found = lists_of(table)
    assert found == [batch for client in clients for batch in one_by_one(*client, batch_size, last)]
    assert found[8:15] == lists_of(draw_batches(SEEDS[2:3], SIZES[2:3], STEPS[2:3], batch_size, last))
    of_each = [int(part.sum()) for part in table.counts.split(STEPS.tolist())]
    local = LocalTraining(1, batch_size, last)
    assert local.count_examples(Budget(1, "steps"), STEPS, SIZES).tolist() == of_each


class Other:
    """Stand-in for compiled code whose permutations differ from PyTorch's, which is not used."""

    def permute(self, *given: int) -> None:
        ctypes.memset(given[-1], 255, 8)  # -1, as memory that is not written may hold permutations of before


@pytest.mark.parametrize("library", ["compiled", None, Other()], ids=["compiled", "PyTorch", "another shuffle"])
def test_each_client_gets_the_permutations_of_its_own_generator_one_after_the_other(
    library: Any, monkeypatch: pytest.MonkeyPatch
):
    found = load_library()[0] if library == "compiled" else library
    if library == "compiled" and found is not None:
        assert compiled._draws_as_pytorch(found)
    monkeypatch.setattr(compiled, "load_library", lambda: (found, ""))
    rng = torch.Generator().manual_seed(0)
    for clients, largest, most in ((300, 60, 4), (70, 1, 2), (70, 2, 3), (30, 5000, 2), (3, 9, 90), (1, 5, 0)):
        sizes = torch.randint(1, largest + 1, (clients,), generator=rng)
        counts = torch.randint(0, most + 1, (clients,), generator=rng)
        seeds = [derive(5, "train", client) for client in range(clients)]
        ends = [0, *(sizes * counts).cumsum(0).tolist()]
        drawn = draw_permutations(seeds, sizes, counts)
        assert len(drawn) == ends[-1]
        for seed, size, count, (start, stop) in zip(
            seeds, sizes.tolist(), counts.tolist(), pairwise(ends), strict=True
        ):
            own = torch.Generator().manual_seed(seed)
            expected = [torch.randperm(size, generator=own) for _ in range(count)]
            assert torch.equal(drawn[start:stop], torch.cat([drawn[:0], *expected]))
