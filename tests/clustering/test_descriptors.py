import pytest
import torch
from quadratic import ids, rng
from sklearn.decomposition import PCA
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.clustering.descriptors import block_range, describe, principal_axes


def numbers(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("width", [3, 30])
def test_axes_are_those_of_scikit_learn(width: int):
    points = torch.rand(200, width, generator=rng(), dtype=torch.float64)
    center, axes = principal_axes(points, 3)
    expected = PCA(n_components=3, svd_solver="full").fit(points.numpy())
    assert_close(center.numpy(), expected.mean_)
    assert_close(axes.T.numpy(), expected.components_)


def test_moments_of_all_and_of_each_label():
    points = numbers([0, 1], [2, 1], [4, 7], [10, -1])
    found = describe(points, ids(0, 0, 2, 0), 3)
    assert_close(found[0], numbers([4, 2])[0])
    assert_close(found[1].square(), numbers([14, 9])[0])  # divided by n, not n - 1
    assert_close(found[2:5], numbers([4, 1 / 3], [-1, -1], [-1, -1]))  # label 2 has one example, label 1 none
    assert_close(found[5:].square(), numbers([56 / 3, 8 / 9], [1, 1], [1, 1]))
    assert (found[6:] == -1).all()


def test_a_point_with_several_labels_counts_for_each():
    points, labels = numbers([0, 1], [2, 1], [4, 7]), torch.tensor([[1, 0], [1, 1], [0, 1]]).bool()
    assert_close(describe(points, labels, 2)[2:4], numbers([1, 1], [3, 4]))


def test_without_labels_two_blocks_are_left():
    points = numbers([0, 1], [2, 1])
    assert torch.equal(describe(points, ids(0, 1), 0), describe(points, ids(0, 1), 2)[:2])


def test_each_block_has_one_range_over_clients_and_axes():
    descriptors = torch.stack([numbers([0, 4], [1, 1], [5, 5]), numbers([1, 2], [3, 0], [5, 5])])
    low, width = block_range(descriptors)
    assert torch.equal(low, numbers([0], [0], [5]))
    assert torch.equal(width, numbers([4], [3], [1]))  # a constant block is scaled to 0


def test_a_range_of_rounding_errors_counts_as_0():
    descriptors = torch.stack([numbers([1.0], [1e-17]), numbers([3.0], [0.0])])
    assert torch.equal(block_range(descriptors)[1], numbers([2], [1]))
