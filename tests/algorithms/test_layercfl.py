"""Tests LayerCFL on quadratic clients (docs/ground_truth.md, check 23; C33), and by which layers newcomers go."""

from dataclasses import replace

import pytest
import torch
from few_rounds import SPLITS, begin
from few_rounds import run as run_rounds
from quadratic import Clients, clients_at, f64, rng
from torch.testing import assert_close

from lit_cfl.algorithms import CFL, AdaCFL, Info, LayerCFL
from lit_cfl.algorithms.splits import SplitState
from lit_cfl.clustering import distances

ALWAYS = LayerCFL(**SPLITS)
LAYERS = {"conv1": 2, "conv2": 2, "fc1": 2}
# clusters that each layer suggests
PAIRS = {"conv1": [0, 0, 1, 1, 0, 1], "conv2": [0, 1, 0, 1, 1, 0], "fc1": [0, 1, 1, 0, 0, 1]}
DISTANCES = ("l2", "delta_l2", "cos", "delta_cos")


def layered(strength: dict[str, float], **options: object) -> Clients:
    """Makes six clients, which each layer separates in a different way (`PAIRS`) and with the given strength."""
    sides = torch.stack([1.0 - 2.0 * torch.tensor(PAIRS[layer]) for layer in LAYERS for _ in range(2)], 1).double()
    scale = torch.tensor([strength.get(layer, 0.0) for layer in LAYERS for _ in range(2)]).double()
    rows = scale * sides + 0.3 * torch.randn(6, 6, generator=rng(4), dtype=torch.float64)
    return clients_at(*rows.tolist(), sizes=(2, 3, 1, 4, 2, 5), start=0.0, layers=LAYERS, **options)


def split(algorithm: CFL, work: Clients, *start: float) -> tuple[SplitState, Info]:
    state = begin(algorithm, work, list(start) or [0.0] * work.centers.shape[1])
    ((state, info),) = run_rounds(algorithm, work, [work.population], state)
    return state, info


@pytest.mark.parametrize("distance", DISTANCES)
def test_other_layers_do_not_matter(distance: str):
    algorithm = replace(ALWAYS, layers=["conv2"], distance=distance)
    found = [split(algorithm, layered({"conv2": 4.0, "fc1": other})) for other in (0.0, 90.0)]
    assert torch.equal(found[0][1].similarity.matrix, found[1][1].similarity.matrix)
    assert [state.index.tolist() for state, _ in found] == [PAIRS["conv2"]] * 2


def test_l2_of_weights_is_l2_of_updates_if_the_start_is_common():
    work = layered({"fc1": 2.0, "conv1": 1.0})
    weights, updates = (split(replace(ALWAYS, layers=["fc1"], distance=each), work) for each in ("l2", "delta_l2"))
    assert torch.equal(weights[0].index, updates[0].index)
    assert_close(weights[1].similarity.matrix, updates[1].similarity.matrix)
    apart = distances(work.centers[:, 4:] / 2, "l2")  # one step covers half of the distance from 0
    assert_close(updates[1].similarity.matrix, 1 - 2 * apart / apart.max())


@pytest.mark.parametrize(("distance", "row"), [("cos", [1, 3.75 / 4.25, 0]), ("delta_cos", [1, 0.6, -(0.8**0.5)])])
def test_cosines_are_of_weights_or_of_updates(distance: str, row: list[float]):
    work = clients_at((3.0, 1.0), (3.0, -1.0), (-1.0, 0.0))
    # from (1, 0): local models (2, .5), (2, -.5), (0, 0); updates (1, .5), (1, -.5), (-1, 0)
    _, info = split(replace(ALWAYS, layers=["*"], distance=distance), work, 1.0, 0.0)
    assert_close(info.similarity.matrix[0], f64(*row))


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
def test_skew_chooses_the_layer_as_in_the_paper_and_it_is_noted_if_that_is_all(skew: str, sizes, chosen, recwarn):
    work = clients_at(*torch.randn(5, 7, generator=rng(2)).tolist(), layers=sizes, skew=skew)
    state, info = split(ALWAYS, work)
    assert state.layers == [chosen]
    assert torch.equal(state.index, split(replace(ALWAYS, layers=chosen), work)[0].index)
    assert info.tables == {"layers": []}
    recwarn.clear()
    for layers in ("auto", ["*"], "by_skew"):
        LayerCFL(layers=layers).check(work)
    assert ["since layers is by_skew" in str(one.message) for one in recwarn] == [True] * (chosen == ["*"])


