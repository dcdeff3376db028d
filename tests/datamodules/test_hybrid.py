from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from own_arrays import assert_refused
from quadratic import ids

from lit_cfl.data import ClientIndex, Examples
from lit_cfl.datamodules import Digits, FederatedDataModule, Hybrid
from lit_cfl.datamodules.arrays import ArrayData
from lit_cfl.datamodules.hybrid import number_clusters
from lit_cfl.datamodules.partition import IID
from lit_cfl.datamodules.skew import LabelShifts, Rotations, Skew


def images(first: int, number: int, clients: int = 3, **options: Any) -> ArrayData:
    """Makes uniform 2 x 2 images with grey values `first`, `first` + 1, ..., and labels 0, 1, 2 in turn."""
    x = np.arange(first, first + number, dtype=np.uint8)[:, None, None] + np.zeros((1, 2, 2), np.uint8)
    return ArrayData(x, np.arange(number) % 3, partition=IID(clients, 0.25), **options)


def seen(examples: Examples, index: ClientIndex) -> list[list[tuple[float, int]]]:
    """Returns what each client sees: the mean grey value and the label of each input, sorted."""
    rows = []
    for client in index:
        inputs, labels = examples.batch(client, torch.float64)
        means = (inputs.flatten(1).mean(1) * 255).round(decimals=3)
        rows.append(sorted(zip(means.tolist(), labels.tolist(), strict=True)))
    return rows


def divided(parts: list[Any], seed: int = 0) -> tuple[Hybrid, Any, list[Any]]:
    """Divides the whole, and each part separately with the same random generator as within the whole."""
    whole, generators = Hybrid(parts), np.random.default_rng(seed).spawn(len(parts))
    alone = [part.divide(part.examples, own) for part, own in zip(parts, generators, strict=True)]
    return whole, whole.divide(whole.examples, np.random.default_rng(seed)), alone


@pytest.mark.parametrize("split", ["train", "test"])
def test_clients_see_what_they_see_in_their_part(split: str):
    parts = [
        images(0, 20, skew=[LabelShifts((0, 1, 2))]),
        Hybrid([images(50, 31, clients=4, skew=[LabelShifts((1, 0))]), images(120, 8)]),
        images(90, 9, clients=2),
    ]
    whole, division, alone = divided(parts)
    expected = [seen(part.examples, getattr(own, split)) for part, own in zip(parts, alone, strict=True)]
    assert seen(whole.examples, getattr(division, split)) == [client for part in expected for client in part]
    assert len(division.train) == 3 + 4 + 3 + 2
    assert division.true_clusters.tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 5, 5, 6, 6]


def test_parts_are_divided_independently():
    one = Hybrid([images(0, 40), images(50, 40)]).federated(1).train.values
    assert one[:30].tolist() != (one[30:60] - 40).tolist()
    three = Hybrid([images(0, 40), images(50, 40), images(100, 12)]).federated(1)
    assert torch.equal(three.train.values[:60], one)  # another part does not change the first ones


@pytest.mark.parametrize(
    ("clusters", "expected"),
    [
        ([[0, 0], [0, 0, 0]], [0, 0, 1, 1, 1]),
        ([[7, 2, 7], [2]], [1, 0, 1, 2]),
        ([[4, -1, 3], [-1, -1], [-1, 0]], [1, -1, 0, 2, 2, -1, 3]),
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
NUMBERS = {"labels": torch.tensor([0.5, 1.5]), "num_labels": 0}
PETS = {"num_labels": 3, "label_names": ("cat", "dog", "owl")}


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({}, {"inputs": torch.zeros(2, 4)}, "shape of inputs | (3,) | (4,)"),
        ({}, {"num_labels": 3}, "labels | 2 labels | 3 labels"),
        ({}, {"scale": 0.5}, "scale | 1.0 | 0.5"),
        ({}, {"offset": torch.zeros(3)}, "offset | 0.0 | [0.0, 0.0, 0.0]"),
        (TOKENS | {"words": "one"}, TOKENS | {"words": "other"}, "words | one | other"),
        ({"scale": torch.ones(3)}, {"scale": torch.tensor([1.0, 1, 2])}, "scale | [1.0, 1.0, 1.0] | [1.0, 1.0, 2.0]"),
        (TOKENS, TOKENS | {"embeddings": torch.zeros(5, 2)}, "embeddings | None | [[0.0, 0.0]"),
        (
            {"input_names": ("a", "b", "c")},
            {"input_names": ("a", "c", "b")},
            "columns | ('a', 'b', 'c') | ('a', 'c', 'b')",
        ),
    ],
)
def test_parts_that_differ_are_refused(first: dict[str, Any], second: dict[str, Any], words: str):
    assert_refused(Hybrid([Given(**first), Given(**second)]).load, f"parts[0] | parts[1] (Given) | {words}")


def test_parts_with_equal_tensors_fit():
    alike = {"offset": torch.tensor([1.0, 2.0, 3.0]), "scale": torch.ones(3)}
    whole = Hybrid([Given(**alike), Given(**{name: value.clone() for name, value in alike.items()})]).load()
    assert whole.offset.tolist() == [1, 2, 3]
    embedded = TOKENS | {"embeddings": torch.eye(5)}
    assert Hybrid([Given(**embedded), Given(**embedded)]).load().input_shape == (3, 5)
    several = Hybrid([Given(**NUMBERS | {"labels": torch.eye(2)}), Given(**NUMBERS | {"labels": torch.ones(2, 2)})])
    assert several.load().labels.tolist() == [[1, 0], [0, 1], [1, 1], [1, 1]]


@pytest.mark.parametrize("names", [("cat", "dog", "owl"), ("0", "1", "2"), ("cat", "ape", "owl"), ()])
def test_names_of_labels_are_kept_if_all_parts_have_the_same(names: tuple[str, ...]):
    whole = Hybrid([Given(**PETS), Given(**PETS | {"label_names": names})]).load()
    assert whole.label_names == (names if names == PETS["label_names"] else ())


def test_parts_that_would_be_misread_are_refused():
    for option, value in {"validation": 0.1, "partition_seed": 0}.items():
        assert_refused(partial(Hybrid, [Digits(), Digits(**{option: value})]), f"{option} | {value} | parts[1]")
    assert_refused(partial(Hybrid, [Digits(), "Digits"]), "parts[1] (str) | 'Digits'")
    others = Given(**PETS | {"label_names": ("dog", "owl", "ape")})
    assert_refused(Hybrid([Given(**PETS), others]).load, "'dog' is 1 | 0 in parts[1] (Given)")
