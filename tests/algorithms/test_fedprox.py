"""Tests FedProx and its stragglers against closed forms on quadratic clients (docs/ground_truth.md, check 4)."""

import warnings

import pytest
import torch
from quadratic import ids, quadratic_clients, rng
from test_fedavg import train
from torch.testing import assert_close

from lit_cfl.algorithms import FedAvg, FedProx
from lit_cfl.errors import InputError, Notice
from lit_cfl.local_work import Budget
from lit_cfl.testing import check_algorithm


def test_fedprox_without_pull_is_fedavg():
    work, cohorts = quadratic_clients(5), [ids(0, 3), ids(1, 2, 4), ids(0, 4)]
    assert torch.equal(train(FedProx(mu=0), work, cohorts)[-1], train(FedAvg(), work, cohorts)[-1])


def test_fedprox_local_solution():
    work = quadratic_clients(2, steps=500)
    before, after = train(FedProx(mu=1.5), work, [ids(1)])
    assert_close(after, (work.centers[1] + 1.5 * before) / 2.5)


def test_fedprox_has_the_fixed_point_of_fedavg_for_equal_curvature():
    work, everyone = quadratic_clients(5), [torch.arange(5)] * 300
    assert_close(train(FedProx(mu=0.7), work, everyone)[-1], train(FedAvg(), work, everyone)[-1])


@pytest.mark.parametrize("steps", [1, 4])
def test_larger_pull_gives_smaller_discrepancy_from_two_steps_on(steps: int):
    work, found = quadratic_clients(6, steps=steps), []
    for mu in (0.0, 0.5, 2.0):
        state, _ = FedProx(mu=mu).init(work, rng())
        _, info = FedProx(mu=mu).round(state, torch.arange(6), work, rng())
        found.append(info.scores["train/discrepancy"])
    assert found == (pytest.approx([found[0]] * 3) if steps == 1 else sorted(set(found), reverse=True))


def test_negative_pull_is_refused():
    with pytest.raises(InputError, match=r"mu is -1.0"):
        FedProx(mu=-1.0)


@pytest.mark.parametrize("work", ["partial", "drop"])
def test_stragglers_keep_the_contract(work: str):
    check_algorithm(FedProx(stragglers=0.5, straggler_work=work))


def lengths(algorithm: FedProx, clients: int, seed: int = 0, steps: int = 10) -> list[int]:
    work = quadratic_clients(clients, steps=steps)
    budget = algorithm.budget(torch.arange(clients), work, rng(seed))
    assert isinstance(budget, Budget)
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


def test_straggler_with_a_single_epoch_does_that():
    assert lengths(FedProx(stragglers=1.0), 5, steps=1) == [1] * 5


def test_dropped_clients_count_nothing_in_the_mean():
    work, algorithm = quadratic_clients(4), FedProx(mu=0, stragglers=0.5, straggler_work="drop")
    everyone = torch.arange(4)
    kept = everyone[algorithm.budget(everyone, work, rng()).length > 0]
    before, after = train(algorithm, work, [everyone])
    local = (work.centers + 0.75**3 * (before - work.centers))[kept]
    weights = work.num_examples[kept].double()
    assert_close(after, weights @ local / weights.sum())
    _, info = algorithm.round(algorithm.init(work, rng())[0], everyone, work, rng())
    assert (info.down, info.up, info.skipped) == (4, 2, 2)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_impossible_share_is_refused(share: float):
    with pytest.raises(InputError, match="stragglers is"):
        FedProx(stragglers=share)


def test_a_share_of_stragglers_that_is_rounded_to_none_is_noted():
    with pytest.warns(
        Notice, match=r"stragglers is 0\.1, which of 4 clients is rounded to no client; raise stragglers"
    ):
        assert lengths(FedProx(stragglers=0.1, straggler_work="drop"), 4).count(0) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lengths(FedProx(stragglers=0.2, straggler_work="drop"), 4).count(0) == 1
