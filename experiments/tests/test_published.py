"""Tests the published variants on quadratic clients (docs/ground_truth.md, checks 7, 8, 16 and 22; C1 to C21)."""

import inspect
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from quadratic import ids, quadratic_clients, rng
from scipy.stats import wasserstein_distance
from torch import Tensor, nn
from torch.testing import assert_close

from experiments import published
from experiments.published import (
    PublishedFedGroup,
    PublishedFedGrouProx,
    PublishedFeSEM,
    PublishedFlexCFL,
    PublishedIFCA,
    PublishedPACFL,
    PublishedStoCFL,
    compare_sorted_counts,
)
from lit_cfl import load_experiment, run
from lit_cfl.algorithms import IFCA, PACFL, Algorithm, FedGroup, FedGrouProx, FeSEM, FlexCFL, StoCFL
from lit_cfl.clustering import agglomerate
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget, ClientFunction
from lit_cfl.seeds import generator
from lit_cfl.testing import QuadraticWork, check_algorithm

EVERYONE = torch.arange(8)
GROUPS = {"num_clusters": 2, "pretrain_scale": 2}  # four of eight clients take part in the cold start
VARIANTS: list[Algorithm] = [
    PublishedIFCA(weights="drawn_first"),
    PublishedIFCA(migrate=True, shift_metric="sorted_counts", shift_threshold=0.0),
    PublishedFeSEM(weights="drawn_first"),
    PublishedFeSEM(start_partition="same"),
    PublishedFeSEM(migrate=True, shift_metric="sorted_counts", shift_threshold=0.0),
    PublishedFedGroup(centers="random"),
    PublishedFedGroup(cold_start="random_once", pretrain_scale=1),
    PublishedFedGroup(cold_start="random_each_round", pretrain_scale=1),
    PublishedFedGroup(**GROUPS, eta_g=0.5, mix="sum", weights="equal", group_start="w0"),
    PublishedFedGrouProx(**GROUPS, mu=0.5, cold_start_at="start"),
    PublishedFlexCFL(**GROUPS, cold_start="random_once"),
    PublishedFlexCFL(num_clusters=2, measure="madc", cold_start="random_each_round"),
    PublishedFlexCFL(num_clusters=2, centers="random", mix="sum", eta_g=0.1, shift_threshold=0.0),
    PublishedFlexCFL(pretrain_scale=2, migrate=False, cold_start_at="start", group_start="w0", weights="equal"),
    PublishedFlexCFL(**GROUPS, shift_metric="sorted_counts"),
    PublishedPACFL(num_vectors=1, angles="vectors", linkage="weighted"),
    PublishedPACFL(angles="sum", subspace="each_label"),
    PublishedStoCFL(psi="gradient", representation="sampled", sketch_dim=3, tau=0.9),
    PublishedStoCFL(global_update="sequential_by_draw", tau=-1.0, lambda_=0.0),
    PublishedStoCFL(global_update="sequential_by_id", representation="sampled"),
]


@pytest.fixture
def two_sides() -> QuadraticWork:
    """Makes eight clients of unequal sizes, alternately around (+3, 0, 0, 0) and (-3, 0, 0, 0)."""
    return quadratic_clients(8)


class FromZero(QuadraticWork):
    """Quadratic clients and the initial model w_0 = 0."""

    def initial(self, number: int) -> Tensor:
        return torch.zeros(self.centers.shape[1], dtype=torch.float64)


def line(*centers: float, sizes: tuple[int, ...] = (), **options: object) -> FromZero:
    """Makes clients on a line; one local step halves the distance to the client's centre."""
    num_examples = torch.tensor(sizes or tuple(range(1, len(centers) + 1)))
    return FromZero(torch.tensor(centers, dtype=torch.float64)[:, None], num_examples, 0.5, **options)


@pytest.mark.parametrize("algorithm", VARIANTS, ids=map(repr, VARIANTS))
def test_variant_keeps_the_contract(algorithm: Algorithm):
    check_algorithm(algorithm)


