import pytest
import torch
from own_arrays import assert_refused
from quadratic import ids, quadratic_clients
from torch.testing import assert_close

from lit_cfl.aggregation import Mix, client_weights, discrepancy, mean_by_cluster, mix_clusters
from lit_cfl.testing import QuadraticWork

ROWS = torch.tensor([[1.0, 0.0], [4.0, 3.0], [10.0, 6.0]])


def test_mean_is_weighted_within_each_cluster():
    means = mean_by_cluster(ROWS, ids(0, 0, 1), torch.tensor([1, 3, 7]))
    assert_close(means, torch.tensor([[(1 * 1 + 3 * 4) / 4, 9 / 4], [10.0, 6.0]]))


def test_empty_cluster_keeps_its_model():
    before = torch.tensor([[9.0, 9.0], [8.0, 8.0], [7.0, 7.0]])
    means = mean_by_cluster(ROWS, ids(0, 0, 2), into=before)
    assert_close(means, torch.tensor([[2.5, 1.5], [8.0, 8.0], [10.0, 6.0]]))
    assert before[0, 0] == 9.0  # arguments are unchanged


def test_scaling_all_weights_changes_nothing():
    weights = torch.tensor([1.0, 2.0, 5.0])
    assert torch.equal(mean_by_cluster(ROWS, ids(0, 1, 1), weights), mean_by_cluster(ROWS, ids(0, 1, 1), 64 * weights))


def test_weights_by_examples_or_equal():
    assert client_weights(ids(3, 0, 9), "examples").tolist() == [3, 0, 9]
    assert client_weights(ids(3, 0, 9), "equal").tolist() == [1, 1, 1]


def test_what_makes_no_sense_is_refused():
    assert_refused(lambda: client_weights(ids(1, 2), "last"), "weights is 'last'")
    assert_refused(lambda: mean_by_cluster(ROWS, ids(0, 0, 0), torch.tensor([1.0, -1.0, 3.0])), "a weight is -1.0")
    assert_refused(lambda: mean_by_cluster(ROWS, ids(0, 0, 0), torch.tensor([1.0, 1.0])), "2 weights for 3 labels")
    assert_refused(lambda: mean_by_cluster(ROWS, ids(0, 3, 0), into=ROWS[:2]), "label 3  | 2 clusters")
    assert_refused(lambda: mean_by_cluster(ROWS, ids(0, 0, 2)), "cluster 1 has no members")
    assert_refused(lambda: mix_clusters(ROWS, float("nan")), "eta_g is nan")
    assert_refused(lambda: mix_clusters(ROWS, 0.0, "mean"), "mix is 'mean'")


def test_inter_cluster_mix_fixture():  # docs/ground_truth.md, check 15
    models = torch.tensor([[3.0, 4.0], [0.0, 2.0]], dtype=torch.float64)
    normalised = mix_clusters(models, 1.0, "normalised")
    assert_close(normalised, torch.tensor([[2.0, 10 / 3], [0.5, 7 / 3]], dtype=torch.float64))
    assert_close(mix_clusters(models, 1.0, "sum"), torch.tensor([[3.0, 5.0], [0.6, 2.8]], dtype=torch.float64))


def test_mix_is_the_identity_without_rate_or_partner_and_normalised_of_equal_models():
    same = torch.tensor([[30.0, 40.0]] * 3, dtype=torch.float64)
    for mixed, models in ((mix_clusters(ROWS, 0.0), ROWS), (mix_clusters(ROWS[:1], 5.0), ROWS[:1])):
        assert torch.equal(mixed, models)
    assert_close(mix_clusters(same, 7.0), same)


def test_sum_mix_moves_no_model_further_than_the_bound():  # FlexCFL, Eq. 21
    models = torch.randn(4, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = (mix_clusters(models, 0.3, "sum") - models).norm(dim=1)
    assert (moved <= 0.3 * 3 + 1e-12).all()


def test_zero_model_pulls_nobody():
    models = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    assert_close(mix_clusters(models, 1.0, "sum"), torch.tensor([[0.6, 0.8], [3.0, 4.0]]))


@pytest.mark.parametrize("form", ["normalised", "sum"])
@pytest.mark.parametrize("buffer", [-1e9, 7.0, 0.0])
def test_buffers_are_not_mixed_and_enter_no_norm(form: Mix, buffer: float):
    parameters = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]])
    rows = torch.cat([parameters, torch.tensor([[buffer], [2 * buffer], [1.0]])], dim=1)
    mixed = mix_clusters(rows, 0.5, form, 2)
    assert torch.equal(mixed[:, :2], mix_clusters(parameters, 0.5, form))
    assert torch.equal(mixed[:, 2], rows[:, 2])


def test_discrepancy_is_over_parameters_and_not_over_buffers():
    work = QuadraticWork(torch.tensor([[3.0, 4.0, 1e9], [0.0, 8.0, -1e9]]), ids(1, 2), 1.0)
    fitted = work.fit(torch.zeros(1, 3), ids(0, 1))
    assert discrepancy(fitted, torch.tensor([[0.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), ids(0, 1), 2) == (5 + 6) / 2


def test_discrepancy_of_a_single_client_is_zero_after_aggregation():  # check 26
    work = quadratic_clients(3)
    fitted = work.fit(torch.zeros(1, 4).double(), ids(1))
    assert discrepancy(fitted, mean_by_cluster(fitted, ids(0)), ids(0)) == 0.0
