"""Skews and their products: the view of each cluster."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratic import ids

from lit_cfl.data import Examples, View
from lit_cfl.datamodules.skew import (
    LabelPermutations,
    LabelShifts,
    NoiseLevels,
    Rotations,
    Skew,
    all_views,
    shifted_labels,
    skew_name,
)
from lit_cfl.errors import InputError

few = settings(deadline=None, derandomize=True, max_examples=50)


# Kinds of skew


def test_angles_become_quarter_turns():
    views = Rotations((0, 90, 180, 270)).views(10)
    assert views == (View(), View(1), View(2), View(3))
    assert Rotations((-90, 450)).views(10) == (View(3), View(1))


def test_labels_are_shifted_round():
    assert shifted_labels(10, 3) == (3, 4, 5, 6, 7, 8, 9, 0, 1, 2)
    assert shifted_labels(4, -1) == (3, 0, 1, 2)
    views = LabelShifts().views(10)  # StoCFL's 0, 3, 6, 9
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
        (lambda: Rotations((0, 45)), "by 45 degrees would blur the images; give multiples of 90"),
        (lambda: Rotations(()), r"rotations is empty; give at least one, \[0\] for no change"),
        (lambda: Rotations((90, 450)), r"rotations \[90, 90\] holds one twice"),
        (lambda: NoiseLevels((0.5, -0.1)), "noise level is -0.1; it must be 0 or more"),
        (lambda: NoiseLevels((float("nan"),)), "noise level is nan"),
        (lambda: NoiseLevels((float("inf"),)), "noise level is inf"),
        (lambda: NoiseLevels((0.5, 0.5)), "holds one twice"),
        (lambda: NoiseLevels(()), "noise levels is empty"),
        (lambda: LabelPermutations(0), "num_clusters of label permutations is 0; give 1 or more"),
        (lambda: LabelPermutations(7).views(3), "3 labels have too few different orders for 7 clusters; ask for fewer"),
        (lambda: LabelShifts(()), "label shifts is empty"),
        (lambda: Rotations(90), r"rotations is 90; give a list of whole numbers, one a cluster, such as \[0, 90\]"),
        (lambda: Rotations([0, 90.0]), r"rotations is \[0, 90.0\]; give a list of whole numbers"),
        (lambda: Rotations("90"), "rotations is '90'; give a list"),
        (lambda: LabelShifts(3), "label shifts is 3; give a list of whole numbers"),
        (lambda: LabelShifts([0, 1.5]), r"label shifts is \[0, 1.5\]; give a list of whole numbers"),
        (lambda: NoiseLevels(0.5), r"noise levels is 0.5; give a list of numbers, .* such as \[0, 0.5\]"),
        (lambda: NoiseLevels([0.0, "much"]), "noise levels is .*; give a list of numbers"),
        (lambda: LabelShifts((1, 11)).views(10), r"label shifts \[1, 1\] holds one twice"),
    ],
)
def test_skew_that_cannot_be_is_refused(make: object, message: str):
    with pytest.raises(InputError, match=message):
        make()


def test_skews_that_do_not_fit_the_inputs_are_refused():
    tokens, labels = torch.zeros(2, 5, dtype=torch.int64), ids(0, 1)
    with pytest.raises(InputError, match="are no images; only images can be rotated"):
        Examples(tokens, labels, 2, views=Rotations().views(2), vocabulary=9)
    with pytest.raises(InputError, match="token ids cannot be made noisy"):
        Examples(tokens, labels, 2, views=NoiseLevels().views(2), vocabulary=9)
    with pytest.raises(InputError, match="not square; rotate them by 0 and 180 only"):
        Examples(torch.zeros(2, 1, 3, 4), labels, 2, views=Rotations((0, 90)).views(2))


# Products


def test_views_add_up():
    one, other = View(3, (1, 2, 0), 0.3), View(2, (0, 2, 1), 0.4)
    assert one.then(other) == View(1, (2, 1, 0), 0.5)
    assert View().then(one) == one.then(View()) == one
    assert View(0, (1, 2, 0)).then(View(0, (2, 0, 1))) == View().then(View(0, (0, 1, 2))) == View()


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
        [Rotations((0, 90)), Rotations((0, 270))],  # 90 + 270 is 0 + 0
        [LabelShifts((0, 3)), LabelShifts((0, 3))],
        [LabelShifts((0, 3)), LabelShifts((0, 7))],  # 3 + 7 is no shift
        [LabelShifts((0, 3)), LabelPermutations(2, seed=1), LabelShifts((0, 3))],
        [LabelPermutations(2, seed=1), LabelPermutations(2, seed=1), NoiseLevels((0.0, 1.0))],
        [NoiseLevels((3.0, 4.0)), Rotations((0, 180)), NoiseLevels((4.0, 3.0))],  # 3, 4 and 4, 3 are both 5
    ],
)
def test_product_in_which_two_clusters_see_the_same_is_refused(skews: list[Skew]):
    with pytest.raises(InputError, match="two combinations of these skews show the same"):
        all_views(skews, 10)


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ((), "other"),
        (("feature",), "feature"),
        (("label", "label"), "label"),
        (("other", "feature"), "feature"),
        (("label", "feature"), "other"),
        (("other",), "other"),
    ],
)
def test_skew_is_named_after_the_kinds_that_agree(kinds: Sequence[str], name: str):
    assert skew_name(*kinds) == name