def test_options_of_disputed_points_exist_with_the_default_that_the_page_says():
    page = (Path(__file__).parents[2] / "docs" / "disputed_points.md").read_text("utf-8")
    rows = [line.split("|") for line in page.splitlines() if re.match(r"\| C\d+:", line) and "`Published" in line]
    assert len(rows) == 8
    for row in rows:
        for owner, option in re.findall(r"`(Published\w+)\.(\w+)`", row[2]):
            default = inspect.signature(getattr(published, owner)).parameters[option].default
            text = default if isinstance(default, str) else json.dumps(default)
            assert row[5].strip().startswith(f"`{text}`"), owner


@pytest.mark.parametrize(
    ("variant", "shipped"),
    [
        (PublishedIFCA(2), IFCA(2)),
        (PublishedFeSEM(2), FeSEM(2)),
        (PublishedFedGroup(**GROUPS), FedGroup(**GROUPS)),
        (PublishedFedGrouProx(**GROUPS, mu=0.5), FedGrouProx(**GROUPS, mu=0.5)),
        (PublishedFlexCFL(**GROUPS), FlexCFL(**GROUPS)),
        (PublishedPACFL(), PACFL()),
        (PublishedStoCFL(), StoCFL()),
    ],
    ids=lambda one: type(one).__name__,
)
def test_variant_without_its_options_is_the_shipped_algorithm(
    variant: Algorithm, shipped: Algorithm, two_sides: QuadraticWork
):
    found, expected = (algorithm.init(two_sides, rng(3)) for algorithm in (variant, shipped))
    for number, cohort in enumerate((ids(0, 3, 5), ids(1, 2), EVERYONE)):
        found, expected = (
            algorithm.round(state, cohort, two_sides.at(number), generator(3, "round", number))
            for algorithm, (state, _) in ((variant, found), (shipped, expected))
        )
        assert torch.equal(found[0].models, expected[0].models)
        assert torch.equal(found[0].index, expected[0].index)
        assert (found[1].up, found[1].down) == (expected[1].up, expected[1].down)


@pytest.mark.parametrize("kind", [PublishedIFCA, PublishedFeSEM])
def test_one_drawn_member_counts_in_each_cluster(kind: type[PublishedIFCA | PublishedFeSEM]):  # check 8, C1
    work, algorithm, seen = line(0.0, 2.0, 10.0, 14.0, sizes=(0, 3, 4, 1)), kind(2, weights="drawn_first"), set()
    state, _ = algorithm.init(work, rng())
    models = torch.tensor([[4.0], [9.0]], dtype=torch.float64)
    state = replace(state, models=models, index=ids(0, 0, 1, 1))  # client 0 lost its data
    for seed in range(12):
        found = [
            algorithm.round(state, cohort, work, rng(seed))[0].models[:, 0].tolist()
            for cohort in (ids(0, 1, 2, 3), ids(3, 2, 1, 0))
        ]
        assert found[0] == found[1]  # the order of the cohort does not matter
        seen.add(tuple(found[0]))
    assert seen == {((4 + 2) / 2, (9 + 10) / 2), ((4 + 2) / 2, (9 + 14) / 2)}


def test_choice_includes_the_penalty_of_the_task():  # C11
    class Model(nn.Module):
        def __init__(self, row: Tensor) -> None:
            super().__init__()
            self.row = row

        def penalty(self) -> Tensor:
            return 0.5 * self.row.square().sum()

    class Penalised(FromZero):
        def map(self, function: ClientFunction, clients: Tensor, model: Tensor | None = None) -> list[Any]:
            return [function(self.centers[clients], clients, Model(model))]

    work = Penalised(torch.tensor([[-2.0]], dtype=torch.float64), ids(1), 0.5)
    models = torch.tensor([[1.0], [-4.0]], dtype=torch.float64)
    assert PublishedIFCA(2).losses_of(models, ids(0), work).tolist() == [[4.5, 2.0]]
    assert PublishedIFCA(2, assign_with_l2=True).losses_of(models, ids(0), work).tolist() == [[5.0, 10.0]]


