"""Permutations drawn by the compiled code, and by PyTorch, against those of each client's own generator."""

from itertools import pairwise

import pytest
import torch

from lit_cfl.engines import permutations
from lit_cfl.engines.library import load_library
from lit_cfl.engines.permutations import draw_permutations
from lit_cfl.seeds import derive


def require_those_of_each_generator() -> None:
    rng = torch.Generator().manual_seed(0)
    for clients, largest, most in ((300, 60, 4), (70, 1, 2), (70, 2, 3), (30, 5000, 2), (3, 9, 90), (1, 5, 0)):
        sizes = torch.randint(1, largest + 1, (clients,), generator=rng)
        counts = torch.randint(0, most + 1, (clients,), generator=rng)
        seeds = [derive(5, "train", client) for client in range(clients)]
        ends = [0, *(sizes * counts).cumsum(0).tolist()]
        found = draw_permutations(seeds, sizes, counts)
        assert len(found) == ends[-1]
        each = zip(seeds, sizes.tolist(), counts.tolist(), pairwise(ends), strict=True)
        for seed, size, count, (start, stop) in each:
            own = torch.Generator().manual_seed(seed)
            expected = [torch.randperm(size, generator=own) for _ in range(count)]
            assert torch.equal(found[start:stop], torch.cat([found[:0], *expected]))


@pytest.mark.parametrize("library", [load_library(), (None, "PyTorch alone")], ids=["compiled", "PyTorch"])
def test_each_client_gets_the_permutations_of_its_own_generator_one_after_the_other(library, monkeypatch):
    monkeypatch.setattr(permutations, "load_library", lambda: library)
    require_those_of_each_generator()


class Other:
    """Stands in for compiled code that draws other permutations than this PyTorch: it leaves whatever is there."""

    def permute(self, *given: int) -> None:
        pass


def test_compiled_code_that_draws_others_than_this_pytorch_is_not_used(monkeypatch):
    other = Other()
    monkeypatch.setattr(permutations, "load_library", lambda: (other, "compiled"))
    require_those_of_each_generator()
