"""Clients of a stack are held near centres of their own, as in FedGrouProx and StoCFL: no lane has its neighbour's."""

import pytest
import torch
from ragged import LOCAL, PLANS, SHAPE, ragged_data, rows_of, task
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.engines.factory import build_engine
from lit_cfl.engines.plan import Plan
from lit_cfl.nets import MCLR

MAKE = task(lambda: MCLR(SHAPE, 10))


def pulled(plan: str, centers: Tensor, center: Tensor) -> Tensor:
    """Clients that start from one model, each drawn to its own centre: `[clients, d]`."""
    data = ragged_data()
    engine = build_engine(MAKE, Plan(**vars(PLANS[plan]) | {"precision": "64-true"}), 5, LOCAL)
    work, clients = engine.at(1, data), torch.arange(data.num_clients)
    return rows_of(work.fit(engine.initial(0)[None], clients, prox=0.5, centers=centers, center=center))


@pytest.mark.parametrize("plan", [name for name in PLANS if name != "trainer"])
def test_each_client_of_a_stack_has_its_own_centre(plan: str):
    centers = torch.randn(3, 650, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    center = torch.tensor([0, 2, 1, 0, 2, 1])
    expected = pulled("trainer", centers, center)
    assert_close(pulled(plan, centers, center), expected, rtol=0, atol=1e-12)
    assert not torch.allclose(pulled(plan, centers, center.flip(0)), expected)
