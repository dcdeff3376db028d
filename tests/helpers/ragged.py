"""Makes clients of different sizes, and engines of every kind for them."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from lightning import LightningModule
from torch import nn

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.local_work import Fitted
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification

SIZES = (0, 3, 17, 36, 9, 20)
SHAPE = [1, 8, 8]
LOCAL = LocalTraining(epochs=3, batch_size=10)
SGD = partial(torch.optim.SGD, lr=0.1)

PLANS = {"trainer": Plan("trainer"), "plain loop": Plan("loop")}
PLANS |= {"4 lanes": Plan("stack", lanes=4), "2 lanes": Plan("stack", lanes=2)}


class Linear(MCLR):
    def __init__(self) -> None:
        super().__init__(SHAPE, 10)


def clients_of(examples: Examples, sizes: Sequence[int]) -> FederatedData:
    """Divides examples in their order among clients of these sizes, for training alone."""
    train, none = ClientIndex.from_sizes(torch.arange(sum(sizes)), torch.tensor(sizes)), ClientIndex.empty(len(sizes))
    return FederatedData(examples, train, none, none, torch.zeros(len(sizes), dtype=torch.int64))


def ragged_data(sizes: Sequence[int] = SIZES) -> FederatedData:
    rng, total = torch.Generator().manual_seed(0), sum(sizes)
    images = torch.randint(0, 255, (total, *SHAPE), generator=rng, dtype=torch.uint8)
    return clients_of(Examples(images, torch.randint(0, 10, (total,), generator=rng), 10, 1 / 255), sizes)


def task(
    net: Callable[[], nn.Module], optimizer: Callable[..., torch.optim.Optimizer] = SGD
) -> Callable[[], LightningModule]:
    return lambda: Classification(net(), optimizer)


def in_groups(parameters: Iterable[nn.Parameter]) -> torch.optim.SGD:
    """Makes an SGD optimizer with separate weight decays and learning rates for kernels and biases."""
    found = list(parameters)
    kernels, biases = [p for p in found if p.dim() > 1], [p for p in found if p.dim() == 1]
    groups = [{"params": kernels, "weight_decay": 0.02}, {"params": biases, "lr": 0.3, "weight_decay": 0.01}]
    return torch.optim.SGD(groups, lr=0.1)


def fitted(
    make: Callable[[], LightningModule],
    plan: Plan,
    *,
    local: LocalTraining = LOCAL,
    prox: float = 0.0,
    data: FederatedData | None = None,
) -> tuple[Fitted, Engine]:
    """Trains clients that start from two models in turn and are pulled towards a third model."""
    data, engine = data or ragged_data(), build_engine(make, plan, 5, local)
    clients, models = torch.arange(data.num_clients), torch.stack([engine.initial(number) for number in range(3)])
    fit = engine.at(2, data).fit(models, clients, clients % 2, prox=prox, centers=models, center=2)
    return fit, engine
