"""Tests the round loop, the traffic ledger and the selection of cohorts (docs/ground_truth.md, checks 27 and 29)."""

from hashlib import blake2b
from random import Random

import pytest
import torch
from few_rounds import empty_data
from quadratic import ids, quadratic_clients

from lit_cfl.algorithms import Algorithm, FedAvg, FedGroup
from lit_cfl.rounds import Cohorts, Round, SelectionRule, drop_out, rounds
from lit_cfl.seeds import derive


def run(algorithm: Algorithm, clients: int, cohorts: Cohorts, num_rounds: int) -> list[Round]:
    work, data = quadratic_clients(clients), empty_data(clients)
    return list(rounds(algorithm, work, data, cohorts, seed=5, num_rounds=num_rounds))


def test_traffic_of_pretraining_is_in_the_first_round():
    first, second = run(FedGroup(num_clusters=2, pretrain_scale=15), 30, Cohorts(5), 2)
    assert (first.info.down, first.info.up) == (5 + 30, 5 + 30)
    assert (second.info.down, second.info.up) == (5, 5)
    assert (second.traffic.down, second.traffic.up) == (40, 40)
    assert (first.info.similarity is None, second.info.similarity is None) == (False, True)


def test_local_work_counts_pretraining_cold_starts_and_every_epoch():
    work = quadratic_clients(1000)
    sizes = work.num_examples
    algorithm = FedGroup(num_clusters=3, pretrain_scale=20)
    found = run(algorithm, 1000, Cohorts(20, "round_robin_first"), 3)
    founders, cohorts = found[0].state.founders, [torch.arange(20 * k, 20 * k + 20) for k in range(3)]
    joined = [cohort[~torch.isin(cohort, founders)] for cohort in cohorts]
    steps = [3 * 20 + len(new) for new in joined]  # a round trains for three steps, pre-training for one
    steps[0] += 60
    examples = [int(3 * sizes[cohort].sum() + sizes[new].sum()) for cohort, new in zip(cohorts, joined, strict=True)]
    examples[0] += int(sizes[founders].sum())
    assert [r.costs.steps for r in found] == torch.tensor(steps).cumsum(0).tolist()
    assert [r.costs.examples for r in found] == torch.tensor(examples).cumsum(0).tolist()
    assert found[-1].costs.scored == 0


def test_everybody_takes_part_where_the_algorithm_needs_it():
    class Whole(FedAvg):
        def needs_all(self, round: int) -> bool:
            return round == 1

    counts = [r.info.down for r in run(Whole(), 12, Cohorts(3, dropout=0.5), 3)]
    assert counts[1] == 12
    assert max(counts[0], counts[2]) <= 3


def select(round: int, population: torch.Tensor, size: int, seed: int, rule: SelectionRule = "uniform") -> torch.Tensor:
    return Cohorts(size, rule, seed=seed).at(round, population, run_seed=0)


def sampled(round: int, clients: int, size: int, seed: int) -> list[int]:
    return sorted(Random(seed + round).sample(range(clients), size))


def test_first_draw_of_the_published_code():
    drawn = Random(2077).sample(range(200), 100)
    assert drawn[:10] == [88, 74, 17, 0, 73, 164, 171, 9, 103, 101]
    assert select(0, torch.arange(200), 100, 2077).tolist() == sorted(drawn)
    for round in (1, 2, 7):
        assert select(round, torch.arange(30), 7, 2077).tolist() == sampled(round, 30, 7, 2077)


@pytest.mark.parametrize(
    ("clients", "turns"),
    [
        (8, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (10, [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 8, 9]]),  # the last turn wraps to the head, since 2 is below 10/4
    ],
)
def test_clients_take_turns_first_and_are_then_drawn(clients: int, turns: list[list[int]]):
    found = [select(t, torch.arange(clients), 4, 2077, "round_robin_first").tolist() for t in range(4)]
    assert found == [*turns, *(sampled(t, clients, 4, 2077) for t in range(len(turns), 4))]


def test_positions_are_drawn_where_ids_have_gaps():
    population = ids(1, 4, 5, 20, 21, 40, 77)
    assert select(1, population, 3, 0, "round_robin_first").tolist() == [20, 21, 40]
    assert select(2, population, 3, 0, "round_robin_first").tolist() == [1, 4, 77]
    assert select(5, population, 3, 0).tolist() == [int(population[k]) for k in sampled(5, 7, 3, 0)]
    for rule in ("uniform", "round_robin_first"):  # everybody
        assert select(3, ids(2, 5, 9), 3, 1, rule).tolist() == [2, 5, 9]


def test_runs_with_neighbouring_seeds_share_no_cohort():
    def seen(seed: int) -> set[tuple[int, ...]]:
        return {tuple(Cohorts(10).at(t, torch.arange(100), seed).tolist()) for t in range(50)}

    assert len(seen(0)) == 50
    assert not seen(0) & seen(1)


@pytest.mark.parametrize("seed", [2077, 0])
def test_selection_seed_gives_all_runs_the_same_cohorts(seed: int):
    population, cohorts = torch.arange(50), Cohorts(6, seed=seed)
    assert cohorts.at(3, population, 9).tolist() == cohorts.at(3, population, 1).tolist() == sampled(3, 50, 6, seed)


@pytest.mark.parametrize("cohort", [ids(0), ids(2, 3, 5, 7, 11, 13), torch.arange(0, 100, 3), torch.arange(60, 100)])
def test_dropping_out_does_not_depend_on_who_else_was_asked(cohort: torch.Tensor):
    left = set(drop_out(torch.arange(100), 0.4, seed=3, round=5).tolist())
    assert drop_out(cohort, 0.4, seed=3, round=5).tolist() == [k for k in cohort.tolist() if k in left]


def test_each_client_drops_out_with_the_probability_by_round_and_seed():
    assert len(drop_out(torch.arange(10_000), 0.3, seed=0, round=0)) == pytest.approx(7000, abs=200)
    left = [tuple(drop_out(torch.arange(50), 0.5, seed, round).tolist()) for seed, round in ((0, 0), (0, 1), (1, 0))]
    assert len(set(left)) == 3


def test_derived_seed_is_the_hash_of_its_purpose():
    digest = blake2b(b"7/train/3/12", digest_size=8).digest()
    assert derive(7, "train", 3, 12) == int.from_bytes(digest, "big") // 2
