"""Table of algorithms by kinds of data: two tiny rounds each, in which some clients train and others do not."""

import warnings
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from few_rounds import ALL, SPLITS
from hub import fresh_caches
from kinds import KINDS, built, experiment_on, place, reloaded, score

from lit_cfl.algorithms import FLHC, FedProx
from lit_cfl.datamodules import Digits, FederatedDataModule
from lit_cfl.errors import InputError
from lit_cfl.experiment import LocalTraining
from lit_cfl.local_work import Budget

TWO, WARM = {"num_clusters": 2}, {"warmup_rounds": 1, "num_clusters": 2}
FEW: dict[str, Any] = {"num_clusters": 2, "pretrain_scale": 1, "pretrain": Budget(1)}
OPTIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("AdaCFL", "CFL"), SPLITS),
    "LayerCFL": {**SPLITS, "layers": ["fc1"]},
    **dict.fromkeys(("FLHC", "FLUX"), WARM),
    **dict.fromkeys(("FeSEM", "FedEM", "IFCA"), TWO),
    **dict.fromkeys(("FedGroup", "FedGrouProx", "FlexCFL"), FEW),
}
ALGORITHMS = {kind.__name__: kind(**OPTIONS.get(kind.__name__, {})) for kind in ALL}
CHOSEN = ("digits", "table", "numbers", "several labels", "sequences", "photos", "tweets", "word vectors")
CHOSEN += ("hybrid", "mixture")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Makes a folder for the files of all kinds, with empty caches."""
    path = tmp_path_factory.mktemp("kinds")
    with pytest.MonkeyPatch.context() as patch:
        fresh_caches(path, patch)
        yield path


@cache
def module_of(name: str, folder: Path) -> FederatedDataModule:
    """Makes the data module of a kind once, so that all algorithms share its examples."""
    (folder / name).mkdir()
    description = KINDS[name].describe(folder / name)
    options = {"newcomers": 0.4, "validation": 0.2, "allow_unseen_labels": True}
    return built(description | {"init_args": description["init_args"] | options})


REFUSED = {
    **{("Oracle", name): "Oracle trains within the true clusters" for name in CHOSEN if KINDS[name].clusters is None},
    **{("PACFL", name): "token ids .*; PACFL needs numeric inputs" for name in ("sequences", "tweets")},
    **{("FlexCFL", name): "migrate compares .* classes; set shift_metric" for name in ("numbers", "sequences")},
}  # the refusal of each algorithm that cannot use a kind of data, which names it or its option


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_runs_two_rounds_or_refuses_the_data(algorithm: str, name: str, folder: Path):
    warnings.simplefilter("ignore")
    module, rule = module_of(name, folder), ALGORITHMS[algorithm]
    experiment = experiment_on(KINDS[name], module, rule)
    if (algorithm, name) in REFUSED:
        with pytest.raises(InputError, match=REFUSED[algorithm, name]) as refusal:
            list(experiment)
        assert "\n" not in str(refusal.value)
        return
    prepared = experiment.prepare(3)
    first, last = list(prepared.rounds())
    population, everyone = prepared.data.population, torch.arange(prepared.data.num_clients)
    newcomers = everyone[~torch.isin(everyone, population)]

    for one in (first, last):
        metrics = score(prepared, one)
        assert all(isfinite(value) for key, value in metrics.items() if key.endswith(("loss", "accuracy")))
        assert 1 <= metrics["clusters/count"] <= metrics["clusters/assigned"] <= len(population)
        assert metrics["clusters/assigned"] + metrics["clusters/unobserved"] == len(population)
        for count in (one.traffic.down, one.traffic.up, one.traffic.bytes_up, one.info.skipped):
            assert isinstance(count, int)
            assert count >= 0
    assert last.traffic.down >= first.traffic.down
    assert last.traffic.down - first.traffic.down == last.info.down
    assert last.traffic.up - first.traffic.up == last.info.up

    (again,) = prepared.rounds(after=reloaded(rule, first))
    served, resumed = (rule.serve(one.state, population) for one in (last, again))
    assert torch.equal(served.models, resumed.models)
    assert torch.equal(served.index, resumed.index)
    assert (vars(again.traffic), repr(again.info.loss)) == (vars(last.traffic), repr(last.info.loss))

    placed, info = place(prepared, last, newcomers)
    assert len(placed.index) == len(newcomers)
    assert bool((placed.index >= 0).all())
    assert bool((placed.index < len(placed.models)).all())
    assert bool(placed.models.isfinite().all())
    assert min(info.down, info.up) >= 0
    before = rule.serve(last.state, population)
    assert torch.equal(before.models, served.models)


def test_each_round_draws_anew():
    rule = FedProx(stragglers=0.5)
    options = {"rounds": 6, "cohort_size": 6, "local": LocalTraining(5, 100)}
    prepared = experiment_on(KINDS["digits"], Digits(num_clients=6), rule, **options).prepare(3)
    done = [one.costs.steps for one in prepared.rounds()]
    assert len({later - sooner for sooner, later in pairwise([0, *done])}) > 1


@pytest.mark.parametrize(("warmup", "noted"), [(1, False), (2, True)])
def test_a_warm_up_as_long_as_the_run_is_noted(warmup: int, noted: bool, folder: Path, recwarn):
    rule = FLHC(warmup_rounds=warmup, num_clusters=2)
    experiment_on(KINDS["table"], module_of("table", folder), rule).prepare(3)
    assert any("FLHC does not cluster before round" in str(one.message) for one in recwarn) == noted
