"""Tests that every algorithm keeps the contract, and that an algorithm that breaks one of its rules is refused."""

import inspect
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import lit_cfl.algorithms
from lit_cfl.algorithms import (
    CFL,
    FLHC,
    IFCA,
    PACFL,
    AdaCFL,
    Algorithm,
    Ditto,
    FedAvg,
    FedDrift,
    FedGroup,
    FeSEM,
    FlexCFL,
    Info,
    LayerCFL,
    StoCFL,
)
from lit_cfl.algorithms.fedavg import FedAvgState
from lit_cfl.clustering import assign
from lit_cfl.config import catalogue
from lit_cfl.local_work import Budget, Fitted, per_client
from lit_cfl.seeds import generator
from lit_cfl.testing import QuadraticWork, check_algorithm

ALL = [getattr(lit_cfl.algorithms, name) for name in catalogue.names("algorithms")]


@pytest.mark.parametrize("kind", ALL)
def test_algorithm_keeps_the_contract(kind: type[Algorithm]):
    check_algorithm(kind())


SPLITS = {"eps1": 100.0, "eps2": 0.0, "warmup_rounds": 0}  # splits whenever a cluster has three clients
TWO = {"num_clusters": 2, "pretrain_scale": 2}  # four of the clients take part in the cold start
OPTIONS: list[Algorithm] = [
    FedAvg(weights="equal"),
    Ditto(0.0),
    Ditto(weights="equal"),
    Ditto(personal=Budget(2, "steps")),
    IFCA(weights="examples"),
    IFCA(averaging="gradients"),
    IFCA(averaging="gradients", weights="examples"),
    IFCA(reassign_at_evaluation=True),
    IFCA(migrate=True),
    FeSEM(start_partition="loss"),
    FeSEM(weights="examples"),
    FeSEM(migrate=True),
    CFL(**SPLITS | {"warmup_rounds": 1}, linkage="complete", weights="equal"),
    CFL(**SPLITS),
    AdaCFL(**SPLITS | {"warmup_rounds": 1}),
    AdaCFL(**SPLITS, layers=["*"]),
    LayerCFL(**SPLITS | {"warmup_rounds": 1}, layers="auto", distance="l2"),
    LayerCFL(**SPLITS, layers="auto", distance="cos"),
    LayerCFL(**SPLITS, layers=["fc*"], distance="delta_l2"),
    FedDrift(step_rounds=1),
    FedDrift(start="one", delta=0.1),
    FedDrift(start="one", delta=2.0, step_rounds=1),
    FedDrift(0.5, start="one", eager=True, step_rounds=2),
    FedGroup(measure="madc"),
    FedGroup(**TWO, eta_g=0.5, mix="sum", weights="equal"),
    FlexCFL(**TWO, eta_g=5.0),
    FlexCFL(num_clusters=2, measure="madc", mix="sum", eta_g=0.1, shift_threshold=0.0),
    FlexCFL(pretrain_scale=2, migrate=False, weights="equal"),
    FLHC(warmup_rounds=0),
    FLHC(warmup_rounds=2, distance="cosine", linkage="average"),
    FLHC(warmup_rounds=3, distance="l1", linkage="single", weights="equal"),
    FLHC(warmup_rounds=2, linkage="ward"),
    FLHC(warmup_rounds=2, num_clusters=None, threshold=1.0),
    PACFL(num_vectors=1, angles="sum", linkage="weighted"),
    PACFL(threshold=80, linkage="single", weights="equal"),
    PACFL(linkage="complete", threshold=0),
    StoCFL(psi="gradient", sketch_dim=3, tau=0.9),
    StoCFL(tau=-1.0, lambda_=0.0),
    StoCFL(tau=1.0, weights="examples"),
]


@pytest.mark.parametrize("algorithm", OPTIONS, ids=map(repr, OPTIONS))
def test_options_keep_the_contract(algorithm: Algorithm):
    check_algorithm(algorithm)


def test_all_systems_are_there():
    wanted = "FedAvg, FedProx, Ditto, IFCA, FeSEM, CFL, FLHC, FedGroup, FedGrouProx, FlexCFL, StoCFL, AdaCFL, LayerCFL"
    wanted += ", Local, Oracle, FedDrift, FedEM, FLUX, PACFL"
    assert all(hasattr(lit_cfl.algorithms, name) for name in wanted.split(", "))
    assert {kind.__name__ for kind in ALL} == set(wanted.split(", "))


def nine_clients(kind: type[Algorithm], clients: type[QuadraticWork] = QuadraticWork) -> QuadraticWork:
    truth = torch.arange(9) % 3 if kind.sees_truth else None
    return clients(torch.eye(9, dtype=torch.float64), torch.arange(1, 10), 0.5, true_clusters=truth)


