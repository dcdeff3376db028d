"""Tests FedRC: its E-step against the authors' code, and two hand-worked rounds."""

import json
from pathlib import Path

import torch
from torch import Tensor
from torch.testing import assert_close

from experiments import fedrc
from experiments.fedrc import mean_shares, responsibilities
from lit_cfl.algorithms import FedEM
from lit_cfl.testing import QuadraticWork, check_algorithm

TABLE = json.loads(Path(__file__).with_name("fedrc_authors.json").read_text())


def ids(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_three_rounds_of_the_authors_code_give_the_same_responsibilities_weights_and_label_shares():
    sizes = [len(labels) for labels in TABLE["labels"]]
    owners, labels = ids(0, 1).repeat_interleave(ids(*sizes)), torch.tensor([*TABLE["labels"][0], *TABLE["labels"][1]])
    models, num_labels = TABLE["models"], TABLE["num_labels"]
    weights = torch.full((2, models), 1 / models, dtype=torch.float64)
    counts = torch.zeros(2, models, num_labels, dtype=torch.float64)
    for recorded in TABLE["rounds"]:
        losses = torch.cat([torch.tensor(of_client, dtype=torch.float64) for of_client in recorded["losses"]], dim=1)
        shares = responsibilities(weights, losses + fedrc.compute_label_shares(counts).log()[:, labels], owners)
        weights = mean_shares(shares, owners, 2)
        counts = fedrc.sum_by_label(shares, owners * num_labels + labels, 2, num_labels)
        expected = torch.cat([torch.tensor(part, dtype=torch.float64) for part in recorded["responsibilities"]], dim=1)
        assert_close(shares, expected, rtol=0, atol=1e-9)
        assert_close(weights, torch.tensor(recorded["weights"], dtype=torch.float64), rtol=0, atol=1e-9)
        shares_of_labels = torch.tensor(recorded["label_shares"], dtype=torch.float64)
        assert_close(fedrc.compute_label_shares(counts), shares_of_labels, rtol=0, atol=1e-9)


def test_a_model_that_explains_no_example_of_a_label_keeps_a_share_above_zero():
    counts = torch.tensor([[[3.0, 0.0], [1.0, 1.0]]], dtype=torch.float64)
    expected = torch.tensor([[1 - 1e-8 / 3, 1e-8 / 3], [0.5, 0.5]], dtype=torch.float64)
    assert_close(fedrc.compute_label_shares(counts), expected, rtol=1e-6, atol=0)


def test_the_first_round_is_that_of_fedem_and_the_second_divides_by_the_label_shares():
    counts = torch.tensor([[3, 1], [0, 4], [0, 0]])
    work = QuadraticWork(
        torch.tensor([[0.0], [2.0], [9.0]], dtype=torch.float64),
        counts.sum(1),
        0.5,
        label_counts=counts,
        layers={"fc": 1},
    )
    cohort, ours, theirs = ids(0, 1, 2), fedrc.FedRC(2), FedEM(2)
    state, _ = ours.init(work, rng())
    plain, _ = theirs.init(work, rng())
    state, _ = ours.round(state, cohort, work, rng())
    plain, _ = theirs.round(plain, cohort, work, rng())
    assert_close(state.models, plain.models)
    assert_close(state.weights, plain.weights)
    assert_close(state.counts[0], state.weights[0][:, None] * counts[0])  # all examples of a client have the same loss
    assert not state.counts[2].any()

    shares = state.counts.sum(0) / state.counts.sum((0, 2))[:, None]
    likelihoods = (-work.losses(state.models, ids(0, 1))).exp()  # [client, model]
    expected = state.weights[:2, :, None] * likelihoods[:, :, None] / shares  # [client, model, label]
    expected = expected / expected.sum(1, keepdim=True)
    state, info = ours.round(state, cohort, work, rng())
    assert_close(state.counts[:2], expected * counts[:2, None])
    assert_close(state.weights[:2], (expected * counts[:2, None]).sum(2) / 4)
    assert (info.down, info.up, info.skipped) == (6, 4, 1)


def test_it_keeps_the_contract():
    check_algorithm(fedrc.FedRC())
