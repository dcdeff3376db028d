"""Tests that every algorithm, with each of its options, keeps the contract."""

import inspect
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from few_rounds import ALL, SPLITS
from quadratic import ids
from torch import Tensor

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
    FedProx,
    FeSEM,
    FlexCFL,
    Info,
    LayerCFL,
    Similarity,
    StoCFL,
)
from lit_cfl.local_work import Budget, per_client
from lit_cfl.seeds import generator
from lit_cfl.testing import QuadraticWork, check_algorithm

TWO = {"num_clusters": 2, "pretrain_scale": 2}  # four of the clients take part in the cold start
OPTIONS: list[Algorithm] = [
    FedAvg(weights="equal"),
    FedProx(stragglers=0.5, straggler_work="partial"),
    FedProx(stragglers=0.5, straggler_work="drop"),
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
    *(
        kind(migrate=True, shift_metric=metric, shift_threshold=0.05)
        for metric in ("loss", "features")
        for kind in (IFCA, FlexCFL, FeSEM)
    ),
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


@pytest.mark.parametrize("algorithm", [*(kind() for kind in ALL), *OPTIONS], ids=repr)
def test_algorithm_keeps_the_contract(algorithm: Algorithm):
    check_algorithm(algorithm)


def test_only_the_oracle_sees_the_true_clusters():  # all others pass without the true clusters, as tested above
    assert [kind.__name__ for kind in ALL if kind.sees_truth] == ["Oracle"]


@pytest.mark.parametrize("kind", ALL)
def test_ours_cite_their_paper(kind: type[Algorithm]):
    docstring = inspect.getmodule(kind).__doc__
    for text in (kind.paper, docstring):
        assert re.search(r"arXiv:\d{4}\.\d{4,5}|Cybersecurity 6, 2023", text)
    assert "Where this differs from the paper" in docstring


def nine_clients(kind: type[Algorithm], clients: type[QuadraticWork] = QuadraticWork) -> QuadraticWork:
    truth = torch.arange(9) % 3 if kind.sees_truth else None
    return clients(torch.eye(9, dtype=torch.float64), torch.arange(1, 10), 0.5, true_clusters=truth)


@pytest.mark.parametrize("kind", ALL)
def test_nobody_trains_twice_on_the_same_batches_of_a_round(kind: type[Algorithm]):
    trained, several = [], kind.mixes_models  # a client may then train several models, each once, on the same batches

    class Listening(QuadraticWork):
        def fit(self, models: Tensor, clients: Tensor, start: Any = 0, *, purpose: str = "train", **options: Any):
            each = zip(clients.tolist(), per_client(start, clients).tolist(), strict=True)
            trained.extend((self.round, purpose, client, model if several else 0) for client, model in each)
            return super().fit(models, clients, start, purpose=purpose, **options)

    work, algorithm = nine_clients(kind, Listening), kind()
    state, _ = algorithm.init(work.at(-1), generator(3, "init"))
    for round in range(3):
        state, _ = algorithm.round(state, torch.arange(9), work.at(round), generator(3, "round", round))
    assert ("train", 0) in {(purpose, client) for _, purpose, client, _ in trained}
    assert len(trained) == len(set(trained))
    assert sum((number, client) == (2, 0) for number, _, client, _ in trained) == algorithm.models_per_client


@pytest.mark.parametrize("kind", ALL)
def test_measure_of_closeness_is_named_if_newcomers_are_compared_with_clusters(kind: type[Algorithm]):
    work, algorithm = nine_clients(kind), kind()
    work.population = torch.arange(8)
    state, _ = algorithm.init(work, generator(3, "init"))
    for round in (0, algorithm.first_clustering_round()):
        state, _ = algorithm.round(state, work.population, work.at(round), generator(3, "round", round))
    _, info = algorithm.place(state, torch.tensor([8]), work, generator(3, "place"))
    assert (info.closeness is None) == (kind.closeness == Algorithm.closeness)


def test_the_info_of_a_round_includes_that_of_an_earlier_step():
    first, other = (Similarity(ids(*clients), torch.eye(2)) for clients in ((0, 1), (2, 3)))
    earlier = Info(7.0, 20, 10, 2, {"a": 1.0, "b": 2.0}, first, torch.ones(2, 2), {"u": torch.ones(1)}, bytes_up=5)
    earlier = replace(earlier, tables={"moves": [{"client": 1}], "before": [{"client": 3}]})
    kept = repr(earlier)
    both = Info(0.5, 5, 3, 1, {"b": 3.0}, tables={"moves": [{"client": 2}], "now": []}, bytes_up=8).plus(earlier)
    assert (both.down, both.up, both.skipped, both.bytes_up) == (25, 13, 3, 13)
    assert (both.loss, both.closeness, both.clusters, both.scores) == (0.5, None, {}, {"a": 1.0, "b": 3.0})
    assert both.tables == {"moves": [{"client": 1}, {"client": 2}], "before": [{"client": 3}], "now": []}
    assert both.similarity is first
    assert Info(similarity=other).plus(earlier).similarity is other
    assert repr(earlier) == kept