@pytest.mark.parametrize("kind", ALL)
def test_nobody_trains_twice_on_the_same_batches_of_a_round(kind: type[Algorithm]):
    trained, several = [], kind.mixes_models  # a client may then train several models, each once, on the same batches

    class Listening(QuadraticWork):
        def fit(
            self, models: Tensor, clients: Tensor, start: Tensor | int = 0, *, purpose: str = "train", **options: Any
        ) -> Fitted:
            each = zip(clients.tolist(), per_client(start, clients).tolist(), strict=True)
            trained.extend((self.round, purpose, client, model if several else 0) for client, model in each)
            return super().fit(models, clients, start, purpose=purpose, **options)

    work, algorithm = nine_clients(kind, Listening), kind()
    state, _ = algorithm.init(work.at(-1), generator(3, "init"))
    for round in range(3):
        state, _ = algorithm.round(state, torch.arange(9), work.at(round), generator(3, "round", round))
    assert ("train", 0) in {(purpose, client) for _, purpose, client, _ in trained}
    assert len(trained) == len(set(trained))


@pytest.mark.parametrize("kind", ALL)
def test_measure_of_closeness_is_named_where_newcomers_are_compared_with_clusters(kind: type[Algorithm]):
    work, algorithm = nine_clients(kind), kind()
    work.population = torch.arange(8)
    state, _ = algorithm.init(work, generator(3, "init"))
    for round in (0, algorithm.first_clustering_round()):
        state, _ = algorithm.round(state, work.population, work.at(round), generator(3, "round", round))
    _, info = algorithm.place(state, torch.tensor([8]), work, generator(3, "place"))
    assert (info.closeness is None) == (kind.closeness == Algorithm.closeness)


@pytest.mark.parametrize("kind", ALL)
def test_ours_cite_their_paper(kind: type[Algorithm]):
    docstring = inspect.getmodule(kind).__doc__
    for text in (kind.paper, docstring):
        assert re.search(r"arXiv:\d{4}\.\d{4,5}|Cybersecurity 6, 2023", text)
    assert "Where this differs from the paper" in docstring


def test_no_algorithm_but_the_oracle_is_shown_the_true_clusters():
    # all other algorithms passed without the true clusters, as tested above
    assert [kind.__name__ for kind in ALL if kind.sees_truth] == ["Oracle"]
    with pytest.raises(AssertionError, match=r"PeeksAtTheTruth: round 0 .* true_clusters can be read only by"):
        check_algorithm(PeeksAtTheTruth())


class PeeksAtTheTruth(FedAvg):
    def round(self, state, cohort, work, rng):
        return super().round(state, cohort[work.true_clusters[cohort] == 0], work, rng)


class ChangesItsArguments(FedAvg):
    def round(self, state, cohort, work, rng):
        state.models.add_(1)
        return super().round(state, cohort, work, rng)


class DrawsFromTheGlobalGenerator(FedAvg):
    def round(self, state, cohort, work, rng):
        after, info = super().round(state, cohort, work, rng)
        return replace(after, models=after.models + torch.rand(1)), info


class DependsOnTheOrder(FedAvg):
    def round(self, state, cohort, work, rng):
        fitted = work.fit(state.models, cohort)
        return FedAvgState(fitted.rows[:1] if len(cohort) else state.models), Info()


class DrawsByPosition(FedAvg):
    def round(self, state, cohort, work, rng):
        # a fault: the draws should be made for all ids, and then indexed
        kept = cohort[torch.rand(len(cohort), generator=rng) < 0.5]
        return super().round(state, kept, work, rng)


class ReadsAFitTwice(FedAvg):
    def round(self, state, cohort, work, rng):
        work.fit(state.models, cohort).rows.sum() if len(cohort) else 0
        return super().round(state, cohort, work, rng)


class ServesNobodyNew(FedGroup):
    def place(self, state, clients, work, rng):
        return super().place(state, clients[clients < len(state.index)], work, rng)


class KnowsNobodyBeyondItsLength(FedGroup):
    def place(self, state, clients, work, rng):
        index = state.index.clone()
        index[clients] = 0  # a fault: newcomers' ids exceed the length of this tensor
        return replace(state, index=index), Info()


class TrainsWithoutLabels(FedGroup):
    def place_unlabelled(self, state, clients, work, rng):
        return self.place(state, clients, work, rng)


class ServesNobodyWithoutLabels(FedGroup):
    def place_unlabelled(self, state, clients, work, rng):
        return state, Info()


class CannotStart(FedAvg):
    def init(self, work, rng):
        raise KeyError("w_0")


class CannotServe(FedAvg):
    def serve(self, state, clients):
        return super().serve(state, clients)[0]


class DividesByNobody(FedAvg):
    def round(self, state, cohort, work, rng):
        return FedAvgState(work.fit(state.models, cohort).collect().mean(0, keepdim=True)), Info()


