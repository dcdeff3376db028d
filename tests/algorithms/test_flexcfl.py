"""FlexCFL on quadratic clients (docs/ground_truth.md, checks 13, 14, 16, 18 and 27)."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from lanes import thinned
from quadratic import ids, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl import Experiment
from lit_cfl.algorithms import FedAvg, FedGroup
from lit_cfl.algorithms.flexcfl import FlexCFL
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.partition import LabelGroups
from lit_cfl.datamodules.shift import SwapAll
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR
from lit_cfl.rounds import Cohorts
from lit_cfl.runs.run import run
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tasks import Classification
from lit_cfl.testing import QuadraticWork, check_algorithm

ONE_STEP = Budget(1, "steps")
TWO = FlexCFL(num_clusters=2, pretrain=ONE_STEP)
CENTERS, SIZES = (4, -4, 8, -8, 12, -12), (1, 2, 3, 1, 1, 4)


class FromZero(QuadraticWork):
    """Clients on a line, w_0 = 0: one step of size 1/2 goes half of the way to the client's own point."""

    def initial(self, number: int) -> Tensor:
        return torch.zeros(1, dtype=torch.float64)


def line(centers: tuple[int, ...] = CENTERS, sizes: tuple[int, ...] = SIZES, counts: Tensor | None = None) -> FromZero:
    """Clients right of 0 have label 0 (and one example of label 1), those left of it labels 2 and 3 likewise."""
    n, side = torch.tensor(sizes), torch.tensor(centers) < 0
    if counts is None:
        pairs = torch.stack([n - (n > 1).long(), (n > 1).long()], 1)
        counts = torch.cat([pairs * ~side[:, None], pairs * side[:, None]], 1)
    rows = torch.tensor(centers, dtype=torch.float64)[:, None]
    return FromZero(rows, n, 0.5, label_counts=counts, layers={"fc1": 1})


def swapped(work: FromZero, one: int, other: int) -> FromZero:
    """Two clients have exchanged all their data."""
    order = torch.arange(len(work.centers))
    order[[one, other]] = order[[other, one]]
    after = line()
    after.centers, after.population = work.centers[order], work.population
    after.num_examples, after.label_counts = work.num_examples[order], work.label_counts[order]
    return after


def with_labels(*counts: list[int]) -> FromZero:
    """Clients at +4 and -4 in turn with these label counts."""
    table = torch.tensor(counts)
    centers = tuple(4 * (-1) ** k for k in range(len(counts)))
    return line(centers, tuple(table.sum(1).tolist()), table)


def test_two_swapped_clients_migrate_into_each_others_cluster_over_several_rounds():  # check 18
    before = line()
    after = swapped(before, 2, 5)  # (+8, 3 examples) and (-12, 4 examples)
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
        {"pretrain_scale": 2, "cold_start": "random_once"},
        {"pretrain_scale": 2, "cold_start_at": "start"},
    ],
    ids=str,
)
def test_without_shift_it_is_fedgroup(options: dict):  # check 14
    work = line()
    mine, theirs = replace(TWO, **options), FedGroup(num_clusters=2, **({"pretrain": ONE_STEP} | options))
    a, b = mine.init(work, rng(3))[0], theirs.init(work, rng(3))[0]
    for number, cohort in enumerate([ids(0, 3, 5), ids(1, 2), ids(2, 4, 5)]):
        a, info = mine.round(a, cohort, work, rng(number))
        b, _ = theirs.round(b, cohort, work, rng(number))
        assert torch.equal(a.models, b.models)
        assert torch.equal(a.index, b.index)
        assert info.scores["shift/detected"] == 0


def test_one_cluster_from_w0_is_fedavg_also_when_data_shift():  # check 14
    work, average = line(), FedAvg()
    one = FlexCFL(num_clusters=1, group_start="w0", pretrain=ONE_STEP)
    a, b = one.init(work, rng())[0], average.init(work, rng())[0]
    for number, cohort in enumerate([ids(0, 3, 5), ids(1, 2), ids(2, 4, 5)]):
        work = swapped(work, number, 5)
        a, b = one.round(a, cohort, work, rng(number))[0], average.round(b, cohort, work, rng(number))[0]
        assert torch.equal(a.models, b.models)


