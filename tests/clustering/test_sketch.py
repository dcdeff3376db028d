import pickle

import pytest
import torch
from quadratic import rng

from lit_cfl.clustering import cosine_similarity, random_projection


def rows_of(n: int, d: int, seed: int = 0) -> torch.Tensor:
    """Makes rows with a common component, as clients' gradients have."""
    return torch.randn(n, d, generator=rng(seed)) + 0.5 * torch.randn(1, d, generator=rng(seed + 1))


@pytest.mark.parametrize("sketch_dim", [64, 256, 1024])
def test_error_of_a_cosine_is_that_of_the_dimension(sketch_dim: int):
    rows = rows_of(40, 20_000)
    errors = []
    for seed in range(5):
        sketch = random_projection(20_000, sketch_dim, seed)
        errors.append((cosine_similarity(sketch(rows)) - cosine_similarity(rows))[*torch.triu_indices(40, 40, 1)])
    error = torch.stack(errors)
    assert error.square().mean().sqrt() == pytest.approx(sketch_dim**-0.5, rel=0.25)
    assert error.mean().abs() < 0.5 * sketch_dim**-0.5  # the estimate is unbiased


def test_rows_without_a_common_column_stay_at_right_angles():  # without random signs, their sketches would look similar
    rows = torch.ones(2, 20_000)
    rows[0, ::2], rows[1, 1::2] = 0, 0
    assert cosine_similarity(random_projection(20_000, 1_000, 0)(rows))[0, 1].abs() < 4 / 1_000**0.5


@pytest.mark.parametrize(("num_columns", "sketch_dim"), [(12, 5), (12, 12), (12, 1), (13, 6)])
def test_every_column_goes_into_one_bucket_and_keeps_its_size(num_columns: int, sketch_dim: int):
    sketched = random_projection(num_columns, sketch_dim, 3)(torch.eye(num_columns))
    assert ((sketched != 0).sum(1) == 1).all()
    assert (sketched.abs().sum(1) == 1).all()
    used = sketched.abs().sum(0)
    assert used.max() - used.min() <= 1  # buckets have equal sizes, up to the remaining columns


def test_row_has_the_same_bits_in_any_company():
    rows, sketch = rows_of(9, 5_000), random_projection(5_000, 300, 0)
    alone = torch.cat([sketch(row[None]) for row in rows])
    assert torch.equal(sketch(rows), alone)
    assert torch.equal(sketch(rows.T.contiguous().T), alone)


def test_seed_alone_decides():
    rows = rows_of(3, 100)
    assert torch.equal(random_projection(100, 10, 7)(rows), random_projection(100, 10, 7)(rows))
    assert torch.equal(random_projection(100, 10, rng(7))(rows), random_projection(100, 10, 7)(rows))
    assert not torch.equal(random_projection(100, 10, 8)(rows), random_projection(100, 10, 7)(rows))


def test_projection_reaches_another_process_unchanged():
    rows, sketch = rows_of(2, 100), random_projection(100, 10, 7)
    assert torch.equal(pickle.loads(pickle.dumps(sketch))(rows), sketch(rows))  # noqa: S301  # our own bytes, as Ray sends them
