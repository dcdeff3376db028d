"""Tests layers that all clusters share, on quadratic clients."""

from functools import partial
from typing import Any

import pytest
import torch
from averaging import AVERAGING, COHORTS, states
from digits_experiment import digits
from quadratic import ids, quadratic_clients, rng
from torch import Tensor, nn
from torch.optim import SGD
from torch.testing import assert_close

from lit_cfl.algorithms import CFL, IFCA, Algorithm, FedAvg, FedGroup, Info, Local, Oracle, StoCFL
from lit_cfl.algorithms.fedavg import FedAvgState
from lit_cfl.algorithms.shared_layers import with_shared_layers
from lit_cfl.errors import InputError
from lit_cfl.tasks import Classification
from lit_cfl.testing import QuadraticWork, check_algorithm

TRUTH = torch.arange(8) % 2
SHARED, OWN = slice(2), slice(2, 4)  # conv1 and fc1, two columns each


def last(algorithm: Algorithm, work: QuadraticWork, cohorts: list[Tensor] = COHORTS) -> Any:
    *_, state = states(algorithm, work, cohorts)
    return state


def test_shared_layers_train_as_in_fedavg_and_the_others_as_in_each_cluster_alone():
    work = quadratic_clients(8, true_clusters=TRUTH)
    found, alone, joint = (
        last(algorithm, work) for algorithm in (with_shared_layers(Oracle(), ["conv*"]), Oracle(), FedAvg())
    )
    assert torch.equal(found.models[:, OWN], alone.models[:, OWN])
    assert_close(found.models[:, SHARED], joint.models[:, SHARED].expand(2, -1), rtol=0, atol=1e-12)
    assert not torch.allclose(alone.models[:, SHARED], joint.models[:, SHARED])


def test_all_layers_shared_is_fedavg_whatever_the_clusters():
    work = quadratic_clients(8)
    found, joint = last(with_shared_layers(IFCA(num_clusters=3), ["*"]), work), last(FedAvg("equal"), work)
    assert_close(found.models, joint.models.expand(3, -1), rtol=0, atol=1e-12)


def test_cluster_that_nobody_trains_has_the_shared_layers_and_keeps_its_own():
    work, algorithm = quadratic_clients(8, true_clusters=TRUTH), with_shared_layers(Oracle(), ["conv1"])
    before, after = states(algorithm, work, [ids(0, 1), ids(2, 4)])  # the second round trains only cluster 0
    assert torch.equal(after.models[1, SHARED], after.models[0, SHARED])
    assert not torch.equal(after.models[1, SHARED], before.models[1, SHARED])
    assert torch.equal(after.models[1, OWN], before.models[1, OWN])


def test_new_cluster_starts_from_the_shared_layers():
    work = quadratic_clients(8, true_clusters=TRUTH.index_fill(0, ids(7), 5))
    work.population = torch.arange(7)
    algorithm = with_shared_layers(Oracle(), ["conv1"])
    state = last(algorithm, work, [ids(0, 1), ids(2, 3)])
    placed, _ = algorithm.place(state, ids(7), work, rng())
    new = placed.models[placed.index[7]]
    assert torch.equal(new[SHARED], state.models[0, SHARED])
    assert torch.equal(new[OWN], work.initial(0)[OWN])
    starts = []

    class Listening(QuadraticWork):
        def fit(self, models, clients, *arguments, purpose="train", **options):
            starts.extend([models] if purpose == "train" else [])
            return super().fit(models, clients, *arguments, purpose=purpose, **options)

    clients = quadratic_clients(8)
    listening = Listening(clients.centers, clients.num_examples, 0.25, steps=3)
    last(with_shared_layers(StoCFL(tau=1.0), ["conv1"]), listening, [ids(0, 1), ids(2, 3, 0)])
    assert all(torch.equal(models[:, SHARED], models[:1, SHARED].expand(len(models), -1)) for models in starts)


@pytest.mark.parametrize("kind", AVERAGING)
def test_algorithms_with_shared_layers_keep_the_contract_and_share_them(kind: type[Algorithm]):
    sharing = with_shared_layers(kind(), ["conv1"])
    check_algorithm(sharing)
    work = quadratic_clients(8, true_clusters=TRUTH if kind.sees_truth else None)
    for state in states(sharing, work):
        assert torch.equal(state.models[:, SHARED], state.models[:1, SHARED].expand(len(state.models), -1))
    assert (type(sharing).__name__, with_shared_layers(sharing, None)) == (kind.__name__, kind())


def test_mix_of_clusters_leaves_the_shared_layers():
    work, options = quadratic_clients(8), {"num_clusters": 2, "pretrain_scale": 2}
    mixed, plain = (
        last(with_shared_layers(FedGroup(**options, eta_g=eta_g), ["conv1"]), work, [torch.arange(8)])
        for eta_g in (0.5, 0.0)
    )
    assert torch.equal(mixed.models[:, SHARED], plain.models[:, SHARED])
    assert not torch.allclose(mixed.models[:, OWN], plain.models[:, OWN])


def test_running_statistics_go_with_their_layer():
    def task() -> Classification:
        return Classification(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)), partial(SGD, lr=0.1))

    prepared = digits(task=task, algorithm=IFCA(num_clusters=2), shared=["1"], rounds=2).prepare(3)
    *_, found = prepared.rounds()
    layout = prepared.engine.layout
    columns = layout.columns_with_buffers(["batchnorm1d[0]"])
    assert len(columns) == 4 * 64  # weights, biases, running means and variances
    assert torch.equal(found.state.models[0, columns], found.state.models[1, columns])
    others = layout.columns("linear[0]")
    assert not torch.allclose(found.state.models[0, others], found.state.models[1, others])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"algorithm": CFL()}, "shared is given, but CFL cannot use it: a cluster is split when.*; leave out shared"),
        ({"algorithm": Local()}, "shared is given, but Local cannot use it: clients do not communicate"),
        ({"shared": []}, r"shared is \[\]; name layers, such as \[conv\*\], or leave it out"),
        ({"server": partial(SGD, lr=0.5)}, "server and shared are both given: .*; leave out one"),
    ],
)
def test_what_cannot_share_layers_is_refused(options: dict[str, Any], expected: str):
    with pytest.raises(InputError, match=expected):
        digits(**({"shared": ["fc1"]} | options))


def test_missing_layers_are_refused_before_the_start_and_own_means_in_the_first_round():
    with pytest.raises(InputError, match="layer pattern 'convv' matches nothing; the layers are: net"):
        digits(algorithm=FedAvg(), shared=["convv"]).prepare(3)

    class Median(FedAvg):
        def round(self, state, cohort, work, rng):
            rows = work.fit(state.models, cohort).rows
            return FedAvgState(rows.median(0, keepdim=True).values), Info(up=len(cohort))

    with pytest.raises(InputError, match="shared is given, but Median does not average the fits of a round"):
        last(with_shared_layers(Median(), ["conv1"]), quadratic_clients(8))