@pytest.mark.parametrize(
    ("metric", "detected"), [("sorted_counts", 0), ("l1_counts", 2), ("total_variation", 2), ("w1_label_axis", 2)]
)
def test_sorted_counts_do_not_see_a_swap_between_equal_sizes(metric: str, detected: int):  # check 16, C4
    work = line(sizes=(3, 3, 3, 3, 3, 3))
    algorithm = replace(TWO, shift_metric=metric)
    state, _ = algorithm.init(work, rng(3))
    state, info = algorithm.round(state, ids(0, 1), swapped(work, 2, 5), rng())
    assert info.scores["shift/detected"] == info.scores["shift/migrated"] == detected


@pytest.mark.parametrize(
    ("metric", "at_the_threshold", "above"),
    [
        ("total_variation", [3, 7, 0], [2, 8, 0]),
        ("w1_label_axis", [4, 5, 1], [5, 2, 3]),
        ("l1_counts", [4, 6, 0], [3, 7, 0]),
        ("sorted_counts", [4, 6, 0], [3, 7, 0]),
    ],
)
def test_shift_of_exactly_the_threshold_does_not_migrate(metric: str, at_the_threshold: list, above: list):
    still = [[5, 5, 0]] * 3
    algorithm = replace(TWO, shift_metric=metric)
    state, _ = algorithm.init(with_labels([5, 5, 0], *still), rng(3))
    for labels, detected in ((at_the_threshold, 0), (above, 1)):
        _, info = algorithm.round(state, ids(1), with_labels(labels, *still), rng())
        assert info.scores["shift/detected"] == detected


def test_slow_drift_adds_up_until_the_client_is_placed_anew():
    still = [[10, 0]] * 3
    state, _ = TWO.init(with_labels([10, 0], *still), rng(3))
    found = []
    for moved in (1, 2, 3, 4, 5, 6, 7):  # a tenth of the data each round
        state, info = TWO.round(state, ids(1), with_labels([10 - moved, moved], *still), rng())
        found.append(info.scores["shift/detected"])
        assert info.scores["shift/migrated"] == 0  # its direction is the same
        assert all(row["cluster_before"] == row["cluster_after"] == 0 for row in info.tables["migrations"])
    assert found == [0, 0, 1, 0, 0, 1, 0]


def test_threshold_of_counts_is_a_share_of_the_first_size():
    still = [[10, 0]] * 3
    algorithm = replace(TWO, shift_metric="l1_counts")
    state, _ = algorithm.init(with_labels([10, 0], *still), rng(3))
    for now, detected in (([12, 0], 0), ([30, 0], 1), ([33, 0], 1), ([34, 1], 0)):  # |change| > 2, not 0.2 n_i of now
        state, info = algorithm.round(state, ids(1), with_labels(now, *still), rng())
        assert info.scores["shift/detected"] == detected, now


def test_who_migrates_goes_to_the_nearest_direction_even_if_cold_clients_are_dealt_at_random():  # C19
    before = line()
    algorithm = replace(TWO, cold_start="random_once")
    state, _ = algorithm.init(before, rng(3))
    for seed in range(5):
        moved, _ = algorithm.round(state, ids(0), swapped(before, 2, 5), rng(seed))
        assert moved.index.tolist() == [0, 1, 1, 1, 0, 0]


def test_only_clients_in_training_that_have_a_cluster_are_tested():
    before = line()
    state, _ = replace(TWO, pretrain_scale=1).init(before, rng(3))
    one, other = (state.index < 0).nonzero().flatten()[:2].tolist()
    after = swapped(before, one, other)
    _, info = TWO.round(state, ids(), after, rng())
    assert info.scores["shift/detected"] == 0
    state, _ = TWO.init(before, rng(3))
    after.population = torch.tensor([k for k in range(6) if k != one])  # it is not in training any more
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
    assert found == [(0, 0), (2, 0), (0, 0)]  # placed by their present data, compared with the first ones


def test_client_that_lost_its_data_stays_and_is_tried_again():
    before = with_labels([5, 0], [5, 0], [5, 0], [5, 0])
    empty = with_labels([0, 0], [5, 0], [5, 0], [5, 0])
    other = swapped(with_labels([5, 0], [0, 5], [5, 0], [5, 0]), 0, 1)
    state, _ = TWO.init(before, rng(3))
    for _ in range(2):
        state, info = TWO.round(state, ids(1), empty, rng())
        assert (info.scores["shift/detected"], info.skipped, info.tables["migrations"]) == (1, 1, [])
        assert state.index.tolist() == [0, 1, 0, 1]
        assert state.reference[0].tolist() == [5, 0]
    state, info = TWO.round(state, ids(1), other, rng())  # 1 has other examples of the same labels: nobody notices
    assert info.tables["migrations"] == [{"client": 0, "cluster_before": 0, "cluster_after": 1}]
    assert state.index.tolist() == [1, 1, 0, 1]


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
    """Models sent in all, and how many clients migrated."""
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


