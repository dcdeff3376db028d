"""Hybrid: parts that do not fit, options that would count for nothing, and parts in a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from quadratic import ids

from lit_cfl.config import catalogue
from lit_cfl.config.parser import parse_run
from lit_cfl.data import Examples, FederatedData
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.federated import FederatedDataModule
from lit_cfl.datamodules.hybrid import Hybrid
from lit_cfl.errors import InputError


@pytest.mark.parametrize(
    ("option", "value"),
    [("validation", 0.1), ("newcomers", 0.5), ("partition_seed", 0), ("batch_size", 8), ("partition_file", "p.npz")],
)
def test_option_of_a_part_that_would_count_for_nothing_is_refused(option: str, value: object):
    expected = rf"{option} is {value!r} in parts\[1\] \(Digits\), which does not use it; set it on the Hybrid"
    with pytest.raises(InputError, match=expected):
        Hybrid([Digits(), Digits(**{option: value})])


def test_shift_of_a_part_is_refused():
    part = Digits()
    part.shift = ("a shift",)
    with pytest.raises(InputError, match=r"shift is \('a shift',\) in parts\[0\]"):
        Hybrid([part])


def test_hybrid_of_nothing_is_refused():
    with pytest.raises(InputError, match=r"parts is \[\]; give a Hybrid a list of one or more data modules"):
        Hybrid([])


def test_parts_that_are_no_data_modules_are_refused():
    with pytest.raises(InputError, match=r"parts\[1\] \(str\) is 'Digits'; give a data module"):
        Hybrid([Digits(), "Digits"])
    with pytest.raises(InputError, match=r"parts is <.*Digits.*>; give a Hybrid a list"):
        Hybrid(Digits())


# Parts that do not fit


class Given(FederatedDataModule):
    """These examples, with one client."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.pool = Examples(**({"inputs": torch.zeros(2, 3), "labels": ids(0, 1), "num_labels": 2} | changes))

    def load(self) -> Examples:
        return self.pool

    def divide(self, examples: Examples, rng: np.random.Generator) -> Any:
        raise NotImplementedError  # nobody divides a part by itself


TOKENS = {"inputs": torch.zeros(2, 3, dtype=torch.int64), "vocabulary": 5}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            {},
            {"inputs": torch.zeros(2, 4)},
            r"inputs are torch.float32 of shape \(3,\) in parts\[0\] and .* \(4,\) in parts\[1\]",
        ),
        ({}, {"inputs": torch.zeros(2, 3, dtype=torch.uint8)}, "torch.float32 .* and torch.uint8 of shape"),
        ({}, {"num_labels": 3}, r"num_labels is 2 in parts\[0\] and 3 in parts\[1\] \(Given\)"),
        ({}, {"scale": 0.5}, "scale is 1.0 .* and 0.5 in"),
        ({}, {"offset": 0.25}, "offset is 0.0 .* and 0.25 in"),
        ({}, {"offset": torch.zeros(3)}, r"offset is 0.0 .* and a tensor \(3,\) in"),
        ({"scale": torch.ones(3)}, {"scale": torch.tensor([1.0, 1, 2])}, r"scale is a tensor \(3,\) .* and a tensor"),
        ({"scale": torch.ones(3)}, {"scale": torch.ones(3).double()}, "scale is a tensor"),
        (TOKENS, TOKENS | {"vocabulary": 6}, "vocabulary is 5 .* and 6 in"),
        (TOKENS | {"words": "one"}, TOKENS | {"words": "other"}, "token ids of .* stand for other words than those of"),
        (TOKENS, TOKENS | {"embeddings": torch.zeros(5, 2)}, r"embeddings is None .* and a tensor \(5, 2\) in"),
    ],
)
def test_parts_that_differ_are_refused(first: dict[str, Any], second: dict[str, Any], expected: str):
    with pytest.raises(InputError, match=expected):
        Hybrid([Given(**first), Given(**second)]).load()


def test_parts_with_equal_tensors_fit():
    alike = {"offset": torch.tensor([1.0, 2.0, 3.0]), "scale": torch.ones(3)}
    whole = Hybrid([Given(**alike), Given(**{name: value.clone() for name, value in alike.items()})]).load()
    assert whole.offset.tolist() == [1, 2, 3]
    embedded = TOKENS | {"embeddings": torch.eye(5)}
    assert Hybrid([Given(**embedded), Given(**embedded)]).load().input_shape == (3, 5)


@pytest.mark.parametrize(
    ("names", "kept"),
    [(("cat", "dog", "owl"), ("cat", "dog", "owl")), (("0", "1", "2"), ()), (("cat", "ape", "owl"), ()), ((), ())],
)
def test_names_of_labels_are_kept_if_all_parts_have_the_same(names: tuple[str, ...], kept: tuple[str, ...]):
    whole = Hybrid(
        [Given(num_labels=3, label_names=("cat", "dog", "owl")), Given(num_labels=3, label_names=names)]
    ).load()
    assert whole.label_names == kept


def test_name_that_stands_for_two_labels_is_refused():
    words = ("cat", "dog", "owl"), ("dog", "owl", "ape")
    parts = [Given(num_labels=3, label_names=names) for names in words]
    expected = r"the label named 'dog' is 1 here and 0 in parts\[1\] \(Given\); number the labels alike"
    with pytest.raises(InputError, match=expected):
        Hybrid(parts).load()


def prepared(tmp_path: Path, parts: list[Any]) -> FederatedData:
    config = yaml.safe_load(catalogue.configs()["quickstart"].read_text())
    config |= {"data": {"class_path": "Hybrid", "init_args": {"parts": parts}}, "cohort_size": 2}
    config |= {"algorithm": "FedAvg", "baseline": None}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(config))
    return parse_run(["--config", str(tmp_path / "own.yaml")]).experiment.prepare(0).data


def test_parts_can_be_written_in_a_file(tmp_path: Path):
    parts = [
        {"class_path": "Digits", "init_args": {"num_clients": 4, "rotations": [0, 180]}},
        {
            "class_path": "Digits",
            "init_args": {"num_clients": 3, "skew": [{"class_path": "lit_cfl.datamodules.skew.LabelShifts"}]},
        },
    ]
    data = prepared(tmp_path, parts)
    assert data.true_clusters.tolist() == [0, 1, 0, 1, 2, 3, 4]
    assert len(data.examples.views) == 2 + 4 - 1  # both parts show images as they are
    assert data.num_clients == 7


def test_part_in_a_file_that_cannot_be_used_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"^validation is 0.1 in parts\[0\]"):
        prepared(tmp_path, [{"class_path": "Digits", "init_args": {"validation": 0.1}}])
