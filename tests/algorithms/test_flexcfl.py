"""Tests FlexCFL on quadratic clients (docs/ground_truth.md, checks 13, 14, 16, 18 and 27)."""

from dataclasses import replace

import torch
from quadratic import Clients, clients_at, ids, rng
from torch.testing import assert_close

from lit_cfl.algorithms.flexcfl import FlexCFL
from lit_cfl.local_work import Budget

TWO = FlexCFL(num_clusters=2, pretrain=Budget(1, "steps"))
CENTERS, SIZES = (4, -4, 8, -8, 12, -12), (1, 2, 3, 1, 1, 4)


def line(centers: tuple[int, ...] = CENTERS, sizes: tuple[int, ...] = SIZES) -> Clients:
    """Makes clients on a line; those right of 0 have labels 0 and 1, and those left of it 2 and 3."""
    n, side = torch.tensor(sizes), torch.tensor(centers) < 0
    pairs = torch.stack([n - (n > 1).long(), (n > 1).long()], 1)
    counts = torch.cat([pairs * ~side[:, None], pairs * side[:, None]], 1)
    return clients_at(*map(float, centers), sizes=n, start=0.0, label_counts=counts)


def swapped(work: Clients, one: int, other: int) -> Clients:
    """Returns the clients after two of them have exchanged all their data."""
    order = torch.arange(len(work.centers))
    order[[one, other]] = order[[other, one]]
    after = line()
    after.centers, after.population = work.centers[order], work.population
    after.num_examples, after.label_counts = work.num_examples[order], work.label_counts[order]
    return after


def counts(scores: dict[str, float]) -> tuple[float, float]:
    return scores["shift/detected"], scores["shift/migrated"]


def test_two_swapped_clients_migrate_into_each_others_cluster_over_several_rounds():  # check 18
    before = line()
    after = swapped(before, 2, 5)  # client 2 now has the data +8 of 3 examples, client 5 has -12 of 4
    state, _ = TWO.init(before, rng(3))
    assert state.index.tolist() == [0, 1, 0, 1, 0, 1]
    assert state.models.flatten().tolist() == [4, -4]  # means of 2, 4, 6 and of -2, -4, -6

    state, info = TWO.round(state, ids(0, 2), before, rng())
    assert counts(info.scores) == (0, 0)
    assert_close(state.models.flatten().tolist(), [(1 * 4 + 3 * 6) / 4, -4.0])
    static, info = replace(TWO, migrate=False).round(state, ids(2, 3, 4), after, rng())
    assert "shift/detected" not in info.scores
    assert_close(static.models.flatten().tolist(), [(4 * (5.5 - 12) / 2 + 1 * 8.75) / 5, (-4 - 8) / 2])

    state, info = TWO.round(state, ids(2, 3, 4), after, rng())
    assert counts(info.scores) == (2, 2)
    assert info.tables["migrations"] == [
        {"client": 2, "cluster_before": 0, "cluster_after": 1},
        {"client": 5, "cluster_before": 1, "cluster_after": 0},
    ]
    assert state.index.tolist() == [0, 1, 1, 1, 0, 0]
    assert_close(state.models.flatten().tolist(), [(5.5 + 12) / 2, (4 * (-4 - 12) / 2 + 1 * (-4 - 8) / 2) / 5])

    state, info = TWO.round(state, ids(1, 5), after, rng())
    assert (counts(info.scores), info.tables["migrations"]) == ((0, 0), [])
    assert_close(state.models.flatten().tolist(), [(8.75 + 8) / 2, (-7.6 - 4) / 2])


def test_who_migrates_trains_from_w0_wherever_the_models_are_by_now():  # check 13
    state, _ = TWO.init(line(), rng(3))
    gone = replace(state, models=state.models + 100)  # starting from these models, all clients would move left
    after, info = TWO.round(gone, ids(0), swapped(line(), 2, 5), rng())
    assert after.index.tolist() == [0, 1, 1, 1, 0, 0]
    assert counts(info.scores) == (2, 2)


def test_only_clients_in_training_that_have_a_cluster_are_tested():
    before = line()
    state, _ = replace(TWO, pretrain_scale=1).init(before, rng(3))
    one, other = (state.index < 0).nonzero().flatten()[:2].tolist()
    after = swapped(before, one, other)
    _, info = TWO.round(state, ids(), after, rng())
    assert info.scores["shift/detected"] == 0
    state, _ = TWO.init(before, rng(3))
    after.population = torch.tensor([k for k in range(6) if k != one])  # the client leaves the training population
    _, info = TWO.round(state, ids(), after, rng())
    assert [row["client"] for row in info.tables["migrations"]] == [other]


def test_cold_client_is_compared_with_the_labels_it_had_at_the_start():
    before = line()
    state, _ = replace(TWO, pretrain_scale=1).init(before, rng(3))
    cold = (state.index < 0).nonzero().flatten()
    right, left = int(cold[cold % 2 == 0][0]), int(cold[cold % 2 == 1][0])
    after, found = swapped(before, right, left), []
    for _ in range(3):
        state, info = TWO.round(state, ids(right, left), after, rng())
        found.append(counts(info.scores))
    # clients are placed by their present data, whose label counts become the new reference
    assert found == [(0, 0), (2, 0), (0, 0)]


def test_directions_go_to_each_client_that_joins_and_once():
    work = line(sizes=(1, 2, 3, 1, 0, 4))
    state, info = replace(TWO, pretrain_scale=1).init(work, rng(3))
    # two founders send their updates from w_0, and then receive both directions
    assert (info.down, info.up) == (2 + 2 * 2, 2)
    cold = (state.index < 0).nonzero().flatten()
    state, info = TWO.place(state, cold, work, rng())
    assert (info.down, info.up, info.skipped) == (2 * (len(cold) - 1), 0, 1)  # client 4 has no data and stays cold
    assert TWO.place(state, torch.arange(6), work, rng())[1].down == 0
