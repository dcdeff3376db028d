"""Tables of data: kinds of data by properties, partitions by properties, skews by what their clients see.

A bug that gets through becomes a row or a property here. Makers of the data are in tests/helpers/kinds.py.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from datasets import ClassLabel, List, Value
from datasets import Image as HubImage
from hub import fresh_caches, write
from kinds import (
    CLIENTS,
    KINDS,
    LABELS,
    SIZES,
    Kind,
    X,
    built,
    configured,
    described,
    experiment_on,
    facts_of,
    lists_of,
    rows_of,
)
from PIL import Image
from scipy import ndimage

from lit_cfl import load_experiment, load_run, run
from lit_cfl.algorithms import FedAvg
from lit_cfl.data import Augment, ClientIndex, Division, Examples, FederatedData, View
from lit_cfl.datamodules import (
    IID,
    MNIST1000,
    ArrayData,
    Blurs,
    Brightnesses,
    ClassesPerClient,
    Colours,
    Dirichlet,
    DirichletSizes,
    Ditto500,
    DominantClass,
    FederatedDataModule,
    FedProxFEMNIST,
    FreeRotations,
    HFDataset,
    InnerDirichlet,
    LabelDrift,
    LabelGroups,
    LabelPermutations,
    LabelShifts,
    LabelSwaps,
    LogNormalSizes,
    Natural,
    NoiseLevels,
    PowerLawSizes,
    Rotations,
    Shards,
)
from lit_cfl.datamodules.hf import ImageOptions
from lit_cfl.datamodules.partition import Partition
from lit_cfl.errors import InputError, Notice
from lit_cfl.storage import read_table

SEED = 3


@dataclass(frozen=True)
class Case:
    """A kind of data with its files, and the clients that most properties look at."""

    kind: Kind
    folder: Path

    @cached_property
    def described(self) -> Any:
        return self.kind.describe(self.folder)

    def with_options(self, **options: Any) -> Any:
        """Describes the data with further options; with few examples, a label may be left without training clients."""
        usual = {"allow_unseen_labels": True}
        return replace(self.described, options={**usual, **self.described.options, **options})

    def module(self, **options: Any) -> FederatedDataModule:
        return built(self.with_options(**options))

    def data(self, seed: int = SEED, **options: Any) -> FederatedData:
        return self.module(**options).federated(seed)

    @cached_property
    def plain(self) -> FederatedData:
        return self.data()

    @cached_property
    def finished(self) -> Path:
        """Folder of a finished run of FedAvg, which tests must not change."""
        run(experiment_on(self.kind, self.module(validation=0.2), FedAvg()), self.folder / "run")
        return self.folder / "run"


@pytest.fixture(scope="module", autouse=True)
def _caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Uses empty caches for this file, and lets notices pass, which have tests of their own."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        fresh_caches(tmp_path_factory.mktemp("caches"), patch)
        yield


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(KINDS[request.param], tmp_path_factory.mktemp("kind"))


def examples_of_clients(data: FederatedData) -> list[list[int]]:
    """Returns the sorted examples of each client's training, validation and test data, regardless of their view."""
    parts = lists_of(data)
    whole = zip(*(parts[name] for name in ("train", "validation", "test")), strict=True)
    return [sorted(number % len(data.examples) for part in client for number in part) for client in whole]


# Properties of a kind of data


def every_example_has_exactly_one_client(case: Case) -> None:
    data = case.data(validation=0.3)
    assert sorted(chain(*examples_of_clients(data))) == list(range(len(data.examples)))


def clients_have_the_examples_of_their_source(case: Case) -> None:
    clients = examples_of_clients(case.plain)
    if case.kind.rows is None:
        held = [rows_of(case.plain, one) for one in clients]
        counts = [Counter(label for label, _ in each.elements()) for each in held]
        assert [[one[label] for label in range(case.plain.examples.num_labels)] for one in counts] == case.kind.counts
        return
    expected: dict[str, Counter[Any]] = {}
    for client, label, shown in case.kind.rows():
        expected.setdefault(client, Counter())[label, shown] += 1
    names = case.plain.names or [""] * len(clients)
    found: dict[str, Counter[Any]] = {}
    for name, examples in zip(names, clients, strict=True):
        held = rows_of(case.plain, examples)
        if not next(iter(expected[name]))[1]:  # the source does not say which ids its words have
            held = Counter((label, ()) for label, _ in held.elements())
        found[name] = found.get(name, Counter()) + held
    assert found == expected


def names_fit_clients(case: Case) -> None:
    names = sorted({client for client, _, _ in case.kind.rows()} - {""}) if case.kind.rows else []
    assert list(case.plain.names) == names
    assert case.data(newcomers=0.5).names == case.plain.names


def sizes_are_those_of_the_source(case: Case) -> None:
    sizes = case.plain.test.sizes.tolist()
    assert case.plain.num_clients == case.kind.clients
    assert case.kind.test in (sizes, sum(sizes))


def true_clusters_are_those_of_the_source(case: Case) -> None:
    unknown = [-1] * case.kind.clients
    assert case.plain.true_clusters.tolist() == (case.kind.clusters or unknown)


def same_seed_gives_the_same_clients(case: Case) -> None:
    options = {"validation": 0.3, "newcomers": 0.5}
    assert facts_of(case.data(**options)) == facts_of(case.data(**options))
    assert facts_of(case.data(0, partition_seed=SEED, **options)) == facts_of(case.data(**options))


