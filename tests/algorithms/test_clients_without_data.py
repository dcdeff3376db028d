"""Tests clients without data: they change nothing for the others, stay where they are, and join once they have data."""

from typing import Any

import pytest
import torch
from few_rounds import ALL, SPLITS, run, truth_for
from quadratic import ids, quadratic_clients, rng
from torch.testing import assert_close

from lit_cfl.algorithms import IFCA, Algorithm, FeSEM
from lit_cfl.testing import QuadraticWork

TWO, PAIR = {"warmup_rounds": 1, "num_clusters": 2}, {"num_clusters": 2, "pretrain_scale": 2}
OPTIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("AdaCFL", "CFL"), SPLITS),
    "LayerCFL": SPLITS | {"layers": ["*"]},
    **dict.fromkeys(("FLHC", "FLUX"), TWO),
    **dict.fromkeys(("FedGroup", "FedGrouProx", "FlexCFL"), PAIR),
}
ALGORITHMS = [kind(**OPTIONS.get(kind.__name__, {})) for kind in ALL]
ALGORITHMS += [IFCA(averaging="gradients"), IFCA(migrate=True), FeSEM(migrate=True)]
# models sent in a round to a client that never had data: all that it may choose from, or the one that everybody starts
# from; others have none for it
RECEIVED = {"IFCA": 3, "FedEM": 3} | dict.fromkeys(("AdaCFL", "CFL", "LayerCFL"), 1)
RECEIVED |= dict.fromkeys(("Ditto", "FLHC", "FedAvg", "FedProx", "Oracle", "StoCFL"), 1)
# models that it is served although it never had data; others serve none (-1)
SERVED = dict.fromkeys(("AdaCFL", "CFL", "LayerCFL", "FedAvg", "FedProx"), 0) | {"Oracle": 1}
COHORTS = [ids(0, 1, 5), ids(2, 5, 6, 3), ids(4, 5, 1), ids(0, 7, 5)]
OTHERS = ids(0, 1, 2, 3, 4, 6, 7)


def clients(algorithm: Algorithm, sizes_of_5: int = 0) -> QuadraticWork:
    work = quadratic_clients(8, **truth_for(algorithm))
    work.num_examples = work.num_examples.index_fill(0, ids(5), sizes_of_5)
    return work


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_client_that_never_had_data_is_skipped_and_changes_nothing_for_the_others(algorithm: Algorithm):
    with_it, without = clients(algorithm), clients(algorithm)
    without.population = OTHERS
    found = run(algorithm, with_it, COHORTS)
    expected = run(algorithm, without, [cohort[cohort != 5] for cohort in COHORTS])
    name = type(algorithm).__name__
    for number, ((state, info), (same, plain)) in enumerate(zip(found, expected, strict=True)):
        mine, theirs = (algorithm.serve(one, OTHERS) for one in (state, same))
        known = mine.index >= 0
        assert torch.equal(known, theirs.index >= 0)
        assert_close(mine.models[mine.index[known]], theirs.models[theirs.index[known]], rtol=0, atol=1e-12)
        assert (info.loss, info.up, info.bytes_up, info.skipped) == (plain.loss, plain.up, plain.bytes_up, 1)
        joint = name in ("FLHC", "FLUX") and number == 0  # all clients have one model before they are clustered
        assert info.down - plain.down == (1 if joint else RECEIVED.get(name, 0))
        assert algorithm.serve(state, ids(5)).index.tolist() == [0 if joint else SERVED.get(name, -1)]
    now = clients(algorithm, sizes_of_5=6)
    state, info = algorithm.round(state, now.population if algorithm.needs_all(4) else ids(5), now.at(4), rng(4))
    assert (algorithm.serve(state, ids(5)).index >= 0).all()
    assert info.skipped == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_client_that_lost_its_data_is_skipped_and_keeps_its_model(algorithm: Algorithm):
    *_, (state, _) = run(algorithm, clients(algorithm, sizes_of_5=6), [torch.arange(8)] * 2)
    empty = clients(algorithm)
    cohort = empty.population if algorithm.needs_all(2) else ids(0, 3, 5)
    after, info = algorithm.round(state, cohort, empty.at(2), rng(2))
    assert torch.equal(algorithm.serve(after, ids(5)).index, algorithm.serve(state, ids(5)).index)
    assert info.skipped == 1
    placed, info = algorithm.place(after, ids(5), empty.at(2), rng())
    assert torch.equal(algorithm.serve(placed, ids(5)).index, algorithm.serve(state, ids(5)).index)
    assert info.up == 0
