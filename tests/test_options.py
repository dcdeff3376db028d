"""Tests options given in Python: unknown words and values of the wrong type are refused with the remedy."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from lit_cfl import Experiment, run_many, tune
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
        ({"local": LocalTraining(last_batch=True)}, "local.last_batch is True; give keep, drop or join"),  # type: ignore[arg-type]  # the mistake
        ({"local": LocalTraining(batch_size="all")}, "give full or a whole number"),  # type: ignore[arg-type]  # the mistake
        ({"local": LocalTraining(batch_size=2.0)}, "local.batch_size is 2.0"),  # type: ignore[arg-type]  # the mistake
        ({"algorithm": FedGroup(3, pretrain=Budget(3, "epoch"))}, "algorithm.pretrain.unit is 'epoch'"),  # type: ignore[arg-type]  # the mistake
        ({"algorithm": None}, "algorithm is None"),
        ({"personal": "fc1"}, "personal is 'fc1'; give a list, such as ['fc1']"),
        ({"personal": 1}, "personal is 1; give a list"),
        ({"rounds": 2.5}, "rounds is 2.5; give a whole number"),
        ({"dropout": -0.1}, "dropout is -0.1; give 0 or more and below 1"),
        ({"dropout": float("nan")}, "dropout is nan"),
        ({"seeds": [0, 0.5]}, "seeds is [0, 0.5]"),
        ({"seeds": np.int64(3)}, "seeds is 3; give a list, such as [3]"),
        ({"seeds": []}, "seeds is []"),
        ({"device": torch.device("cpu")}, "device is device(type='cpu'); give text"),
    ],
)
def test_values_that_do_not_fit_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(InputError, match=re.escape(message)):
        experiment(**options)


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


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: LocalTraining(epochs=1.5), r"epochs is 1\.5"),  # type: ignore[arg-type]  # the mistake
        (lambda: Digits(8, shift=Incremental(participants="none")), "Incremental: participants is 'none'"),  # type: ignore[arg-type]  # the mistake
        (lambda: Classification(MCLR), r"net is the class MCLR; give an object of it: MCLR\(...\)"),  # type: ignore[arg-type]  # the mistake
        (lambda: tune({"base": experiment(), "space": {"rounds": {"randint": [2, 5]}}}), r"YAML.* lit_cfl.run\("),
        (lambda: run_many({"mine": experiment()}), r"YAML.* lit_cfl.run\("),
    ],
)
def test_other_objects_that_do_not_fit_are_refused(wrong: Callable[[], object], named: str):
    with pytest.raises(InputError, match=named):
        wrong()


def test_words_and_lists_that_fit_are_accepted():
    local = LocalTraining(batch_size="full", last_batch="join")
    made = experiment(local=local, algorithm=FedGroup("auto"), personal=["fc1"], engine="loop")
    assert made.local.last_batch == "join"
