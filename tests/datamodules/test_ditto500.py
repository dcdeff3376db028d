"""FashionMNIST-500: exactly the clients of the released code."""

import numpy as np
import pytest
import torch
from paper_cases import balanced, divided, labels_by_client, pool_of, real

from lit_cfl.datamodules.partition import Ditto500
from lit_cfl.datamodules.partition.base import label_counts
from lit_cfl.datamodules.partition.ditto500 import deal_in_cycles, draw_wanted_images


def test_ditto_gives_exactly_the_released_totals():
    division = divided(Ditto500(), pool_of(balanced(6000), balanced(1000, 1)))
    train = division.train.sizes
    assert (int(train.sum()), int(division.test.sizes.sum())) == (61_251, 11_254)
    assert (int(train.min()), int(train.max()), float(np.median(train.numpy()))) == (31, 1378, 88.0)


def test_ditto_on_the_real_data():
    pool = real("fashion_mnist")
    division = divided(Ditto500(), pool)
    assert (len(division.train.entries), len(division.test.entries)) == (61_251, 11_254)
    assert labels_by_client(division, pool) == [{(u + j) % 10 for j in range(5)} for u in range(500)]
    first = (pool.labels[:60_000] == 0).nonzero().flatten()
    assert set(division.train[0].tolist()) >= set(first[: int((pool.labels[division.train[0]] == 0).sum())].tolist())


def test_ditto_begins_again_six_times_in_training_and_ten_times_in_test():
    pool = pool_of(balanced(6000), balanced(1000, 1))
    division = divided(Ditto500(), pool)
    for index, part, wraps in ((division.train, slice(0, 60_000), 6), (division.test, slice(60_000, None), 10)):
        firsts = [(pool.labels[part] == label).nonzero()[0].item() + (part.start or 0) for label in range(10)]
        assert torch.isin(index.entries, torch.tensor(firsts)).sum().item() == 10 + wraps  # who reads from the first on


def test_ditto_clients_have_five_labels_and_no_image_twice():
    pool = pool_of(balanced(6000), balanced(1000, 1))
    division = divided(Ditto500(), pool)
    for index in (division.train, division.test):
        assert label_counts(index, pool.labels, 10).bool().sum(1).tolist() == [5] * 500
        assert all(one.unique().numel() == one.numel() for one in index)
    assert int(division.train.entries.max()) < 60_000 <= int(division.test.entries.min())
    assert division.true_clusters.tolist() == [u % 10 for u in range(500)]
    assert (division.test.sizes.min() >= 5, division.skew) == (True, "label")


def test_ditto_depends_on_its_own_seed_alone():
    pool = pool_of(balanced(6000), balanced(1000, 1))
    one, again, other = (divided(Ditto500(), pool, 0), divided(Ditto500(), pool, 1), divided(Ditto500(seed=2), pool, 0))
    assert torch.equal(one.train.entries, again.train.entries)
    assert len(one.train.entries) != len(other.train.entries)


def test_ditto_shares_out_sixty_thousand_before_rounding():
    assert draw_wanted_images(233).sum().item() == pytest.approx(60_000)


def test_reading_round_begins_again_where_too_few_are_left():
    labels = torch.arange(10).repeat(5)  # label 0 is at 0, 10, 20, 30, 40
    which = torch.zeros(4, 1, dtype=torch.int64)
    found = deal_in_cycles(labels, which, torch.tensor([[3], [2], [1], [5]]))
    assert [one.tolist() for one in found] == [[0, 10, 20], [30, 40], [0], [0, 10, 20, 30, 40]]


def test_no_global_random_state_is_touched():
    np.random.seed(5)
    before = np.random.get_state()[1].tolist()
    divided(Ditto500(), pool_of(balanced(6000), balanced(1000, 1)))
    assert np.random.get_state()[1].tolist() == before
