"""Makes clients of different sizes, and engines of every kind for them."""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from lightning import LightningModule
from torch import Tensor, nn

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.local_work import Budget, Fitted
from lit_cfl.tasks import Classification

SIZES = (0, 3, 17, 36, 9, 20)
SHAPE = [1, 8, 8]
LOCAL = LocalTraining(epochs=3, batch_size=10)
SGD = partial(torch.optim.SGD, lr=0.1)

PLANS = {
    "trainer": Plan("trainer"),
    "plain loop": Plan("loop"),
    "4 lanes": Plan("stack", lanes=4),
    "2 lanes": Plan("stack", lanes=2),
}


def ragged_data(sizes: tuple[int, ...] = SIZES) -> FederatedData:
    rng = torch.Generator().manual_seed(0)
    total = sum(sizes)
    images = torch.randint(0, 255, (total, *SHAPE), generator=rng, dtype=torch.uint8)
    examples = Examples(images, torch.randint(0, 10, (total,), generator=rng), 10, 1 / 255)
    none = ClientIndex.empty(len(sizes))
    train = ClientIndex.from_sizes(torch.arange(total), torch.tensor(sizes))
    return FederatedData(examples, train, none, none, torch.zeros(len(sizes), dtype=torch.int64))


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
    clients: Tensor | None = None,
    prox: float = 0.0,
    budget: Budget | None = None,
    data: FederatedData | None = None,
) -> tuple[Fitted, Engine]:
    """Trains clients that start from two models in turn and are pulled towards a third model."""
    data = data or ragged_data()
    engine = build_engine(make, plan, 5, local)
    clients = torch.arange(data.num_clients) if clients is None else clients
    models = torch.stack([engine.initial(number) for number in range(3)])
    work = engine.at(2, data)
    fit = work.fit(models, clients, clients % 2, prox=prox, centers=models, center=2, budget=budget)
    return fit, engine
