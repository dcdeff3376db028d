"""Tests skews: the views that they make, how views combine, and which clients have which view.

What clients see under each skew is in a table in test_kinds_of_data.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from own_arrays import assert_refused
from quadratic import ids

from lit_cfl.data import ClientIndex, Division, Examples, View
from lit_cfl.datamodules.partition import IID, Pool
from lit_cfl.datamodules.pooled import PooledDataModule
from lit_cfl.datamodules.skew import (
    Colours,
    LabelPermutations,
    LabelShifts,
    LabelSwaps,
    NoiseLevels,
    Rotations,
    Skew,
    all_views,
    apply_views,
    deal_views,
    view_indices,
)
from lit_cfl.errors import InputError


class Squares(PooledDataModule):
    """Data module of 400 different grey images of 3 x 3 pixels, with four labels in turn; 300 are for training."""

    def pool(self) -> Pool:
        images = torch.arange(3600).view(400, 1, 3, 3).float()
        return Pool(Examples(images, torch.arange(400) % 4, 4), 300)


def lists(index: ClientIndex) -> list[list[int]]:
    return [one.tolist() for one in index]


@pytest.mark.parametrize("num_clusters", [1, 2, 24])
def test_label_permutations_are_different_and_depend_on_their_seed_alone(num_clusters: int):
    maps = [view.label_map for view in LabelPermutations(num_clusters, seed=5).views(4)]
    assert len(set(maps)) == num_clusters
    assert maps[0] == (0, 1, 2, 3)
    assert all(sorted(one) == [0, 1, 2, 3] for one in maps)
    again, other = ([view.label_map for view in LabelPermutations(num_clusters, seed).views(4)] for seed in (5, 6))
    assert (again == maps, other == maps) == (True, num_clusters == 1)


def test_long_runs_of_a_view_are_seen_as_each_example_alone():
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (7, 1, 4, 4), generator=rng, dtype=torch.uint8)
    views = (View(), View(1, (1, 2, 0), 0.5), View(2), View(3))
    examples = Examples(images, torch.arange(7) % 3, 3, 1 / 255, views)
    index = torch.cat([7 * view + torch.randint(0, 7, (40,), generator=rng) for view in (3, 0, 1, 2, 1)])
    alone = [examples.batch(one) for one in index.split(1)]
    for seen, each in zip(examples.batch(index), zip(*alone, strict=True), strict=True):
        assert torch.equal(seen, torch.cat(each))


def test_looks_of_an_image_do_not_depend_on_its_company_and_noise_comes_last():
    images = torch.rand(9, 3, 8, 8)
    noise, bright = View(noise=0.2), View(1, None, 0.2, 20.0, 0.8, 0.7, (1.0, 0.5, 2.0))
    examples = Examples(images, torch.arange(9) % 2, 2, views=(View(), noise, bright, replace(bright, noise=0.0)))
    plain, noisy, whole, quiet = (examples.batch(torch.arange(9) + 9 * view)[0] for view in range(4))
    assert torch.equal(plain, images)
    assert torch.allclose(whole - quiet, noisy - plain, atol=1e-6)
    some = examples.batch(ids(18 + 4, 0, 18 + 7))[0]
    assert torch.equal(some, torch.stack([whole[4], images[0], whole[7]]))


def test_views_add_up():
    one, other = View(3, (1, 2, 0), 0.3), View(2, (0, 2, 1), 0.4)
    assert one.then(other) == View(1, (2, 1, 0), 0.5)
    assert View().then(one) == one.then(View()) == one
    tilted = View(1, None, 0.0, 60.0, 3.0, 0.5, (1.0, 2.0))
    assert tilted.then(View(2, None, 0.0, 50.0, 4.0, 0.5)) == View(0, None, 0.0, 20.0, 5.0, 0.25, (1.0, 2.0))
    assert View(angle=40.0).then(View(angle=50.0)) == View(1)
    assert View(0, (1, 2, 0)).then(View(0, (2, 0, 1))) == View().then(View(0, (0, 1, 2))) == View()
    assert View(label_map=(0, 0, 2)).then(View(1)) == View(1, (0, 0, 2))  # ascending, but not the identity


def test_last_skew_changes_fastest():
    views = all_views([Rotations((0, 180)), LabelShifts((0, 1, 2))], 3)
    maps = [None, (1, 2, 0), (2, 0, 1)]
    assert views == tuple(View(turns, one) for turns in (0, 2) for one in maps)
    assert all_views([], 3) == (View(),)


@pytest.mark.parametrize(
    "skews",
    [
        [Rotations((0, 90)), Rotations((0, 270))],  # 90 + 270 equals 0 + 0
        [LabelShifts((0, 3)), LabelShifts((0, 7))],  # 3 + 7 is no shift in total
        [LabelShifts((0, 3)), LabelPermutations(2, seed=1), LabelShifts((0, 3))],
        # noise of 3 and 4, and of 4 and 3, gives 5 in total
        [NoiseLevels((3.0, 4.0)), Rotations((0, 180)), NoiseLevels((4.0, 3.0))],
    ],
)
def test_product_in_which_two_clusters_see_the_same_is_refused(skews: list[Skew]):
    with pytest.raises(InputError, match="two combinations"):
        all_views(skews, 10)


def test_views_are_dealt_in_turn_within_each_cluster():
    assert deal_views(ids(0, 1, 0, -1, 1, 0, 1), 2).tolist() == [0, 0, 1, 0, 1, 0, 0]


def test_stretches_that_are_shared_stay_shared_within_a_view():
    index = ClientIndex(torch.arange(7), ids(0, 4, 0, 0, 4), ids(4, 3, 4, 4, 3))
    seen = view_indices(index, ids(0, 0, 1, 0, 0), 10)
    assert lists(seen) == [[0, 1, 2, 3], [4, 5, 6], [10, 11, 12, 13], [0, 1, 2, 3], [4, 5, 6]]
    assert len(seen.values) == 4 + 3 + 4
    assert seen.starts[0] == seen.starts[3]
    assert seen.starts[1] == seen.starts[4]


@pytest.mark.parametrize(
    ("clusters", "expected"),
    [
        (ids(0, 1, 2, 0), [0, 2, 5, 1]),  # each pair of cluster and view is a true cluster
        (ids(-1, -1, -1, -1), [0, 0, 1, 1]),  # only the views are known
        (ids(0, -1, 1, -1), [0, -1, 3, -1]),  # an unknown cluster among known ones stays unknown
    ],
)
def test_true_cluster_is_the_pair_of_cluster_and_view(clusters: torch.Tensor, expected: list[int]):
    train = ClientIndex.from_lists([ids(0), ids(1), ids(2), ids(3)])
    seen = apply_views(Division(train, train.first(0), clusters, "label"), ids(0, 0, 1, 1), 2, 4)
    assert (seen.true_clusters.tolist(), seen.skew) == (expected, "label")
    assert lists(seen.train) == [[0], [1], [6], [7]]


@pytest.mark.parametrize(
    ("skew", "name"),
    [
        ([], "other"),
        ([Rotations((90,))], "other"),  # all clients have the same view
        ([Rotations(), NoiseLevels()], "feature"),
        ([LabelSwaps(((), (0, 1)))], "label"),
        ([Rotations(), LabelShifts((0, 1))], "other"),
        ([Rotations(), LabelShifts((1,))], "feature"),
    ],
)
def test_data_say_what_skew_they_have(skew: Sequence[Skew], name: str):
    assert Squares(IID(8, 0.2), skew).federated(0).skew == name


@pytest.mark.parametrize(("test", "leaks"), [("alike", False), ("shared", False), (0.2, True)])
def test_copies_divide_the_pool_for_each_view_and_leak_only_where_test_is_a_share(test: str | float, leaks: bool):
    data = Squares(IID(8, test), [Rotations((0, 180))], copies=True).federated(0)
    assert len(data.examples) == 400  # no image is copied
    assert data.true_clusters.tolist() == [0] * 8 + [1] * 8
    assert torch.cat([data.train.entries, data.test.entries]).unique().tolist() == list(range(800))
    assert set(lists(data.train)[0]) != {index % 400 for index in lists(data.train)[8]}
    trained, tested = (set((index.entries % 400).tolist()) for index in (data.train, data.test))
    assert bool(trained & tested) == leaks
    # no image is in both under the same view
    assert not set(data.train.entries.tolist()) & set(data.test.entries.tolist())


TOKENS, WIDE = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 1, 3, 4)


def see(inputs: torch.Tensor, skew: Skew, **options: object) -> Examples:
    return Examples(inputs, ids(0, 1), 2, views=skew.views(2), **options)


@pytest.mark.parametrize(
    ("make", "quoted"),
    [
        (lambda: Rotations((90, 450)), "Rotations | (90, 450)"),
        (lambda: NoiseLevels((0.5, -0.1)), "NoiseLevels | -0.1"),
        (lambda: LabelPermutations(7).views(3), "3 labels | 7 clusters | num_clusters"),
        (lambda: Colours([3]), "colour is 3"),
        (lambda: LabelShifts([0, 1.5]).views(4), "LabelShifts | (1.5, 2.5"),
        (lambda: LabelShifts((1, 11)).views(10), "LabelShifts | (1, 11)"),
        (lambda: LabelSwaps([[], [0, 9]]).views(3), "swap are [0, 9] | 0 to 2"),
        (lambda: see(TOKENS, Rotations(), vocabulary=9), "images | rotated"),
        (lambda: see(TOKENS, NoiseLevels(), vocabulary=9), "token ids | noise"),
        (lambda: see(WIDE, Colours()), "3 factors | (1, 3, 4)"),
        (lambda: see(WIDE, Rotations((0, 90))), "(1, 3, 4) | 0 and 180"),
        (lambda: Squares(IID(8), copies=True), "copies"),
    ],
)
def test_skew_that_cannot_be_is_refused(make: Callable[[], object], quoted: str):
    assert_refused(make, quoted)
