"""Tests the papers' partitions: FedProx's partitions of MNIST and FEMNIST, and Ditto's with 500 clients."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_arrays import assert_refused
from partition_cases import counts_in, divided, few, held, labels_of, pool_of, seeds

from lit_cfl.data import Division
from lit_cfl.datamodules.partition import MNIST1000, Ditto500, FedProxFEMNIST, Pool, paper_partitions
from lit_cfl.datamodules.partition.labels import cyclic_labels
from lit_cfl.datamodules.partition.paper_partitions import draw_sizes, draw_wanted_images, grant_in_order
from lit_cfl.errors import InputError


def balanced(per_label: int, test: int = 0) -> Pool:
    """Makes a pool of the labels 0 to 9, each with the given numbers of training and test examples."""
    return pool_of(labels_of([per_label] * 10), labels_of([test] * 10, 1))


WHOLE = balanced(6000, 1000)  # as MNIST and Fashion-MNIST


def sizes_of(division: Division) -> torch.Tensor:
    return division.train.sizes + division.test.sizes


def all_counts(division: Division, pool: Pool) -> torch.Tensor:
    """Counts as `counts_in`, training and test together."""
    return counts_in(division.train, pool) + counts_in(division.test, pool)


def cyclic(clients: int, classes: int) -> list[set[int]]:
    return [{(client + k) % 10 for k in range(classes)} for client in range(clients)]


def sets_of(counts: torch.Tensor) -> list[set[int]]:
    return [set(row.nonzero().flatten().tolist()) for row in counts]


def test_ditto_gives_exactly_the_released_totals():
    train, test = (index.sizes for index in (divided(Ditto500(), WHOLE).train, divided(Ditto500(), WHOLE).test))
    assert (int(train.sum()), int(test.sum())) == (61_251, 11_254)
    assert (int(train.min()), int(train.max()), float(np.median(train.numpy()))) == (31, 1378, 88.0)
    assert draw_wanted_images(233).sum().item() == pytest.approx(60_000)  # before rounding


def test_ditto_restarts_six_times_in_training_and_ten_times_in_test():
    division = divided(Ditto500(), WHOLE)
    for index, part, wraps in ((division.train, slice(0, 60_000), 6), (division.test, slice(60_000, None), 10)):
        firsts = [(WHOLE.labels[part] == label).nonzero()[0].item() + (part.start or 0) for label in range(10)]
        # each start of a cycle deals the first example again
        assert torch.isin(index.entries, torch.tensor(firsts)).sum().item() == 10 + wraps


def test_ditto_clients_have_five_labels_and_no_image_twice():
    division = divided(Ditto500(), WHOLE)
    for index in (division.train, division.test):
        assert sets_of(counts_in(index, WHOLE)) == cyclic(500, 5)
        assert all(one.unique().numel() == one.numel() for one in index)
    assert int(division.train.entries.max()) < 60_000 <= int(division.test.entries.min())
    assert (division.true_clusters.tolist(), division.skew) == ([u % 10 for u in range(500)], "label")
    assert division.test.sizes.min() >= 5


@settings(few, max_examples=8)
@given(st.integers(1, 10), seeds)
def test_mnist_images_are_disjoint_and_nine_tenths_are_for_training(classes: int, seed: int):
    division = divided(MNIST1000(classes), WHOLE, seed)
    sizes, every = sizes_of(division), held(division)
    assert int(sizes.min()) >= 10
    assert division.train.sizes.tolist() == [int(0.9 * n) for n in sizes.tolist()]
    assert (len(set(every)), every[0] >= 0, every[-1] < 70_000) == (len(every), True, True)
    assert len(every) > 70_000 - 1000 * classes - 1  # for rounding, each client loses less than one image per digit
    assert division.true_clusters.tolist() == [u % 10 if classes < 10 else 0 for u in range(1000)]
    assert division.skew == "label"


@pytest.mark.parametrize(("classes", "first"), [(1, [10]), (2, [5, 5]), (3, [4, 3, 3]), (5, [2] * 5), (10, [1] * 10)])
def test_smallest_mnist_clients_have_ten_images_of_their_digits_split_evenly(classes: int, first: list[int]):
    pool = balanced(1000)  # 10,000 images are enough only for the minimum of ten per client
    counts = all_counts(divided(MNIST1000(classes), pool), pool)
    assert counts.sum(1).tolist() == [10] * 1000
    assert sets_of(counts) == cyclic(1000, classes)
    assert counts[3, [(3 + j) % 10 for j in range(classes)]].tolist() == first


def test_mnist_sizes_are_log_normal():
    sizes = draw_sizes(torch.full((10,), 10**8), cyclic_labels(1000, 1, 10), np.random.default_rng(0))
    of_type = (sizes - 10).double().log().view(100, 10)  # each digit (column) is divided separately
    assert of_type.var(0).mean().sqrt().item() == pytest.approx(2.0, rel=0.07)


def test_what_does_not_fit_is_skipped_and_the_last_image_is_never_given():
    wanted, which = np.array([[4, 1], [3, 7], [2, 2], [1, 1]]), np.array([[0, 1], [0, 1], [0, 1], [0, 1]])
    granted = grant_in_order(wanted, which, np.array([7, 5]))
    assert granted.tolist() == [[True, True], [False, False], [True, True], [False, True]]


@pytest.mark.parametrize("sharing", [True, False])
def test_femnist_clients_have_three_letters_in_equal_numbers(sharing: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paper_partitions, "LETTER_IMAGES", 4500)
    pool = pool_of(labels_of([4500] * 10), num_labels=26)
    division = divided(FedProxFEMNIST(sharing=sharing), pool)
    for client, row in enumerate(all_counts(division, pool).tolist()):
        mine = [row[(client + j) % 10] for j in range(3)]
        assert mine == [mine[0]] * 3
        assert (mine[0] >= 2, sum(mine)) == (True, sum(row))
    assert division.true_clusters.tolist() == [u % 10 for u in range(200)]
    sizes = sizes_of(division).tolist()
    assert division.train.sizes.tolist() == [int(0.9 * n) for n in sizes]
    assert sizes == sizes_of(divided(FedProxFEMNIST(sharing=not sharing), pool)).tolist()
    assert (len(set(held(division))) == sum(sizes)) == (not sharing)


def test_femnist_sizes_are_those_of_the_released_law():
    pool = balanced(4000)
    sizes = torch.cat([sizes_of(divided(FedProxFEMNIST(), pool, seed)) for seed in range(10)]).double()
    assert (sizes - 4).log().median().item() == pytest.approx(4.0, abs=0.08)  # 3 * int(s / 3) is s - 1 on average
    assert (sizes.mean() * 200).item() == pytest.approx(200 * (np.exp(4.5) + 4), rel=0.05)


def test_released_femnist_clients_read_the_same_images():
    pool = balanced(4000)
    division = divided(FedProxFEMNIST(), pool)
    # each letter has as many images as the client with the most of them
    assert len(set(held(division))) == int(all_counts(division, pool).max(0).values.sum())
    assert torch.isin(division.test.entries, division.train.entries).double().mean() > 0.8
    for train, test in zip(division.train, division.test, strict=True):
        assert torch.cat([train, test]).unique().numel() == len(train) + len(test)


def test_too_few_images_without_sharing_name_how_many_clients_fit():
    pool = balanced(78)
    with pytest.raises(InputError, match=r"200 clients .*give (\d+) clients at most.*sharing: true") as error:
        divided(FedProxFEMNIST(sharing=False), pool)
    most = int(str(error.value).split("; give ")[1].split()[0])
    assert most > 0
    assert len(divided(FedProxFEMNIST(most, sharing=False), pool).train) == most
    with pytest.raises(InputError, match="sharing"):
        divided(FedProxFEMNIST(most + 1, sharing=False), pool)


ELEVEN = pool_of(torch.arange(11).repeat(900), torch.arange(11).repeat(900))


@pytest.mark.parametrize(
    ("make", "quoted"),
    [
        *((lambda rule=rule: divided(rule(), ELEVEN), "0 to 9") for rule in (MNIST1000, Ditto500, FedProxFEMNIST)),
        (lambda: divided(MNIST1000(), balanced(999)), "0 to 9 | 1000 | 999"),
        (lambda: divided(Ditto500(), balanced(6000)), "Ditto500 | test part"),
    ],
)
def test_impossible_generators_are_refused(make: Callable[[], object], quoted: str):
    assert_refused(make, quoted)
