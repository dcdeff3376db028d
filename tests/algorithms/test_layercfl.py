"""Tests LayerCFL on quadratic clients (docs/ground_truth.md, check 23; C33)."""

import warnings
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from digits_experiment import digits
from quadratic import ids, rng
from test_cfl import BY_HAND, CORNERS, begun, opposite, rounds, work_of
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms import CFL, LayerCFL
from lit_cfl.clustering import distances, separation_gap
from lit_cfl.errors import InputError
from lit_cfl.runs.run import run
from lit_cfl.storage.csv_log import read_table
from lit_cfl.testing import QuadraticWork

ALWAYS = LayerCFL(eps1=100.0, eps2=0.0, warmup_rounds=0)  # splits whenever a cluster has three clients
LAYERS = {"conv1": 2, "conv2": 2, "fc1": 2}
# clusters that each layer suggests
PAIRS = {"conv1": [0, 0, 1, 1, 0, 1], "conv2": [0, 1, 0, 1, 1, 0], "fc1": [0, 1, 1, 0, 0, 1]}


def layered(strength: dict[str, float], **options: object) -> QuadraticWork:
    """Makes six clients, which each layer separates in a different way (`PAIRS`) and with the given strength."""
    sides = torch.stack([1.0 - 2.0 * torch.tensor(PAIRS[layer]) for layer in LAYERS for _ in range(2)], 1).double()
    scale = torch.tensor([strength.get(layer, 0.0) for layer in LAYERS for _ in range(2)]).double()
    noise = 0.3 * torch.randn(6, 6, generator=rng(4), dtype=torch.float64)
    return work_of(scale * sides + noise, ids(2, 3, 1, 4, 2, 5), layers=LAYERS, **options)


def split(algorithm: CFL, work: QuadraticWork):
    d = work.centers.shape[1]
    return algorithm.round(begun(algorithm, work, *[0.0] * d), work.population, work, rng())


def test_all_layers_and_cosines_of_updates_are_cfl():  # check 23
    layered_form = LayerCFL(eps1=0.3, eps2=0.5, warmup_rounds=0, layers=["*"], distance="delta_cos")
    start = begun(BY_HAND, work_of(), 2, 0)
    ours, cfl = (list(rounds(algorithm, work_of(), start)) for algorithm in (layered_form, BY_HAND))
    assert len(cfl[-1][0].models) == 4
    for (a, informed), (b, expected) in zip(ours, cfl, strict=True):
        for f in fields(a):
            x, y = getattr(a, f.name), getattr(b, f.name)
            assert torch.equal(x, y) if isinstance(x, Tensor) else x == y
        assert torch.equal(informed.clusters["u"].nan_to_num(-1), expected.clusters["u"].nan_to_num(-1))


@pytest.mark.parametrize("layer", LAYERS)
def test_clients_are_split_by_the_layer_that_is_named(layer: str):
    state, _ = split(replace(ALWAYS, layers=[layer]), layered(dict.fromkeys(LAYERS, 4.0)))
    assert state.index.tolist() == PAIRS[layer]


@pytest.mark.parametrize("distance", ["l2", "delta_l2", "cos", "delta_cos"])
def test_other_layers_do_not_matter(distance: str):
    algorithm = replace(ALWAYS, layers=["conv2"], distance=distance)
    found = [split(algorithm, layered({"conv2": 4.0, "fc1": other})) for other in (0.0, 90.0)]
    assert torch.equal(found[0][1].similarity.matrix, found[1][1].similarity.matrix)
    assert [state.index.tolist() for state, _ in found] == [PAIRS["conv2"]] * 2


def test_l2_of_weights_is_l2_of_updates_where_the_start_is_common():
    work = layered({"fc1": 2.0, "conv1": 1.0})
    weights, updates = (
        split(replace(ALWAYS, layers=["fc1"], distance=distance), work) for distance in ("l2", "delta_l2")
    )
    assert torch.equal(weights[0].index, updates[0].index)
    assert_close(weights[1].similarity.matrix, updates[1].similarity.matrix)
    apart = distances(work.centers[:, 4:] / 2, "l2")  # one step covers half of the distance from 0
    assert_close(updates[1].similarity.matrix, 1 - 2 * apart / apart.max())