@pytest.mark.parametrize(("assign_with_l2", "clusters"), [("true", 1), ("false", 2)])
def test_large_penalty_sends_all_clients_of_a_run_to_the_smallest_model(
    tmp_path: Path, assign_with_l2: str, clusters: int
):
    words = f"""--algorithm experiments.published.PublishedIFCA --algorithm.num_clusters 2 --rounds 1 --seed 0
        --algorithm.assign_with_l2 {assign_with_l2} --task.kernel_l2 1000 --task.optimizer.lr 1e-9"""
    found = run(load_experiment("ifca/digits", words.split()), tmp_path)
    assert found.summary["clusters/count"] == clusters


def test_all_first_time_clients_of_fesem_start_in_one_cluster(two_sides: QuadraticWork):  # check 7, C14
    algorithm = PublishedFeSEM(start_partition="same")
    state, _ = algorithm.init(two_sides, rng())
    state, _ = algorithm.round(state, ids(0, 1, 2, 3, 4), two_sides, rng())
    assert state.index.tolist() == [0, 0, 0, 0, 0, -1, -1, -1]
    moved = replace(state, models=state.models.flip(0))  # w_0 is now nearest to another model
    after, _ = algorithm.round(moved, ids(5, 6, 7), two_sides, rng())
    expected = int((moved.models - two_sides.initial(0)).norm(dim=1).argmin())
    assert expected != 0
    assert after.index[5:].tolist() == [expected] * 3


def test_clusters_of_fedgroup_may_start_from_w0(two_sides: QuadraticWork):  # C7
    state, _ = PublishedFedGroup(**GROUPS, group_start="w0").init(two_sides, rng(3))
    assert_close(state.models, two_sides.initial(0).repeat(2, 1))
    assert state.directions.abs().sum() > 0


def test_random_centres_start_one_cluster_each(two_sides: QuadraticWork):  # RCC
    state, info = PublishedFedGroup(**GROUPS, centers="random").init(two_sides, rng(1))
    assert len(state.founders) == 2
    assert sorted(state.index[state.founders].tolist()) == [0, 1]
    assert info.up == 2


def test_random_cold_start_draws_again_only_if_asked():  # RAC, C19
    work, everyone = quadratic_clients(64), torch.arange(64)
    once, again = (PublishedFedGroup(**GROUPS, cold_start=f"random_{when}") for when in ("once", "each_round"))
    state, _ = once.init(work, rng(3))
    first, info = once.round(state, everyone, work, rng(10))
    assert info.up == 64  # no client pre-trains
    assert torch.equal(once.round(first, everyone, work, rng(11))[0].index, first.index)
    drawn_again = again.round(first, everyone, work, rng(11))[0].index
    assert not torch.equal(drawn_again, first.index)
    assert torch.equal(drawn_again[state.founders], first.index[state.founders])


@pytest.mark.parametrize("cold_start", ["random_once", "random_each_round"])
def test_client_without_data_gets_no_random_cluster(cold_start: str):
    work = QuadraticWork(quadratic_clients(6).centers, ids(4, 0, 2, 3, 0, 1), 0.25)
    algorithm = PublishedFedGroup(num_clusters=2, pretrain_scale=1, cold_start=cold_start)
    state, _ = algorithm.init(work, rng())
    state, info = algorithm.place(state, ids(1, 2, 3, 4), work, rng())
    assert (algorithm.serve(state, ids(1, 2, 3, 4)).index >= 0).tolist() == [False, True, True, False]
    assert info.skipped == 2


