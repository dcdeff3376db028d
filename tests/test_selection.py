"""Tests the selection of cohorts (docs/ground_truth.md, check 29)."""

from hashlib import blake2b
from random import Random

import pytest
import torch
from quadratic import ids

from lit_cfl.errors import InputError
from lit_cfl.rounds import Cohorts, SelectionRule, drop_out
from lit_cfl.seeds import derive, generator


def select(round: int, population: torch.Tensor, size: int, seed: int, rule: SelectionRule = "uniform") -> torch.Tensor:
    return Cohorts(size, rule, seed=seed).at(round, population, run_seed=0)


def turns(clients: int, size: int, rounds: int) -> list[list[int]]:
    return [select(t, torch.arange(clients), size, 2077, "round_robin_first").tolist() for t in range(rounds)]


def sampled(round: int, clients: int, size: int, seed: int) -> list[int]:
    return sorted(Random(seed + round).sample(range(clients), size))


def test_first_draw_of_the_published_code():
    drawn = Random(2077).sample(range(200), 100)
    assert drawn[:10] == [88, 74, 17, 0, 73, 164, 171, 9, 103, 101]
    assert select(0, torch.arange(200), 100, 2077).tolist() == sorted(drawn)
    for round in (1, 2, 7):
        assert select(round, torch.arange(30), 7, 2077).tolist() == sampled(round, 30, 7, 2077)


def test_clients_take_turns_first_and_are_then_drawn():
    assert turns(8, 4, rounds=4) == [[0, 1, 2, 3], [4, 5, 6, 7], sampled(2, 8, 4, 2077), sampled(3, 8, 4, 2077)]
    # the last turn wraps to the head, since round 2 is below 10/4
    assert turns(10, 4, rounds=4) == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 8, 9], sampled(3, 10, 4, 2077)]


def test_everybody_is_chosen_when_the_cohort_is_the_population():
    for rule in ("uniform", "round_robin_first"):
        assert select(3, ids(2, 5, 9), 3, 1, rule).tolist() == [2, 5, 9]


def test_positions_are_drawn_where_ids_have_gaps():
    population = ids(1, 4, 5, 20, 21, 40, 77)
    assert select(1, population, 3, 0, "round_robin_first").tolist() == [20, 21, 40]
    assert select(2, population, 3, 0, "round_robin_first").tolist() == [1, 4, 77]
    assert select(5, population, 3, 0).tolist() == [int(population[k]) for k in sampled(5, 7, 3, 0)]


@pytest.mark.parametrize(
    ("clients", "size", "possible"), [(5, 0, "1 to 5"), (5, -1, "1 to 5"), (5, 6, "1 to 5"), (1, 2, "1$")]
)
def test_cohort_that_cannot_be_drawn_is_refused(clients: int, size: int, possible: str):
    with pytest.raises(InputError, match=f"cohort_size is {size}, .*give {possible}"):
        select(0, torch.arange(clients), size, 0)


def test_runs_with_neighbouring_seeds_share_no_cohort():
    def seen(seed: int) -> set[tuple[int, ...]]:
        return {tuple(Cohorts(10).at(t, torch.arange(100), seed).tolist()) for t in range(50)}

    assert len(seen(0)) == 50
    assert not seen(0) & seen(1)


@pytest.mark.parametrize("seed", [2077, 0])
def test_selection_seed_gives_all_runs_the_same_cohorts(seed: int):
    population, cohorts = torch.arange(50), Cohorts(6, seed=seed)
    assert cohorts.at(3, population, 9).tolist() == cohorts.at(3, population, 1).tolist() == sampled(3, 50, 6, seed)


# Dropout


@pytest.mark.parametrize("cohort", [ids(0), ids(2, 3, 5, 7, 11, 13), torch.arange(0, 100, 3), torch.arange(60, 100)])
def test_dropping_out_does_not_depend_on_who_else_was_asked(cohort: torch.Tensor):
    left = set(drop_out(torch.arange(100), 0.4, seed=3, round=5).tolist())
    assert drop_out(cohort, 0.4, seed=3, round=5).tolist() == [k for k in cohort.tolist() if k in left]


def test_each_client_drops_out_with_the_probability():
    assert len(drop_out(torch.arange(10_000), 0.3, seed=0, round=0)) == pytest.approx(7000, abs=200)


def test_dropping_out_changes_with_round_and_seed():
    left = [tuple(drop_out(torch.arange(50), 0.5, seed, round).tolist()) for seed, round in ((0, 0), (0, 1), (1, 0))]
    assert len(set(left)) == 3


def test_nobody_or_everybody_may_be_left():
    assert drop_out(ids(3, 8), 0.0, seed=0, round=0).tolist() == [3, 8]
    assert drop_out(torch.arange(5), 1 - 1e-12, seed=0, round=0).tolist() == []


def test_cohort_with_dropout_is_part_of_the_cohort_without():
    population = torch.arange(100)
    whole = Cohorts(40).at(2, population, 1)
    left = Cohorts(40, dropout=0.5).at(2, population, 1)
    assert 0 < len(left) < 40
    assert left.tolist() == drop_out(whole, 0.5, seed=1, round=2).tolist()


# Random streams


def test_derived_seed_is_the_hash_of_its_purpose():
    digest = blake2b(b"7/train/3/12", digest_size=8).digest()
    assert derive(7, "train", 3, 12) == int.from_bytes(digest, "big") // 2


def test_streams_of_different_purposes_differ():
    streams = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1, 2), (0, "a", 12)]
    seeds = {derive(*stream) for stream in streams}
    assert len(seeds) == 6
    assert torch.rand(1, generator=generator(0, "a")) != torch.rand(1, generator=generator(0, "b"))