def test_cosines_are_of_weights_or_of_updates():
    work = work_of(torch.tensor([[3.0, 1], [3, -1], [-1, 0]]).double(), ids(1, 2, 3))
    start = (1.0, 0.0)  # local models (2, .5), (2, -.5), (0, 0); updates (1, .5), (1, -.5), (-1, 0)
    found = {}
    for distance in ("cos", "delta_cos"):
        algorithm = replace(ALWAYS, layers=["*"], distance=distance)
        found[distance] = algorithm.round(begun(algorithm, work, *start), work.population, work, rng())[1]
    assert_close(found["cos"].similarity.matrix[0], torch.tensor([1, 3.75 / 4.25, 0]).double())
    assert_close(found["delta_cos"].similarity.matrix[0], torch.tensor([1, 0.6, -(0.8**0.5)]).double())


@pytest.mark.parametrize(
    ("skew", "sizes", "chosen"),
    [
        # the fourth convolution, as for VGG16
        ("feature", {f"conv{k}": 1 for k in range(1, 6)} | {"fc1": 1, "fc2": 1}, ["conv4"]),
        ("feature", {"conv1": 2, "conv2": 3, "fc1": 2}, ["conv2"]),
        ("feature", {"fc1": 3, "fc2": 4}, ["*"]),
        ("label", {"conv1": 3, "fc1": 2, "fc2": 2}, ["fc1"]),
        ("label", {"conv1": 3, "conv2": 4}, ["*"]),
        ("other", {"conv1": 3, "fc1": 4}, ["*"]),
    ],
)
def test_skew_chooses_the_layer_as_in_the_paper(skew: str, sizes: dict[str, int], chosen: list[str]):
    work = work_of(
        torch.randn(5, 7, generator=rng(2), dtype=torch.float64), ids(1, 2, 3, 4, 5), layers=sizes, skew=skew
    )
    state, info = split(ALWAYS, work)
    assert state.layers == [chosen]
    named, _ = split(replace(ALWAYS, layers=chosen), work)
    assert torch.equal(state.index, named.index)
    assert info.tables == {"layers": []}


@pytest.mark.parametrize("layer", LAYERS)
def test_auto_finds_the_layer_in_which_the_clients_differ(layer: str):
    algorithm = replace(ALWAYS, layers="auto")
    state, info = split(algorithm, layered({layer: 3.0}))
    assert state.layers == [[layer]]
    assert state.index.tolist() == PAIRS[layer]
    rows = {row["layer"]: row for row in info.tables["layers"]}
    assert list(rows) == list(LAYERS)
    assert {name: row["chosen"] for name, row in rows.items()} == {name: int(name == layer) for name in LAYERS}
    assert max(rows, key=lambda name: rows[name]["silhouette"]) == layer
    assert rows[layer]["gap"] > 0.5  # the chosen layer separates the clusters well
    assert min(row["gap"] for row in rows.values()) < 0  # a layer of noise does not
    assert all(-1 <= row["silhouette"] <= 1 and -2 <= row["gap"] <= 2 for row in rows.values())


@pytest.mark.parametrize(("linkage", "within", "across"), [("single", 121, 49), ("complete", 90, 42)])
def test_auto_scores_a_layer_by_the_bipartition_of_the_linkage(linkage: str, within: int, across: int):
    # single linkage separates the last client, complete linkage the first two
    angles = torch.tensor([0, 38, 80, 121, 170]).double()
    centers = torch.stack([angles.deg2rad().cos(), angles.deg2rad().sin()], 1)
    work = work_of(centers, ids(1, 2, 3, 4, 5), layers={"fc1": 2})
    _, info = split(replace(ALWAYS, layers="auto", linkage=linkage), work)
    (row,) = info.tables["layers"]
    least_within, greatest_across = torch.tensor([within, across]).double().deg2rad().cos().tolist()
    assert row["gap"] == pytest.approx(least_within - greatest_across)


def test_cluster_whose_largest_update_is_exactly_eps2_is_not_split():
    work = opposite(1, -1, -1, 1)  # updates are 2 and -2
    for eps2, clusters in {2.0: 1, 1.999: 2}.items():
        algorithm = replace(ALWAYS, layers=["*"], eps2=eps2)
        assert len(split(algorithm, work)[0].models) == clusters