@pytest.mark.parametrize("kind", [PublishedFedGroup, PublishedFedGrouProx])
def test_all_clients_in_training_may_be_placed_at_the_start(kind: type[PublishedFedGroup], two_sides: QuadraticWork):
    state, info = kind(**GROUPS, cold_start_at="start").init(two_sides, rng(3))
    assert (state.index >= 0).all()
    assert (info.down, info.up) == (4, 4 + 4)
    two_sides.population = ids(0, 1, 3, 4, 6)
    state, _ = kind(**GROUPS, cold_start_at="start").init(two_sides, rng(3))
    assert (state.index < 0).nonzero().flatten().tolist() == [2, 5, 7]


def test_client_that_migrates_is_placed_by_direction_even_if_others_are_placed_at_random():  # C19
    sizes = (1, 2, 3, 1, 1, 4)
    side = torch.arange(6) % 2
    work = line(4.0, -4.0, 8.0, -8.0, 12.0, -12.0, sizes=sizes, layers={"fc1": 1})
    work.label_counts = torch.tensor(sizes)[:, None] * torch.eye(2, dtype=torch.int64)[side]
    algorithm = PublishedFlexCFL(num_clusters=2, pretrain=Budget(1, "steps"), cold_start="random_once")
    state, _ = algorithm.init(work, rng(3))
    assert state.index.tolist() == [0, 1, 0, 1, 0, 1]
    after, order = work.at(1), ids(0, 1, 5, 3, 4, 2)  # clients 2 and 5 exchange their data
    after.centers, after.num_examples, after.label_counts = (
        rows[order] for rows in (work.centers, work.num_examples, work.label_counts)
    )
    for seed in range(5):
        assert algorithm.round(state, ids(0), after, rng(seed))[0].index.tolist() == [0, 1, 1, 1, 0, 0]


def test_sorted_counts_are_the_published_call_times_the_number_of_labels():  # C4: SciPy takes the counts as samples
    now, before = torch.randint(50, (2, 6, 10), generator=rng())
    expected = [10 * wasserstein_distance(a, b) for a, b in zip(now.numpy(), before.numpy(), strict=True)]
    moved, out_of = compare_sorted_counts(now, before, ids(60, 60, 60, 60, 60, 40))
    assert moved.tolist() == pytest.approx(expected)
    assert out_of.tolist() == [60, 60, 60, 60, 60, 40]


@pytest.mark.parametrize(
    ("now", "fires"),
    [
        ([0, 0, 30, 30], False),  # check 16: other labels are not noticed
        ([24, 30, 6, 0], False),  # 12 of 60, exactly at the threshold
        ([23, 30, 7, 0], True),
        ([15, 15, 0, 0], True),  # half of the data
    ],
)
def test_sorted_counts_fire_above_the_share_of_the_first_data(now: list[int], fires: bool):  # C4
    algorithm, before = PublishedFlexCFL(shift_metric="sorted_counts"), torch.tensor([[30, 30, 0, 0]])

    moved, out_of = algorithm.label_change(torch.tensor([now]), before, ids(60))
    assert (5 * moved > out_of).item() == fires


def test_threshold_of_sorted_counts_is_a_share_of_the_first_data_not_of_the_present():  # C4
    sizes, side = (60, 60, 60, 60), torch.arange(4) % 2
    work = line(4.0, -4.0, 8.0, -8.0, sizes=sizes, label_counts=60 * torch.eye(2, dtype=torch.int64)[side])
    algorithm = PublishedFlexCFL(num_clusters=2, shift_metric="sorted_counts")
    state, _ = algorithm.init(work, rng(3))
    for left, detected in ((49, 0), (48, 0), (47, 1)):  # 20 % of 60 are 12, of 49 less than 10
        after = work.at(1)
        after.label_counts = work.label_counts.clone()
        after.label_counts[0, 0] = left
        after.num_examples = after.label_counts.sum(1)
        _, info = algorithm.round(state, ids(1), after, rng())
        assert info.scores["shift/detected"] == detected


