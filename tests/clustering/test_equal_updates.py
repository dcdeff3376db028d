"""Tests that clustering methods warn if all clients have equal updates."""

from typing import Any

import pytest
import torch

from lit_cfl.algorithms import FLHC, FedGroup, StoCFL
from lit_cfl.clustering.similarity import warn_if_equal
from lit_cfl.errors import Notice
from lit_cfl.seeds import generator
from lit_cfl.testing import QuadraticWork


def test_equal_updates_are_noted_and_those_of_zero_are_called_so(recwarn: pytest.WarningsRecorder):
    for value, expected in ((1.0, "all 4 clients are equal,"), (0.0, "all 4 clients are equal to zero,")):
        warn_if_equal(torch.full((4, 3), value))
        assert expected in str(recwarn.pop(Notice).message)
        assert not recwarn.list


@pytest.mark.parametrize(
    "rows", [torch.eye(3), torch.tensor([[0.0], [0.0], [1e-30]]), torch.zeros(1, 3), torch.zeros(0, 3)]
)
def test_other_updates_are_not(rows: torch.Tensor, recwarn: pytest.WarningsRecorder):
    warn_if_equal(rows)
    assert not recwarn.list


class FromZero(QuadraticWork):
    """Clients with w_0 = 0, whose update at learning rate 0 is exactly 0."""

    def initial(self, number: int) -> torch.Tensor:
        return torch.zeros(2, dtype=torch.float64)


SIDES = torch.tensor([[3.0, 0.0], [-3.0, 1.0]], dtype=torch.float64)
ALGORITHMS = [
    FLHC(warmup_rounds=0, num_clusters=2),
    FLHC(warmup_rounds=0, num_clusters=None, threshold=1.0),
    FedGroup(num_clusters=2, pretrain_scale=8, measure="madc"),
    StoCFL(psi="update"),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("learning_rate", [0.0, 0.2])
def test_a_learning_rate_of_0_makes_no_clusters_in_silence(algorithm: Any, learning_rate: float, recwarn):
    work = FromZero(SIDES.repeat(4, 1), torch.arange(1, 9), learning_rate, steps=2)
    state, _ = algorithm.init(work.at(0), generator(0, "init"))
    algorithm.round(state, work.population, work.at(0), generator(0, "round"))
    found = [str(one.message) for one in recwarn if one.category is Notice]
    assert len(found) == (learning_rate == 0)
    assert all("all 8 clients are equal to zero," in note for note in found)
