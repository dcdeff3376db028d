"""Tests Hybrid: how it combines the examples, labels and clusters of several data modules, and its errors."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from quadratic import ids
from torch import Tensor

from lit_cfl.algorithms import FedAvg
from lit_cfl.config import catalogue
from lit_cfl.config.parser import parse_run
from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.datamodules import Digits
from lit_cfl.datamodules.arrays import ArrayData
from lit_cfl.datamodules.federated import FederatedDataModule
from lit_cfl.datamodules.hybrid import Hybrid, number_clusters
from lit_cfl.datamodules.partition import IID
from lit_cfl.datamodules.skew import LabelShifts, NoiseLevels, Rotations, Skew
from lit_cfl.datamodules.synthetic import Synthetic
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment
from lit_cfl.nets import MCLR
from lit_cfl.tasks import Classification

SPLITS = ("train", "test")


def images(first: int, number: int, clients: int = 3, **options: Any) -> ArrayData:
    """Makes uniform 2 x 2 images with grey values `first`, `first` + 1, ..., and labels 0, 1, 2 in turn."""
    x = np.arange(first, first + number, dtype=np.uint8)[:, None, None] + np.zeros((1, 2, 2), np.uint8)
    return ArrayData(x, np.arange(number) % 3, partition=IID(clients, 0.25), **options)


def noisy(number: int) -> ArrayData:
    """Makes images as `images` does, in a single cluster and with noise."""
    return images(100, number, skew=[NoiseLevels([0.5])])


def seen(examples: Examples, index: ClientIndex) -> list[list[tuple[float, int]]]:
    """Returns what each client sees: the mean grey value and the label of each input, sorted."""
    rows = []
    for client in index:
        inputs, labels = examples.batch(client, torch.float64)
        means = (inputs.flatten(1).mean(1) * 255).round(decimals=3)
        rows.append(sorted(zip(means.tolist(), labels.tolist(), strict=True)))
    return rows


def divisions_of(parts: list[FederatedDataModule], seed: int) -> list[Any]:
    """Divides each part separately, with the same random generator as within a Hybrid."""
    generators = np.random.default_rng(seed).spawn(len(parts))
    return [part.divide(part.examples, own) for part, own in zip(parts, generators, strict=True)]


def divided(parts: list[FederatedDataModule], seed: int = 0) -> tuple[Hybrid, Any]:
    whole = Hybrid(parts)
    return whole, whole.divide(whole.examples, np.random.default_rng(seed))


# Examples, views and clients


@pytest.mark.parametrize("split", SPLITS)
def test_clients_see_what_they_see_in_their_part(split: str):
    parts = [
        images(0, 20, skew=[LabelShifts((0, 1, 2))]),
        images(50, 31, clients=4, skew=[LabelShifts((1, 0)), Rotations((0, 90))]),
        images(90, 9, clients=2),
    ]
    whole, division = divided(parts)
    alone = [seen(part.examples, getattr(d, split)) for part, d in zip(parts, divisions_of(parts, 0), strict=True)]
    assert seen(whole.examples, getattr(division, split)) == [client for part in alone for client in part]
    assert len(division.train) == 3 + 4 + 2


def test_rotations_of_the_parts_are_kept():
    parts = [Digits(num_clients=4, rotations=(0, 90)), Digits(num_clients=6, rotations=(270, 90, 180))]
    whole, division = divided(parts)
    client = 0
    for part, own in zip(parts, divisions_of(parts, 0), strict=True):
        for index in own.train:
            assert torch.equal(whole.examples.batch(division.train[client])[0], part.examples.batch(index)[0])
            client += 1
    assert client == 10


def test_views_are_the_union_without_doubles():
    parts = [Digits(rotations=(0, 90)), Digits(rotations=(270, 90)), Digits(rotations=(0,))]
    whole = Hybrid(parts)
    assert [view.quarter_turns for view in whole.examples.views] == [0, 1, 3]
    assert len(whole.examples) == 3 * 1797


def test_indices_count_views_of_the_whole():
    division = divided([images(0, 4, 1, skew=[LabelShifts((1,))]), images(50, 4, 1)])[1]
    shifted, plain = (division.train[client].sort().values.tolist() for client in (0, 1))
    assert all(0 <= index < 4 for index in shifted)  # view 0 of 8 examples
    assert all(8 + 4 <= index < 8 + 8 for index in plain)  # view 1, after the 4 examples of the first part


def test_every_example_goes_to_one_client():
    data = Hybrid([images(0, 20), images(50, 31)], validation=0.2).federated(1)
    everything = torch.cat([data.train.entries, data.validation.entries, data.test.entries]) % 51
    assert everything.sort().values.tolist() == list(range(51))


def test_scale_and_label_space_are_those_of_the_parts():
    whole = Hybrid([Digits(), Digits()]).examples
    assert (whole.num_labels, whole.scale, whole.inputs.dtype) == (10, 1 / 16, torch.uint8)


def test_parts_are_divided_independently_and_by_the_seed():
    whole = Hybrid([images(0, 40), images(50, 40)])
    one, other, again = (whole.federated(seed).train.values.tolist() for seed in (1, 2, 1))
    assert one == again
    assert one != other
    first, second = (Tensor(one).long()[half] for half in (slice(0, 30), slice(30, 60)))
    assert first.tolist() != (second - 40).tolist()
    three = Hybrid([images(0, 40), images(50, 40), images(100, 12)]).federated(1)
    assert three.train.values[:60].tolist() == one  # another part does not change the first ones


def test_hybrid_of_hybrids_is_the_hybrid_of_all():
    whole, division = divided([Hybrid([images(0, 8), images(20, 8)]), images(50, 8)])
    inner = divisions_of([Hybrid([images(0, 8), images(20, 8)]), images(50, 8)], 0)
    assert division.true_clusters.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    expected = seen(Hybrid([images(0, 8), images(20, 8)]).examples, inner[0].test)
    assert seen(whole.examples, division.test)[:6] == expected


# True clusters and skew


def test_true_cluster_is_the_part_and_the_cluster_in_it():
    data = Hybrid([Digits(num_clients=5, rotations=(0, 90)), Digits(num_clients=4, rotations=(180, 90, 0))]).federated(
        0
    )
    assert data.true_clusters.tolist() == [0, 1, 0, 1, 0, 2, 3, 4, 2]


def test_part_that_knows_no_clusters_is_one():
    parts = [
        Synthetic(num_clients=2, min_size=5, mean_log_size=1.0),
        Synthetic(1, 1, 3, num_clusters=2, mean_log_size=1.0),
    ]
    assert Hybrid(parts).federated(0).true_clusters.tolist() == [0, 0, 1, 2, 1]


@pytest.mark.parametrize(
    ("clusters", "expected"),
    [
        ([[0, 0], [0, 0, 0]], [0, 0, 1, 1, 1]),
        ([[-1, -1], [-1]], [0, 0, 1]),
        ([[7, 2, 7], [2]], [1, 0, 1, 2]),
        ([[4, -1, 3], [-1, -1], [-1, 0]], [1, -1, 0, 2, 2, -1, 3]),
        ([[5]], [0]),
    ],
)
def test_clusters_are_numbered_part_by_part_without_gaps(clusters: list[list[int]], expected: list[int]):
    assert number_clusters([ids(*part) for part in clusters]).tolist() == expected


@pytest.mark.parametrize(
    ("skews", "expected"),
    [
        ([[], []], "feature"),
        ([[Rotations((0, 90))], []], "feature"),
        ([[LabelShifts((0, 1))], []], "other"),
        ([[LabelShifts((0, 1))]], "label"),
        ([[]], "other"),
    ],
)
def test_skew_is_in_the_features_unless_parts_add_to_it(skews: list[list[Skew]], expected: str):
    assert Hybrid([images(0, 12, skew=skew) for skew in skews]).federated(0).skew == expected


# Options


def test_options_of_a_hybrid_are_those_of_any_data_module():
    data = Hybrid([images(0, 40, 4), images(50, 40, 6)], validation=0.2, newcomers=0.3).federated(0)
    assert data.validation.sizes.min() > 0
    assert int(data.newcomers.sum()) == 3


# Runs


def one_round(data: FederatedDataModule, shape: list[int], labels: int) -> list[bool]:
    task = lambda: Classification(MCLR(shape, labels), partial(torch.optim.SGD, lr=0.1))  # noqa: E731
    return [np.isfinite(r.info.loss) for r in Experiment(data, task, FedAvg(), rounds=1, cohort_size=3)]


def test_fedavg_trains_on_it():
    assert one_round(Hybrid([Digits(num_clients=3), Digits(num_clients=3, rotations=[0])]), [1, 8, 8], 10) == [True]
    assert one_round(Hybrid([images(0, 20), noisy(20)]), [1, 2, 2], 3) == [True]


@pytest.mark.parametrize(
    ("option", "value"),
    [("validation", 0.1), ("newcomers", 0.5), ("partition_seed", 0), ("batch_size", 8), ("partition_file", "p.npz")],
)
def test_option_of_a_part_that_would_count_for_nothing_is_refused(option: str, value: object):
    expected = rf"{option} is {value!r} in parts\[1\] \(Digits\), where it has no effect; set it on the Hybrid"
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


def test_parts_other_than_data_modules_are_refused():
    with pytest.raises(InputError, match=r"parts\[1\] \(str\) is 'Digits'; give a data module"):
        Hybrid([Digits(), "Digits"])
    with pytest.raises(InputError, match=r"parts is <.*Digits.*>; give a Hybrid a list"):
        Hybrid(Digits())


class Given(FederatedDataModule):
    """Data module with given examples, used only as a part of a Hybrid."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.pool = Examples(**({"inputs": torch.zeros(2, 3), "labels": ids(0, 1), "num_labels": 2} | changes))

    def load(self) -> Examples:
        return self.pool

    def divide(self, examples: Examples, rng: np.random.Generator) -> Any:
        raise NotImplementedError  # never called, since the Hybrid divides the parts


