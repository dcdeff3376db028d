"""Tests skews and their products: the view of each cluster, and the data that its clients see."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratic import ids

from lit_cfl.data import ClientIndex, Division, Examples, View
from lit_cfl.data.image_transforms import blur_images, rotate_images
from lit_cfl.data.partition_file import partition_hash
from lit_cfl.datamodules.partition import IID, Partition, Pool
from lit_cfl.datamodules.pooled import PooledDataModule, join_divisions
from lit_cfl.datamodules.skew import (
    Blurs,
    Brightnesses,
    Colours,
    FreeRotations,
    LabelPermutations,
    LabelShifts,
    LabelSwaps,
    NoiseLevels,
    Rotations,
    Skew,
    all_views,
    apply_views,
    deal_views,
    shift_labels,
    view_indices,
)
from lit_cfl.errors import InputError

few = settings(deadline=None, derandomize=True, max_examples=50)


# Kinds of skew


def test_angles_become_quarter_turns():
    views = Rotations((0, 90, 180, 270)).views(10)
    assert views == (View(), View(1), View(2), View(3))
    assert Rotations((-90, 450)).views(10) == (View(3), View(1))


def test_labels_are_shifted_round():
    assert shift_labels(10, 3) == (3, 4, 5, 6, 7, 8, 9, 0, 1, 2)
    assert shift_labels(4, -1) == (3, 0, 1, 2)
    views = LabelShifts().views(10)  # StoCFL shifts labels by 0, 3, 6 and 9
    examples = Examples(torch.zeros(10, 1), torch.arange(10), 10, views=views)
    for number, by in enumerate((0, 3, 6, 9)):
        seen = examples.targets(torch.arange(10) + 10 * number)
        assert seen.tolist() == [(label + by) % 10 for label in range(10)]


def test_long_runs_of_a_view_are_seen_as_each_example_alone():
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (7, 1, 4, 4), generator=rng, dtype=torch.uint8)
    views = (View(), View(1, (1, 2, 0), 0.5), View(2), View(3))
    examples = Examples(images, torch.arange(7) % 3, 3, 1 / 255, views)
    index = torch.cat([7 * view + torch.randint(0, 7, (40,), generator=rng) for view in (3, 0, 1, 2, 1)])
    alone = [examples.batch(one) for one in index.split(1)]
    for seen, each in zip(examples.batch(index), zip(*alone, strict=True), strict=True):
        assert torch.equal(seen, torch.cat(each))


@pytest.mark.parametrize("num_clusters", [1, 2, 6, 24])
def test_label_permutations_are_different_and_the_first_changes_nothing(num_clusters: int):
    maps = [view.label_map for view in LabelPermutations(num_clusters).views(4)]
    assert len(set(maps)) == num_clusters
    assert maps[0] == (0, 1, 2, 3)
    assert all(sorted(one) == [0, 1, 2, 3] for one in maps)


def test_label_permutations_depend_on_their_seed_alone():
    one, same, other = (LabelPermutations(4, seed).views(10) for seed in (5, 5, 6))
    assert one == same
    assert one != other


def test_noise_has_a_level_for_each_cluster():
    assert NoiseLevels((0.0, 0.5, 2)).views(10) == (View(), View(noise=0.5), View(noise=2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotations((0, 45)), "Rotations: 45 degrees would blur the images; give whole multiples of 90"),
        (lambda: Rotations(()), r"Rotations: degrees is \(\); give a list with one value per cluster"),
        (lambda: Rotations((90, 450)), r"Rotations: \(90, 450\) gives two clusters the same view; give distinct"),
        (lambda: Rotations(90), "Rotations: degrees is 90; give a list with one value per cluster"),
        (lambda: Rotations([0, "90"]), "Rotations: '90' degrees"),
        (lambda: Rotations([0, 90.0]), "Rotations: 90.0 degrees would blur the images; give whole multiples of 90"),
        (lambda: Rotations("90"), "Rotations: degrees is '90'; give a list"),
        (lambda: NoiseLevels((0.5, -0.1)), "NoiseLevels: a noise level is -0.1; give 0 or more"),
        (lambda: NoiseLevels((float("nan"),)), "a noise level is nan"),
        (lambda: NoiseLevels((float("inf"),)), "a noise level is inf"),
        (lambda: NoiseLevels((0.5, 0.5)), "two clusters the same view"),
        (lambda: NoiseLevels(0.5), "NoiseLevels: levels is 0.5; give a list"),
        (lambda: NoiseLevels([0.0, "much"]), "NoiseLevels: a noise level is 'much'; give 0 or more"),
        (lambda: LabelPermutations(0), "LabelPermutations: num_clusters is 0; give 1 or more"),
        (
            lambda: LabelPermutations(7).views(3),
            "3 labels have too few different permutations for 7 clusters; lower num_clusters",
        ),
        (lambda: FreeRotations([0, float("nan")]), "a rotation is nan; give a number"),
        (lambda: FreeRotations([30, 390]), r"FreeRotations: \[30, 390\] gives two clusters the same view"),
        (lambda: Blurs([-1.0]), "a blur is -1.0; give 0 or more"),
        (lambda: Brightnesses([1.0, float("inf")]), "a brightness is inf; give 0 or more"),
        (lambda: Colours([]), r"Colours: factors is \[\]; give a list"),
        (lambda: Colours([3]), r"a colour is 3; give one factor for each channel, such as \[1, 0, 0\]"),
        (lambda: Colours([[1, 0, -1]]), "a factor of a colour is -1; give 0 or more"),
        (lambda: Colours([[1, 0], [1, 0]]), "two clusters the same view"),
        (lambda: LabelShifts(3), "LabelShifts: shifts is 3; give a list"),
        (lambda: LabelShifts([0, 1.5]).views(4), r"LabelShifts: a label_map is \(1.5, 2.5.*; give whole numbers"),
        (lambda: LabelShifts((1, 11)).views(10), r"LabelShifts: \(1, 11\) gives two clusters the same view"),
        (
            lambda: LabelSwaps([[], [1]]).views(3),
            r"labels to swap are \[1\]; give a list of two or more",
        ),
        (lambda: LabelSwaps([[], [1, 1]]).views(3), r"labels to swap are \[1, 1\]; give a list of two or more"),
        (lambda: LabelSwaps([0, 1]).views(3), "labels to swap are 0; give a list of two or more different ones"),
        (lambda: LabelSwaps([[], [0, 9]]).views(3), r"labels to swap are \[0, 9\]; give labels of the data, 0 to 2"),
        (lambda: LabelSwaps([[], [0, -1]]).views(3), r"labels to swap are \[0, -1\]; give labels of the data, 0 to 2"),
        (lambda: LabelSwaps([[0, 1], [1, 0]]).views(3), "two clusters the same view"),
        (lambda: View(quarter_turns=4), "quarter_turns is 4; give 0 to 3"),
    ],
)
def test_skew_that_cannot_be_is_refused(make: object, message: str):
    with pytest.raises(InputError, match=message):
        make()


def test_skews_that_do_not_fit_the_inputs_are_refused():
    tokens, labels = torch.zeros(2, 5, dtype=torch.int64), ids(0, 1)
    with pytest.raises(InputError, match=r"are not images .*; only images can be rotated"):
        Examples(tokens, labels, 2, views=Rotations().views(2), vocabulary=9)
    with pytest.raises(InputError, match="token ids have no brightness and no noise"):
        Examples(tokens, labels, 2, views=NoiseLevels().views(2), vocabulary=9)
    for skew in (FreeRotations(), Blurs(), Colours()):
        with pytest.raises(InputError, match="only images can be rotated, blurred or coloured"):
            Examples(torch.zeros(2, 5), labels, 2, views=skew.views(2))
    with pytest.raises(InputError, match="token ids have no brightness and no noise"):
        Examples(tokens, labels, 2, views=Brightnesses().views(2), vocabulary=9)
    with pytest.raises(
        InputError, match=r"a colour has 3 factors for images of shape \(1, 3, 4\); give one for each channel"
    ):
        Examples(torch.zeros(2, 1, 3, 4), labels, 2, views=Colours().views(2))
    with pytest.raises(InputError, match="not square; rotate them by 0 and 180 degrees only"):
        Examples(torch.zeros(2, 1, 3, 4), labels, 2, views=Rotations((0, 90)).views(2))


def seen(inputs: torch.Tensor, view: View) -> torch.Tensor:
    examples = Examples(inputs, torch.zeros(len(inputs), dtype=torch.int64), 1, views=(view,))
    return examples.batch(torch.arange(len(inputs)))[0]


def test_labels_that_are_swapped_take_the_name_of_the_next_one_and_the_others_stay():
    assert LabelSwaps(([], [0, 1], [3, 1, 2])).views(4) == (
        View(),
        View(label_map=(1, 0, 2, 3)),
        View(label_map=(0, 2, 3, 1)),
    )


def test_free_rotations_have_quarter_turns_exactly_and_the_rest_as_an_angle():
    assert FreeRotations((0, 30, 90, 200.5, -10)).views(9) == (
        View(),
        View(angle=30.0),
        View(1),
        View(2, angle=20.5),
        View(3, angle=80.0),
    )


@pytest.mark.parametrize("size", [4, 5])
def test_a_free_rotation_by_a_quarter_is_the_quarter_turn(size: int):
    images = torch.rand(3, 2, size, size, dtype=torch.float64)
    for turns in range(4):
        assert torch.allclose(rotate_images(images, 90.0 * turns), images.rot90(turns, (-2, -1)), atol=1e-12)


def test_a_rotation_by_45_degrees_of_a_cross_is_known():
    image = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)[None, None]
    found = rotate_images(image, 45.0)[0, 0]  # the top pixel moves to (row, column) offsets (-0.71, -0.71): to the left
    near, far = 2**0.5 / 2, 1 - 2**0.5 / 2
    # the centre stays; each other pixel (a, b) gets its value from the position 45 degrees clockwise
    assert found[1, 1] == 0
    assert found[0, 1].item() == pytest.approx(near * far)  # from (-0.71, 0.71): shares 0.71 up, 0.29 in the middle
    assert found[1, 0].item() == pytest.approx(near * far)
    assert found[0, 0].item() == pytest.approx(1 - (2**0.5 - 1))  # from (-1.41, 0): half outside, 0.59 of the row


def test_a_blur_keeps_the_sum_of_an_image_and_a_constant_one():
    image = torch.zeros(1, 1, 15, 15, dtype=torch.float64)
    image[0, 0, 7, 7] = 1.0
    found = blur_images(image, 1.0)
    taps = torch.exp(-0.5 * torch.arange(-3, 4, dtype=torch.float64) ** 2)
    taps /= taps.sum()
    assert torch.allclose(found[0, 0, 4:11, 4:11], taps[:, None] * taps[None], atol=1e-15)
    assert found.sum().item() == pytest.approx(1.0)
    flat = torch.full((1, 1, 3, 5), 0.25, dtype=torch.float64)
    assert torch.allclose(blur_images(flat, 2.0), flat)


def test_brightness_and_colour_are_factors_and_noise_comes_last():
    images = torch.rand(4, 3, 2, 2)
    assert torch.equal(seen(images, Brightnesses((0.5,)).views(1)[0]), images * 0.5)
    red = seen(images, Colours(((1, 0, 0.5),)).views(1)[0])
    assert torch.equal(red, images * torch.tensor([1.0, 0.0, 0.5])[:, None, None])
    noise = seen(images, View(noise=0.3)) - images
    both = seen(images, View(noise=0.3, brightness=0.5))
    assert torch.allclose(both, images * 0.5 + noise, atol=1e-6)


def test_looks_of_an_image_do_not_depend_on_its_company():
    images = torch.rand(9, 3, 8, 8)
    view = View(1, None, 0.2, 20.0, 0.8, 0.7, (1.0, 0.5, 2.0))
    whole = seen(images, view)
    examples = Examples(images, torch.arange(9) % 2, 2, views=(View(), view))
    some = examples.batch(ids(9 + 4, 0, 9 + 7))[0]
    assert torch.equal(some[[0, 2]], whole[[4, 7]])
    assert torch.equal(some[1], images[0])


# Products


def test_views_add_up():
    one, other = View(3, (1, 2, 0), 0.3), View(2, (0, 2, 1), 0.4)
    assert one.then(other) == View(1, (2, 1, 0), 0.5)
    assert View().then(one) == one.then(View()) == one
    tilted = View(1, None, 0.0, 60.0, 3.0, 0.5, (1.0, 2.0))
    assert tilted.then(View(2, None, 0.0, 50.0, 4.0, 0.5)) == View(0, None, 0.0, 20.0, 5.0, 0.25, (1.0, 2.0))
    assert View(angle=40.0).then(View(angle=50.0)) == View(1)
    assert View(0, (1, 2, 0)).then(View(0, (2, 0, 1))) == View().then(View(0, (0, 1, 2))) == View()
    assert View(label_map=(0, 0, 2)).then(View(1)) == View(1, (0, 0, 2))  # ascending, but not the identity


@few
@given(st.permutations(range(5)), st.permutations(range(5)), st.integers(0, 3), st.integers(0, 3))
def test_view_after_a_view_is_what_one_sees_through_both(first: list[int], then: list[int], turns: int, more: int):
    one, other = View(turns, tuple(first)), View(more, tuple(then))
    plain = Examples(torch.arange(45).view(5, 1, 3, 3).float(), torch.arange(5), 5, views=(one,))
    seen = Examples(*plain.batch(torch.arange(5)), 5, views=(other,)).batch(torch.arange(5))
    both = Examples(plain.inputs, plain.labels, 5, views=(one.then(other),)).batch(torch.arange(5))
    assert torch.equal(both[0], seen[0])
    assert torch.equal(both[1], seen[1])


def test_last_skew_changes_fastest():
    views = all_views([Rotations((0, 180)), LabelShifts((0, 1, 2))], 3)
    maps = [None, (1, 2, 0), (2, 0, 1)]
    assert views == tuple(View(turns, one) for turns in (0, 2) for one in maps)
    assert all_views([], 3) == (View(),)


@pytest.mark.parametrize(
    "skews",
    [
        [Rotations((0, 90)), Rotations((0, 270))],  # 90 + 270 equals 0 + 0
        [LabelShifts((0, 3)), LabelShifts((0, 3))],
        [LabelShifts((0, 3)), LabelShifts((0, 7))],  # 3 + 7 is no shift in total
        [LabelShifts((0, 3)), LabelPermutations(2, seed=1), LabelShifts((0, 3))],
        [LabelPermutations(2, seed=1), LabelPermutations(2, seed=1), NoiseLevels((0.0, 1.0))],
        # noise of 3 and 4, and of 4 and 3, gives 5 in total
        [NoiseLevels((3.0, 4.0)), Rotations((0, 180)), NoiseLevels((4.0, 3.0))],
    ],
)
def test_product_in_which_two_clusters_see_the_same_is_refused(skews: list[Skew]):
    with pytest.raises(InputError, match="two combinations of these skews give the same data"):
        all_views(skews, 10)


class TwoGroups(Partition):
    """Partition in which even clients have labels 0 and 1, and odd clients 2 and 3.

    A fifth of each client's examples are test data.
    """

    skew = "label"

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients

    def divide(self, pool: Pool, rng: np.random.Generator) -> Division:
        clusters = torch.arange(self.num_clients) % 2
        groups = [
            torch.from_numpy(rng.permutation((pool.labels // 2 == k).nonzero().flatten().numpy())) for k in (0, 1)
        ]
        of_client = [groups[k].chunk(self.num_clients // 2)[client // 2] for client, k in enumerate(clusters.tolist())]
        train = ClientIndex.from_lists([own[len(own) // 5 :] for own in of_client])
        test = ClientIndex.from_lists([own[: len(own) // 5] for own in of_client])
        return Division(train, test, clusters, self.skew)


class Squares(PooledDataModule):
    """Data module of 400 different grey images of 3 x 3 pixels, with four labels in turn."""

    def pool(self) -> Pool:
        images = torch.arange(3600).view(400, 1, 3, 3).float()
        return Pool(Examples(images, torch.arange(400) % 4, 4), 400)


def lists(index: ClientIndex) -> list[list[int]]:
    return [one.tolist() for one in index]


@few
@given(st.lists(st.integers(-1, 4), min_size=1, max_size=40), st.integers(1, 6))
def test_views_are_dealt_in_turn_within_each_cluster(clusters: list[int], num_views: int):
    views = deal_views(ids(*clusters), num_views).tolist()
    for cluster in set(clusters):
        mine = [view for view, its in zip(views, clusters, strict=True) if its == cluster]
        assert mine == [k % num_views for k in range(len(mine))]


@few
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12))
def test_numbers_become_indices_of_the_view(clients: list[tuple[int, int]]):
    index = ClientIndex.from_lists([torch.arange(size) + k for k, (size, _) in enumerate(clients)])
    views = ids(*(view for _, view in clients))
    seen = view_indices(index, views, 100)
    assert lists(seen) == [[k + j + 100 * view for j in range(size)] for k, (size, view) in enumerate(clients)]


def test_stretches_that_are_shared_stay_shared_within_a_view():
    index = ClientIndex(torch.arange(7), ids(0, 4, 0, 0, 4), ids(4, 3, 4, 4, 3))
    seen = view_indices(index, ids(0, 0, 1, 0, 0), 10)
    assert lists(seen) == [[0, 1, 2, 3], [4, 5, 6], [10, 11, 12, 13], [0, 1, 2, 3], [4, 5, 6]]
    assert len(seen.values) == 4 + 3 + 4
    assert seen.starts[0] == seen.starts[3]
    assert seen.starts[1] == seen.starts[4]


def test_true_cluster_is_the_pair_of_cluster_and_view():
    train = ClientIndex.from_lists([ids(0), ids(1), ids(2), ids(3)])
    division = Division(train, train.first(0), ids(0, 1, 1, 0), "label")
    seen = apply_views(division, ids(0, 0, 1, 1), 2, 4)
    assert seen.true_clusters.tolist() == [0, 2, 3, 1]
    assert lists(seen.train) == [[0], [1], [6], [7]]
    assert seen.skew == "label"


def test_unknown_clusters_become_those_of_the_view():
    train = ClientIndex.from_lists([ids(0), ids(1)])
    assert apply_views(Division(train, train, ids(-1, -1)), ids(1, 0), 2, 2).true_clusters.tolist() == [1, 0]


def test_an_unknown_cluster_among_known_ones_stays_unknown():
    train = ClientIndex.from_lists([ids(0), ids(1), ids(2)])
    assert apply_views(Division(train, train, ids(0, -1, 1)), ids(1, 0, 1), 2, 3).true_clusters.tolist() == [1, -1, 3]


@pytest.mark.parametrize(("degrees", "num_clusters"), [((0, 180), 4), ((0, 90, 180, 270), 8)])
def test_rotations_times_label_groups_give_4_or_8_clusters(degrees: tuple[int, ...], num_clusters: int):
    module = Squares(TwoGroups(16), [Rotations(degrees)])  # as in StoCFL, Fig. 7
    data = module.federated(0)
    assert data.true_clusters.bincount().tolist() == [16 // num_clusters] * num_clusters
    assert data.skew == "other"
    for client, cluster in enumerate(data.true_clusters.tolist()):
        group, turns = divmod(cluster, len(degrees))
        for index in (data.train[client], data.test[client]):
            images, labels = data.examples.batch(index)
            raw = module.pool().examples.inputs[index % 400]
            assert set((labels // 2).tolist()) == {group}
            assert torch.equal(images, raw.rot90(degrees[turns] // 90, (2, 3)))


def test_product_of_skews_is_as_frequent_in_every_combination():
    data = Squares(IID(24, 0.2), [Rotations((0, 90)), LabelShifts((0, 1, 2))]).federated(0)
    assert data.true_clusters.bincount().tolist() == [4] * 6
    assert data.true_clusters[:8].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]


@pytest.mark.parametrize(
    ("skew", "name"),
    [
        ([], "other"),
        ([Rotations((90,))], "other"),  # all clients have the same view
        ([Rotations()], "feature"),
        ([NoiseLevels()], "feature"),
        ([Rotations(), NoiseLevels()], "feature"),
        ([FreeRotations((0, 20)), Blurs()], "feature"),
        ([Brightnesses()], "feature"),
        ([LabelSwaps(((), (0, 1)))], "label"),
        ([LabelShifts((0, 1))], "label"),
        ([LabelPermutations(2)], "label"),
        ([Rotations(), LabelShifts((0, 1))], "other"),
        ([Rotations((90,)), LabelShifts((0, 1))], "label"),  # a skew with one view makes no difference between clients
        ([Rotations(), LabelShifts((1,))], "feature"),
    ],
)
def test_data_say_what_skew_they_have(skew: Sequence[Skew], name: str):
    assert Squares(IID(8, 0.2), skew).federated(0).skew == name


def test_partitions_of_other_looks_are_others():
    hashes = [partition_hash(Squares(IID(8, 0.2), skew).federated(0)) for skew in ([], [Blurs([1.0])], [Blurs([2.0])])]
    assert len(set(hashes)) == 3


def test_without_copies_clusters_share_one_pool():
    data = Squares(IID(8, 0.25), [Rotations()]).federated(0)
    indices = torch.cat([data.train.entries, data.test.entries])
    assert (indices % 400).sort().values.tolist() == list(range(400))


def test_with_copies_each_cluster_divides_the_whole_pool():
    module = Squares(IID(8, 0.25), [Rotations((0, 90, 180))], copies=True)
    data = module.federated(0)
    assert data.true_clusters.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    for split, size in ((data.train, 38), (data.test, 12)):
        assert split.sizes.tolist() == [size] * 24
    indices = torch.cat([data.train.entries, data.test.entries])
    assert indices.sort().values.tolist() == list(range(1200))  # every image occurs once under every view
    assert len(data.examples) == 400  # no image is copied
    # each view divides the images separately
    assert set(lists(data.train)[0]) != {index % 400 for index in lists(data.train)[8]}


@pytest.mark.parametrize(("test", "leaks"), [("alike", False), ("shared", False), (0.2, True)])
def test_copies_leak_test_images_into_other_views_only_where_test_is_a_share(test: str | float, leaks: bool):
    class WithTestPart(Squares):
        def pool(self) -> Pool:
            return replace(super().pool(), num_train=300)

    data = WithTestPart(IID(8, test), [Rotations((0, 180))], copies=True).federated(0)
    trained, tested = (set((index.entries % 400).tolist()) for index in (data.train, data.test))
    assert bool(trained & tested) == leaks
    # no image is in both under the same view
    assert not set(data.train.entries.tolist()) & set(data.test.entries.tolist())


def test_copies_without_a_skew_are_refused():
    with pytest.raises(InputError, match="copies is true, but without a skew there are no clusters"):
        Squares(IID(8), copies=True)


def test_names_of_the_clients_are_repeated_for_each_view():
    divisions = [Division(ClientIndex.empty(2), ClientIndex.empty(2), ids(-1, -1), names=("ann", "bob"))] * 2
    assert join_divisions(divisions).names == ("ann", "bob", "ann", "bob")
    unnamed = replace(divisions[0], names=())
    assert join_divisions([unnamed, divisions[0]]).names == ("", "", "ann", "bob")
    assert join_divisions([unnamed, unnamed]).names == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "IID"}, r"partition is 'IID'; give a Partition, such as IID\(num_clients=100\)"),
        ({"partition": IID}, "partition is <class .*>; give a Partition"),
        ({"partition": None}, "partition is None"),
        ({"partition": IID(8), "skew": "Rotations"}, "skew holds 'Rotations'; give an object of Skew, or a list"),
        ({"partition": IID(8), "skew": Rotations}, "skew holds <class .*>; give an object of Skew, or a list"),
        ({"partition": IID(8), "skew": 90}, "skew holds 90; give an object of Skew, or a list"),
        ({"partition": IID(8), "skew": [Rotations]}, "skew holds <class .*>; give an object of Skew"),
    ],
)
def test_an_invalid_partition_or_skew_is_refused(options: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        Squares(**options)