def test_omega_goes_from_client_to_client(two_sides: QuadraticWork):  # check 22, C2
    gradient = {"psi": "gradient", "lambda_": 0.5}
    in_turn = PublishedStoCFL(**gradient, global_update="sequential_by_draw")
    by_id = PublishedStoCFL(**gradient, global_update="sequential_by_id")

    def omega(algorithm: StoCFL, seed: int, *cohort: int) -> Tensor:
        state, _ = algorithm.init(two_sides, rng())
        return algorithm.round(state, ids(*cohort), two_sides, rng(seed))[0].omega

    alone = [omega(one, 0, 3) for one in (StoCFL(**gradient), in_turn, by_id)]
    assert all(torch.equal(one, other) for one, other in pairwise(alone))
    w0, c = two_sides.initial(0), two_sides.centers
    first = c[2] + 0.75**3 * (w0 - c[2])
    second = c[5] + 0.75**3 * (first - c[5])
    parallel = c[5] + 0.75**3 * (w0 - c[5])
    other = c[2] + 0.75**3 * (parallel - c[2])  # the two clients in the opposite order
    either, ways = ((first + second) / 2, (parallel + other) / 2), set()
    weighted = ((3 * first + 6 * second) / 9, (6 * parallel + 3 * other) / 9)
    for seed in range(12):  # the order is drawn: neither the ids nor the cohort's order matter
        found = omega(in_turn, seed, 2, 5)
        assert torch.equal(found, omega(in_turn, seed, 5, 2))
        ways |= {way for way in (0, 1) if torch.allclose(found, either[way])}
        assert any(torch.allclose(omega(replace(in_turn, weights="examples"), seed, 2, 5), one) for one in weighted)
        assert_close(omega(by_id, seed, 5, 2), either[0])  # the order of ids, for any order of the cohort
        assert_close(omega(replace(by_id, weights="examples"), seed, 5, 2), weighted[0])
    assert ways == {0, 1}


def test_cluster_is_represented_by_all_its_members_or_by_those_sampled():  # C21
    angles = torch.tensor([0.0, 40, 80, 115]).double().deg2rad()
    work = FromZero(-torch.stack([angles.cos(), angles.sin()], 1), ids(1, 2, 3, 4), 0.5)
    observed = PublishedStoCFL(tau=0.76, psi="gradient")  # tau as an angle: 40.5 degrees
    for algorithm, clusters in ((observed, 2), (replace(observed, representation="sampled"), 1)):
        state, _ = algorithm.init(work, rng())
        for cohort in (ids(0, 1, 2), ids(2, 3)):  # client 3 is 75 degrees from the mean at 40, 35 degrees from client 2
            state, _ = algorithm.round(state, cohort, work, rng())
        assert len(state.index.unique()) == clusters
    assert torch.equal(torch.stack([state.psi[client] for client in range(4)]), -work.centers)


# Made by commit 7ef000d of the authors' code (github.com/MMorafah/PACFL): `calculating_adjacency` on NumPy's singular
# vectors as in main_pacfl_mix4.py (`all`) and main_pacfl.py (`each_label`), with p = 2. `lines`: the same on these
# vectors and their negatives side by side, so that signs do not matter. `clusters`: `hierarchical_clustering` of
# `lines`, by linkage and threshold.
PACFL_CODE = json.loads((Path(__file__).parent / "published_pacfl.json").read_text())
LINKAGES = {"maximum": "complete", "minimum": "single", "average": "weighted"}
BY_LABEL = PublishedPACFL(2, angles="vectors", subspace="each_label")


def client_vectors(name: str, algorithm: PACFL) -> Tensor:
    """Computes the vectors `[7, m, 6]` of clients that have the data of the authors' run."""
    data = zip(PACFL_CODE[name]["inputs"], PACFL_CODE[name]["labels"], strict=True)
    return torch.nn.utils.rnn.pad_sequence(
        [algorithm.vectors_of(torch.tensor(x, dtype=torch.float64), torch.tensor(y)) for x, y in data],
        batch_first=True,
    )


