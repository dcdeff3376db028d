"""Tests server optimizers of clusters against hand-worked steps and PyTorch's optimizers, also across merges."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from averaging import AVERAGING, COHORTS, states
from digits_experiment import digits, timeless_rows
from quadratic import ids, quadratic_clients, rng
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adagrad, Adam
from torch.testing import assert_close

from lit_cfl import run
from lit_cfl.algorithms import (
    CFL,
    FLHC,
    IFCA,
    AdaCFL,
    Algorithm,
    Ditto,
    FedAvg,
    FedGroup,
    Info,
    LayerCFL,
    Local,
    Oracle,
    StoCFL,
)
from lit_cfl.algorithms.fedavg import FedAvgState
from lit_cfl.algorithms.server_optimizer import with_server
from lit_cfl.config.variants import load_experiment
from lit_cfl.errors import InputError
from lit_cfl.storage import read_table
from lit_cfl.tasks import Classification
from lit_cfl.testing import QuadraticWork, check_algorithm

MOMENTUM = partial(SGD, lr=1.0, momentum=0.9)


def scalar(algorithm: Algorithm, rounds: int) -> list[float]:
    """Returns the model after each round, with one client at 4 and the local learning rate 0.25."""
    work = QuadraticWork(torch.tensor([[4.0]], dtype=torch.float64), torch.tensor([3]), 0.25)
    state, path = algorithm.init(work, rng())[0], []
    state = replace(state, models=torch.zeros(1, 1, dtype=torch.float64))
    for _ in range(rounds):
        state, _ = algorithm.round(state, ids(0), work, rng())
        path.append(float(state.models))
    return path


# Closed forms


def test_fedavgm_by_hand():
    path = scalar(with_server(FedAvg(), MOMENTUM), 3)
    # 1: 0 + 1; 2.65: momentum .9 * 1 + .25 * 3 = 1.65; 4.4725: momentum .9 * 1.65 + .25 * 1.35 = 1.8225
    assert path == pytest.approx([1.0, 2.65, 4.4725])
    assert scalar(with_server(FedAvg(), partial(SGD, lr=0.5)), 2) == pytest.approx([0.5, 0.9375])


def test_fedadam_by_hand():
    path = scalar(with_server(FedAvg(), partial(Adam, lr=0.1, betas=(0.9, 0.99), eps=0.001)), 2)
    first = 0.1 / 1.001  # Delta = 1: the corrected means are 1 and 1
    delta = 0.25 * (4 - first)
    mean, square = (0.09 + 0.1 * delta) / (1 - 0.9**2), (0.0099 + 0.01 * delta**2) / (1 - 0.99**2)
    assert path == pytest.approx([first, first + 0.1 * mean / (square**0.5 + 0.001)])


def test_fedadagrad_by_hand():
    path = scalar(with_server(FedAvg(), partial(Adagrad, lr=0.5, eps=0.001)), 2)
    first = 0.5 / 1.001
    delta = 0.25 * (4 - first)
    assert path == pytest.approx([first, first + 0.5 * delta / ((1 + delta**2) ** 0.5 + 0.001)])


@pytest.mark.parametrize(
    "make", [MOMENTUM, partial(SGD, lr=0.7, weight_decay=0.1), partial(Adam, lr=0.2), partial(Adagrad, lr=0.3)]
)
def test_each_cluster_takes_the_steps_of_pytorchs_optimizer_when_it_is_heard(make: Callable):
    truth = torch.arange(8) % 2
    work = quadratic_clients(8, true_clusters=truth)
    cohorts = [ids(0, 1, 3), ids(2, 6), ids(1), ids(4, 5, 7), ids(0, 3)]
    *_, last = states(with_server(Oracle(), make), work, cohorts)
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
        assert_close(last.models[cluster], model.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", AVERAGING)
def test_rate_one_without_momentum_is_the_plain_mean_to_the_bit(kind: type[Algorithm]):
    truth = torch.arange(8) % 2 if kind.sees_truth else None
    work = quadratic_clients(8, true_clusters=truth)
    for plain, served in zip(
        states(kind(), work), states(with_server(kind(), partial(SGD, lr=1.0)), work), strict=True
    ):
        assert torch.equal(plain.models, served.models)


@pytest.mark.parametrize("kind", AVERAGING)
def test_algorithms_with_a_server_optimizer_keep_the_contract_and_it_changes_them(kind: type[Algorithm]):
    served = with_server(kind(), MOMENTUM)
    check_algorithm(served)
    work = quadratic_clients(8, true_clusters=torch.arange(8) % 2 if kind.sees_truth else None)
    *_, plain = states(kind(), work)
    *_, last = states(served, work)
    assert plain.models.shape == last.models.shape
    assert not torch.allclose(plain.models, last.models)
    assert (type(served).__name__, with_server(served, None)) == (kind.__name__, kind())


# Whose state a cluster continues with


def test_parts_of_a_split_keep_the_momentum_of_the_whole():
    algorithm, work = with_server(FLHC(warmup_rounds=2, num_clusters=2), MOMENTUM), quadratic_clients(8)
    _, before, split, _ = states(algorithm, work, COHORTS[:4])
    assert (len(before.models), len(split.models)) == (1, 2)
    assert torch.equal(split.server["momentum_buffer"], before.server["momentum_buffer"].expand(2, -1))
    assert split.server_known.tolist() == [True, True]


def test_merged_cluster_keeps_the_momentum_of_the_one_whose_model_it_has():
    """The merged cluster has the momentum of the larger cluster."""
    work = quadratic_clients(8)
    algorithm = with_server(StoCFL(tau=0.999, lambda_=0.0), MOMENTUM)
    state, _ = algorithm.init(work, rng())
    models = torch.tensor([[1.0, 0, 0, 0], [2.0, 0, 0, 0]], dtype=torch.float64)
    state = replace(
        state,
        models=models,
        sums=models.clone(),  # equal directions, so that the clusters merge
        counts=torch.tensor([1, 2]),
        index=torch.tensor([0, 1, 1, -1, -1, -1, -1, -1]),
        server={"momentum_buffer": torch.tensor([[10.0, 0, 0, 0], [20.0, 0, 0, 0]], dtype=torch.float64)},
        server_known=torch.tensor([True, True]),
    )
    after, _ = algorithm.round(state, ids(0, 1), work, rng())
    start = models[1]
    mean = work.fit(start[None], ids(0, 1)).rows.mean(0)
    momentum = start - mean + 0.9 * torch.tensor([20.0, 0, 0, 0], dtype=torch.float64)
    assert_close(after.models[0], start - momentum)
    assert_close(after.server["momentum_buffer"][0], momentum)


def test_a_number_that_is_free_after_a_merge_starts_without_momentum():
    algorithm, work = with_server(StoCFL(tau=1.0), MOMENTUM), quadratic_clients(8)
    *_, state = states(algorithm, work, [ids(0, 1)])
    freed = replace(state, counts=torch.tensor([1, 0]), index=torch.where(state.index == 1, -1, state.index))
    after, _ = algorithm.place(freed, ids(5), work, rng())
    assert after.index[5] == 1
    assert after.server_known.tolist() == [True, bool(torch.equal(after.models[1], state.models[0]))]


def test_mix_of_clusters_and_migration_leave_the_momentum_with_the_cluster():
    algorithm, work = with_server(FedGroup(num_clusters=2, pretrain_scale=2, eta_g=0.1), MOMENTUM), quadratic_clients(8)
    first, second = states(algorithm, work, [torch.arange(8), torch.arange(8)])
    labels = second.index
    fitted = work.at(1).fit(first.models, torch.arange(8), labels).rows
    for cluster in (0, 1):
        mine = labels == cluster
        weights = torch.ones(int(mine.sum())) if algorithm.weights == "equal" else work.num_examples[mine]
        mean = weights.double() @ fitted[mine] / weights.sum()
        moved = 0.9 * first.server["momentum_buffer"][cluster] + first.models[cluster] - mean
        assert_close(second.server["momentum_buffer"][cluster], moved)


def test_algorithm_whose_init_trains_clients_has_a_server_optimizer():
    algorithm, work = FedGroup(2, pretrain_scale=1), quadratic_clients(8)
    state, info = with_server(algorithm, MOMENTUM).init(work, rng())
    expected, traffic = algorithm.init(work, rng())
    assert torch.equal(state.index, expected.index)
    assert (state.server_known.tolist(), info.down, info.up) == ([False, False], traffic.down, traffic.up)


def test_running_statistics_are_averaged_and_take_no_step():
    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))

    def after(server: Callable | None) -> Tensor:
        task = lambda: Classification(net(), partial(SGD, lr=0.1))  # noqa: E731
        *_, last = digits(task=task, algorithm=FedAvg(), rounds=1, server=server)
        return last.state.models[0]

    plain, half = after(None), after(partial(SGD, lr=0.5))
    trained = 64 + 64 + 640 + 10
    assert torch.equal(plain[trained:], half[trained:])
    assert not torch.equal(plain[:trained], half[:trained])


# Refusals, runs


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (CFL(), "a cluster is split when its mean update is small"),
        (LayerCFL(), "a cluster is split"),
        (AdaCFL(), "a cluster is split"),
        (Local(), "clients do not communicate, so there is no mean"),
        (IFCA(averaging="gradients"), "it averages gradients, not models"),
    ],
)
def test_algorithms_without_a_mean_in_clusters_are_refused(algorithm: Algorithm, why: str):
    name = type(algorithm).__name__
    with pytest.raises(InputError, match=f"server is given, but {name} cannot use it: {why}.*; leave out server"):
        digits(algorithm=algorithm, server=MOMENTUM)


def test_own_algorithm_that_averages_otherwise_is_refused_in_its_first_round():
    class Median(FedAvg):
        def round(self, state, cohort, work, rng):
            fitted = work.fit(state.models, cohort)
            return FedAvgState(fitted.rows.median(0, keepdim=True).values), Info(up=len(cohort))

    with pytest.raises(InputError, match="Median does not average the fits of a round by mean_by_cluster"):
        list(states(with_server(Median(), MOMENTUM), quadratic_clients(8)))


@pytest.mark.parametrize(
    ("make", "why"), [(LBFGS, "TypeError: .*closure"), (partial(SGD, lr=-1.0), "learning rate: -1")]
)
def test_optimizers_that_cannot_take_a_step_from_gradients_are_refused(make: Callable, why: str):
    with pytest.raises(
        InputError, match=f"server cannot be used: .*{why}.*; give an optimizer such as torch.optim.SGD"
    ):
        with_server(FedAvg(), make)


@pytest.mark.parametrize("algorithm", [FedGroup(num_clusters=2, pretrain_scale=2), Ditto()])
def test_run_with_a_server_optimizer_resumes_to_the_bit(algorithm: Algorithm, tmp_path: Path):
    options = {"algorithm": algorithm, "server": partial(Adam, lr=0.01)}
    whole = run(digits(rounds=4, **options), tmp_path / "whole")
    run(digits(rounds=2, **options), tmp_path / "parts")
    parts = run(digits(rounds=4, **options), tmp_path / "parts", mode="resume")
    assert timeless_rows(whole.path) == timeless_rows(parts.path)
    plain = run(digits(rounds=4, algorithm=algorithm), tmp_path / "plain")
    assert read_table(plain.path / "metrics.csv")[-1]["train/loss"] != timeless_rows(whole.path)[-1]["train/loss"]


def test_configuration_has_a_server_optimizer_and_can_do_without():
    words = ["--server", "torch.optim.SGD", "--server.lr", "1.0", "--server.momentum", "0.9"]
    experiment = load_experiment("fedavg/digits", words)
    assert experiment.to_dict()["server"]["init_args"]["momentum"] == 0.9
    assert digits(algorithm=FedAvg(), server=MOMENTUM).to_dict()["algorithm"] == {
        "class_path": "lit_cfl.algorithms.fedavg.FedAvg",
        "init_args": {"weights": "examples"},
    }
    without = load_experiment(experiment.to_dict(), ["--server", "null"])
    assert type(without.algorithm) is FedAvg
    for wrong in ("torch.optim.SGDD", "3"):
        with pytest.raises(InputError, match=f"server: '{wrong}' .*SGD"):
            load_experiment("fedavg/digits", ["--server", wrong])
