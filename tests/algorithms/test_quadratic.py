"""Tests the rounding of the closed form of quadratic clients; test_local_work compares all of their answers."""

import pytest
import torch
from quadratic import ids, rng

from lit_cfl.local_work import Budget
from lit_cfl.testing import QuadraticWork

LENGTHS = ids(1, 7, 50)


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_closed_form_is_as_many_gradient_steps_to_the_rounding_of_the_centers(dtype: torch.dtype, rounding: float):
    start, pulled_to, centers = torch.randn(3, 3, 2, generator=rng(), dtype=torch.float64).to(dtype)
    work = QuadraticWork(centers, ids(2, 1, 3), learning_rate=0.1)
    budget = Budget(LENGTHS, "steps")
    found = work.fit(start, ids(0, 1, 2), ids(0, 1, 2), prox=0.3, centers=pulled_to, center=ids(0, 1, 2), budget=budget)
    assert found.rows.dtype == dtype
    for client, steps in enumerate(LENGTHS.tolist()):
        model, center, pull = (rows[client].double() for rows in (start, centers, pulled_to))
        for _ in range(steps):
            model = model - 0.1 * (model - center + 0.3 * (model - pull))
        assert float((found.rows[client] - model).abs().max()) <= rounding