def another_seed_gives_other_clients(case: Case) -> None:
    other = lists_of(case.data(SEED + 1))
    assert (other != lists_of(case.plain)) == case.kind.drawn


def validation_leaves_the_test_data_alone(case: Case) -> None:
    data = case.data(validation=0.3)
    now, before = lists_of(data), lists_of(case.plain)
    assert now["test"] == before["test"]
    assert [sorted(train + part) for train, part in zip(now["train"], now["validation"], strict=True)] == before[
        "train"
    ]
    for train, part in zip(before["train"], now["validation"], strict=True):
        assert len(part) == min(round(0.3 * len(train)), len(train) - 1)
    other = lists_of(case.data(validation=0.3, partition_seed=SEED + 1))
    assert other["validation"] != now["validation"]


def newcomers_are_of_the_same_partition_and_do_not_train(case: Case) -> None:
    module = case.module(newcomers=0.5)
    data = module.federated(SEED)
    assert lists_of(data) == lists_of(case.plain)
    assert int(data.newcomers.sum()) == round(0.5 * data.num_clients)
    assert data.population.tolist() == [client for client in range(data.num_clients) if not data.newcomers[client]]
    drawn = {tuple(case.data(seed, newcomers=0.5).newcomers.tolist()) for seed in range(6)}
    assert len(drawn) > 1
    module.setup()
    there = sum(len(inputs) for inputs, _ in module.train_dataloader())
    assert there == int(module.data.train.sizes[module.data.population].sum()) < int(module.data.train.sizes.sum())


def is_rebuilt_from_its_configuration(case: Case) -> None:
    more = {"validation": 0.3, "newcomers": 0.5}
    description = {"data": configured(case.with_options(**more))}
    if case.kind.only_python:
        with pytest.raises(InputError, match="made in Python"):
            load_run(case.finished)
        return
    task = {"class_path": "Classification", "init_args": {"net": "MCLR", "optimizer": "torch.optim.SGD"}}
    experiment = load_experiment(description | {"task": task, "algorithm": "FedAvg"})
    assert facts_of(experiment.data.federated(SEED)) == facts_of(case.data(**more))


def a_run_ends_with_finite_scores(case: Case) -> None:
    rows = read_table(case.finished / "metrics.csv")
    assert [row["round"] for row in rows] == [1, 2]
    for row in rows:
        assert np.isfinite([row["train/loss"], row["test/loss"]]).all()
        assert row["clients/evaluated"] == case.kind.clients


def a_resumed_run_equals_the_uninterrupted(case: Case) -> None:
    experiment, path = experiment_on(case.kind, case.module(validation=0.2), FedAvg()), case.folder / "resumed"
    run(experiment.with_options(rounds=1), path)
    run(experiment, path, mode="resume")
    tables = [
        [{name: cell for name, cell in row.items() if not name.startswith("time/")} for row in read_table(file)]
        for file in (path / "metrics.csv", case.finished / "metrics.csv")
    ]
    assert tables[0] == tables[1]
    resumed, whole = (load_run(one, experiment).served() for one in (path, case.finished))
    assert torch.equal(resumed.models, whole.models)
    assert torch.equal(resumed.index, whole.index)


def a_saved_partition_gives_the_same_clients(case: Case) -> None:
    data = case.data(SEED + 1, partition_file=case.finished)
    with np.load(case.finished / "partition.npz") as saved:
        assert saved["true_cluster"].tolist() == data.true_clusters.tolist()  # the name in all files of a run
    assert facts_of(data) == facts_of(case.data(validation=0.2))


PROPERTIES: Sequence[Callable[..., None]] = (
    every_example_has_exactly_one_client,
    clients_have_the_examples_of_their_source,
    names_fit_clients,
    sizes_are_those_of_the_source,
    true_clusters_are_those_of_the_source,
    same_seed_gives_the_same_clients,
    another_seed_gives_other_clients,
    validation_leaves_the_test_data_alone,
    newcomers_are_of_the_same_partition_and_do_not_train,
    is_rebuilt_from_its_configuration,
    a_run_ends_with_finite_scores,
    a_resumed_run_equals_the_uninterrupted,
    a_saved_partition_gives_the_same_clients,
)


