"""Tests runs on shifting data: who is moved and when, and that moves are logged, counted and opened."""

from pathlib import Path

import torch
from digits_experiment import digits

from lit_cfl import Experiment, load_run
from lit_cfl.algorithms import FedAvg
from lit_cfl.data.federated import lists_of
from lit_cfl.data.shift import Shift
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.partition import ClassesPerClient
from lit_cfl.datamodules.shift import Incremental, SwapAll, SwapPart
from lit_cfl.runs.run import run
from lit_cfl.storage.csv_log import read_table


def shifting(*shift: Shift, few_labels: bool = False, **changes: object) -> Experiment:
    """Makes an experiment on shifting data; labels are swapped only between clients with few labels."""
    partition = {"partition": ClassesPerClient(10, test=0.3, classes=3)} if few_labels else {"num_clients": 10}
    return digits(**({"data": Digits(**partition, validation=0.2, shift=shift), "rounds": 5} | changes))


def test_a_warm_shift_moves_only_clients_that_have_a_model():
    experiment = shifting(SwapAll(1.0, participants="warm"), cohort_size=2, selection="round_robin_first")
    state, moved = None, 0
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
    experiment = shifting(Incremental((0,), (0.5,)), algorithm=Watched())
    first = next(iter(experiment))
    assert torch.equal(seen[0], experiment.data.federated(3).num_examples)
    assert torch.equal(first.data.num_examples, (seen[0] + 1) // 2)


def test_moves_are_logged_and_counted(tmp_path: Path):
    experiment = shifting(SwapAll(0.5))
    run(experiment, tmp_path / "run")
    expected = [
        [r.number, *values]
        for r in experiment
        for move in r.moves
        for values in torch.stack([move.clients, move.examples, move.before, move.after], 1).tolist()
    ]
    rows, metrics = (read_table(tmp_path / "run" / f"{name}.csv") for name in ("shift", "metrics"))
    columns = ("round", "client", "examples", "cluster_before", "cluster_after")
    assert [[row[column] for column in columns] for row in rows] == expected != []
    assert sum(row["shift/clients"] for row in metrics) == len(rows)
    assert sum(row["shift/examples"] for row in metrics) == sum(row["examples"] for row in rows)


def test_an_opened_run_has_the_data_of_its_last_round(tmp_path: Path):
    experiment = shifting(SwapPart(0.8), SwapAll(0.3), few_labels=True)
    run(experiment, tmp_path / "run")
    *_, last = experiment
    saved = load_run(tmp_path / "run", experiment)
    mine, before, now = (lists_of(data) for data in (saved.data, saved.prepared.data, last.data))
    assert [torch.equal(mine[name], now[name]) for name in now] == [True] * len(now)
    assert not all(torch.equal(before[name], now[name]) for name in now)