TOKENS = {"inputs": torch.zeros(2, 3, dtype=torch.int64), "vocabulary": 5}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            {},
            {"inputs": torch.zeros(2, 4)},
            r"shape of inputs of parts\[0\]: \(3,\); of parts\[1\] \(Given\): \(4,\); make them equal",
        ),
        (
            {},
            {"inputs": torch.zeros(2, 3, dtype=torch.uint8)},
            "dtype of inputs of .*: torch.float32; .* torch.uint8; make",
        ),
        ({}, {"num_labels": 3}, r"labels of parts\[0\]: 2 labels; of parts\[1\] \(Given\): 3 labels; make"),
        ({}, {"scale": 0.5}, "scale of .*: 1.0; .*: 0.5; make"),
        ({}, {"offset": 0.25}, "offset of .*: 0.0; .*: 0.25; make"),
        ({}, {"offset": torch.zeros(3)}, r"offset of .*: 0.0; .*: \[0.0, 0.0, 0.0\]; make"),
        ({"scale": torch.ones(3)}, {"scale": torch.tensor([1.0, 1, 2])}, r"scale of .*: \[1.0, 1.0, 1.0\]; .*: \[1.0"),
        (TOKENS, TOKENS | {"vocabulary": 6}, "vocabulary of .*: 5; .*: 6; make"),
        (TOKENS | {"words": "one"}, TOKENS | {"words": "other"}, "words of token ids of .*: one; .*: other; make"),
        (TOKENS, TOKENS | {"embeddings": torch.zeros(5, 2)}, r"embeddings of .*: None; .*: \[\[0.0, 0.0\].*; make"),
        (
            {"labels": torch.tensor([0.5, 1.5]), "num_labels": 0},
            {"labels": ids(0, 0), "num_labels": 0},
            r"labels of parts\[0\]: labels that are numbers; of parts\[1\] \(Given\): no labels; make them equal",
        ),
        (
            {"input_names": ("a", "b", "c")},
            {"input_names": ("a", "c", "b")},
            r"columns of parts\[0\]: \('a', 'b', 'c'\); of parts\[1\] \(Given\): \('a', 'c', 'b'\); make them equal",
        ),
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
    expected = r"the label named 'dog' is 1 here and 0 in parts\[1\] \(Given\); use the same numbers in both"
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
    assert len(data.examples.views) == 2 + 4 - 1  # both parts have the unchanged images as one of their views
    assert data.num_clients == 7


def test_part_in_a_file_that_cannot_be_used_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"^validation is 0.1 in parts\[0\]"):
        prepared(tmp_path, [{"class_path": "Digits", "init_args": {"validation": 0.1}}])
