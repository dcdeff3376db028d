"""Tests the round loop and the traffic ledger on quadratic clients (docs/ground_truth.md, check 27)."""

import warnings
from typing import Any

import pytest
import torch
from quadratic import ids, quadratic_clients
from torch import Tensor

from lit_cfl.algorithms import CFL, FLHC, AdaCFL, Algorithm, FedAvg, FedDrift, FedGroup, LayerCFL
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.errors import InputError, Notice
from lit_cfl.rounds import Cohorts, Round, note_late_clustering, rounds


def empty_data(clients: int, newcomers: Tensor | None = None) -> FederatedData:
    """Makes data without examples, since the round loop itself reads only their population."""
    none = ClientIndex.from_lists([ids()] * clients)
    pool = Examples(torch.empty(0, 1), ids(), 1)
    return FederatedData(pool, none, none, none, torch.full((clients,), -1), newcomers=newcomers)


def run(
    algorithm: Algorithm, clients: int, cohorts: Cohorts, num_rounds: int, after: Round | None = None
) -> list[Round]:
    work = quadratic_clients(clients)
    return list(rounds(algorithm, work, empty_data(clients), cohorts, seed=5, num_rounds=num_rounds, after=after))


def test_traffic_is_a_model_down_and_up_per_client_and_that_of_pretraining_and_cold_starts():
    plain = run(FedAvg(), 1000, Cohorts(20), 300)[-1]
    assert plain.traffic.down + plain.traffic.up == 2 * 20 * 300 == 12_000
    algorithm = FedGroup(num_clusters=3, pretrain_scale=20)
    last = run(algorithm, 1000, Cohorts(20, "round_robin_first"), 300)[-1]
    pretraining, cold_starts = 2 * 20 * 3, 1000 - 20 * 3
    assert last.traffic.down + last.traffic.up == 12_000 + pretraining + cold_starts
    assert (last.state.index >= 0).all()


def test_traffic_of_pretraining_is_in_the_first_round():
    first, second = run(FedGroup(num_clusters=2, pretrain_scale=15), 30, Cohorts(5), 2)
    assert (first.info.down, first.info.up) == (5 + 30, 5 + 30)
    assert (second.info.down, second.info.up) == (5, 5)
    assert (second.traffic.down, second.traffic.up) == (40, 40)
    assert (first.info.similarity is None, second.info.similarity is None) == (False, True)


def test_local_work_counts_pretraining_cold_starts_and_every_epoch():
    work = quadratic_clients(1000)
    sizes = work.num_examples
    algorithm = FedGroup(num_clusters=3, pretrain_scale=20)
    found = run(algorithm, 1000, Cohorts(20, "round_robin_first"), 3)
    founders, cohorts = found[0].state.founders, [torch.arange(20 * k, 20 * k + 20) for k in range(3)]
    joined = [cohort[~torch.isin(cohort, founders)] for cohort in cohorts]
    steps = [3 * 20 + len(new) for new in joined]  # a round trains for three steps, pre-training for one
    steps[0] += 60
    examples = [int(3 * sizes[cohort].sum() + sizes[new].sum()) for cohort, new in zip(cohorts, joined, strict=True)]
    examples[0] += int(sizes[founders].sum())
    assert [r.costs.steps for r in found] == torch.tensor(steps).cumsum(0).tolist()
    assert [r.costs.examples for r in found] == torch.tensor(examples).cumsum(0).tolist()
    assert found[-1].costs.scored == 0


def test_resuming_after_a_round_equals_an_uninterrupted_run():
    algorithm, cohorts = FedGroup(num_clusters=2, pretrain_scale=3), Cohorts(4, dropout=0.3)
    whole = run(algorithm, 20, cohorts, 9)
    for stop in (1, 4, 8):
        rest = run(algorithm, 20, cohorts, 9, after=whole[stop - 1])
        assert [r.number for r in rest] == list(range(stop + 1, 10))
        assert torch.equal(rest[-1].state.models, whole[-1].state.models)
        assert rest[-1].traffic.up == whole[-1].traffic.up
        assert rest[-1].costs == whole[-1].costs


def test_everybody_takes_part_where_the_algorithm_needs_it():
    class Whole(FedAvg):
        def needs_all(self, round: int) -> bool:
            return round == 1

    counts = [r.info.down for r in run(Whole(), 12, Cohorts(3, dropout=0.5), 3)]
    assert counts[1] == 12
    assert max(counts[0], counts[2]) <= 3


def test_newcomers_are_never_selected_nor_founders():
    newcomers = torch.arange(20) >= 14
    work = quadratic_clients(20)
    work.population = (~newcomers).nonzero().flatten()
    algorithm = FedGroup(num_clusters=2, pretrain_scale=50)
    *_, last = rounds(algorithm, work, empty_data(20, newcomers), Cohorts(9), seed=0, num_rounds=6)
    assert last.state.founders.tolist() == list(range(14))
    assert (last.state.index[14:] == -1).all()


def test_a_run_of_no_rounds_is_refused():
    with pytest.raises(InputError, match="rounds is 0"):
        run(FedAvg(), 3, Cohorts(1), 0)


def test_cohort_that_drops_out_whole_leaves_the_state():
    last = run(FedAvg(), 3, Cohorts(1, dropout=0.999), 3)[-1]
    assert last.traffic.down == 0
    assert torch.equal(last.state.models[0], quadratic_clients(3).initial(0))


@pytest.mark.parametrize(
    ("kind", "option"),
    [(kind, "warmup_rounds") for kind in (FLHC, CFL, AdaCFL, LayerCFL)] + [(FedDrift, "step_rounds")],
)
def test_clusters_that_would_not_change_before_the_end_are_noted(kind: type[Any], option: str):
    with warnings.catch_warnings(action="error"):
        note_late_clustering(kind(**{option: 2}), 3)  # the clustering is in round 3
    with pytest.warns(Notice, match=f"{kind.__name__} does not cluster before round 4.*set {option} below 3"):
        note_late_clustering(kind(**{option: 3}), 3)