def test_auto_goes_by_updates_alone():
    """Label counts, from which true clusters could be guessed, do not change the choice of layers."""
    counts = torch.tensor([[9, 0], [0, 9], [0, 9], [9, 0], [9, 0], [0, 9]])  # labels that agree with fc1
    plain = split(replace(ALWAYS, layers="auto"), layered({"conv2": 3.0}))
    informed = split(replace(ALWAYS, layers="auto"), layered({"conv2": 3.0}, label_counts=counts))
    assert plain[1].tables == informed[1].tables
    assert informed[0].index.tolist() == PAIRS["conv2"]


@pytest.mark.parametrize("distance", ["l2", "delta_l2", "cos", "delta_cos"])
def test_sign_of_the_gap_shows_whether_the_clusters_are_apart(distance: str):
    work = layered({"fc1": 5.0})
    algorithm = replace(ALWAYS, distance=distance)
    truth = torch.tensor(PAIRS["fc1"])
    for layer, apart in {"fc1": True, "conv1": False}.items():
        _, info = split(replace(algorithm, layers=[layer]), work)
        assert (separation_gap(info.similarity.matrix, truth) > 0) == apart


def test_layer_is_chosen_again_at_each_split():
    """As in `test_cfl`, the first layer separates two sides, and the second layer splits each side again."""
    algorithm = LayerCFL(eps1=0.3, eps2=0.5, warmup_rounds=0, layers="auto", distance="l2")
    spread = torch.tensor([[0.2, 0.1], [-0.1, 0.05], [-0.2, 0.0], [0.1, 0.1], [0, 0], [0.2, -0.1], [0, 0], [0, 0.1]])
    work = work_of(CORNERS + spread.double(), layers={"conv1": 1, "fc1": 1})
    found = list(rounds(algorithm, work, begun(algorithm, work, 2, 0), 8))
    state = found[-1][0]
    assert state.index.tolist() == [0, 1, 2, 3, 3, 2, 0, 1]
    assert [len(layers) for layers in state.layers] == [1, 1, 1]
    clusters = [row["cluster"] for _, info in found for row in info.tables["layers"]]
    assert clusters == [0, 0, 0, 0, 1, 1]  # two layers in each split


def test_fit_read_in_chunks_gives_the_same_by_weights():
    algorithm = replace(ALWAYS, layers="auto", distance="cos")
    whole, read = (split(algorithm, layered({"fc1": 3.0}, chunk_size=size)) for size in (None, 4))
    assert torch.equal(whole[0].models, read[0].models)
    assert torch.equal(whole[0].part_means, read[0].part_means)


@pytest.mark.parametrize(
    ("skew", "sizes", "why"),
    [
        ("feature", {"conv1": 2, "fc1": 2}, None),
        ("label", {"conv1": 2, "fc1": 2}, None),
        ("other", {"conv1": 2, "fc1": 2}, "the data's skew is other"),
        ("feature", {"fc1": 4}, "the net has no convolution"),
        ("label", {"conv1": 4}, "the net has no fully connected layer"),
    ],
)
def test_skew_that_chooses_all_layers_is_noted(skew: str, sizes: dict[str, int], why: str | None):
    work = QuadraticWork(torch.zeros(3, 4), ids(1, 1, 1), 0.1, layers=sizes, skew=skew)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for layers in ("auto", ["*"], "by_skew"):
            LayerCFL(layers=layers).check(work)
    notes = [str(one.message) for one in caught]
    assert notes == [] if why is None else len(notes) == 1 and f"since layers is by_skew and {why};" in notes[0]


def test_pattern_without_a_match_is_refused_with_the_layers():
    for patterns in (["conv9"], [], ["fc1", ""]):
        with pytest.raises(InputError, match=r"the layers are: conv1 \(conv2d\), conv2 \(conv2d\), fc1 \(linear\)"):
            replace(ALWAYS, layers=patterns).check(layered({}))
    replace(ALWAYS, layers=["fc*", "conv[-1]"]).check(layered({}))


def test_run_leaves_the_scores_as_table_and_picture(pictures: None, tmp_path: Path):
    run(digits(algorithm=replace(ALWAYS, layers="auto"), rounds=2), tmp_path / "run")
    rows = read_table(tmp_path / "run" / "layers.csv")
    assert list(rows[0]) == ["round", "cluster", "layer", "silhouette", "gap", "chosen"]
    assert rows[0]["layer"].endswith("fc1")
