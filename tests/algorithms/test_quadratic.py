"""Tests that the closed form of quadratic clients equals plain gradient steps up to rounding."""

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


def test_client_in_another_round_is_the_same_and_of_the_same_kind():
    class Named(QuadraticWork):
        pass

    work = Named(torch.zeros(2, 1), ids(1, 2), learning_rate=0.5)
    later = work.at(3)
    assert (later.round, work.round, type(later)) == (3, 0, Named)
    assert later.centers is work.centers


def test_map_shows_the_centre_once_for_each_label():
    counts = torch.tensor([[1, 2], [0, 0], [0, 1]])
    work = QuadraticWork(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), counts.sum(1), 0.5, label_counts=counts)
    first, none, last = work.map(lambda inputs, labels: {"sum": inputs.sum(0), "labels": labels}, ids(0, 1, 2))
    assert none is None
    assert first["sum"].tolist() == [3, 6]
    assert first["labels"].tolist() == [0, 1, 1]
    assert last["sum"].tolist() == [5, 6]
    assert work.bytes_up == 2 * 8 + 4 * 8  # two sums of two floats, four labels
    assert work.at(1).bytes_up == 0
    (moved,) = work.map(lambda inputs, labels, module: module(inputs)[0], ids(2), torch.tensor([1.0, 1.0]))
    assert moved.tolist() == [4, 5]


def test_weights_of_examples_are_a_factor_of_the_loss_of_their_client():
    start, center = torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([[3.0], [3.0]], dtype=torch.float64)
    work = QuadraticWork(center, ids(2, 3), learning_rate=0.5)
    weights = torch.tensor([0.5, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0])  # mean weights are 1/4, 1 and 0
    found = work.fit(start, ids(0, 1, 0), weights=weights)
    assert found.rows.flatten().tolist() == pytest.approx([1.25, 2.0, 1.0])  # 1 + 0.5 * share * 2
    assert found.losses.tolist() == pytest.approx([0.5, 2.0, 0.0])
    assert found.loss == pytest.approx((2 * 0.5 + 3 * 2 + 2 * 0) / 7)
    pulled = work.fit(start, ids(0), prox=0.5, centers=start + 1, weights=weights[:2], budget=Budget(40))
    assert float(pulled.rows) == pytest.approx((0.25 * 3 + 0.5 * 2) / 0.75)  # at this point, both pulls are equal
    assert work.example_losses(torch.cat([start, start + 1]), ids(1, 0)).tolist() == [[2.0] * 5, [0.5] * 5]


def test_client_without_data_answers_as_in_an_engine():
    work = QuadraticWork(torch.tensor([[2.0], [2.0]]), ids(3, 0), learning_rate=0.5)
    assert work.gradients(torch.zeros(1), ids(0, 1)).tolist() == [[-2.0], [0.0]]
    losses = work.losses(torch.zeros(2, 1), ids(0, 1))
    assert losses[0].tolist() == [2.0, 2.0]
    assert losses[1].isnan().all()
    with pytest.raises(TypeError, match="prox needs centers"):
        work.fit(torch.zeros(1, 1), ids(0), prox=0.1)
