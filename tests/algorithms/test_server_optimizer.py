"""Tests server optimizers of clusters against hand-worked steps and PyTorch's optimizers, also across merges."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from digits_experiment import digits
from few_rounds import AVERAGING, COHORTS, batch_norm, begin, last, states, truth_for
from quadratic import clients_at, f64, ids, quadratic_clients, rng
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam
from torch.testing import assert_close

from lit_cfl.algorithms import FLHC, Algorithm, FedAvg, FedGroup, Oracle, StoCFL
from lit_cfl.algorithms.server_optimizer import with_server
from lit_cfl.testing import check_algorithm

MOMENTUM = partial(SGD, lr=1.0, momentum=0.9)
FIRST = 0.1 / 1.001  # of FedAdam, as Delta = 1: the corrected means are 1 and 1
DELTA = 0.25 * (4 - FIRST)
MEAN, SQUARE = (0.09 + 0.1 * DELTA) / (1 - 0.9**2), (0.0099 + 0.01 * DELTA**2) / (1 - 0.99**2)
HALF = 0.5 / 1.001  # of FedAdagrad
STEP = 0.25 * (4 - HALF)


@pytest.mark.parametrize(
    ("make", "path"),
    [
        # 1: 0 + 1; 2.65: momentum .9 * 1 + .25 * 3 = 1.65; 4.4725: momentum .9 * 1.65 + .25 * 1.35 = 1.8225
        (MOMENTUM, [1.0, 2.65, 4.4725]),
        (partial(SGD, lr=0.5), [0.5, 0.9375]),
        (partial(SGD, lr=1.0, weight_decay=0.5), [1.0, 1.0 + 0.75 - 0.5]),
        (partial(SGD, lr=0.5, maximize=True), [-0.5, -0.5 - 0.5 * 0.25 * 4.5]),
        (partial(SGD, lr=1.0, maximize=True), [-1.0, -1 - 0.25 * 5]),
        (partial(Adam, lr=0.1, betas=(0.9, 0.99), eps=0.001), [FIRST, FIRST + 0.1 * MEAN / (SQUARE**0.5 + 0.001)]),
        (partial(Adagrad, lr=0.5, eps=0.001), [HALF, HALF + 0.5 * STEP / ((1 + STEP**2) ** 0.5 + 0.001)]),
    ],
    ids=["FedAvgM", "half steps", "decay", "ascent", "ascent by whole steps", "FedAdam", "FedAdagrad"],
)
def test_steps_by_hand(make: Callable, path: list[float]):
    """One client is at 4, and takes a quarter of the way in each round from 0."""
    work, algorithm = clients_at(4.0, sizes=(3,), rate=0.25, start=0.0), with_server(FedAvg(), make)
    found = [float(state.models) for state in states(algorithm, work, [ids(0)] * len(path))]
    assert found == pytest.approx(path)


@pytest.mark.parametrize("make", [MOMENTUM, partial(SGD, lr=0.7, weight_decay=0.1), partial(Adam, lr=0.2)])
def test_each_cluster_takes_the_steps_of_pytorchs_optimizer_when_it_is_heard(make: Callable):
    truth = torch.arange(8) % 2
    work = quadratic_clients(8, true_clusters=truth)
    cohorts = [ids(0, 1, 3), ids(2, 6), ids(1), ids(4, 5, 7), ids(0, 3)]
    found = last(with_server(Oracle(), make), work, cohorts)
    for cluster in (0, 1):
        model = nn.Parameter(work.initial(0).clone())
        optimizer = make([model])
        for cohort in cohorts:
            mine = cohort[truth[cohort] == cluster]
            if not len(mine):
                continue
            fitted = work.fit(model.detach()[None], mine).rows
            weights = work.num_examples[mine].double()
            model.grad = model.detach() - (weights @ fitted) / weights.sum()
            optimizer.step()
        assert_close(found.models[cluster], model.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", AVERAGING)
def test_rate_one_is_the_plain_mean_to_the_bit_and_momentum_keeps_the_contract(kind: type[Algorithm]):
    work, served = quadratic_clients(8, **truth_for(kind)), with_server(kind(), MOMENTUM)
    plain = list(states(kind(), work))
    for state, same in zip(plain, states(with_server(kind(), partial(SGD, lr=1.0)), work), strict=True):
        assert torch.equal(state.models, same.models)
    check_algorithm(served)
    found = last(served, work)
    assert found.models.shape == plain[-1].models.shape
    assert not torch.allclose(plain[-1].models, found.models)
    assert (type(served).__name__, with_server(served, None)) == (kind.__name__, kind())


def test_parts_of_a_split_keep_the_momentum_of_the_whole():
    algorithm, work = with_server(FLHC(warmup_rounds=2, num_clusters=2), MOMENTUM), quadratic_clients(8)
    _, before, split, _ = states(algorithm, work, COHORTS[:4])
    assert (len(before.models), len(split.models)) == (1, 2)
    assert torch.equal(split.server["momentum_buffer"], before.server["momentum_buffer"].expand(2, -1))
    assert split.server_known.tolist() == [True, True]


def test_merged_cluster_keeps_the_momentum_of_the_larger_one_whose_model_it_has():
    work, algorithm = quadratic_clients(8), with_server(StoCFL(tau=0.999, lambda_=0.0), MOMENTUM)
    models = f64([1, 0, 0, 0], [2, 0, 0, 0])
    state = replace(
        begin(algorithm, work),
        models=models,
        sums=models.clone(),  # equal directions, so that the clusters merge
        counts=torch.tensor([1, 2]),
        index=torch.tensor([0, 1, 1, -1, -1, -1, -1, -1]),
        server={"momentum_buffer": 10 * models},
        server_known=torch.tensor([True, True]),
    )
    after, _ = algorithm.round(state, ids(0, 1), work, rng())
    start = models[1]
    momentum = start - work.fit(start[None], ids(0, 1)).rows.mean(0) + 0.9 * f64(20, 0, 0, 0)
    assert_close(after.models[0], start - momentum)
    assert_close(after.server["momentum_buffer"][0], momentum)


def test_mix_of_clusters_leaves_the_momentum_with_the_cluster_and_init_has_none():
    plain, work = FedGroup(num_clusters=2, pretrain_scale=2, eta_g=0.1), quadratic_clients(8)
    algorithm = with_server(plain, MOMENTUM)
    start, info = algorithm.init(work, rng())
    expected, traffic = plain.init(work, rng())
    assert torch.equal(start.index, expected.index)
    assert (start.server_known.tolist(), info.down, info.up) == ([False, False], traffic.down, traffic.up)
    first, second = states(algorithm, work, [torch.arange(8)] * 2)
    labels = second.index
    fitted = work.at(1).fit(first.models, torch.arange(8), labels).rows
    for cluster in (0, 1):
        mine = labels == cluster
        weights = work.num_examples[mine].double()
        mean = weights @ fitted[mine] / weights.sum()
        moved = 0.9 * first.server["momentum_buffer"][cluster] + first.models[cluster] - mean
        assert_close(second.server["momentum_buffer"][cluster], moved)


def test_running_statistics_are_averaged_and_take_no_step():
    def after(server: Callable | None) -> Tensor:
        *_, found = digits(task=batch_norm, algorithm=FedAvg(), rounds=1, server=server)
        return found.state.models[0]

    plain, half = after(None), after(partial(SGD, lr=0.5))
    trained = 64 + 64 + 640 + 10
    assert torch.equal(plain[trained:], half[trained:])
    assert not torch.equal(plain[:trained], half[:trained])
