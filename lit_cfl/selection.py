"""Selection of the clients of a round."""

from random import Random
from typing import Literal

import torch
from torch import Tensor

from lit_cfl.errors import InputError
from lit_cfl.seeds import derive, generator

SelectionRule = Literal["uniform", "round_robin_first"]


def select(round: int, population: Tensor, cohort_size: int, seed: int, rule: SelectionRule = "uniform") -> Tensor:
    """Draws the cohort of a round.

    Args:
        round: Number of completed rounds, t = 0 in the first round.
        population: Ids to choose from, ascending int64 `[N]`.
        cohort_size: Clients per round K, 1 to N.
        seed: Seed; round t draws with `random.Random(seed + t).sample`, as FlexCFL's published code does (with 2077).
        rule: `uniform` without replacement, or `round_robin_first`: while round < N/K the clients take turns in the
            order of their ids (the last turn continues with the first ids), so that each is seen; then `uniform`.

    Returns:
        Ids, int64 `[K]`, ascending, so that sums do not depend on the order of the draw.
    """
    clients = len(population)
    if not 1 <= cohort_size <= clients:
        there = "is 1 client; give 1" if clients == 1 else f"are {clients} clients; give 1 to {clients}"
        raise InputError(f"cohort_size is {cohort_size}, but there {there}")
    if rule == "round_robin_first" and round < clients / cohort_size:
        first = round * cohort_size
        chosen = [(first + k) % clients for k in range(cohort_size)]
    else:
        chosen = Random(seed + round).sample(range(clients), cohort_size)
    return population[torch.tensor(chosen)].sort().values


def drop_out(cohort: Tensor, probability: float, seed: int, round: int) -> Tensor:
    """Removes clients from the cohort `[n]`, each with this probability. The result may be empty."""
    if not probability:
        return cohort
    if not 0 <= probability < 1:
        raise InputError(f"dropout is {probability}; give a probability, 0 or more and below 1")
    draws = torch.rand(int(cohort.max()) + 1, generator=generator(seed, "dropout", round))
    return cohort[draws[cohort] >= probability]


def selection_seed(seed: int) -> int:
    """Derives the default seed for drawing cohorts, so that runs with neighbouring seeds draw different ones."""
    return derive(seed, "selection")