@pytest.mark.parametrize("check", PROPERTIES, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", KINDS, indirect=True)
def test_every_kind_of_data(case: Case, check: Callable[[Case], None]):
    check(case)


@pytest.mark.parametrize("case", [name for name, kind in KINDS.items() if kind.cached], indirect=True)
def test_a_second_loading_reads_the_cache_and_not_the_source(case: Case, monkeypatch: pytest.MonkeyPatch):
    expected = facts_of(case.data())

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the source is loaded")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    assert facts_of(case.data()) == expected
    monkeypatch.setenv("LITCFL_CACHE", "off")
    with pytest.raises(InputError, match="the source is loaded"):
        case.data()


# Partitions

POOL = np.random.default_rng(0).permutation(np.repeat(np.arange(6), [20, 16, 9, 14, 12, 11]))  # labels of 82 examples


def pool_of(partition: Partition, labels: np.ndarray = POOL, **options: Any) -> ArrayData:
    inputs = np.arange(len(labels))[:, None] / len(labels)
    return ArrayData(inputs, labels, partition=partition, allow_unseen_labels=True, **options)


@dataclass(frozen=True)
class Dealt:
    """A partition of `POOL` among four clients, with what it gives under the seed 3.

    Args:
        partition: Partition with a quarter of each client's examples as its test data.
        counts: Examples of each label of each client, training and test together.
        clusters: True clusters.
        skew: Kind of difference between the clients.
    """

    partition: Partition
    counts: Sequence[Sequence[int]]
    clusters: Sequence[int] = (-1, -1, -1, -1)
    skew: str = "label"


def dealt(data: FederatedData) -> list[list[int]]:
    """Counts the examples of each label of each client, training and test together."""
    return (data.label_counts + replace(data, train=data.test).label_counts).tolist()


ALIKE: dict[str, Any] = {"clusters": (0, 0, 0, 0), "skew": "other"}
PARTITIONS = {
    "IID": Dealt(
        IID(4, 0.25), [[3, 6, 3, 3, 1, 5], [6, 4, 2, 2, 4, 3], [6, 3, 3, 3, 3, 2], [5, 3, 1, 6, 4, 1]], **ALIKE
    ),
    "LogNormalSizes": Dealt(
        LogNormalSizes(4, 0.25, min_size=5, sigma=1.0),
        [[6, 6, 0, 2, 1, 5], [5, 5, 6, 6, 5, 5], [2, 1, 2, 0, 3, 1], [7, 4, 1, 6, 3, 0]],
        **ALIKE,
    ),
    "PowerLawSizes": Dealt(
        PowerLawSizes(4, 0.25, min_size=5),
        [[2, 7, 1, 2, 0, 3], [9, 4, 4, 5, 6, 7], [5, 2, 2, 2, 1, 0], [4, 3, 2, 5, 5, 1]],
        **ALIKE,
    ),
    "DirichletSizes": Dealt(
        DirichletSizes(4, 0.25, min_size=5),
        [[13, 11, 6, 8, 8, 11], [2, 1, 2, 1, 1, 0], [4, 3, 1, 0, 1, 0], [1, 1, 0, 5, 2, 0]],
        **ALIKE,
    ),
    "Dirichlet": Dealt(
        Dirichlet(4, 0.25, min_size=5),
        [[17, 0, 6, 2, 3, 4], [1, 3, 3, 1, 4, 3], [1, 9, 0, 6, 5, 3], [1, 4, 0, 5, 0, 1]],
    ),
    "InnerDirichlet": Dealt(
        InnerDirichlet(4, 0.25), [[9, 1, 1, 2, 1, 7], [5, 4, 5, 7, 0, 0], [0, 5, 1, 1, 9, 4], [6, 6, 2, 4, 2, 0]]
    ),
    "given sizes": Dealt(
        InnerDirichlet(4, 0.25, sizes=[30, 5, 14, 9]),
        [[16, 1, 1, 3, 1, 8], [1, 0, 3, 1, 0, 0], [0, 0, 2, 2, 7, 3], [3, 0, 2, 2, 2, 0]],
    ),
    "ClassesPerClient": Dealt(
        ClassesPerClient(4, 0.25, classes=3),
        [[20, 8, 3, 0, 0, 0], [0, 8, 3, 5, 0, 0], [0, 0, 3, 5, 6, 0], [0, 0, 0, 4, 6, 11]],
        (0, 1, 2, 3),
    ),
    "Shards": Dealt(
        Shards(4, 0.25, shards_per_client=3),
        [[7, 1, 9, 4, 0, 0], [7, 0, 0, 7, 1, 5], [6, 15, 0, 0, 0, 0], [0, 0, 0, 3, 11, 6]],
    ),
    "LabelGroups": Dealt(
        LabelGroups(test=0.25, groups=[[1, 5], [0, 2, 3, 4]], clients_per_group=2),
        [[0, 9, 0, 0, 0, 5], [0, 7, 0, 0, 0, 6], [9, 0, 4, 7, 8, 0], [11, 0, 5, 7, 4, 0]],
        (0, 0, 1, 1),
    ),
    "DominantClass": Dealt(
        DominantClass(4, 0.25, num_clusters=3, beta=0.5),
        [[6, 1, 1, 1, 3, 1], [2, 6, 1, 2, 1, 1], [2, 2, 6, 1, 1, 1], [6, 3, 1, 2, 0, 1]],
        (0, 1, 2, 0),
    ),
}


def a_partition_uses_no_example_twice(row: Dealt) -> None:
    data = pool_of(row.partition).federated(SEED)
    held = list(chain(*examples_of_clients(data)))
    assert len(set(held)) == len(held)
    assert len(held) == sum(map(sum, row.counts))


def a_partition_has_the_recorded_clients(row: Dealt) -> None:
    data = pool_of(row.partition).federated(SEED)
    assert (dealt(data), data.true_clusters.tolist(), data.skew) == (row.counts, list(row.clusters), row.skew)
    assert data.test.sizes.tolist() == [round(sum(one) / 4) for one in row.counts]


def a_partition_depends_on_its_seed_alone(row: Dealt) -> None:
    again, other = (lists_of(pool_of(row.partition).federated(seed)) for seed in (SEED, SEED + 1))
    assert lists_of(pool_of(row.partition).federated(SEED)) == again != other
    assert lists_of(pool_of(row.partition, partition_seed=SEED).federated(0)) == again


def a_partition_keeps_its_clients_with_validation_and_newcomers(row: Dealt) -> None:
    plain, data = (
        pool_of(row.partition, **more).federated(SEED) for more in ({}, {"validation": 0.3, "newcomers": 0.5})
    )
    assert lists_of(data)["test"] == lists_of(plain)["test"]
    assert examples_of_clients(data) == examples_of_clients(plain)
    assert data.true_clusters.tolist() == plain.true_clusters.tolist()
    assert int(data.newcomers.sum()) == 2


def a_partition_is_rebuilt_from_its_configuration(row: Dealt) -> None:
    words = {"class_path": "Digits", "init_args": {"partition": configured(described(row.partition))}}
    task = {"class_path": "Classification", "init_args": {"net": "MCLR", "optimizer": "torch.optim.SGD"}}
    experiment = load_experiment({"data": words, "task": task, "algorithm": "FedAvg"})
    assert experiment.data.partition == row.partition


def a_partition_tests_by_its_rule(row: Dealt) -> None:
    is_test = (np.arange(82) % 3 == 2) & (POOL != 5)  # the label 5 is in the training part alone
    first = 82 - int(is_test.sum())  # the source's test part is numbered from here on
    tests = {}
    for rule in ("alike", "shared", "everything"):
        data = pool_of(replace(row.partition, test=rule), is_test=is_test).federated(SEED)
        lists = lists_of(data)
        assert {number for one in lists["train"] for number in one} <= set(range(first))
        tests[rule] = [set(one) for one in lists["test"]]
    part, counts = set(range(first, 82)), data.label_counts
    stored = data.examples.labels.tolist()
    assert tests["everything"] == [part] * 4
    for client, cluster in enumerate(row.clusters):
        mates = [other for other in range(4) if other == client or (cluster >= 0 and row.clusters[other] == cluster)]
        known = set(counts[mates].sum(0).nonzero().flatten().tolist())
        assert tests["shared"][client] == {number for number in part if stored[number] in known}
    for label in {stored[number] for number in part}:
        number = torch.tensor([sum(stored[one] == label for one in own) for own in tests["alike"]])
        total, weights = sum(stored[one] == label for one in part), counts[:, label].double()
        assert int(number.sum()) == (total if weights.any() else 0)
        assert bool(((number - weights / weights.sum().clamp(min=1) * total).abs() < 1).all())


OF_PARTITIONS: Sequence[Callable[[Dealt], None]] = (
    a_partition_uses_no_example_twice,
    a_partition_has_the_recorded_clients,
    a_partition_depends_on_its_seed_alone,
    a_partition_keeps_its_clients_with_validation_and_newcomers,
    a_partition_is_rebuilt_from_its_configuration,
    a_partition_tests_by_its_rule,
)


@pytest.mark.parametrize("check", OF_PARTITIONS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("row", PARTITIONS.values(), ids=PARTITIONS)
def test_every_partition(row: Dealt, check: Callable[[Dealt], None]):
    check(row)


def test_natural_clients_are_the_owners_with_enough_examples():
    data = {
        (least, most): ArrayData(
            X, LABELS, client=CLIENTS, partition=Natural(least, most, test=0.25), allow_unseen_labels=True
        ).federated(SEED)
        for least, most in ((1, None), (4, None), (3, 2))
    }
    assert data[1, None].names == ("al", "bo", "cy", "ed", "mo")
    assert data[4, None].names == ("al", "bo", "cy")
    assert data[3, 2].num_clients == 2
    assert (data[3, 2].train.sizes + data[3, 2].test.sizes).tolist() == [SIZES[name] for name in data[3, 2].names]


# The papers' partitions

TEN = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 7000))


