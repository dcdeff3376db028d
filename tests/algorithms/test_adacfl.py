"""Tests AdaCFL on quadratic clients, with our rule for cutting the dendrogram."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from quadratic import ids, rng
from test_cfl import begun, work_of
from test_layercfl import split
from torch.testing import assert_close

from lit_cfl.algorithms import AdaCFL, LayerCFL
from lit_cfl.cli.main import main
from lit_cfl.clustering import distances
from lit_cfl.errors import InputError
from lit_cfl.testing import QuadraticWork

ALWAYS = AdaCFL(eps1=100.0, eps2=0.0, warmup_rounds=0)  # splits whenever a cluster has three clients
THREE = torch.tensor([[0.0, 9], [8, 0], [0.4, 9], [-8, 0], [8.5, 0], [-8, 0.3], [8, 0.6]]).double()
KINDS = [0, 1, 0, 2, 1, 2, 1]


def work_in_fc(centers: torch.Tensor, in_conv: torch.Tensor | None = None) -> QuadraticWork:
    """Makes clients of unequal sizes whose optimal FC weights are `centers` `[n, 2]`."""
    conv = torch.zeros(len(centers), 2).double() if in_conv is None else in_conv
    return work_of(torch.cat([conv, centers], 1), torch.arange(1, len(centers) + 1), layers={"conv1": 2, "fc1": 2})


def test_three_clusters_are_found_at_once():
    state, info = split(ALWAYS, work_in_fc(THREE))
    assert state.index.tolist() == KINDS
    assert state.parent.tolist() == [-1, 0, 0]
    assert len(state.starts) == 1
    assert torch.equal(state.models, state.models[:1].expand(3, -1))
    assert (info.down, info.up) == (7, 7)


def test_number_of_clusters_is_where_merges_jump_most():
    line = torch.tensor([0.0, 1, 40, 41, 99, 100]).double()[:, None] * torch.tensor([1.0, 0]).double()
    # merged at distances 1, 1, 1, 41, 100
    assert split(ALWAYS, work_in_fc(line))[0].index.tolist() == [0, 0, 0, 0, 1, 1]
    thirds = torch.tensor([0.0, 1, 60, 61, 110, 112]).double()[:, None] * torch.tensor([1.0, 0]).double()
    turned = thirds + torch.tensor([[0, 0], [0, 0], [0, 80], [0, 80], [0, 0], [0, 0.0]]).double()
    # merged at distances 1, 1, 2, 95, 112
    assert split(ALWAYS, work_in_fc(turned))[0].index.tolist() == [0, 0, 1, 1, 2, 2]
    even = torch.tensor([0.0, 1, 80, 81]).double()[:, None] * torch.tensor([1.0, 0]).double()
    assert split(ALWAYS, work_in_fc(even))[0].index.tolist() == [0, 0, 1, 1]


def test_merges_are_by_complete_linkage():
    """Complete linkage merges the points 0, 6, 7 and 15 at distances 1, 7 and 15, which gives two clusters.

    Average linkage would give three.
    """
    line = torch.tensor([0.0, 6, 7, 15]).double()[:, None] * torch.tensor([1.0, 0]).double()
    assert split(ALWAYS, work_in_fc(line))[0].index.tolist() == [0, 0, 0, 1]


def test_clients_that_are_all_as_far_from_each_other_are_not_split():
    work = work_of(6 * torch.eye(5, dtype=torch.float64), torch.arange(1, 6), layers={"conv1": 1, "fc1": 4})
    even = replace(ALWAYS, layers=["*"])
    state, info = split(even, work)
    assert len(state.models) == 1
    assert info.similarity is not None  # the clients were compared
    # identical clients are not split, either
    assert len(split(even, work_in_fc(torch.ones(4, 2).double()))[0].models) == 1


def test_what_is_compared_are_l2_distances_of_fc_weights():
    conv = 30 * torch.randn(7, 2, generator=rng(1), dtype=torch.float64)
    state, info = split(ALWAYS, work_in_fc(THREE, conv))
    assert state.index.tolist() == KINDS  # the convolution does not matter
    apart = distances(THREE, "l2")
    assert_close(info.similarity.matrix, 1 - 2 * apart / apart.max())
    named, _ = split(replace(ALWAYS, layers=["conv1"]), work_in_fc(torch.zeros(7, 2).double(), THREE))
    assert named.index.tolist() == KINDS


def test_two_clusters_are_those_of_layercfl_with_the_same_distance():
    work = work_in_fc(torch.tensor([[5.0, 0], [-5, 1], [5, 1], [-5, 0], [-5, 0.5]]).double())
    pairs = LayerCFL(eps1=100.0, eps2=0.0, warmup_rounds=0, layers=["fc1"], distance="l2", linkage="complete")
    ours, theirs = split(ALWAYS, work), split(pairs, work)
    assert torch.equal(ours[0].index, theirs[0].index)
    assert torch.equal(ours[1].similarity.matrix, theirs[1].similarity.matrix)


@pytest.mark.parametrize("options", [{"eps1": 0.01}, {"eps2": 90.0}, {"warmup_rounds": 1}])
def test_it_splits_when_cfl_would(options: dict[str, float]):
    assert len(split(replace(ALWAYS, **options), work_in_fc(THREE))[0].models) == 1


def test_cluster_whose_largest_update_is_exactly_eps2_is_not_split():
    work = work_in_fc(torch.tensor([[4.0, 0], [-4, 0], [-4, 0], [4, 0]]).double())  # updates are 2 and -2
    for eps2, clusters in {2.0: 1, 1.999: 2}.items():
        assert len(split(replace(ALWAYS, eps2=eps2), work)[0].models) == clusters


def test_two_clients_are_not_split():
    assert len(split(ALWAYS, work_in_fc(THREE[:2]))[0].models) == 1


def test_newcomers_join_the_part_whose_mean_weights_are_nearest():
    state, _ = split(ALWAYS, work_in_fc(THREE))
    more = torch.tensor([[-7.0, 1], [0, 7], [9, 1]]).double()
    conv = torch.zeros(10, 2).double()
    conv[7:] = 40
    placed, info = ALWAYS.place(state, ids(7, 8, 9), work_in_fc(torch.cat([THREE, more]), conv), rng())
    assert placed.index[7:].tolist() == [2, 0, 1]
    assert (info.down, info.up) == (3, 3)
    assert torch.equal(ALWAYS.place(state, torch.arange(7), work_in_fc(THREE), rng())[0].index, state.index)


def test_clusters_train_separately_after_the_split():
    work = work_in_fc(THREE)
    mean = (work.num_examples[:, None] * THREE).sum(0) / work.num_examples.sum()
    state = begun(ALWAYS, work, 0, 0, *mean.tolist())  # starts where the joint model no longer moves
    # once a cluster model stands still, so do its clients, and it is never split
    never_again = replace(ALWAYS, eps1=0.1, eps2=3.0)
    for round in range(12):
        state, _ = never_again.round(state, work.population, work.at(round), rng())
    assert state.index.tolist() == KINDS
    for cluster in range(3):
        mine = torch.tensor(KINDS) == cluster
        mean = (work.num_examples[mine, None] * THREE[mine]).sum(0) / work.num_examples[mine].sum()
        assert_close(state.models[cluster, 2:], mean, atol=0.01, rtol=0)


def test_it_has_no_options_of_the_bipartition():
    # options of the bipartition by cosines
    assert not {"gamma_max", "linkage"} & {option.name for option in fields(AdaCFL)}


def test_missing_layers_are_refused_with_the_existing_ones():
    with pytest.raises(InputError, match=r"the layers are: conv1 \(conv2d\), fc1 \(linear\)"):
        replace(ALWAYS, layers=["gru*"]).check(work_in_fc(THREE))
    convolutions = work_of(THREE, torch.arange(1, 8), layers={"conv1": 1, "conv2": 1})
    with pytest.raises(InputError, match=r"the layers are: conv1 \(conv2d\), conv2 \(conv2d\)"):
        ALWAYS.check(convolutions)


def test_every_table_says_that_its_rule_is_ours(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    words = ["--config", "adacfl/digits", "--tiny", "--engine", "loop"]
    assert main(["run", *words, "--run_dir", str(tmp_path / "run")]) == 0
    assert "rule for the number of clusters is not known; the rule used here is our own" in capsys.readouterr().out
    words = ["--config", "adacfl/digits", "--rounds", "1", "--algorithms", "FedAvg", "AdaCFL", "--seeds", "0"]
    assert main(["compare", *words, "--num_cpus", "1", "--compare_dir", str(tmp_path / "both")]) == 0
    assert "rule for the number of clusters is not known; the rule used here is our own" in capsys.readouterr().out
    assert "the rule used here is our own" in (tmp_path / "both" / "results.md").read_text()
