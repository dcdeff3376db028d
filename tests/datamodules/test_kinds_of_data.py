"""Tables of data: kinds of data by properties, partitions by properties, skews by what their clients see.

A bug that gets through becomes a row or a property here. Makers of the data are in tests/helpers/kinds.py.
"""

import io
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from datasets import List, Value
from kinds import (
    CLIENTS,
    KINDS,
    LABELS,
    SIZES,
    WORDS,
    Kind,
    X,
    built,
    configured,
    described,
    experiment_on,
    facts_of,
    lists_of,
    made,
    npz,
    rows_of,
)
from hub import fresh_caches, write

from lit_cfl import load_experiment, load_run, run
from lit_cfl.algorithms import FedAvg
from lit_cfl.data import FederatedData
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

    def module(self, **options: Any) -> FederatedDataModule:
        return built(replace(self.described, options={**self.described.options, **options}))

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
    assert sorted(sum(examples_of_clients(data), [])) == list(range(len(data.examples)))


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
    more = {"validation": 0.3, "newcomers": 0.5, "allow_unseen_labels": True}
    description = {"data": configured(replace(case.described, options={**case.described.options, **more}))}
    if case.kind.only_python:
        with pytest.raises(InputError, match="made in Python"):
            load_run(case.finished)
        return
    task = {"class_path": "Classification", "init_args": {"net": "MCLR", "optimizer": "torch.optim.SGD"}}
    experiment = load_experiment(description | {"task": task, "algorithm": "FedAvg"})
    again = load_experiment(experiment.to_dict())
    expected = facts_of(case.data(**more))
    assert facts_of(experiment.data.federated(SEED)) == facts_of(again.data.federated(SEED)) == expected


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
    assert facts_of(data) == facts_of(case.data(validation=0.2))


def a_newcomer_without_data_gets_no_model(case: Case) -> None:
    data = case.plain
    gone = data.num_clients - 2  # neither the first nor the last
    sizes = data.train.sizes.clone()
    sizes[gone] = 0
    experiment = experiment_on(case.kind, case.module(validation=0.2), FedAvg())
    placed = load_run(case.finished, experiment).assign(replace(data, train=data.train.first(sizes)))
    assert placed.assignment.index.tolist() == [0 if client != gone else -1 for client in range(data.num_clients)]


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
    a_newcomer_without_data_gets_no_model,
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
    with pytest.raises(AssertionError, match="the source is loaded"):
        case.data()


# Partitions

POOL = np.random.default_rng(0).permutation(np.repeat(np.arange(6), [20, 16, 9, 14, 12, 11]))  # labels of 82 examples


def pool_of(partition: Partition, labels: np.ndarray = POOL, **options: Any) -> ArrayData:
    return ArrayData(np.arange(len(labels))[:, None] / len(labels), labels, partition=partition, **options)


@dataclass(frozen=True)
class Dealt:
    """A partition of `POOL` among four clients, with what it gives under the seed 3.

    Args:
        partition: Partition with a quarter of each client's examples as its test data.
        counts: Examples of each label of each client, training and test together.
        clusters: True clusters.
        skew: Kind of difference between the clients.
        labels: Labels that a client may have, by its number.
    """

    partition: Partition
    counts: Sequence[Sequence[int]]
    clusters: Sequence[int] = (-1, -1, -1, -1)
    skew: str = "label"
    labels: Callable[[int], set[int]] = lambda client: set(range(6))


def dealt(data: FederatedData) -> list[list[int]]:
    """Counts the examples of each label of each client, training and test together."""
    tested = replace(data, train=data.test)
    return (data.label_counts + tested.label_counts).tolist()


SAME = {"clusters": (0, 0, 0, 0), "skew": "other"}
GROUPS = [[1, 5], [0, 2, 3, 4]]
PARTITIONS = {
    "IID": Dealt(IID(4, 0.25), [], **SAME),
    "LogNormalSizes": Dealt(LogNormalSizes(4, 0.25, min_size=5, sigma=1.0), [], **SAME),
    "PowerLawSizes": Dealt(PowerLawSizes(4, 0.25, min_size=5), [], **SAME),
    "DirichletSizes": Dealt(DirichletSizes(4, 0.25, min_size=5), [], **SAME),
    "Dirichlet": Dealt(Dirichlet(4, 0.25, min_size=5), []),
    "InnerDirichlet": Dealt(InnerDirichlet(4, 0.25), []),
    "InnerDirichlet with sizes": Dealt(InnerDirichlet(4, 0.25, sizes=[30, 5, 14, 9]), []),
    "ClassesPerClient": Dealt(
        ClassesPerClient(4, 0.25, classes=3), [], (0, 1, 2, 3), labels=lambda client: {client, client + 1, client + 2}
    ),
    "Shards": Dealt(Shards(4, 0.25, shards_per_client=3), []),
    "LabelGroups": Dealt(
        LabelGroups(test=0.25, groups=GROUPS, clients_per_group=2),
        [],
        (0, 0, 1, 1),
        labels=lambda client: set(GROUPS[client // 2]),
    ),
    "DominantClass": Dealt(DominantClass(4, 0.25, num_clusters=3, beta=0.5), [], (0, 1, 2, 0)),
}