@pytest.mark.parametrize("layer", LAYERS)
def test_auto_finds_the_layer_in_which_the_clients_differ(layer: str):
    """Label counts, from which true clusters could be guessed, do not change the choice."""
    algorithm = replace(ALWAYS, layers="auto")
    state, info = split(algorithm, layered({layer: 3.0}))
    assert state.layers == [[layer]]
    assert state.index.tolist() == PAIRS[layer]
    rows = {row["layer"]: row for row in info.tables["layers"]}
    assert {name: row["chosen"] for name, row in rows.items()} == {name: int(name == layer) for name in LAYERS}
    assert max(rows, key=lambda name: rows[name]["silhouette"]) == layer
    assert rows[layer]["gap"] > 0.5  # the chosen layer separates the clusters well
    assert min(row["gap"] for row in rows.values()) < 0  # a layer of noise does not
    assert all(-1 <= row["silhouette"] <= 1 and -2 <= row["gap"] <= 2 for row in rows.values())
    counts = torch.tensor([[9, 0], [0, 9], [0, 9], [9, 0], [9, 0], [0, 9]])  # labels that agree with fc1
    assert split(algorithm, layered({layer: 3.0}, label_counts=counts))[1].tables == info.tables


@pytest.mark.parametrize(("linkage", "within", "across"), [("single", 121, 49), ("complete", 90, 42)])
def test_auto_scores_a_layer_by_the_bipartition_of_the_linkage(linkage: str, within: int, across: int):
    # single linkage separates the last client, complete linkage the first two
    angles = f64(0, 38, 80, 121, 170).deg2rad()
    work = clients_at(*torch.stack([angles.cos(), angles.sin()], 1).tolist(), layers={"fc1": 2})
    _, info = split(replace(ALWAYS, layers="auto", linkage=linkage), work)
    (row,) = info.tables["layers"]
    least_within, greatest_across = f64(within, across).deg2rad().cos().tolist()
    assert row["gap"] == pytest.approx(least_within - greatest_across)


def test_layer_is_chosen_again_at_each_split():
    """As in `test_cfl`, the first layer separates two sides, and the second layer splits each side again."""
    algorithm = LayerCFL(eps1=0.3, eps2=0.5, warmup_rounds=0, layers="auto", distance="l2")
    corners = f64([4, 1], [-4, 1], [4, -1], [-4, -1], [-4, -1], [4, -1], [4, 1], [-4, 1])
    spread = f64([0.2, 0.1], [-0.1, 0.05], [-0.2, 0.0], [0.1, 0.1], [0, 0], [0.2, -0.1], [0, 0], [0, 0.1])
    work = clients_at(*(corners + spread).tolist(), sizes=(5, 3, 9, 1, 3, 3, 7, 1), layers={"conv1": 1, "fc1": 1})
    found = list(run_rounds(algorithm, work, [work.population] * 8, begin(algorithm, work, [2.0, 0.0])))
    state = found[-1][0]
    assert state.index.tolist() == [0, 1, 2, 3, 3, 2, 0, 1]
    assert [len(layers) for layers in state.layers] == [1, 1, 1]
    clusters = [row["cluster"] for _, info in found for row in info.tables["layers"]]
    assert clusters == [0, 0, 0, 0, 1, 1]  # two layers in each split


BY_FC = [AdaCFL(**SPLITS), *(LayerCFL(**SPLITS, layers=["fc1"], distance=each) for each in DISTANCES)]


def place(algorithm: CFL, members: list[tuple[float, float]], *newcomers: tuple[float, float]) -> list[int]:
    """Splits the members, and places the newcomers in descending order of their ids; columns: conv1, fc1."""
    layers = {"conv1": 1, "fc1": 1}
    state, _ = split(algorithm, clients_at(*members, layers=layers))
    assert state.index.tolist() == [0, 0, 1, 1]
    who = torch.arange(4, 4 + len(newcomers)).flip(0)
    return algorithm.place(state, who, clients_at(*members, *newcomers, layers=layers), rng())[0].index[4:].tolist()


@pytest.mark.parametrize("algorithm", BY_FC, ids=lambda one: getattr(one, "distance", "AdaCFL"))
def test_newcomer_is_placed_by_the_layers_of_the_split_whatever_the_others_say(algorithm: CFL):
    members = [(1.0, 4.0), (1.0, 4.5), (-1.0, -4.0), (-1.0, -4.5)]
    # in conv1, they are nearer to the other part, and their updates are larger
    newcomers = (-100.0, 4.0), (100.0, -4.0), (90.0, -4.0)
    assert place(algorithm, members, *newcomers) == [0, 1, 1]
    assert place(CFL(**SPLITS), members, *newcomers) == [1, 0, 0]  # comparing all layers gives the opposite result


@pytest.mark.parametrize("algorithm", BY_FC[:3], ids=lambda one: getattr(one, "distance", "AdaCFL"))
def test_newcomer_is_placed_by_distance_if_the_directions_are_the_same(algorithm: CFL):
    members = [(0.0, 1.0), (0.0, 1.5), (0.0, 10.0), (0.0, 10.5)]
    assert place(algorithm, members, (0.0, 9.0), (0.0, 2.0), (0.0, 3.0)) == [1, 0, 0]