@pytest.mark.parametrize(
    ("partition", "clients", "classes"),
    [(MNIST1000(), 1000, 2), (FedProxFEMNIST(sharing=False, num_clients=20), 20, 3)],
)
def test_papers_clients_have_cyclic_labels_and_a_tenth_for_testing(partition: Partition, clients: int, classes: int):
    data = pool_of(partition, TEN).federated(SEED)
    counts = torch.tensor(dealt(data))
    assert counts.shape == (clients, 10)
    assert data.true_clusters.tolist() == [client % 10 for client in range(clients)]
    for client in range(clients):
        assert set(counts[client].nonzero().flatten().tolist()) == {(client + k) % 10 for k in range(classes)}
    assert torch.equal(data.train.sizes, counts.sum(1) * 9 // 10)
    whole = torch.cat([data.train.entries, data.test.entries])
    assert len(whole.unique()) == len(whole)


def test_dittos_clients_have_exactly_the_published_number_of_images():
    data = pool_of(Ditto500(), TEN, is_test=np.arange(70_000) >= 60_000).federated(SEED)
    assert (data.num_clients, len(data.train.entries), len(data.test.entries)) == (500, 61_251, 11_254)
    assert data.true_clusters.tolist() == [client % 10 for client in range(500)]
    assert lists_of(pool_of(Ditto500(), TEN, is_test=np.arange(70_000) >= 60_000).federated(0)) == lists_of(data)


# Skews

PICTURES = np.random.default_rng(2).integers(0, 256, (24, 3, 4, 4), dtype=np.uint8)
See = Callable[[np.ndarray], np.ndarray]


def turned(degrees: float) -> See:
    """Rotates counter-clockwise as SciPy does, whose angles go the other way round in rows and columns."""
    return lambda image: ndimage.rotate(image, degrees, (-1, -2), reshape=False, order=1, mode="grid-constant")


def by(*factors: float) -> See:
    return lambda image: image * np.array(factors, np.float32)[:, None, None]


def same(image: np.ndarray) -> np.ndarray:
    return image


PERMUTED = np.random.default_rng(5).permutation(4).tolist()
# each cluster's view: the image that its clients see, and the label that they see for each of the labels 0 to 3
SKEWS: dict[str, tuple[Any, list[tuple[See, list[int]]]]] = {
    "rotations": (
        [Rotations([0, 90, 180, 270])],
        [(lambda image, k=k: np.rot90(image, k, (-2, -1)), [0, 1, 2, 3]) for k in range(4)],
    ),
    "free rotations": (
        [FreeRotations([0, 30, 130])],
        [(same, [0, 1, 2, 3]), (turned(30), [0, 1, 2, 3]), (turned(130), [0, 1, 2, 3])],
    ),
    "blurs": (
        [Blurs([0, 0.7])],
        [
            (same, [0, 1, 2, 3]),
            (
                lambda image: ndimage.gaussian_filter(image, (0, 0.7, 0.7), mode="nearest", radius=(0, 3, 3)),
                [0, 1, 2, 3],
            ),
        ],
    ),
    "brightnesses": ([Brightnesses([1, 0.5])], [(same, [0, 1, 2, 3]), (by(0.5, 0.5, 0.5), [0, 1, 2, 3])]),
    "colours": (
        [Colours([[1, 0, 0.5], [0.25, 1, 0]])],
        [(by(1, 0, 0.5), [0, 1, 2, 3]), (by(0.25, 1, 0), [0, 1, 2, 3])],
    ),
    "label shifts": ([LabelShifts([0, 1])], [(same, [0, 1, 2, 3]), (same, [1, 2, 3, 0])]),
    "label swaps": ([LabelSwaps([[], [3, 0, 1]])], [(same, [0, 1, 2, 3]), (same, [1, 3, 2, 0])]),
    "label permutations": ([LabelPermutations(2, seed=5)], [(same, [0, 1, 2, 3]), (same, PERMUTED)]),
    "two skews": (
        [Rotations([0, 90]), LabelShifts([0, 1])],
        [
            (see, seen)
            for see in (same, lambda image: np.rot90(image, 1, (-2, -1)))
            for seen in ([0, 1, 2, 3], [1, 2, 3, 0])
        ],
    ),
}


def pictures(**options: Any) -> FederatedData:
    return ArrayData(PICTURES, np.arange(24) % 4, allow_unseen_labels=True, **options).federated(SEED)


@pytest.mark.parametrize("name", SKEWS)
def test_each_cluster_sees_the_examples_in_its_own_way(name: str):
    skew, views = SKEWS[name]
    data, plain = (pictures(partition=IID(5, 0.25), skew=one) for one in (skew, []))
    assert data.true_clusters.tolist() == [client % len(views) for client in range(5)]
    assert examples_of_clients(data) == examples_of_clients(plain)
    for client, cluster in enumerate(data.true_clusters.tolist()):
        see, names = views[cluster]
        for part in ("train", "test"):
            index = getattr(data, part)[client]
            inputs, labels = data.examples.batch(index)
            stored = (index % 24).tolist()
            expected = np.stack([see(PICTURES[one].astype(np.float32) / np.float32(255)) for one in stored])
            assert np.allclose(inputs.numpy(), expected, atol=1e-6)
            assert labels.tolist() == data.examples.targets(index).tolist() == [names[one % 4] for one in stored]


def test_an_example_always_has_the_same_noise_and_others_have_another():
    data = pictures(partition=IID(2, 0.25), skew=[NoiseLevels([0, 0.5])])
    plain = data.examples.batch(data.train[1] % 24)[0]
    noise = [data.examples.batch(data.train[1])[0] - plain for _ in range(2)]
    assert torch.equal(*noise)
    assert float(noise[0].std()) == pytest.approx(0.5, rel=0.1)
    assert float(torch.corrcoef(noise[0].flatten(1)).fill_diagonal_(0).abs().max()) < 0.6
    assert torch.equal(data.examples.batch(data.train[0])[0], data.examples.batch(data.train[0] % 24)[0])


def test_a_cluster_and_a_view_are_a_true_cluster_and_an_unknown_cluster_stays_unknown():
    client = np.arange(24) % 6
    data = pictures(client=client, cluster=[0, 0, 1, 1, 0, 1], test=0.25, skew=[LabelShifts([0, 1, 2])])
    # the views are dealt in turn to the clients 0, 1, 4 of cluster 0, and to the clients 2, 3, 5 of cluster 1
    assert data.true_clusters.tolist() == [0, 1, 3, 4, 2, 5]


def test_copies_give_every_cluster_all_examples():
    data = pictures(partition=IID(3, 0.25), skew=[LabelShifts([0, 1, 2])], copies=True)
    assert data.true_clusters.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    clients = examples_of_clients(data)
    for first in (0, 3, 6):
        assert sorted(chain(*clients[first : first + 3])) == list(range(24))


# How values are read


@dataclass(frozen=True)
class Read:
    """Cells of a column, and what they are read as."""

    cells: Sequence[Any]
    expected: Sequence[Any]


CLIENT_NAMES = {
    "words": Read(["bo", "al", "bo", "cy"], ("al", "bo", "cy")),
    "numbers in order of value": Read(["10", "9", "10", "2"], ("2", "9", "10")),
    "leading zeros": Read(["01", "1", "007", "01"], ("01", "1", "007")),
    "numbers too long for a float": Read(
        ["9007199254740993", "9007199254740992"] * 2, ("9007199254740992", "9007199254740993")
    ),
    "one number in four spellings": Read(["1e3", "1000", "1000.0", " 1000"], (" 1000", "1000", "1000.0", "1e3")),
    "exponents": Read(["12e5", "1200000", "7", "7"], ("7", "1200000", "12e5")),
}


@pytest.mark.parametrize("row", CLIENT_NAMES.values(), ids=CLIENT_NAMES)
def test_names_of_clients_in_a_table(row: Read, tmp_path: Path):
    lines = [f'"{cell}",{number},{number % 2}' for number, cell in enumerate(row.cells)]
    (tmp_path / "own.csv").write_text("\n".join(["client,x,y", *lines]) + "\n")
    data = ArrayData(source=tmp_path / "own.csv", test=0, allow_unseen_labels=True).federated(SEED)
    assert data.names == tuple(row.expected)


NUMBER_CELLS = {
    "decimal points": Read(["8.5", "12.5"], (8.5, 12.5)),
    "thousands next to decimal points": Read(["8,654", "12.5"], (8654.0, 12.5)),
}


@pytest.mark.parametrize("row", NUMBER_CELLS.values(), ids=NUMBER_CELLS)
def test_numbers_in_a_table(row: Read, tmp_path: Path):
    lines = [f'{number % 2},"{row.cells[number % 2]}",{number % 2}' for number in range(6)]
    (tmp_path / "own.csv").write_text("\n".join(["client,x,y", *lines]) + "\n")
    module = ArrayData(source=tmp_path / "own.csv", test=0, allow_unseen_labels=True)
    assert module.federated(SEED).examples.inputs[:2, 0].tolist() == list(row.expected)


def test_a_list_of_images_of_the_hub_is_scaled(tmp_path: Path):
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4))
    images[0, 0, 0] = 255
    columns = {"image": images.tolist(), "label": [0, 1] * 3}
    features = {"image": List(List(Value("int64"))), "label": Value("int64")}
    source = str(write(tmp_path / "lists", features, train=columns))
    module = HFDataset(source, "image", "label", partition=IID(2, 0.0))
    data = module.federated(SEED)
    assert data.examples.input_shape == (1, 4, 4)
    assert data.examples.batch(torch.arange(6))[0].flatten().tolist() == pytest.approx((images / 255).ravel())
    numbers = HFDataset(source, "image", "label", kind="numbers", partition=IID(2, 0.0)).federated(SEED)
    assert numbers.examples.batch(torch.arange(6))[0].flatten().tolist() == images.ravel().tolist()


