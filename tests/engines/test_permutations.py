"""Permutations that are shuffled together against those of each client's own generator."""

import torch
from torch import Tensor

from lit_cfl.engines import permutations
from lit_cfl.engines.permutations import Permutations
from lit_cfl.seeds import derive


def one_by_one(seeds: list[int], sizes: Tensor, counts: Tensor) -> Tensor:
    found = [torch.empty(0, dtype=torch.int64)]
    for seed, size, count in zip(seeds, sizes.tolist(), counts.tolist(), strict=True):
        rng = torch.Generator().manual_seed(seed)
        found += [torch.randperm(size, generator=rng) for _ in range(count)]
    return torch.cat(found)


def cohort(clients: int, largest: int, most: int) -> tuple[list[int], Tensor, Tensor]:
    rng = torch.Generator().manual_seed(clients)
    sizes = torch.randint(1, largest + 1, (clients,), generator=rng)
    counts = torch.randint(0, most + 1, (clients,), generator=rng)
    return [derive(5, "train", client) for client in range(clients)], sizes, counts


def test_permutations_shuffled_together_are_those_of_each_clients_generator():
    assert permutations._shuffles_as_expected()  # so that the together below is one
    for clients, largest, most in ((300, 60, 4), (70, 1, 2), (70, 2, 3), (120, 700, 2), (3, 9, 40), (1, 5, 0)):
        seeds, sizes, counts = cohort(clients, largest, most)
        found = Permutations(seeds, sizes, counts, together=True).draw_all("cpu")
        assert torch.equal(found, one_by_one(seeds, sizes, counts))


def test_few_of_a_length_are_drawn_one_by_one_beside_many_of_another():
    sizes = torch.cat([torch.full((80,), 12), torch.tensor([3000, 5])])
    seeds, counts = [derive(5, "train", client) for client in range(82)], torch.full((82,), 2)
    made = Permutations(seeds, sizes, counts, together=True)
    assert [len(clients) for clients, _ in made._shuffles] == [80]
    assert torch.equal(made.draw_all("cpu"), one_by_one(seeds, sizes, counts))


def test_where_pytorch_shuffled_in_another_way_all_are_drawn_one_by_one(monkeypatch):
    monkeypatch.setattr(permutations, "_shuffles_as_expected", lambda: False)
    seeds, sizes, counts = cohort(300, 60, 4)
    made = Permutations(seeds, sizes, counts, together=True)
    assert not made._shuffles
    assert torch.equal(made.draw_all("cpu"), one_by_one(seeds, sizes, counts))
