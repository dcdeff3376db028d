"""FEMNIST-200: three letters a client, many images shared."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_cases import all_of, balanced, divided, pool_of, sizes_of

from lit_cfl.datamodules.partition import FedProxFEMNIST
from lit_cfl.datamodules.partition.base import label_counts
from lit_cfl.errors import InputError, Notice


@pytest.mark.parametrize("sharing", [True, False])
def test_femnist_clients_have_three_letters_in_equal_numbers(sharing: bool):
    pool = pool_of(balanced(4500), num_labels=26)
    division = divided(FedProxFEMNIST(sharing=sharing, images_per_label=4500), pool)
    has = sum(label_counts(index, pool.labels, 10) for index in (division.train, division.test))
    for client, row in enumerate(has.tolist()):
        mine = [row[(client + j) % 10] for j in range(3)]
        assert mine == [mine[0]] * 3
        assert (mine[0] >= 2, sum(mine)) == (True, sum(row))
    assert division.true_clusters.tolist() == [u % 10 for u in range(200)]
    assert division.train.sizes.tolist() == [int(0.9 * n) for n in sizes_of(division).tolist()]


def test_femnist_sizes_are_those_of_the_released_law():
    pool = pool_of(balanced(4000))
    sizes = torch.cat([sizes_of(divided(FedProxFEMNIST(), pool, seed)) for seed in range(10)]).double()
    assert (sizes - 4).log().median().item() == pytest.approx(4.0, abs=0.08)  # 3 * int(s / 3) is s - 1 on average
    assert (sizes.mean() * 200).item() == pytest.approx(200 * (np.exp(4.5) + 4), rel=0.05)


def test_released_femnist_clients_read_the_same_images():
    pool = pool_of(balanced(4000))
    division = divided(FedProxFEMNIST(), pool)
    every = all_of(division)
    has = sum(label_counts(index, pool.labels, 10) for index in (division.train, division.test))
    assert every.unique().numel() == int(has.max(0).values.sum())  # as many as the largest client of each letter
    assert torch.isin(division.test.entries, division.train.entries).double().mean() > 0.8
    for train, test in zip(division.train, division.test, strict=True):
        assert torch.cat([train, test]).unique().numel() == len(train) + len(test)


@settings(deadline=None, derandomize=True, max_examples=8)
@given(st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_femnist_without_sharing_is_disjoint(clients: int, seed: int):
    every = all_of(divided(FedProxFEMNIST(clients, sharing=False), pool_of(balanced(4000)), seed))
    assert every.unique().numel() == every.numel()


def test_sharing_does_not_change_the_sizes():
    pool = pool_of(balanced(4000))
    one, other = (divided(FedProxFEMNIST(sharing=sharing), pool) for sharing in (True, False))
    assert sizes_of(one).tolist() == sizes_of(other).tolist()


def test_femnist_uses_at_most_so_many_images_of_a_letter_at_random():
    pool = pool_of(balanced(100))
    with pytest.warns(Notice):
        one, other = (all_of(divided(FedProxFEMNIST(images_per_label=30), pool, seed)).unique() for seed in (0, 1))
    assert (len(one), len(other)) == (300, 300)
    assert one.tolist() != other.tolist()


def test_clients_that_would_need_more_images_than_there_are_are_said():
    whole = divided(FedProxFEMNIST(), pool_of(balanced(4000)))
    wanted = sum(label_counts(index, pool_of(balanced(4000)).labels, 10) for index in (whole.train, whole.test)).max(1)
    short = int((wanted.values > 30).sum())
    assert 0 < short < 200
    with pytest.warns(Notice, match=rf"^{short} of 200 clients should have more images of a letter than there are"):
        capped = divided(FedProxFEMNIST(images_per_label=30), pool_of(balanced(100)))
    assert int((sizes_of(capped) == 3 * 30).sum()) >= short
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        divided(FedProxFEMNIST(), pool_of(balanced(4000)))


def test_femnist_follows_the_seed():
    pool = pool_of(balanced(400))
    one, again, other = (all_of(divided(FedProxFEMNIST(9), pool, seed)).tolist() for seed in (1, 1, 2))
    assert (one == again, one == other) == (True, False)


def test_too_few_images_without_sharing_name_how_many_clients_fit():
    pool = pool_of(balanced(78))
    with pytest.raises(
        InputError, match=r"200 clients cannot have separate images.*give (\d+) clients at most"
    ) as error:
        divided(FedProxFEMNIST(sharing=False), pool)
    most = int(str(error.value).split("; give ")[1].split()[0])
    assert most > 0
    assert len(divided(FedProxFEMNIST(most, sharing=False), pool).train) == most
    with pytest.raises(InputError, match="or sharing: true"):
        divided(FedProxFEMNIST(most + 1, sharing=False), pool)