def notes_of(action: Callable[[], object]) -> list[str]:
    """Returns the notices that an action gives."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        action()
    return [str(one.message) for one in given if one.category is Notice]


def arrays(y: Any = (0, 1, 2) * 4, **options: Any) -> FederatedData:
    x = np.arange(24.0).reshape(12, 2) / 24
    return ArrayData(**{"x": x, "y": np.asarray(y), "test": 0.0, "allow_unseen_labels": True} | options).federated(SEED)


def hub_labels(folder: Path, values: Sequence[Any], feature: Any) -> FederatedData:
    kinds = {"x": Value("float64"), "y": List(feature)}
    source = write(folder / "hub", kinds, train={"x": [0.5] * len(values), "y": list(values)})
    return HFDataset(str(source), "x", "y", partition=IID(2, 0.0)).federated(SEED)


PAIRS = [[0, 1], [1, 0], [0, 1], [1, 1]]
NAMED = ClassLabel(names=["p", "q"])
LABEL_LISTS = {
    "lists of zeros and ones are columns": (PAIRS, Value("int64"), [[0, 1], [1, 0], [0, 1], [1, 1]]),
    "lists of named labels are sets": (PAIRS, NAMED, [[1, 1], [1, 1], [1, 1], [0, 1]]),
    "lists of one entry are sets": ([[0], [1], [1], [0]], Value("int64"), [[1, 0], [0, 1], [0, 1], [1, 0]]),
}


@pytest.mark.parametrize("row", LABEL_LISTS.values(), ids=LABEL_LISTS)
def test_lists_of_labels(row: tuple[Any, Any, Any], tmp_path: Path):
    values, feature, expected = row
    assert hub_labels(tmp_path, values, feature).examples.labels.int().tolist() == expected


def test_words_that_are_numbers_are_classes_in_order_of_value():
    examples = arrays(y=["10", "9", "101", "9", "10", "101"] * 2).examples
    assert examples.label_names == ("9", "10", "101")
    assert examples.labels[:4].tolist() == [1, 0, 2, 0]


def test_soft_labels_count_from_a_half_on():
    data = arrays(y=[[0.4, 1.0, 0.6]] * 12, client=[0, 1, 1] * 4)
    assert data.label_counts.tolist() == [[0, 4, 4], [0, 8, 8]]


def test_marked_test_examples_keep_their_labels_and_clients():
    marks = [1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0]
    data = arrays(y=range(12), client=[0, 1] * 6, is_test=marks, test=None)
    for client, numbers in ((0, {0, 4}), (1, {9})):
        inputs, labels = data.examples.batch(data.test[client])
        assert set(labels.tolist()) == numbers == set((inputs[:, 0] * 12).round().int().tolist())


def image_of(mode: str, *colours: Any) -> dict[str, Any]:
    file, image = BytesIO(), Image.new(mode, (len(colours), 1))
    for place, colour in enumerate(colours):
        image.putpixel((place, 0), colour)
    image.save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


PIXELS = {
    "grey": (image_of("L", 7, 200), [7, 200]),
    "transparent pixels are black": (image_of("LA", (100, 255), (100, 0), (200, 51)), [100, 0, 40]),
    "16 bits, of which 12 are used": (image_of("I;16", 0, 4095, 2048), [0, 255, 128]),
    "colours are weighted": (image_of("RGB", (255, 0, 0), (0, 255, 0), (0, 0, 255)), [76, 150, 29]),
}


@pytest.mark.parametrize("row", PIXELS.values(), ids=PIXELS)
def test_pixels_of_an_image(row: tuple[Any, list[int]], tmp_path: Path):
    encoded, expected = row
    source = write(tmp_path, {"x": HubImage(), "y": Value("int64")}, train={"x": [encoded] * 2, "y": [0, 1]})
    module = HFDataset(str(source), "x", "y", images=ImageOptions(mode="L"), partition=IID(2, 0.0))
    found = module.federated(SEED).examples.inputs[1].flatten().tolist()
    assert np.abs(np.subtract(found, expected)).max() <= 1


LINES = "client,x,y\n0,1.5,0\n0,2.5,1\n1,3.5,0\n1,4.5,1\n"
NOTES: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "nothing": (lambda folder: arrays(client=[0, 1] * 6), []),
    "names that look alike": (
        lambda folder: arrays(client=["caf\u00e9", "cafe\u0301", "b"] * 4),
        [r"client holds 'cafe\\u0301' and 'caf\\xe9', which are treated as different names"],
    ),
    "pixels that are not bytes": (
        lambda folder: arrays(x=np.full((12, 1, 3, 4), 255), client=[0, 1] * 6),
        ["the images: large numbers"],
    ),
    "large numbers": (
        lambda folder: arrays(x=np.full((12, 2), 50.0), client=[0, 1] * 6),
        ["input columns 0, 1: large numbers"],
    ),
    "numbers of lines": (
        lambda folder: table_of(folder, [f"{1000 + row},{row / 40:.3f},{row % 2},{row % 3}" for row in range(40)]),
        ["the inputs include 'id', a different whole number for each row", "input column 'id': large numbers"],
    ),
}


def table_of(folder: Path, lines: Sequence[str], header: str = "id,x,y,client") -> FederatedData:
    (folder / "own.csv").write_text("\n".join([header, *lines]) + "\n")
    return ArrayData(source=folder / "own.csv", test=0.0, allow_unseen_labels=True).federated(SEED)


@pytest.mark.parametrize("row", NOTES.values(), ids=NOTES)
def test_what_is_noted_is_noted_once(row: tuple[Callable[[Path], Any], list[str]], tmp_path: Path):
    make, expected = row
    given = notes_of(lambda: make(tmp_path))
    assert len(given) == len(expected)
    for note, pattern in zip(given, expected, strict=True):
        assert re.search(pattern, note)


def test_notices_of_a_source_are_given_again_from_the_cache(tmp_path: Path):
    columns = {"x": [0, 1, 0, 1], "y": ["yes", "no", "Yes", "no"]}
    source = write(tmp_path / "noted", {"x": Value("int64"), "y": Value("string")}, train=columns)
    first, second = (notes_of(lambda: HFDataset(str(source), "x", "y").examples) for _ in range(2))
    assert first == second
    assert any("'Yes' and 'yes'" in note for note in first)


class Own(FederatedDataModule):
    """A user's data module with the given training and test examples of each client."""

    def __init__(
        self, train: list[list[int]], test: list[list[int]] | ClientIndex, views: tuple[View, ...] = (View(),)
    ) -> None:
        super().__init__(allow_unseen_labels=True)
        self.lists, self.views = (train, test), views

    def load(self) -> Examples:
        return Examples(torch.arange(8.0)[:, None] / 8, torch.arange(8) % 2, 2, views=self.views)

    def divide(self, examples: Examples, rng: np.random.Generator) -> Division:
        train, test = (
            lists if isinstance(lists, ClientIndex) else ClientIndex.from_lists([torch.tensor(one) for one in lists])
            for lists in self.lists
        )
        return Division(train, test, torch.arange(len(train)))


