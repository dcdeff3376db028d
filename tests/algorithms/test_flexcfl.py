"""Tests FlexCFL on quadratic clients (docs/ground_truth.md, checks 13, 14, 16, 18 and 27)."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from quadratic import ids, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl import Experiment
from lit_cfl.algorithms import FedAvg, FedGroup
from lit_cfl.algorithms.flexcfl import FlexCFL
from lit_cfl.data.shift import Shift
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.partition import LabelGroups
from lit_cfl.datamodules.shift import SwapAll
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR
from lit_cfl.rounds import Cohorts, Round
from lit_cfl.runs.run import run
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tasks import Classification
from lit_cfl.testing import QuadraticWork

ONE_STEP = Budget(1, "steps")
TWO = FlexCFL(num_clusters=2, pretrain=ONE_STEP)
CENTERS, SIZES = (4, -4, 8, -8, 12, -12), (1, 2, 3, 1, 1, 4)


class FromZero(QuadraticWork):
    """Quadratic clients in one dimension, and the initial model w_0 = 0."""

    def initial(self, number: int) -> Tensor:
        return torch.zeros(1, dtype=torch.float64)


def line(centers: tuple[int, ...] = CENTERS, sizes: tuple[int, ...] = SIZES, counts: Tensor | None = None) -> FromZero:
    """Makes clients on a line; by default, those right of 0 have labels 0 and 1, and those left of it 2 and 3."""
    n, side = torch.tensor(sizes), torch.tensor(centers) < 0
    if counts is None:
        pairs = torch.stack([n - (n > 1).long(), (n > 1).long()], 1)
        counts = torch.cat([pairs * ~side[:, None], pairs * side[:, None]], 1)
    rows = torch.tensor(centers, dtype=torch.float64)[:, None]
    return FromZero(rows, n, 0.5, label_counts=counts, layers={"fc1": 1})


def swapped(work: FromZero, one: int, other: int) -> FromZero:
    """Returns the clients after two of them have exchanged all their data."""
    order = torch.arange(len(work.centers))
    order[[one, other]] = order[[other, one]]
    after = line()
    after.centers, after.population = work.centers[order], work.population
    after.num_examples, after.label_counts = work.num_examples[order], work.label_counts[order]
    return after


def with_labels(*counts: list[int]) -> FromZero:
    """Makes clients at +4 and -4, in turn, with these label counts."""
    table = torch.tensor(counts)
    centers = tuple(4 * (-1) ** k for k in range(len(counts)))
    return line(centers, tuple(table.sum(1).tolist()), table)


def test_two_swapped_clients_migrate_into_each_others_cluster_over_several_rounds():  # check 18
    before = line()
    after = swapped(before, 2, 5)  # client 2 now has the data +8 of 3 examples, client 5 has -12 of 4
    state, _ = TWO.init(before, rng(3))
    assert state.index.tolist() == [0, 1, 0, 1, 0, 1]
    assert state.models.flatten().tolist() == [4, -4]  # means of 2, 4, 6 and of -2, -4, -6

    state, info = TWO.round(state, ids(0, 2), before, rng())
    assert (info.scores["shift/detected"], info.scores["shift/migrated"]) == (0, 0)
    assert_close(state.models.flatten().tolist(), [(1 * 4 + 3 * 6) / 4, -4.0])

    state, info = TWO.round(state, ids(2, 3, 4), after, rng())
    assert (info.scores["shift/detected"], info.scores["shift/migrated"]) == (2, 2)
    assert info.tables["migrations"] == [
        {"client": 2, "cluster_before": 0, "cluster_after": 1},
        {"client": 5, "cluster_before": 1, "cluster_after": 0},
    ]
    assert state.index.tolist() == [0, 1, 1, 1, 0, 0]
    assert_close(state.models.flatten().tolist(), [(5.5 + 12) / 2, (4 * (-4 - 12) / 2 + 1 * (-4 - 8) / 2) / 5])

    state, info = TWO.round(state, ids(1, 5), after, rng())
    assert (info.scores["shift/detected"], info.tables["migrations"]) == (0, [])
    assert_close(state.models.flatten().tolist(), [(8.75 + 8) / 2, (-7.6 - 4) / 2])


def test_without_migration_swapped_clients_pull_the_wrong_cluster():
    before, static = line(), replace(TWO, migrate=False)
    state, _ = static.init(before, rng(3))
    state, _ = static.round(state, ids(0, 2), before, rng())
    state, info = static.round(state, ids(2, 3, 4), swapped(before, 2, 5), rng())
    assert "shift/detected" not in info.scores
    assert_close(state.models.flatten().tolist(), [(4 * (5.5 - 12) / 2 + 1 * 8.75) / 5, (-4 - 8) / 2])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"eta_g": 0.5},
        {"measure": "madc"},
        {"pretrain_scale": 2},
    ],
    ids=str,
)
def test_without_shift_it_is_fedgroup(options: dict):  # check 14
    work = line()
    mine = replace(TWO, **options)
    theirs = FedGroup(num_clusters=2, pretrain=ONE_STEP, **options)
    a, b = mine.init(work, rng(3))[0], theirs.init(work, rng(3))[0]
    for number, cohort in enumerate([ids(0, 3, 5), ids(1, 2), ids(2, 4, 5)]):
        a, info = mine.round(a, cohort, work, rng(number))
        b, _ = theirs.round(b, cohort, work, rng(number))
        assert torch.equal(a.models, b.models)
        assert torch.equal(a.index, b.index)
        assert info.scores["shift/detected"] == 0


def test_one_cluster_from_w0_is_fedavg_also_when_data_shift():  # check 14
    work, average = line(), FedAvg()
    one = replace(TWO, num_clusters=1)
    a, b = one.init(work, rng())[0], average.init(work, rng())[0]
    a = replace(a, models=a.initial[None])
    for number, cohort in enumerate([ids(0, 3, 5), ids(1, 2), ids(2, 4, 5)]):
        work = swapped(work, number, 5)
        a, b = one.round(a, cohort, work, rng(number))[0], average.round(b, cohort, work, rng(number))[0]
        assert torch.equal(a.models, b.models)


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
        found.append((info.scores["shift/detected"], info.scores["shift/migrated"]))
    # clients are placed by their present data, whose label counts become the new reference
    assert found == [(0, 0), (2, 0), (0, 0)]


def test_newcomer_is_compared_with_the_labels_it_came_with():
    state, _ = TWO.init(line(), rng(3))
    grown = line((*CENTERS, 6, -6), (*SIZES, 5, 5))
    state, _ = TWO.place(state, ids(7, 6), grown, rng())
    assert state.index[6:].tolist() == [0, 1]
    state, info = TWO.round(state, ids(0), grown, rng())
    assert info.scores["shift/detected"] == 0
    state, info = TWO.round(state, ids(0), swapped(grown, 6, 7), rng())
    assert info.scores["shift/migrated"] == 2
    assert state.index[6:].tolist() == [1, 0]


def everything(algorithm: FlexCFL, clients: int, rounds: int, cohort: int, *, swap: bool = False) -> tuple[int, int]:
    """Runs some rounds; returns how many models were sent and how many clients migrated."""
    centers = torch.tensor([[9.0, 0, 0], [0, 9, 0], [0, 0, 9]]).double()[torch.arange(clients) % 3]
    labels = 5 * torch.eye(3, dtype=torch.int64)[torch.arange(clients) % 3]
    work = QuadraticWork(centers, labels.sum(1), 0.5, label_counts=labels)
    after = QuadraticWork(centers.roll(1, 0), labels.sum(1), 0.5, label_counts=labels.roll(1, 0))
    state, info = algorithm.init(work, rng(1))
    total, migrated = info.down + info.up, 0
    for number in range(rounds):
        now = after if swap and number >= rounds // 2 else work
        chosen = Cohorts(cohort, "round_robin_first").at(number, work.population, 0)
        state, info = algorithm.round(state, chosen, now.at(number), rng(number))
        total, migrated = total + info.down + info.up, migrated + int(info.scores["shift/migrated"])
    return total, migrated


def test_migration_sends_no_models():
    algorithm = FlexCFL(pretrain_scale=2)
    still, moved = (everything(algorithm, 30, 8, 10, swap=swap) for swap in (False, True))
    assert moved == (still[0], 30)
    assert still[0] == 2 * 10 * 8 + 30 * 3 + 2 * 6


def test_client_that_lost_its_data_is_skipped_once_in_a_round_whether_it_was_drawn_or_not():
    work, empty = with_labels([5, 0], [5, 0], [5, 0], [5, 0]), with_labels([5, 0], [0, 0], [5, 0], [5, 0])
    state, _ = TWO.init(work, rng(3))
    for cohort in (ids(0, 1), ids(0, 2)):
        _, info = TWO.round(state, cohort, empty, rng())
        assert (info.scores["shift/detected"], info.skipped) == (1, 1)


def test_directions_go_to_each_client_that_joins_and_once():
    work = with_labels([5, 0], [5, 0], [5, 0], [5, 0], [0, 0], [5, 0])
    state, info = replace(TWO, pretrain_scale=1).init(work, rng(3))
    # two founders send their updates from w_0, and then receive both directions
    assert (info.down, info.up) == (2 + 2 * 2, 2)
    cold = (state.index < 0).nonzero().flatten()
    state, info = TWO.place(state, cold, work, rng())
    assert (info.down, info.up, info.skipped) == (2 * (len(cold) - 1), 0, 1)  # client 4 has no data and stays cold
    _, info = TWO.place(state, torch.arange(6), work, rng())
    assert info.down == 0


def test_threshold_below_zero_is_refused():
    with pytest.raises(InputError, match=r"shift_threshold is -0\.1; it must be 0 or more"):
        FlexCFL(shift_threshold=-0.1)


def two_groups(**changes: object) -> Experiment:
    partition = LabelGroups(test=0.2, groups=((0, 1, 2, 3, 4), (5, 6, 7, 8, 9)), clients_per_group=6)
    settings: dict[str, object] = {
        "data": Digits(partition=partition, skew=(), shift=(SwapAll(0.3),)),
        "task": lambda: Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1)),
        "algorithm": FlexCFL(num_clusters=2),
        "rounds": 6,
        "cohort_size": 4,
        "seeds": [3],
        "local": LocalTraining(1, 20),
    }
    return Experiment(**(settings | changes))


def test_migrations_have_a_row_for_every_client_whose_shift_was_detected(tmp_path: Path):
    run(two_groups(), tmp_path / "run")
    metrics = read_table(tmp_path / "run" / "metrics.csv")
    migrations = read_table(tmp_path / "run" / "migrations.csv")
    apart = [row for row in read_table(tmp_path / "run" / "shift.csv") if row["cluster_before"] != row["cluster_after"]]
    assert {(row["round"], row["client"]) for row in migrations} == {(row["round"], row["client"]) for row in apart}
    for row in metrics:
        mine = [line for line in migrations if line["round"] == row["round"]]
        assert row["shift/detected"] == len(mine)
        assert row["shift/migrated"] == sum(line["cluster_before"] != line["cluster_after"] for line in mine)
        assert row["clusters/ari"] == 1  # no client is ever in the wrong cluster
    assert len(migrations) > 0


@pytest.mark.parametrize("metric", ["total_variation", "loss", "features"])
def test_resumed_run_migrates_as_the_whole_one(metric: str, tmp_path: Path):
    algorithm = FlexCFL(num_clusters=2, shift_metric=metric)
    run(two_groups(algorithm=algorithm), tmp_path / "whole")
    run(two_groups(algorithm=algorithm, rounds=2), tmp_path / "parts")
    run(two_groups(algorithm=algorithm), tmp_path / "parts", mode="resume")
    assert len(read_table(tmp_path / "whole" / "migrations.csv")) > 0
    for name in ("migrations.csv", "clients.csv", "clusters.csv"):
        assert (tmp_path / "parts" / name).read_text() == (tmp_path / "whole" / name).read_text()


GROUPS = LabelGroups(test=0.2, groups=((0, 1, 2, 3, 4), (5, 6, 7, 8, 9)), clients_per_group=6)


def rounds_of(*shift: Shift) -> list[Round]:
    return list(two_groups(data=Digits(partition=GROUPS, skew=(), shift=shift)))


@pytest.mark.parametrize("participants", ["all", "warm"])
def test_swaps_with_probability_0_change_nothing(participants: str):  # check 14
    still, swapped = rounds_of(), rounds_of(SwapAll(0.0, participants=participants))
    assert len(still) > 1
    for one, other in zip(still, swapped, strict=True):
        assert torch.equal(one.state.models, other.state.models)
        assert torch.equal(one.state.index, other.state.index)
        assert one.info.scores == other.info.scores
        assert one.info.scores["shift/detected"] == 0


def test_every_swap_between_clusters_is_detected_and_answered_before_the_round():  # check 18
    served, migrated = None, 0
    for r in rounds_of(SwapAll(0.4)):
        if served is not None and r.moves:
            (moves,) = r.moves
            apart = moves.before != moves.after
            assert r.info.scores["shift/detected"] == int(apart.sum())
            for client, partner in zip(moves.clients[apart].tolist(), moves.partners[apart].tolist(), strict=True):
                # the cluster that served the previous owner of these data
                assert r.state.index[client] == served[partner]
            migrated += int(r.info.scores["shift/migrated"])
        served = r.state.index
    assert migrated >= 4


def test_who_migrates_trains_from_w0_wherever_the_models_are_by_now():  # check 13
    state, _ = TWO.init(line(), rng(3))
    gone = replace(state, models=state.models + 100)  # starting from these models, all clients would move left
    after, info = TWO.round(gone, ids(0), swapped(line(), 2, 5), rng())
    assert after.index.tolist() == [0, 1, 1, 1, 0, 0]
    assert info.scores["shift/migrated"] == 2
