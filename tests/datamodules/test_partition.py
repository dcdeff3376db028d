"""Tests what all partitions have in common, on random pools: who has which example, tests of clients, and refusals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_cases import divided, few, held, labels_of, pool_of, seeds, sizes_of
from quadratic import ids
from torch import Tensor

from lit_cfl.data import ClientIndex, Examples
from lit_cfl.datamodules.partition import (
    IID,
    ClassesPerClient,
    Dirichlet,
    DirichletSizes,
    DominantClass,
    InnerDirichlet,
    LabelGroups,
    LogNormalSizes,
    PartitionWithTestRule,
    Pool,
    PowerLawSizes,
    Shards,
)
from lit_cfl.datamodules.partition import labels as labels_module
from lit_cfl.errors import InputError

EVERYTHING = (
    IID(7),
    LogNormalSizes(7, min_size=3),
    PowerLawSizes(7, min_size=3),
    DirichletSizes(7, min_size=3),
    Dirichlet(7, alpha=1.0, min_size=2),
    InnerDirichlet(7, alpha=1.0),
    ClassesPerClient(9, classes=2),
    Shards(7, shards_per_client=2),
    LabelGroups(groups=[[3, 0], [1], [2, 4, 5, 6, 7]], clients_per_group=3),
)  # partitions that give every example to a client


@settings(few, max_examples=100)
@given(
    st.lists(st.integers(20, 60), min_size=8, max_size=8),
    seeds,
    st.sampled_from(EVERYTHING),
    st.sampled_from([0.0, 0.25, 0.5, "alike", "shared", "everything", None]),
    st.booleans(),
)
def test_every_example_goes_to_one_client_and_is_tested_by_the_rule(
    counts: list[int], seed: int, partition: PartitionWithTestRule, test: str | float | None, only_train: bool
):
    pool = pool_of(labels_of(counts, seed), labels_of([5] * 8, seed + 1))
    only_train = only_train and isinstance(test, float)
    division = divided(replace(partition, test=test, only_train=only_train), pool, seed)
    assert division.train.sizes.min() > 0
    if isinstance(test, float):
        assert held(division) == list(range(pool.num_train if only_train else len(pool.labels)))
        assert division.test.sizes.tolist() == [round(test * n) for n in sizes_of(division).tolist()]
        return
    assert division.train.entries.sort().values.tolist() == list(range(pool.num_train))
    tested = division.test.entries.sort().values
    assert tested.unique().tolist() == list(range(pool.num_train, len(pool.labels)))
    assert len(tested) == 40 or test in ("shared", "everything")  # of which several clients may have an example


@pytest.mark.parametrize("labels", [torch.arange(18) / 2, torch.zeros(18, dtype=torch.int64)], ids=["numbers", "none"])
def test_a_test_part_without_classes_is_shared_out_as_if_all_were_of_one(labels: Tensor):
    pool = Pool(Examples(torch.zeros(18, 2), labels, 0), 12)
    for test, sizes in ((None, [3, 3]), ("alike", [3, 3]), ("shared", [6, 6]), ("everything", [6, 6])):
        division = divided(IID(2, test), pool)
        assert (division.train.sizes.tolist(), division.test.sizes.tolist()) == ([6, 6], sizes)
        assert set(held(division)) == set(range(18))


# Refusals

COUNTS = (10, 10, 10, 3, 10)  # 43 examples with five labels
FOUR = (10, 10, 10, 10)


@pytest.mark.parametrize(
    ("make", "counts", "quoted"),
    [
        (lambda: IID(4, only_train=True), COUNTS, "only_train | test | None"),
        (lambda: IID(4, "alike"), COUNTS, "test | alike"),
        (lambda: IID(44, 0.0), COUNTS, "44 clients | 43 examples"),
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
def test_impossible_partitions_are_refused(
    make: Callable[[], PartitionWithTestRule], counts: Sequence[int], quoted: str
):
    with pytest.raises(InputError) as refusal:
        divided(make(), pool_of(labels_of(counts)))
    assert all(part in str(refusal.value) for part in quoted.split(" | "))


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
    """User partition with the given lists, even invalid ones."""

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