class Foreign(LabelDrift):
    """A user's shift that gives client 1 an example that does not exist."""

    def step(self, data: FederatedData, at: Any) -> Any:
        data, log = super().step(data, at)
        return replace(data, train=ClientIndex(data.train.values + 99, data.train.starts, data.train.sizes)), log


REFUSALS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "floats that cannot tell ids apart": (
        lambda folder: arrays(client=np.array([2.0**53, 2.0**53 + 2, 1.0] * 4)),
        "client holds 9007199254740994.0",
    ),
    "ids as labels": (
        lambda folder: ArrayData(np.zeros((400, 2)), [0, 3, 7, 60] * 100).federated(SEED),
        "y holds 4 different labels, the largest 60: these are ids",
    ),
    "a column twice": (
        lambda folder: table_of(folder, ["1,0.5,0,1", "2,0.5,1,0"], "client,x,y,y"),
        "has two columns 'y'",
    ),
    "a label that no client could have": (
        lambda folder: arrays(y=[1, 2, 3] * 4, partition=DominantClass(4, 0.0, num_clusters=2), num_labels=4),
        "DominantClass needs 2 or more labels, and examples with each label of 0 to 1",
    ),
    "a cell that is empty": (lambda folder: table_of(folder, ["1,,0,1", "2,0.5,1,0"]), "column 'x' is empty in row 2"),
    "an example below 0": (
        lambda folder: Own([[0, -1], [2, 3]], [[4], [5]]).federated(SEED),
        "client 0 has the example -1",
    ),
    "an example too high": (lambda folder: Own([[0], [8]], [[4], [5]]).federated(SEED), "client 1 has the example 8"),
    "a shift to an unknown example": (
        lambda folder: list(experiment_on(KINDS["table"], shifting(Foreign(share=1.0, start=0)), FedAvg(), rounds=1)),
        "client 0 has the example",
    ),
}


