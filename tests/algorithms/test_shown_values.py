"""Tests what only figures and tables read: similarities of several clients, and closeness of several newcomers."""

from dataclasses import replace

import pytest
import torch
from few_rounds import begin, last, run
from quadratic import clients_at, f64, ids, quadratic_clients, rng
from torch import Tensor
from torch.testing import assert_close

from lit_cfl.algorithms import FLHC, FLUX, IFCA, PACFL, Algorithm, FedDrift, FedGroup, FeSEM, StoCFL
from lit_cfl.testing import QuadraticWork

SIDES = [(3.0, 1.0), (-2.0, 4.0), (4.0, 1.5), (-1.0, 5.0), (5.0, 1.0), (2.0, -1.0), (-3.0, 4.0), (1.0, 6.0)]
NEWCOMERS = ids(7, 5, 6)  # a cycle, so that no order is its own inverse


def cosines(rows: Tensor, others: Tensor) -> Tensor:
    return torch.nn.functional.cosine_similarity(rows[:, None], others[None], dim=2)


def lengths(rows: Tensor, others: Tensor, power: float) -> Tensor:
    return (rows[:, None] - others).abs().pow(power).sum(2) ** (1 / power)


def losses(rows: Tensor, centers: Tensor) -> Tensor:
    return (centers[:, None] - rows).square().sum(2) / 2


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (FedGroup(num_clusters=2), lambda s, c: cosines((c - s.initial) / 2, s.directions)),
        (FLHC(0, num_clusters=2), lambda s, c: -lengths((c - s.joint) / 2, s.centroids, 2)),
        (FLHC(0, num_clusters=2, distance="l1"), lambda s, c: -lengths((c - s.joint) / 2, s.centroids, 1)),
        (FLHC(0, num_clusters=2, distance="cosine"), lambda s, c: cosines((c - s.joint) / 2, s.centroids) - 1),
        (IFCA(2), lambda s, c: -losses(s.models, c)),
        (FeSEM(2), lambda s, c: -lengths((s.models[s.index[:5].unique()].mean(0) + c) / 2, s.models, 2)),
        (FedDrift(delta=2.0, step_rounds=1), lambda s, c: -losses(s.models, c).masked_fill(s.new, torch.inf)),
        (StoCFL(tau=0.5, psi="gradient"), lambda s, c: cosines(f64(0.25, 0.5) - c, s.sums / s.counts[:, None])),
    ],
    ids=lambda value: repr(value) if isinstance(value, Algorithm) else "",
)
def test_closeness_of_newcomers(algorithm: Algorithm, expected):
    work = clients_at(*SIDES, start=(0.25, 0.5))
    work.population = torch.arange(5)
    state = last(algorithm, work, [work.population] * 2)
    assert len(state.models) > 1
    placed, info = algorithm.place(state, NEWCOMERS, work.at(2), rng())
    if isinstance(algorithm, FedDrift):
        state = algorithm.begin_time_step(state, work.at(2))[0]
    assert_close(info.closeness, expected(state, work.centers[NEWCOMERS]))
    assert algorithm.serve(placed, NEWCOMERS).index.tolist() == info.closeness.argmax(1).tolist()


@pytest.mark.parametrize("algorithm", [FedGroup(2, pretrain_scale=3), FLHC(0, num_clusters=2)], ids=repr)
def test_similarities_are_cosines_of_the_clients_updates(algorithm: Algorithm):
    work = clients_at(*SIDES, start=(0.25, 0.5))
    work.num_examples = work.num_examples.index_fill(0, ids(2), 0)
    state, begun = algorithm.init(work, rng())
    info = begun if isinstance(algorithm, FedGroup) else algorithm.round(state, torch.arange(8), work, rng())[1]
    who = info.similarity.clients
    assert who.tolist() == (state.founders.tolist() if isinstance(algorithm, FedGroup) else [0, 1, 3, 4, 5, 6, 7])
    updates = work.centers[who] - work.initial(0)
    assert_close(info.similarity.matrix, cosines(updates, updates))


@pytest.mark.parametrize(("kind", "vectors"), [("smallest", 1), ("sum", 2)])
def test_similarities_of_pacfl_are_cosines_of_the_mean_angle(kind: str, vectors: int):
    """The clients' planes share a line, or each client has only the other line."""

    class Planes(QuadraticWork):
        def _statistic(self, function, client, more):
            return function(torch.stack([self.centers[client], 9 * f64(1, 0, 0)][:vectors]), None)

    degrees = f64(0, 30, 75)
    rows = torch.stack([0 * degrees, degrees.deg2rad().cos(), degrees.deg2rad().sin()], 1)
    work = Planes(rows, ids(1, 2, 3), 0.5)
    _, info = PACFL(angles=kind, num_vectors=vectors).init(work, rng())
    apart = (degrees[:, None] - degrees).abs() / vectors
    assert info.similarity.clients.tolist() == [0, 1, 2]
    assert_close(info.similarity.matrix, apart.deg2rad().cos(), atol=1e-6, rtol=0)


def test_similarities_of_flux_are_cosines_of_descriptors_around_their_mean():
    work, algorithm = clients_at(*SIDES, start=(0.25, 0.5)), FLUX(0, num_clusters=2)
    ((state, info),) = run(algorithm, work, [ids()])
    rows = algorithm._descriptors(replace(state, index=begin(algorithm, work).index), torch.arange(8), work, 1)[0]
    points = ((rows - state.low) / state.width).flatten(1)
    points = points - points.mean(0)
    assert_close(info.similarity.matrix, cosines(points, points))


def test_similarity_of_stocfl_is_given_if_psi_of_the_whole_cohort_is_at_hand():
    work, algorithm = quadratic_clients(8), StoCFL(psi="gradient", lambda_=0.5)
    cohorts = [ids(5, 0, 3), ids(4, 0)]
    (_, first), (_, second) = run(algorithm, work, cohorts)
    assert first.similarity.clients.tolist() == [0, 3, 5]
    psi = work.initial(0) - work.centers[[0, 3, 5]]
    assert_close(first.similarity.matrix, cosines(psi, psi))
    assert second.similarity is None