class NamesNoScore(FedAvg):
    def round(self, state, cohort, work, rng):
        after, info = super().round(state, cohort, work, rng)
        return after, replace(info, scores={"mine/score": 1.0})


class ChangesTheWork(FedAvg):
    def round(self, state, cohort, work, rng):
        work.num_examples.clamp_(max=10)
        return super().round(state, cohort, work, rng)


class ServesInItsOwnOrder(FedGroup):
    def serve(self, state, clients):
        return super().serve(state, clients.sort().values)


class PlacesByTheGlobalGenerator(FedGroup):
    def place(self, state, clients, work, rng):
        state, info = super().place(state, clients, work, rng)
        index = state.index.clone()
        index[clients] = torch.randint(3, (len(clients),))
        return replace(state, index=index), info


@dataclass(frozen=True)
class ClustersByData(FedGroup):
    """FedGroup that places each client by the sign of the mean of its first input."""

    num_clusters: int = 2

    def place(self, state, clients, work, rng):
        means = work.map(lambda inputs, labels: inputs.mean(0), clients)
        side = torch.tensor([0 if mean is None else int(mean[0] > 0) for mean in means], dtype=torch.int64)
        return replace(state, index=assign(state.index, clients, side)), Info()


def test_algorithm_that_maps_a_function_keeps_the_contract():
    check_algorithm(ClustersByData())


@dataclass(frozen=True, eq=False)
class WithArray:
    models: Tensor
    seen: object


class SavesNumpy(FedAvg):
    state_type = WithArray

    def init(self, work, rng):
        return WithArray(work.initial(0)[None], work.num_examples.numpy()), Info()

    def round(self, state, cohort, work, rng):
        return state, Info()


class ForgetsOnSaving(FedAvg):
    cache: ClassVar[dict[int, int]] = {}

    def round(self, state, cohort, work, rng):
        count = self.cache.get(id(state.models), 0) + 1  # a fault: a memory that is not part of the state
        after, info = super().round(state, cohort, work, rng)
        self.cache[id(after.models)] = count
        return replace(after, models=after.models * (1 + 0.01 * count)), info


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (ChangesItsArguments(), "changes its arguments"),
        (DrawsFromTheGlobalGenerator(), "the same seed gives a different state after round 1"),
        (DependsOnTheOrder(), "the order of the cohort matters"),
        (DrawsByPosition(), "the order of the cohort matters"),
        (ServesNobodyNew(), "serve gives clients never seen no model"),
        (NamesNoScore(), r"scores \['mine/score'\]"),
        (ChangesTheWork(), "changes the data of the clients"),
        (ServesInItsOwnOrder(), "in their order"),
        (PlacesByTheGlobalGenerator(), "another model the second time|the same seed"),
        (SavesNumpy(), "state.seen holds a ndarray"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else "",
)
def test_broken_algorithm_is_refused_with_what_is_broken(algorithm: Algorithm, expected: str):
    with pytest.raises(AssertionError, match=f"{type(algorithm).__name__}: .*{expected}"):
        check_algorithm(algorithm)


def test_class_in_the_place_of_an_algorithm_is_named():
    with pytest.raises(AssertionError, match=r"FedAvg is a class; give an object of it: check_algorithm\(FedAvg\(\)\)"):
        check_algorithm(FedAvg)  # type: ignore[arg-type]  # the mistake


def test_fit_read_twice_and_empty_mean_do_not_pass():
    with pytest.raises(AssertionError, match=r"ReadsAFitTwice: round 0 .* raises RuntimeError: .* not held in memory"):
        check_algorithm(ReadsAFitTwice())
    with pytest.raises(AssertionError, match="DividesByNobody: a round of no clients raises RuntimeError"):
        check_algorithm(DividesByNobody())


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (
            KnowsNobodyBeyondItsLength(),
            r"place of clients never seen, the ids \[14, 12\], of which init "
            "knew only 0 to 11, raises IndexError: index 14 is out of bounds",
        ),
        (TrainsWithoutLabels(), r"place_unlabelled of no clients raises RuntimeError: clients without labels"),
        (ServesNobodyWithoutLabels(), "after place_unlabelled, serve gives clients never seen no model"),
        (CannotStart(), "init raises KeyError: 'w_0'"),
        (CannotServe(), "serve raises TypeError: "),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else "",
)
def test_error_of_an_algorithm_says_what_it_was_asked_for(algorithm: Algorithm, expected: str):
    with pytest.raises(AssertionError, match=f"{type(algorithm).__name__}: {expected}"):
        check_algorithm(algorithm)


def test_memory_outside_of_the_state_is_found():
    with pytest.raises(AssertionError, match="ForgetsOnSaving: "):
        check_algorithm(ForgetsOnSaving())