@pytest.mark.parametrize("subspace", ["all", "each_label"])
@pytest.mark.parametrize("name", ["nonnegative", "signed"])
def test_angles_of_vectors_and_clusters_are_those_of_pacfls_code(
    name: str, subspace: str, monkeypatch: pytest.MonkeyPatch
):
    algorithm = PublishedPACFL(2, angles="vectors", subspace=subspace)
    bases, code = client_vectors(name, algorithm), PACFL_CODE[name]
    angles = algorithm.angles_between(bases, bases).fill_diagonal_(0)
    assert_close(angles, torch.tensor(code[f"{subspace} lines"]).double(), atol=1e-3, rtol=0)
    for words, labels in code[f"{subspace} clusters"].items():
        linkage, threshold = words.split()
        found = agglomerate((angles + angles.T) / 2, linkage=LINKAGES[linkage], threshold=float(threshold))
        assert found.tolist() == labels, words
    monkeypatch.setattr("experiments.published._PRODUCTS_AT_ONCE", 17)  # some clients at a time
    assert_close(algorithm.angles_between(bases, bases).fill_diagonal_(0), angles)


def test_signs_matter_in_pacfls_code():  # docs/disputed_points.md
    for name, most in (("nonnegative", 60), ("signed", 50)):
        signed, lines = (torch.tensor(PACFL_CODE[name][key]) for key in ("all", "all lines"))
        assert float((signed - lines).min()) >= 0
        assert float((signed - lines).max()) > most


def test_vectors_of_each_label_are_compared_side_by_side():
    scales = torch.tensor([[1.0, 0, 0], [2 * 0.75**0.5, 1, 0]], dtype=torch.float64)  # at 0 and 30 degrees
    labels = torch.tensor([[2, 0, 3], [0, 1, 0]])
    work, algorithm = QuadraticWork(scales, ids(5, 1), 0.25, label_counts=labels), BY_LABEL
    state, _ = algorithm.init(work, rng())
    assert state.bases.shape == (2, 2, 3)  # client 0 has two labels, client 1 only one
    assert_close(state.bases[0].abs(), torch.tensor([[1.0, 0, 0]] * 2, dtype=torch.float64))
    assert not state.bases[1, 1].any()
    assert_close(algorithm.angles_between(state.bases, state.bases)[0, 1].item(), 30.0)
    with pytest.raises(InputError, match="compares the examples of each label; label these clients"):
        algorithm.place_unlabelled(state, ids(0), work, rng())
    work.label_counts = labels[:, :0]
    with pytest.raises(InputError, match="each_label needs classes, but these data have none; set subspace to all"):
        algorithm.check(work)


@pytest.mark.parametrize("angles", ["smallest", "sum"])
def test_rounding_of_labels_with_the_same_vector_is_not_a_dimension(angles: str):
    scales, labels = torch.tensor([[0.3], [0.7], [0.2], [0.9]]), ids(0, 0, 1, 1)
    u, w = torch.linalg.qr(torch.randn(12, 2, generator=rng(1)))[0].T
    algorithm = replace(BY_LABEL, angles=angles)
    bases = torch.stack([algorithm.vectors_of(scales.roll(k) * axis, labels) for k, axis in enumerate((u, w, u))])
    expected = torch.tensor([[0, 90, 0], [90, 0, 90], [0, 90, 0]]).double()
    assert_close(algorithm.angles_between(bases, bases), expected, atol=0.1, rtol=0)


def test_an_example_with_several_labels_belongs_to_all_of_them():
    examples = torch.eye(4).view(4, 1, 2, 2)
    labels = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0.4, 0.6, 0], [0, 0, 0]])
    found = BY_LABEL.vectors_of(examples, labels)
    # label 0 has example 0, label 1 examples 1 and 2, and no example has label 2
    assert_close(found.T @ found, torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.0])))
    assert BY_LABEL.vectors_of(examples, 0 * labels).shape == (0, 4)