@pytest.mark.long
def test_traffic_is_that_of_the_paper():  # check 27: x 1.26 of FedAvg's 12,000, and m T more with the mix
    assert everything(FlexCFL(), 1000, 300, 20) == (2 * 20 * 300 + 1000 * 3 + 2 * 20 * 3, 0)
    assert everything(FlexCFL(eta_g=0.1), 1000, 300, 20)[0] == 15_120 + 3 * 300


def test_migration_sends_no_models():
    algorithm = FlexCFL(pretrain_scale=2)
    still, moved = (everything(algorithm, 30, 8, 10, swap=swap) for swap in (False, True))
    assert moved == (still[0], 30)
    assert still[0] == 2 * 10 * 8 + 30 * 3 + 2 * 6


def test_directions_go_to_each_client_that_joins_and_once():
    work = with_labels([5, 0], [5, 0], [5, 0], [5, 0], [0, 0], [5, 0])
    state, info = replace(TWO, pretrain_scale=1).init(work, rng(3))
    assert (info.down, info.up) == (2 + 2 * 2, 2)  # w_0's updates of two founders, who get both directions
    cold = (state.index < 0).nonzero().flatten()
    state, info = TWO.place(state, cold, work, rng())
    assert (info.down, info.up, info.skipped) == (2 * (len(cold) - 1), 0, 1)  # client 4 has no data and stays cold
    _, info = TWO.place(state, torch.arange(6), work, rng())
    assert info.down == 0


def test_placing_everyone_at_the_start_sends_as_much():
    algorithm = FlexCFL(pretrain_scale=2)
    a, b = everything(algorithm, 30, 8, 10), everything(replace(algorithm, cold_start_at="start"), 30, 8, 10)
    assert a == b


@pytest.mark.long
@pytest.mark.parametrize(
    "algorithm",
    thinned(
        [
            FlexCFL(),
            FlexCFL(num_clusters=2, pretrain_scale=2, eta_g=5.0, shift_metric="l1_counts"),
            FlexCFL(num_clusters=2, pretrain_scale=2, shift_metric="sorted_counts", cold_start="random_once"),
            FlexCFL(num_clusters=2, shift_metric="w1_label_axis", measure="madc", cold_start="random_each_round"),
            FlexCFL(num_clusters=2, centers="random", mix="sum", eta_g=0.1, shift_threshold=0.0),
            FlexCFL(pretrain_scale=2, migrate=False, cold_start_at="start", group_start="w0", weights="equal"),
        ]
    ),
    ids=repr,
)
def test_options_keep_the_contract(algorithm: FlexCFL):
    check_algorithm(algorithm)


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


def test_run_has_a_row_for_every_client_that_was_placed_anew(tmp_path: Path):
    run(two_groups(), tmp_path / "run")
    metrics = read_table(tmp_path / "run" / "metrics.csv")
    migrations = read_table(tmp_path / "run" / "migrations.csv")
    apart = [row for row in read_table(tmp_path / "run" / "shift.csv") if row["cluster_before"] != row["cluster_after"]]
    assert {(row["round"], row["client"]) for row in migrations} == {(row["round"], row["client"]) for row in apart}
    for row in metrics:
        mine = [line for line in migrations if line["round"] == row["round"]]
        assert row["shift/detected"] == len(mine)
        assert row["shift/migrated"] == sum(line["cluster_before"] != line["cluster_after"] for line in mine)
        assert row["clusters/ari"] == 1  # nobody is ever in the wrong cluster
    assert len(migrations) > 0


@pytest.mark.long
@pytest.mark.parametrize("metric", ["total_variation", "loss", "features"])
def test_resumed_run_migrates_as_the_whole_one(metric: str, tmp_path: Path):
    algorithm = FlexCFL(num_clusters=2, shift_metric=metric)
    run(two_groups(algorithm=algorithm), tmp_path / "whole")
    run(two_groups(algorithm=algorithm, rounds=2), tmp_path / "parts")
    run(two_groups(algorithm=algorithm), tmp_path / "parts", mode="resume")
    assert len(read_table(tmp_path / "whole" / "migrations.csv")) > 0
    for name in ("migrations.csv", "clients.csv", "clusters.csv"):
        assert (tmp_path / "parts" / name).read_text() == (tmp_path / "whole" / name).read_text()
