"""Shorthands for clients with quadratic losses, tensors of ids, and generators."""

import torch
from torch import Generator, Tensor

from lit_cfl.testing import QuadraticWork


def quadratic_clients(clients: int, **options: object) -> QuadraticWork:
    rng = torch.Generator().manual_seed(1)
    sides = torch.where(torch.arange(clients) % 2 == 0, 3.0, -3.0)
    spread = 0.1 * torch.randn(clients, 4, generator=rng, dtype=torch.float64)
    centers = spread + torch.stack([sides, *[torch.zeros(clients)] * 3], dim=1).double()
    settings = {"learning_rate": 0.25, "steps": 3} | options
    return QuadraticWork(centers, torch.arange(1, clients + 1), **settings)


def ids(*clients: int) -> Tensor:
    return torch.tensor(clients, dtype=torch.int64)


def rng(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)
