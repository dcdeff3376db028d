"""Tests runs on shifting data: the same shifts for every method, logged, saved and resumed exactly."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from digits_experiment import timeless_rows
from shift_cases import data_at

from lit_cfl import Experiment, load_run
from lit_cfl.algorithms import FedAvg, FedGroup
from lit_cfl.data import FederatedData
from lit_cfl.data.federated import lists_of
from lit_cfl.data.shift import Shift
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.partition import ClassesPerClient
from lit_cfl.datamodules.shift import Incremental, LabelDrift, SwapAll, SwapPart
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR
from lit_cfl.rounds import Round
from lit_cfl.runs.run import run
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tasks import Classification
from lit_cfl.tracking.options import Tracking

ALL = (SwapAll(probability=0.5), Incremental((0, 2), (0.5, 1.0)), LabelDrift(0.5, start=1, duration=2))
PART = (SwapPart(probability=0.8), SwapAll(probability=0.3))


def few_labels(shift: tuple[Shift, ...]) -> Digits:
    """Makes clients with three labels each, since labels are swapped only if the partner lacks them."""
    return Digits(partition=ClassesPerClient(10, test=0.3, classes=3), validation=0.2, shift=shift)


def shifting(shift: tuple[Shift, ...], algorithm: FedAvg | FedGroup | None = None, **changes: object) -> Experiment:
    settings: dict[str, object] = {
        "data": Digits(num_clients=10, validation=0.2, shift=shift),
        "task": lambda: Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1)),
        "algorithm": algorithm or FedGroup(num_clusters=4, pretrain_scale=2, pretrain=Budget(2)),
        "rounds": 5,
        "cohort_size": 4,
        "seeds": [7],
        "local": LocalTraining(1, 20),
        "tracking": Tracking(snapshots_every=1),
    }
    return Experiment(**(settings | changes))


def same(one: FederatedData, other: FederatedData) -> bool:
    mine, theirs = lists_of(one), lists_of(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_data_of_a_round_are_a_function_of_seed_and_round_alone():
    experiment = shifting(ALL)
    before = experiment.data.federated(7)
    for r in experiment:
        assert same(r.data, data_at(before, ALL, r.index, 7))
    assert not same(r.data, before)


def test_methods_that_are_compared_see_the_same_data():
    pairs = list(zip(shifting(ALL), shifting(ALL, FedAvg()), strict=True))
    assert [same(one.data, other.data) for one, other in pairs] == [True] * 5


def test_warm_shift_moves_only_clients_that_have_a_model():
    warm = (SwapAll(probability=1.0, participants="warm"),)
    experiment = shifting(warm, cohort_size=2, selection="round_robin_first")
    state = None
    moved = 0
    for r in experiment:
        if state is not None:
            index = experiment.algorithm.serve(state, torch.arange(10)).index
            for moves in r.moves:
                assert (index[moves.clients] >= 0).all()
                moved += len(moves.clients)
        state = r.state
    assert moved > 0


def test_init_sees_the_data_before_any_shift():
    class Watched(FedAvg):
        def init(self, work, rng):
            seen.append(work.num_examples.clone())
            return super().init(work, rng)

    seen: list[torch.Tensor] = []
    experiment = shifting((Incremental((0,), (0.5,)),), Watched())
    first = next(iter(experiment))
    assert torch.equal(seen[0], experiment.data.federated(7).num_examples)
    assert torch.equal(first.data.num_examples, (seen[0] + 1) // 2)


def by_client(r: Round, before: FederatedData) -> dict[int, int]:
    """Counts, for each client, the examples of all splits that it did not have in the previous round."""
    found = {}
    for client in range(r.data.num_clients):
        new = 0
        for name in ("train", "validation", "test"):
            old = before.split(name)[client]
            new += int((~torch.isin(r.data.split(name)[client], old)).sum())
        if new:
            found[client] = new
    return found


def test_log_says_what_really_moved(tmp_path: Path):
    experiment = shifting((SwapAll(probability=0.5),))
    run(experiment, tmp_path / "run")
    table, before, total = read_table(tmp_path / "run" / "shift.csv"), experiment.data.federated(7), 0
    for r in experiment:
        rows = [row for row in table if row["round"] == r.number]
        assert {row["client"]: row["examples"] for row in rows} == by_client(r, before)
        for row in rows:
            assert row["cluster_before"] == before.true_clusters[row["client"]]
            assert row["cluster_after"] == r.data.true_clusters[row["client"]]
        before, total = r.data, total + len(rows)
    assert total == len(table) > 0
    metrics = read_table(tmp_path / "run" / "metrics.csv")
    assert sum(row["shift/clients"] for row in metrics) == total
    assert sum(row["shift/examples"] for row in metrics) == sum(row["examples"] for row in table)


def test_run_without_shift_has_no_log(tmp_path: Path):
    run(shifting(()), tmp_path / "run")
    assert not (tmp_path / "run" / "shift.csv").exists()
    assert {row["shift/clients"] for row in read_table(tmp_path / "run" / "metrics.csv")} == {None}


def test_agreement_leaves_out_clients_whose_cluster_is_unknown(tmp_path: Path):
    swaps = (SwapPart(probability=0.5),)
    run(shifting(swaps, FedAvg(), data=few_labels(swaps), rounds=2), tmp_path / "run")
    metrics = read_table(tmp_path / "run" / "metrics.csv")
    moved = {row["client"] for row in read_table(tmp_path / "run" / "shift.csv")}
    unknown = {row["client"] for row in read_table(tmp_path / "run" / "clients.csv") if row["true_cluster"] is None}
    assert moved == unknown != set()
    assert metrics[-1]["clusters/ari"] is None


@pytest.mark.parametrize("shift", [ALL, PART, (SwapAll(0.6, participants="warm"),)], ids=["all", "part", "warm"])
def test_resumed_run_is_the_whole_one(shift: tuple[Shift, ...], tmp_path: Path):
    data = few_labels(shift)
    run(shifting(shift, data=data), tmp_path / "whole")
    run(shifting(shift, data=data, rounds=2), tmp_path / "resumed")
    run(shifting(shift, data=data), tmp_path / "resumed", mode="resume")
    assert timeless_rows(tmp_path / "resumed") == timeless_rows(tmp_path / "whole")
    for name in ("shift.csv", "clients.csv", "clusters.csv"):
        assert (tmp_path / "resumed" / name).read_text() == (tmp_path / "whole" / name).read_text(), name
    assert (tmp_path / "whole" / "shift.csv").read_text().count("\n") > 1


def test_opened_run_has_the_data_of_its_last_round(tmp_path: Path):
    experiment = shifting(PART, data=few_labels(PART))
    run(experiment, tmp_path / "run")
    *_, last = experiment
    saved = load_run(tmp_path / "run", experiment)
    assert same(saved.data, last.data)
    assert not same(saved.prepared.data, last.data)


def test_run_takes_the_partition_that_another_one_saved(tmp_path: Path):
    first = run(shifting(()), tmp_path / "first")
    data = Digits(num_clients=3, partition_file=tmp_path / "first" / "partition.npz")
    again = run(shifting((), data=data, seeds=[8]), tmp_path / "again")
    assert first.summary["partition"] == again.summary["partition"]
    with np.load(tmp_path / "first" / "partition.npz") as one, np.load(tmp_path / "again" / "partition.npz") as other:
        assert np.array_equal(one["train_values"], other["train_values"])
