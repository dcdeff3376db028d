import numpy as np
import pytest
import torch
from torch import Tensor

from lit_cfl.clustering.number_of_clusters import number_of_clusters, prediction_strength
from lit_cfl.clustering.number_of_components import number_of_components


def bundles(sizes: list[int], noise: float = 0.1, seed: int = 0) -> Tensor:
    """Makes noisy updates around orthogonal directions, `sizes[k]` of them around direction k."""
    rng = torch.Generator().manual_seed(seed)
    centres = torch.eye(20, dtype=torch.float64)[torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))]
    return centres + noise * torch.randn(centres.shape, generator=rng, dtype=torch.float64)


def found(updates: Tensor, most: int = 10, seed: int = 0) -> int:
    return number_of_clusters(updates, most, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sizes", [[20, 20], [12, 12, 12], [30, 10, 10, 10], [8] * 6])
def test_bundles_are_counted(sizes: list[int]):
    assert found(bundles(sizes)) == len(sizes)


def test_one_bundle_and_mere_noise_are_one_cluster():
    assert found(bundles([40])) == 1
    noise = torch.randn(60, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert found(noise) == 1
    assert found(torch.ones(40, 5)) == 1
    assert found(torch.zeros(40, 5)) == 1


def test_number_is_at_most_the_one_asked_for_and_a_quarter_of_the_clients():
    updates = bundles([8] * 6)
    assert found(updates, most=3) <= 3
    assert found(updates[:7]) == 1  # seven clients are too few for two clusters with two clients in each half
    assert found(updates, most=1) == 1


def test_length_of_updates_does_not_matter_and_the_rng_decides_all_draws():
    updates = bundles([12, 12, 12])
    lengths = torch.linspace(0.5, 9, len(updates), dtype=torch.float64)[:, None]
    assert found(lengths * updates) == 3
    torch.manual_seed(5)
    assert found(updates, seed=3) == found(updates, seed=3)
    assert found([updates[:10], updates[10:]]) == 3  # the same updates in chunks


def test_prediction_strength_by_hand():
    one = np.array([[0.0], [0.1], [10.0], [10.1]])
    assert prediction_strength(one, one + 0.05, 2) == 1
    # The centres 0.05 and 10.05 assign 4.9 to 0, and 5.5 and 5.6 to 10: one of the three pairs stays together.
    other = np.array([[-9.0], [-9.1], [4.9], [5.5], [5.6]])
    assert prediction_strength(one, other, 2) == pytest.approx(1 / 3)
    assert prediction_strength(one, np.array([[0.0], [0.0], [0.0]]), 2) == 0


NO_LABELS = torch.zeros(60, 0, dtype=torch.int64)


def mixtures(components: int, clients: int = 60, noise: float = 0.1) -> Tensor:
    """Makes two updates per client `[2, clients, 400]`, each a noisy mixture of the same orthogonal gradients."""
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


def test_differences_that_shares_of_labels_explain_are_not_counted_as_components():
    rng = torch.Generator().manual_seed(2)
    labels = torch.randint(1, 30, (60, 4), generator=rng)
    of_label = 5 + torch.randn(4, 400, generator=rng, dtype=torch.float64)
    means = labels.double() / labels.sum(1, keepdim=True) @ of_label
    halves = means + 0.3 * torch.randn(2, 60, 400, generator=rng, dtype=torch.float64)
    assert number_of_components(halves, labels, 10) == 1
    assert number_of_components(halves, NO_LABELS, 10) == 4


def test_length_of_an_update_is_not_counted_as_a_component_and_the_maximum_is_kept():
    rng = torch.Generator().manual_seed(3)
    sizes = torch.randint(1, 50, (60, 1), generator=rng).double()
    halves = sizes * (torch.ones(400).double() + 0.1 * torch.randn(2, 60, 400, generator=rng).double())
    assert number_of_components(halves, NO_LABELS, 10) == 1
    assert number_of_components(mixtures(5), NO_LABELS, 3) == 3
    assert number_of_components(mixtures(5), NO_LABELS, 1) == 1