def shifting(shift: Any) -> ArrayData:
    x, y = np.arange(24.0).reshape(12, 2) / 24, np.arange(12) % 3
    return ArrayData(x, y, client=[0, 1] * 6, test=0.0, shift=shift, allow_unseen_labels=True)


@pytest.mark.parametrize("row", REFUSALS.values(), ids=REFUSALS)
def test_what_would_be_misread_is_refused_in_one_line(row: tuple[Callable[[Path], Any], str], tmp_path: Path):
    make, expected = row
    with pytest.raises(InputError, match=expected) as refusal:
        make(tmp_path)
    assert "\n" not in str(refusal.value)


def test_examples_under_further_views_are_accepted_and_an_overlap_is_noted_for_its_client():
    turned = (View(), View(label_map=(1, 0)))
    data = Own([[0, 9], [10]], [[4], [5]], views=turned).federated(SEED)
    assert data.examples.targets(data.train.entries).tolist() == [0, 0, 1]
    assert notes_of(lambda: Own([[0], [2]], [[2], [0]]).federated(SEED)) == []
    (note,) = notes_of(lambda: Own([[0, 1], [2, 3]], [[4], [3]]).federated(SEED))
    assert "1 client tested on training examples, so the scores are too good (1;" in note
    shared = ClientIndex(*map(torch.tensor, ([4, 2], [0, 0, 1], [1, 1, 1])))  # the clients 0 and 1 have one list
    (note,) = notes_of(lambda: Own([[0], [1], [2]], shared).federated(SEED))
    assert "1 client tested on training examples, so the scores are too good (2;" in note


