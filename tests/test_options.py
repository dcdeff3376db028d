"""Tests options given in Python: unknown words and values of the wrong type are refused with the remedy."""

import json
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_cfl import Experiment, compare, run_many, tune
from lit_cfl.algorithms import FedAvg, FedGroup
from lit_cfl.datamodules import Digits, Incremental
from lit_cfl.errors import InputError
from lit_cfl.experiment import LocalTraining, StopRule
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification


def experiment(**options: Any) -> Experiment:
    return Experiment(Digits(8), make_task, **{"algorithm": FedAvg(), "rounds": 1} | options)


def make_task() -> Classification:
    return Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local": LocalTraining(last_batch="joint")}, "local.last_batch is 'joint' (did you mean join?); give keep,"),  # type: ignore[arg-type]  # the mistake
        ({"local": LocalTraining(last_batch=True)}, "local.last_batch is True; give keep, drop or join"),  # type: ignore[arg-type]  # the mistake
        ({"local": LocalTraining(batch_size="all")}, "give full or a whole number"),  # type: ignore[arg-type]  # the mistake
        ({"algorithm": FedGroup(3, measure="cosine")}, "algorithm.measure is 'cosine'; give edc or madc"),  # type: ignore[arg-type]  # the mistake
        ({"algorithm": FedGroup(3, pretrain=Budget(3, "epoch"))}, "algorithm.pretrain.unit is 'epoch' (did you mean"),  # type: ignore[arg-type]  # the mistake
        ({"algorithm": FedGroup(3, pretrain=3)}, "algorithm.pretrain is 3; give an object of Budget"),  # type: ignore[arg-type]  # the mistake
        ({"selection": "round-robin"}, "(did you mean round_robin_first?); give uniform or round_robin_first"),
        ({"personal": "fc1"}, "personal is 'fc1'; give a list, such as ['fc1']"),
        ({"rounds": "20"}, "rounds is '20'; give a whole number"),
        ({"rounds": 2.5}, "rounds is 2.5; give a whole number"),
        ({"local": LocalTraining(batch_size=2.0)}, "local.batch_size is 2.0; give full or a whole number"),  # type: ignore[arg-type]  # the mistake
        ({"seeds": [0, 0.5]}, "seeds is [0, 0.5]; give different whole numbers of 0 or more, such as [0, 1, 2]"),
        ({"seeds": np.int64(3)}, "seeds is 3; give a list, such as [3]"),
        ({"personal": 1}, "personal is 1; give a list"),
        ({"device": torch.device("cpu")}, "device is device(type='cpu'); give text"),
    ],
)
def test_words_and_kinds_that_do_not_fit_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(InputError) as error:
        experiment(**options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds is 0; give 1 or more"),
        ({"cohort_size": 0}, "cohort_size is 0; give 1 or more"),
        ({"dropout": -0.1}, "dropout is -0.1; give 0 or more and below 1"),
        ({"dropout": 1.0}, "dropout is 1.0; give 0 or more and below 1"),
        ({"dropout": float("nan")}, "dropout is nan; give 0 or more and below 1"),
        ({"seeds": []}, "seeds is []; give different whole numbers of 0 or more"),
        ({"seeds": [1, 1]}, "seeds is [1, 1]; give different"),
        ({"seeds": [-1]}, "seeds is [-1]; give different"),
        ({"rounds": None}, "rounds is None; give a whole number"),
        ({"algorithm": None}, "algorithm is None; give an object of Algorithm"),
    ],
)
def test_numbers_out_of_their_bounds_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(InputError) as error:
        experiment(**options)
    assert message in str(error.value)


def test_a_fraction_of_an_epoch_is_refused():
    with pytest.raises(InputError, match=r"epochs is 1\.5; give 1 or more, a whole number"):
        LocalTraining(epochs=1.5)  # type: ignore[arg-type]  # the mistake


def test_numbers_of_numpy_are_recorded_as_the_same_numbers_of_python():
    given = {"rounds": np.int64(3), "dropout": np.float32(0.5), "seeds": np.arange(3, 5), "selection_seed": np.int64(7)}
    algorithm, local = FedGroup(np.int64(3)), LocalTraining(np.int64(2), np.int64(4))  # type: ignore[arg-type]  # int
    found = experiment(**given, algorithm=algorithm, local=local).to_dict()
    plain = {"rounds": 3, "dropout": 0.5, "seeds": [3, 4], "selection_seed": 7}
    same = experiment(**plain, algorithm=FedGroup(3), local=LocalTraining(2, 4)).to_dict()
    assert json.dumps(found) == json.dumps(same)


def test_mappings_and_enums_of_an_own_algorithm_are_recorded_with_their_values():
    class Kind(Enum):
        SOFT = "soft"
        HARD = "hard"

    @dataclass(frozen=True)
    class Own(FedAvg):
        rates: dict[str, float] = field(default_factory=dict)
        kind: Kind = Kind.SOFT

    recorded = experiment(algorithm=Own(rates={"fc1": 0.5})).to_dict()["algorithm"]["init_args"]
    assert recorded == {"weights": "examples", "rates": {"fc1": 0.5}, "kind": "Kind.SOFT"}


def test_with_options_changes_the_rule_for_early_stopping_like_other_groups():
    once = experiment().with_options(stop={"patience": 3})
    assert once.with_options(stop={"target": 0.9}).stop == StopRule(patience=3, target=0.9)
    with pytest.raises(InputError, match=r"server is \{'lr': 1\}; give the option itself"):
        once.with_options(server={"lr": 1})


def test_a_shift_is_checked_too():
    with pytest.raises(InputError, match=r"Incremental: participants is 'none'; give all or warm"):
        Digits(8, shift=Incremental(participants="none"))  # type: ignore[arg-type]  # the mistake


def test_words_numbers_and_lists_that_fit_are_accepted():
    local = LocalTraining(batch_size="full", last_batch="join")
    made = experiment(local=local, algorithm=FedGroup("auto"), personal=["fc1"], engine="loop")
    assert made.local.last_batch == "join"


def test_what_other_processes_cannot_build_is_refused_with_the_remedy(tmp_path: Path):
    remedy = r"made in Python.*describe it in a YAML file .* or run it in this process: lit_cfl.run\(experiment, path\)"
    with pytest.raises(InputError, match=remedy):
        compare(experiment(), ["FedAvg", "Local"])
    with pytest.raises(InputError, match=remedy):
        tune({"base": experiment(), "space": {"rounds": {"randint": [2, 5]}}})
    with pytest.raises(InputError, match=remedy):
        run_many({str(tmp_path / "mine"): experiment()})
    assert not list(tmp_path.iterdir())


def test_a_class_in_the_place_of_a_net_is_refused():
    with pytest.raises(InputError, match=r"net is the class MCLR; give an object of it: MCLR\(...\)"):
        Classification(MCLR)  # type: ignore[arg-type]  # the mistake
