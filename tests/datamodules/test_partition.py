"""Tests what all partitions have in common: who has which example, tests of clients, and refusals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from kinds import lists_of
from own_arrays import assert_refused, examples_of_clients
from partition_cases import divided, held, labels_of, pool_of
from quadratic import ids
from torch import Tensor

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.datamodules import ArrayData
from lit_cfl.datamodules.partition import (
    IID,
    ClassesPerClient,
    Dirichlet,
    DirichletSizes,
    DominantClass,
    InnerDirichlet,
    LabelGroups,
    LogNormalSizes,
    Partition,
    PartitionWithTestRule,
    Pool,
    PowerLawSizes,
    Shards,
)
from lit_cfl.datamodules.partition import labels as labels_module
from lit_cfl.errors import InputError

POOL = np.random.default_rng(0).permutation(np.repeat(np.arange(6), [20, 16, 9, 14, 12, 11]))  # labels of 82 examples
# each with the true clusters of its four clients
PARTITIONS: dict[str, tuple[PartitionWithTestRule, list[int]]] = {
    "IID": (IID(4, 0.25), [0] * 4),
    "LogNormalSizes": (LogNormalSizes(4, 0.25, min_size=5, sigma=1.0), [0] * 4),
    "PowerLawSizes": (PowerLawSizes(4, 0.25, min_size=5), [0] * 4),
    "DirichletSizes": (DirichletSizes(4, 0.25, min_size=5), [0] * 4),
    "Dirichlet": (Dirichlet(4, 0.25, min_size=5), [-1] * 4),
    "InnerDirichlet": (InnerDirichlet(4, 0.25), [-1] * 4),
    "given sizes": (InnerDirichlet(4, 0.25, sizes=[30, 5, 14, 9]), [-1] * 4),
    "ClassesPerClient": (ClassesPerClient(4, 0.25, classes=3), [0, 1, 2, 3]),
    "Shards": (Shards(4, 0.25, shards_per_client=3), [-1] * 4),
    "LabelGroups": (LabelGroups(test=0.25, groups=[[1, 5], [0, 2, 3, 4]], clients_per_group=2), [0, 0, 1, 1]),
    "DominantClass": (DominantClass(4, 0.25, num_clusters=3, beta=0.5), [0, 1, 2, 0]),
}

every_partition = pytest.mark.parametrize(("partition", "clusters"), PARTITIONS.values(), ids=PARTITIONS)


def data_of(partition: PartitionWithTestRule, seed: int = 3, **options: Any) -> FederatedData:
    data = ArrayData(np.arange(82)[:, None] / 82, POOL, partition=partition, allow_unseen_labels=True, **options)
    return data.federated(seed)


@every_partition
def test_a_partition_depends_on_its_seed_alone(partition: PartitionWithTestRule, clusters: list[int]):
    data, again, other = (data_of(partition, seed) for seed in (3, 3, 4))
    assert lists_of(data) == lists_of(again) != lists_of(other)
    assert lists_of(data_of(partition, 0, partition_seed=3)) == lists_of(data)
    assert data.true_clusters.tolist() == other.true_clusters.tolist() == clusters
    assert data.skew == ("other" if clusters == [0] * 4 else "label")


@every_partition
def test_a_partition_gives_each_example_to_one_client_and_tests_a_share(partition: PartitionWithTestRule, clusters):
    data = data_of(partition, validation=0.3)
    clients = examples_of_clients(data)
    held = list(chain(*clients))
    fewer = isinstance(partition, DominantClass) or getattr(partition, "sizes", None) == [30, 5, 14, 9]
    assert len(set(held)) == len(held)
    assert (len(held) < 82) == fewer
    assert data.test.sizes.tolist() == [round(0.25 * len(one)) for one in clients]
    assert clients == examples_of_clients(data_of(partition, newcomers=0.5))


@every_partition
def test_a_partition_tests_by_its_rule(partition: PartitionWithTestRule, clusters: list[int]):
    is_test = (np.arange(82) % 3 == 2) & (POOL != 5)  # the label 5 is in the training part alone
    first = 82 - int(is_test.sum())  # the source's test part is numbered from here on
    tests = {}
    for rule in ("alike", "shared", "everything"):
        data = data_of(replace(partition, test=rule), is_test=is_test)
        lists = lists_of(data)
        assert {number for one in lists["train"] for number in one} <= set(range(first))
        tests[rule] = [set(one) for one in lists["test"]]
    part, counts = set(range(first, 82)), data.label_counts
    stored = data.examples.labels.tolist()
    assert tests["everything"] == [part] * 4
    for client, cluster in enumerate(clusters):
        mates = [other for other in range(4) if other == client or (cluster >= 0 and clusters[other] == cluster)]
        known = set(counts[mates].sum(0).nonzero().flatten().tolist())
        assert tests["shared"][client] == {number for number in part if stored[number] in known}
    for label in {stored[number] for number in part}:
        number = torch.tensor([sum(stored[one] == label for one in own) for own in tests["alike"]])
        total, weights = sum(stored[one] == label for one in part), counts[:, label].double()
        assert int(number.sum()) == (total if weights.any() else 0)
        assert bool(((number - weights / weights.sum().clamp(min=1) * total).abs() < 1).all())


def test_only_the_training_part_is_divided_if_so_asked():
    pool = pool_of(labels_of([20] * 4), labels_of([5] * 4))
    division = divided(IID(7, 0.25, only_train=True), pool)
    assert held(division) == list(range(80))


@pytest.mark.parametrize("labels", [torch.arange(18) / 2, torch.zeros(18, dtype=torch.int64)], ids=["numbers", "none"])
def test_a_test_part_without_classes_is_shared_out_as_if_all_were_of_one(labels: Tensor):
    pool = Pool(Examples(torch.zeros(18, 2), labels, 0), 12)
    for test, sizes in ((None, [3, 3]), ("alike", [3, 3]), ("shared", [6, 6]), ("everything", [6, 6])):
        division = divided(IID(2, test), pool)
        assert (division.train.sizes.tolist(), division.test.sizes.tolist()) == ([6, 6], sizes)
        assert set(held(division)) == set(range(18))


COUNTS = (10, 10, 10, 3, 10)  # 43 examples with five labels
FOUR = (10, 10, 10, 10)


@pytest.mark.parametrize(
    ("make", "counts", "quoted"),
    [
        (lambda: IID(4, only_train=True), COUNTS, "only_train | test | None"),
        (lambda: IID(4, "alike"), COUNTS, "test | alike"),
        (lambda: DirichletSizes(4, 0.0, min_size=11), COUNTS, "43 examples | 11 | 3 at most | min_size"),
        (lambda: Dirichlet(7, 0.0, alpha=1e-6, min_size=1), COUNTS, "alpha 1e-06 | 7 clients | min_size"),
        (lambda: InnerDirichlet(2, 0.0, sizes=[40, 4]), COUNTS, "sizes | [40, 4] | 43"),
        (lambda: ClassesPerClient(3, 0.0, 2), COUNTS, "3 clients with 2 classes | 4 of the 5 labels | at least 4"),
        (lambda: ClassesPerClient(10, 0.0, 2), COUNTS, "label 3 | 3 examples | 4 clients"),
        (lambda: Shards(4, 0.0, 11), COUNTS, "43 examples | 11 | shards_per_client"),
        (lambda: LabelGroups(0.0, [[0, 1, 2], [2, 3]], 5), FOUR, "groups | [[0, 1, 2], [2, 3]]"),
        (lambda: LabelGroups(0.0, [[0, 1, 2, 3], []], 5), FOUR, "5 clients | 0 examples"),
        (lambda: DominantClass(100, 0.0, 2, 1.0), FOUR, "100 clients | at most 0 each"),
        (lambda: DominantClass(8, 0.0, 4, 0.2, 2), FOUR, "2 examples each | share of 0.2"),
        (lambda: DominantClass(8, 0.0, 4), (0, 10, 10, 10), "0 to 3 | [0, 10, 10, 10]"),
    ],
)
def test_impossible_partitions_are_refused(make: Callable[[], Partition], counts: Sequence[int], quoted: str):
    assert_refused(lambda: divided(make(), pool_of(labels_of(counts))), quoted)


def test_dirichlet_does_not_draw_again_where_it_is_hopeless(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(labels_module, "MOST_DRAWS", 10**12)
    with pytest.raises(InputError, match="1000000000000"):
        divided(Dirichlet(100, 0.0, alpha=0.01), pool_of(labels_of([300] * 6)))


@pytest.mark.parametrize("test", ["alike", "shared", "everything"])
def test_a_label_that_only_the_test_part_has_is_refused(test: str):
    pool = pool_of(ids(0, 1, 0, 1), ids(0, 2, 1))
    with pytest.raises(InputError, match="label 2 "):
        divided(IID(2, test), pool)
    assert held(divided(IID(2, 0.0), pool)) == list(range(7))


@dataclass(frozen=True)
class Given(PartitionWithTestRule):
    lists: tuple[tuple[int, ...], ...] = ()

    def shares(self, labels: Tensor, num_labels: int, rng: np.random.Generator) -> ClientIndex:
        return ClientIndex.from_lists([torch.tensor(one, dtype=torch.int64) for one in self.lists])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (((0, 1), (1, 2)), "example 1 "),
        (((0, 1), (), ()), r"2 of 3 clients .*client 1 "),
        (((0, 4),), "example 4, .* 0 to 3"),
    ],
)
def test_a_users_invalid_partition_is_refused(given: tuple[tuple[int, ...], ...], message: str):
    for test in (0.0, "alike"):
        with pytest.raises(InputError, match=message):
            divided(Given(test=test, lists=given), pool_of(ids(0, 1, 0, 1), ids(1) if test else None))