@dataclass(frozen=True)
class PartlyKnown(IID):
    """Equal shares, of which the second client's true cluster is not known."""

    def clusters(self, shares: ClientIndex, num_labels: int) -> torch.Tensor:
        return torch.tensor([0, -1, 1, 0])


def test_a_client_of_unknown_cluster_stays_unknown_under_a_skew():
    data = pictures(partition=PartlyKnown(4, 0.25), skew=[LabelShifts([0, 1])])
    assert data.true_clusters.tolist() == [0, -1, 2, 1]


def test_hidden_labels_do_not_show_through_views():
    examples = pictures(partition=IID(2, 0.0), skew=[LabelShifts([0, 1])]).examples.without_labels()
    assert examples.targets(torch.arange(48)).tolist() == [0] * 48


# Augmentation


def test_windows_of_a_padded_image_occur_equally_often_and_half_of_them_mirrored():
    image = np.arange(1.0, 10).reshape(3, 3)
    padded = np.pad(image, 1)
    windows = [padded[top : top + 3, left : left + 3] for top in range(3) for left in range(3)]
    expected = {tuple(one.ravel()) for window in windows for one in (window, window[:, ::-1])}
    batch = torch.tensor(image).expand(9000, 1, 3, 3), torch.zeros(9000)
    shown, counts = (
        Augment(crop=1, flip=True)(batch, torch.arange(9000))[0].flatten(1).unique(dim=0, return_counts=True)
    )
    assert {tuple(one) for one in shown.tolist()} == expected
    assert len(expected) == 18
    assert int((counts - 500).abs().max()) < 5 * 500**0.5


def mix(batch: Any, keys: torch.Tensor) -> Any:
    """A user's augmentation that reads another example of the mini-batch."""
    return batch[0] + batch[0].mean(0), batch[1]


def test_an_augmentation_that_reads_other_examples_is_refused():
    module = ArrayData(PICTURES, np.arange(24) % 4, partition=IID(3, 0.25), augment=mix, allow_unseen_labels=True)
    with pytest.raises(InputError, match=r"data\.augment changes an example differently"):
        list(experiment_on(KINDS["table"], module, FedAvg()))
