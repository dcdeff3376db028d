"""Tests FedProx and its stragglers against closed forms on quadratic clients (docs/ground_truth.md, check 4)."""

import warnings

import pytest
import torch
from few_rounds import begin, last, run
from quadratic import ids, quadratic_clients, rng
from torch.testing import assert_close

from lit_cfl.algorithms import FedProx
from lit_cfl.errors import Notice


def test_local_solution_lies_between_the_client_and_the_start():
    work = quadratic_clients(2, steps=500)
    before, after = begin(FedProx(), work).models, last(FedProx(mu=1.5), work, [ids(1)]).models
    assert_close(after[0], (work.centers[1] + 1.5 * before[0]) / 2.5)


def lengths(algorithm: FedProx, clients: int, seed: int = 0, steps: int = 10) -> list[int]:
    budget = algorithm.budget(torch.arange(clients), quadratic_clients(clients, steps=steps), rng(seed))
    assert budget.unit == "epochs"
    return budget.length.tolist()


@pytest.mark.parametrize(("share", "slow"), [(0.5, 10), (0.9, 18), (0.02, 0), (1.0, 20)])
def test_a_share_of_the_cohort_are_stragglers(share: float, slow: int):
    drawn = lengths(FedProx(stragglers=share, straggler_work="drop"), 20)
    assert drawn.count(0) == slow
    assert drawn.count(10) == 20 - slow


def test_partial_work_is_between_one_epoch_and_one_less_than_all():
    drawn = {length for seed in range(60) for length in lengths(FedProx(stragglers=1.0), 20, seed, steps=4)}
    assert drawn == {1, 2, 3}
    assert lengths(FedProx(stragglers=1.0), 5, steps=1) == [1] * 5  # of a single epoch, all


def test_dropped_clients_count_nothing_in_the_mean():
    work, algorithm = quadratic_clients(4), FedProx(mu=0, stragglers=0.5, straggler_work="drop")
    kept = algorithm.budget(torch.arange(4), work, rng()).length > 0
    local = (work.centers + 0.75**3 * (begin(algorithm, work).models - work.centers))[kept]
    ((after, info),) = run(algorithm, work, [torch.arange(4)])
    weights = work.num_examples[kept].double()
    assert_close(after.models[0], weights @ local / weights.sum())
    assert (info.down, info.up, info.skipped) == (4, 2, 2)


def test_a_share_of_stragglers_that_is_rounded_to_none_is_noted():
    with pytest.warns(Notice, match=r"stragglers is 0\.1"):
        assert lengths(FedProx(stragglers=0.1, straggler_work="drop"), 4).count(0) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lengths(FedProx(stragglers=0.2, straggler_work="drop"), 4).count(0) == 1
        FedProx(stragglers=0.1).budget(torch.arange(4), quadratic_clients(4).at(1), rng())  # only in the first round
