import pytest
import torch
from own_arrays import assert_refused
from quadratic import ids, rng
from torch.testing import assert_close

from lit_cfl.clustering import (
    assign,
    clusters_of,
    cosine_similarity,
    cross_distances,
    direction_cosines,
    distances,
    edc,
    edc_embedding,
    kmeans,
    madc,
)

FIXTURE = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0], [-1, 0, 0]], dtype=torch.float64)  # checks 10 and 11


def random_updates(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=rng(seed), dtype=torch.float64)


def test_zero_update_is_alike_nobody():
    updates = torch.cat([FIXTURE, torch.zeros(1, 3, dtype=torch.float64)])
    assert (cosine_similarity(updates)[4] == 0).all()
    assert (edc_embedding(updates, 2)[4] == 0).all()


def test_edc_of_the_fixture():
    found = edc(FIXTURE, 2)
    expected = {(0, 1): 0.7071, (0, 2): 0.3827, (0, 3): 1.0, (1, 2): 0.3827, (1, 3): 0.7071, (2, 3): 0.9239}
    for (i, j), value in expected.items():
        assert found[i, j] == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize("n", [3, 7])
def test_madc_equals_its_definition(n: int):  # check 11: with three clients, two are compared by the third
    similarity = cosine_similarity(random_updates(n, 5))
    for i in range(n):
        for j in range(n):
            others = [z for z in range(n) if z not in (i, j)]
            expected = sum(abs(similarity[i, z] - similarity[j, z]).item() for z in others) / (n - 2)
            assert madc(similarity)[i, j].item() == pytest.approx(0 if i == j else expected, abs=1e-12)


def test_edc_is_exact_where_the_rank_is_small():  # check 10
    updates = random_updates(8, 2) @ random_updates(2, 30, seed=1)
    expected = (2 - 2 * cosine_similarity(updates)).clamp(min=0).sqrt() / 2
    assert_close(edc(updates, 2), expected, atol=1e-7, rtol=0)


def test_embedding_by_the_gram_matrix_equals_the_singular_value_decomposition():
    updates = random_updates(10, 60)
    _, _, directions = torch.linalg.svd(updates, full_matrices=False)
    by_svd = updates @ directions[:3].T / updates.norm(dim=1, keepdim=True)
    assert_close(edc_embedding(updates, 3).abs(), by_svd.abs(), atol=1e-9, rtol=0)


def test_nearest_direction_is_by_angle_alone():  # check 13
    directions = torch.tensor([[0.0, 1.0], [5.0, 0.0]])
    updates = torch.tensor([[0.0, 100.0], [1e-4, 0.0], [3.0, 1.0], [0.0, -1.0]])
    assert direction_cosines(updates, directions).argmax(1).tolist() == [0, 1, 1, 1]
    directions = random_updates(2, 8)  # an update against a direction goes to the other one
    assert direction_cosines(torch.cat([3 * directions, -directions]), directions).argmax(1).tolist() == [0, 1, 1, 0]
    directions = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # ties and zeros go to the lowest index
    assert direction_cosines(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), directions).argmax(1).tolist() == [0, 0]


def test_kmeans_numbers_clusters_by_their_lowest_member():
    points = torch.tensor([[5.0], [0.0], [5.1], [9.0], [0.1]])
    for seed in range(5):
        assert kmeans(points, 3, rng(seed)).tolist() == [0, 1, 0, 2, 1]


def test_kmeans_takes_the_best_of_its_starts():
    points = torch.tensor([6.0, 8, 10, 12, 17, 26, 30, 34, 39])[:, None]
    for seed in range(5):  # the minimum sum of squares is 91.7, which a single start finds in 3 of 10 cases
        assert kmeans(points, 3, rng(seed)).tolist() == [0, 0, 0, 0, 0, 1, 1, 2, 2]


def test_client_without_a_cluster_stays_unchanged_in_the_client_map():
    assert assign(ids(3, 4, 5), ids(2, 7, 0), ids(-1, -1, 6)).tolist() == [6, 4, 5]


def test_client_map_grows_for_a_client_it_did_not_know():
    index = ids(0, -1, 1)
    grown = assign(index, ids(5, 1), ids(7, 8))
    assert grown.tolist() == [0, 8, 1, -1, -1, 7]
    assert index.tolist() == [0, -1, 1]
    assert clusters_of(index, ids(2, 4, 0)).tolist() == [1, -1, 0]


ROWS = torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0], [4.0, -3.0]])
METRICS = ["l1", "l2", "cosine"]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("l1", [[0, 7, 14, 7], [7, 0, 7, 8], [14, 7, 0, 13], [7, 8, 13, 0]]),
        ("l2", [[0, 5, 10, 5], [5, 0, 5, 50**0.5], [10, 5, 0, 125**0.5], [5, 50**0.5, 125**0.5, 0]]),
        # a zero row has similarity 0 to all others
        ("cosine", [[0, 1, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1], [1, 1, 1, 0]]),
    ],
)
def test_distances_of_hand_worked_rows(metric: str, expected: list[list[float]]):
    assert_close(distances(ROWS, metric), torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("metric", METRICS)
def test_distance_to_others_is_that_between_rows(metric: str):
    rows = random_updates(9, 30).float()
    assert_close(cross_distances(rows, rows[2:5], metric)[:2], distances(rows, metric)[:2, 2:5])
    assert metric == "cosine" or (cross_distances(rows, rows, metric).diagonal() == 0).all()


# no cancellation, as it would occur in |a|^2 - 2ab + |b|^2
def test_models_that_lie_close_together_keep_their_distances():
    updates = 1e-6 * random_updates(6, 500)
    models = 100 * random_updates(1, 500, seed=1) + updates
    assert_close(distances(models, "l2"), distances(updates, "l2"), rtol=1e-6, atol=0)


def test_equal_models_have_distance_zero():
    for seed in range(5):
        rows = random_updates(7, 333, seed).repeat(2, 1)
        found = distances(rows, "l2")
        assert (found[:7, 7:].diagonal() == 0).all()
        assert not found.isnan().any()


SPOILT = torch.eye(3).index_put((ids(1), ids(2)), torch.tensor(torch.inf))


def test_bad_input_is_refused():
    assert_refused(lambda: direction_cosines(SPOILT, torch.eye(3)), "update 1 ")
    assert_refused(lambda: edc(SPOILT, 2), "update 1 ")
    assert_refused(lambda: madc(torch.eye(2)), "2 clients")
    assert_refused(lambda: kmeans(torch.tensor([[1.0], [2.0], [1.0]]), 3, rng()), "num_clusters is 3,  | 2 ")
