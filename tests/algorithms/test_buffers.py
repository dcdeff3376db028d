"""Tests that buffers in a model row are averaged, but affect no norm, mix, discrepancy or choice of a cluster."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from few_rounds import ALL
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms import FLHC, IFCA, Algorithm, FedGroup, FeSEM, FlexCFL, Info
from lit_cfl.local_work import ClientFunction, Fitted, Sketch, Statistic
from lit_cfl.parameters import ParameterLayout, Slot
from lit_cfl.seeds import generator
from lit_cfl.testing import QuadraticWork

CLIENTS, COLUMNS = 9, 6


class WithBuffers(QuadraticWork):
    """Quadratic clients whose model rows end with two buffers, to which each client writes its own values.

    Args:
        noted: Values that each client writes, float64 `[clients, 2]`.
    """

    def __init__(self, noted: Tensor) -> None:
        rng = torch.Generator().manual_seed(7)
        centers = torch.randn(CLIENTS, COLUMNS, generator=rng, dtype=torch.float64)
        centers[:, 0] += 8 * (1.0 - 2.0 * (torch.arange(CLIENTS) % 2).double())
        super().__init__(centers, torch.arange(1, CLIENTS + 1), 0.2, steps=3, true_clusters=torch.arange(CLIENTS) % 2)
        buffer = Slot("norm.mean", "norm", "batchnorm1d", torch.Size([2]), COLUMNS, COLUMNS + 2, is_buffer=True)
        self.layout, self.noted = ParameterLayout((*self.layout.slots, buffer)), noted

    def initial(self, number: int) -> Tensor:
        return torch.cat([super().initial(number), torch.zeros(2, dtype=torch.float64)])

    def fit(self, models: Tensor, clients: Tensor, *given: Any, centers: Tensor | None = None, **options: Any):
        drawn = None if centers is None else centers[:, :COLUMNS]
        fitted = super().fit(models[:, :COLUMNS], clients, *given, centers=drawn, **options)
        rows = (replace(c, models=torch.cat([c.models, self.noted[clients]], 1)) for c in fitted.chunks())
        return Fitted(rows, self.num_examples[clients], held=True)

    def gradients(self, model: Tensor, clients: Tensor, sketch: Sketch | None = None) -> Tensor:
        rows = torch.cat([super().gradients(model[:COLUMNS], clients), torch.zeros(len(clients), 2).double()], 1)
        return rows if sketch is None else sketch(rows)

    def losses(self, models: Tensor, clients: Tensor) -> Tensor:
        return super().losses(models[:, :COLUMNS], clients)

    def map(self, function: ClientFunction, clients: Tensor, model: Tensor | None = None) -> list[Statistic | None]:
        return super().map(function, clients, None if model is None else model[:COLUMNS])


def after(algorithm: Algorithm, noted: Tensor) -> tuple[Tensor, Tensor, list[Info]]:
    """Returns the models and clusters after six rounds, and the `Info` of each round."""
    work, infos = WithBuffers(noted), []
    state, _ = algorithm.init(work.at(0), generator(3, "init"))
    clustering = algorithm.first_clustering_round()
    for round in (0, 1, 2, *range(clustering, clustering + 3)):
        state, info = algorithm.round(state, work.population, work.at(round), generator(3, "round", round))
        infos.append(info)
    served = algorithm.serve(state, work.population)
    return served.models, served.index, infos


MIXED = [FedGroup(eta_g=0.5), FedGroup(eta_g=0.5, mix="sum"), FlexCFL(eta_g=0.5), FeSEM()]
FOUND = [kind(num_clusters="auto") for kind in (FedGroup, IFCA, FLHC, FeSEM)]


@pytest.mark.parametrize("algorithm", [*(kind() for kind in ALL), *MIXED, *FOUND], ids=repr)
def test_what_buffers_hold_changes_nothing_but_themselves(algorithm: Algorithm):
    noted = torch.linspace(-1e6, 3e6, 2 * CLIENTS, dtype=torch.float64).view(CLIENTS, 2)
    models, index, infos = after(algorithm, noted)
    expected, clusters, others = after(algorithm, torch.zeros_like(noted))
    assert torch.equal(index, clusters)
    assert_close(models[:, :COLUMNS], expected[:, :COLUMNS], rtol=0, atol=1e-12)
    for mine, other in zip(infos, others, strict=True):
        assert mine.scores == pytest.approx(other.scores, nan_ok=True, rel=1e-12)
    for cluster in index.unique().tolist():  # buffers of a cluster are a mean of its clients' values, with any weights
        assert noted.min() <= models[cluster, COLUMNS:].min()
        assert models[cluster, COLUMNS:].max() <= noted.max()
