"""Clients with quadratic losses, tensors of ids, and generators."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from lit_cfl.testing import QuadraticWork


class Clients(QuadraticWork):
    start: Tensor | None = None

    def initial(self, number: int) -> Tensor:
        return super().initial(number) if self.start is None else self.start.clone()


def clients_at(
    *centers: float | Sequence[float],
    sizes: Sequence[int] | Tensor | None = None,
    rate: float = 0.5,
    start: float | Sequence[float] | None = None,
    **options: object,
) -> Clients:
    """Makes one client per centre, on a line or in space; a step goes half of the way to the centre by default.

    They have 1, 2, 3, ... examples by default, and random initial models instead of `start`.
    """
    rows = torch.tensor(centers, dtype=torch.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    work = Clients(rows, torch.as_tensor(range(1, len(rows) + 1) if sizes is None else sizes), rate, **options)
    if start is not None:
        work.start = torch.tensor(start, dtype=torch.float64).expand(rows.shape[1])
    return work


def quadratic_clients(clients: int, **options: object) -> QuadraticWork:
    rng = torch.Generator().manual_seed(1)
    sides = torch.where(torch.arange(clients) % 2 == 0, 3.0, -3.0)
    spread = 0.1 * torch.randn(clients, 4, generator=rng, dtype=torch.float64)
    centers = spread + torch.stack([sides, *[torch.zeros(clients)] * 3], dim=1).double()
    settings = {"learning_rate": 0.25, "steps": 3} | options
    return QuadraticWork(centers, torch.arange(1, clients + 1), **settings)


def f64(*values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ids(*clients: int) -> Tensor:
    return torch.tensor(clients, dtype=torch.int64)


def rng(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)
