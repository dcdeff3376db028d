"""Tests options given in Python: numbers of NumPy, mappings and enums are recorded; values that do not fit are refused.

Common mistakes are in `cli/test_users_mistakes.py`.
"""

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
from digits_experiment import digits

from lit_cfl import run_many, tune
from lit_cfl.algorithms import FLHC, FLUX, IFCA, FedAvg, FedEM, FedGroup, FeSEM, LayerCFL
from lit_cfl.datamodules import Digits, Incremental
from lit_cfl.errors import InputError
from lit_cfl.experiment import LocalTraining, StopRule
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification

OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"local": LocalTraining(batch_size=2.0)}, "local.batch_size is 2.0"),  # type: ignore[arg-type]  # the mistake
    ({"personal": "fc1"}, "personal is 'fc1'; give a list"),
    ({"dropout": -0.1}, "dropout is -0.1"),
    ({"dropout": float("nan")}, "dropout is nan"),
    ({"seeds": [0, 0.5]}, "seeds is [0, 0.5]"),
    ({"seeds": np.int64(3)}, "seeds is 3; give a list"),
    ({"device": torch.device("cpu")}, "device is device(type='cpu')"),
]
OBJECTS: list[tuple[Callable[[], object], str]] = [
    (lambda: Budget(0, "steps"), "0 steps"),
    (lambda: Budget(1.5), "length is 1.5"),  # type: ignore[arg-type]  # the mistake
    (lambda: Budget(1, "epochs", 0), "batch_size is 0"),
    (lambda: FedGroup(3, pretrain=Budget(3, "epoch")), "FedGroup: pretrain.unit is 'epoch'"),  # type: ignore[arg-type]  # the mistake
    (lambda: Digits(8, shift=Incremental(participants="none")), "Incremental: participants is 'none'"),  # type: ignore[arg-type]  # the mistake
    (lambda: Classification(MCLR), "net is the class MCLR"),  # type: ignore[arg-type]  # the mistake
    (lambda: tune({"base": digits(), "space": {"rounds": {"randint": [2, 5]}}}), "YAML"),
    (lambda: run_many({"mine": digits()}), "YAML"),
]
WITH_AUTO = [(kind, "num_clusters") for kind in (FedEM, FedGroup, FeSEM, FLHC, FLUX, IFCA)] + [(LayerCFL, "layers")]
LIKE_AUTO = [(partial(kind, **{key: word}), f"{key} is {word!r}") for kind, key in WITH_AUTO for word in ("atuo", 2.5)]


@pytest.mark.parametrize(
    ("wrong", "named"), [*((partial(digits, **options), named) for options, named in OPTIONS), *OBJECTS, *LIKE_AUTO]
)
def test_values_that_do_not_fit_are_refused(wrong: Callable[[], object], named: str):
    with pytest.raises(InputError, match=re.escape(named)):
        wrong()


def test_numbers_of_numpy_are_recorded_as_the_same_numbers_of_python():
    given = {"rounds": np.int64(3), "dropout": np.float32(0.5), "seeds": np.arange(3, 5), "selection_seed": np.int64(7)}
    algorithm, local = FedGroup(np.int64(3)), LocalTraining(np.int64(2), np.int64(4))  # type: ignore[arg-type]  # int
    found = digits(**given, algorithm=algorithm, local=local).to_dict()
    plain = {"rounds": 3, "dropout": 0.5, "seeds": [3, 4], "selection_seed": 7}
    same = digits(**plain, algorithm=FedGroup(3), local=LocalTraining(2, 4)).to_dict()
    assert json.dumps(found) == json.dumps(same)


def test_mappings_and_enums_of_an_own_algorithm_are_recorded_with_their_values():
    class Kind(Enum):
        SOFT = "soft"
        HARD = "hard"

    @dataclass(frozen=True)
    class Own(FedAvg):
        rates: dict[str, float] = field(default_factory=dict)
        kind: Kind = Kind.SOFT

    recorded = digits(algorithm=Own(rates={"fc1": 0.5})).to_dict()["algorithm"]["init_args"]
    assert recorded == {"weights": "examples", "rates": {"fc1": 0.5}, "kind": "Kind.SOFT"}


def test_with_options_changes_the_rule_for_early_stopping_like_other_groups():
    once = digits().with_options(stop={"patience": 3})
    assert once.with_options(stop={"target": 0.9}).stop == StopRule(patience=3, target=0.9)
