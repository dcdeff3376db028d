"""Mixture components are counted on clients whose gradients are known mixtures."""

import pytest
import torch
from torch import Tensor

from lit_cfl.clustering.number_of_components import number_of_components

NO_LABELS = torch.zeros(60, 0, dtype=torch.int64)


def mixtures(components: int, clients: int = 60, noise: float = 0.1) -> Tensor:
    """Makes updates [2, clients, 400] from halves of clients that mix orthogonal gradients in their own proportions."""
    rng = torch.Generator().manual_seed(components)
    draws = torch.rand(clients, components, generator=rng, dtype=torch.float64).square()
    proportions = draws / draws.sum(1, keepdim=True)
    means = proportions @ (3 * torch.eye(400, dtype=torch.float64)[:components])
    return means + noise * torch.randn(2, clients, 400, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("components", [1, 2, 3, 5])
def test_components_of_a_mixture_are_counted(components: int):
    assert number_of_components(mixtures(components), NO_LABELS, 10) == components


def test_noise_alone_and_equal_updates_are_one_component():
    noise = torch.randn(2, 60, 400, generator=torch.Generator().manual_seed(1))
    assert number_of_components(noise, NO_LABELS, 10) == 1
    assert number_of_components(torch.ones(2, 60, 40), NO_LABELS, 10) == 1
    assert number_of_components(torch.zeros(2, 60, 40), NO_LABELS, 10) == 1


def test_what_shares_of_labels_explain_is_no_component():
    rng = torch.Generator().manual_seed(2)
    labels = torch.randint(1, 30, (60, 4), generator=rng)
    of_label = 5 + torch.randn(4, 400, generator=rng, dtype=torch.float64)
    means = labels.double() / labels.sum(1, keepdim=True) @ of_label
    halves = means + 0.3 * torch.randn(2, 60, 400, generator=rng, dtype=torch.float64)
    assert number_of_components(halves, labels, 10) == 1
    assert number_of_components(halves, NO_LABELS, 10) == 4


def test_length_of_an_update_is_no_component_and_the_maximum_is_kept():
    rng = torch.Generator().manual_seed(3)
    sizes = torch.randint(1, 50, (60, 1), generator=rng).double()
    halves = sizes * (torch.ones(400).double() + 0.1 * torch.randn(2, 60, 400, generator=rng).double())
    assert number_of_components(halves, NO_LABELS, 10) == 1
    assert number_of_components(mixtures(5), NO_LABELS, 3) == 3
    assert number_of_components(mixtures(5), NO_LABELS, 1) == 1
