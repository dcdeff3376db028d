"""Tests that chains give the CPU's numbers on a simulated GPU, from steps captured once and replayed."""

from functools import partial

import pytest
import torch
from pretended_gpu import Graph, PretendedGPU, pretended
from ragged import SHAPE, SIZES, ragged_data, task
from torch import nn

from lit_cfl.engines.base import Engine
from lit_cfl.engines.chain.groups import ClientGroup
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.local_work import Fitted
from lit_cfl.nets import MCLR, MLP

pytestmark = pytest.mark.nightly  # a pretended GPU
gpu = pytest.fixture(pretended)
NETS = {
    "linear": lambda: MCLR(SHAPE, 10),
    "mlp": lambda: MLP(12, SHAPE, 10),
    "dropout": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Dropout(0.4), nn.Linear(9, 10)),
}
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, weight_decay=0.01),
    "adam": partial(torch.optim.Adam, lr=0.01),
}


def trained(
    net: str, optimizer: str, prox: float, device: str, epochs: int = 6, weights: torch.Tensor | None = None
) -> Fitted:
    engine = Engine(
        task(NETS[net], OPTIMIZERS[optimizer]), Plan("chain", device, "64-true", lanes=8), 5, LocalTraining(epochs, 10)
    )
    data, clients = ragged_data(), torch.arange(ragged_data().num_clients)
    models = torch.stack([engine.initial(number) for number in range(3)])
    return engine.at(2, data).fit(models, clients, clients % 2, prox=prox, centers=models, center=2, weights=weights)


CASES = [
    ("linear", "sgd", 0.0),
    ("linear", "sgd", 0.3),
    ("mlp", "adam", 0.3),
    ("mlp", "sgd", 0.0),
    ("dropout", "sgd", 0.3),
]


@pytest.mark.parametrize(("net", "optimizer", "prox"), CASES)
def test_captured_steps_have_the_cpus_numbers(net: str, optimizer: str, prox: float, gpu: PretendedGPU):
    with gpu.counting() as counts:
        found = trained(net, optimizer, prox, "cuda:0")
        assert Graph.made > 0
        assert counts.replays > 5 * Graph.made
        rows, losses = found.rows, found.losses
    expected = trained(net, optimizer, prox, "cpu")
    torch.testing.assert_close(rows, expected.rows, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(losses, expected.losses, rtol=1e-12, atol=1e-13, equal_nan=True)


def test_captured_steps_weigh_examples_as_on_a_cpu(gpu: PretendedGPU):
    weights = torch.rand(sum(SIZES), generator=torch.Generator().manual_seed(1))
    for net, optimizer, prox in CASES[1:4]:
        found = trained(net, optimizer, prox, "cuda:0", weights=weights)
        expected = trained(net, optimizer, prox, "cpu", weights=weights)
        torch.testing.assert_close(found.rows, expected.rows, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(found.losses, expected.losses, rtol=1e-12, atol=1e-13, equal_nan=True)


def test_few_steps_are_not_captured(gpu: PretendedGPU):
    trained("linear", "sgd", 0.0, "cuda:0", epochs=1)
    assert Graph.made == 0


def test_a_long_stretch_ends_when_half_of_its_clients_have():
    group = ClientGroup(torch.arange(5), [9, 9, 7, 4, 4], 10, 0)
    assert [[(s.steps, s.busy, s.following) for s in part] for part in group.stretches(long=True)] == [
        [(range(0, 4), 5, 3), (range(4, 7), 3, 2)],
        [(range(7, 9), 2, 0)],
    ]
    assert [len(part) for part in group.stretches(long=False)] == [1, 1, 1]
