"""Tests the shifts of published code."""

from fractions import Fraction
from math import ceil

import pytest
import torch

from experiments.published_shifts import PublishedIncremental
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.data.shift import ShiftContext


def with_sizes(*sizes: int) -> FederatedData:
    """Makes clients with these numbers of training examples, and nothing else."""
    examples, none = (
        Examples(torch.zeros(sum(sizes), 1), torch.zeros(sum(sizes)).long(), 1),
        ClientIndex.empty(len(sizes)),
    )
    train = ClientIndex.from_sizes(torch.arange(sum(sizes)), torch.tensor(sizes))
    return FederatedData(examples, train, none, none, torch.full((len(sizes),), -1))


def test_each_release_is_a_share_of_what_is_there():  # C3
    sizes = (1, 3, 7, 99, 1600)
    data, expected = with_sizes(*sizes), list(sizes)
    for r, share in ((0, 0.25), (50, 0.5), (100, 0.75), (150, 1.0)):
        data, _ = PublishedIncremental().step(data, ShiftContext(r, 0, data.population))
        expected = [ceil(Fraction(share) * n) for n in expected]
        assert data.num_examples.tolist() == expected
        assert data.withheld is not None
        assert (data.train.sizes + data.withheld.sizes).tolist() == list(sizes)
    assert data.num_examples[-1] / 1600 == pytest.approx(0.09375)


def test_a_client_that_was_cold_at_the_first_release_keeps_all():
    shift = PublishedIncremental((0, 1), (0.25, 0.5), participants="warm")
    data, _ = shift.step(with_sizes(8, 8, 8), ShiftContext(0, 0, torch.tensor([0, 2])))
    data, _ = shift.step(data, ShiftContext(1, 0, torch.tensor([0, 1])))
    assert data.num_examples.tolist() == [1, 8, 2]
