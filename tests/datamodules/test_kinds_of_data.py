"""Tables of data: kinds of data by properties, partitions by properties, skews by what their clients see.

A bug that gets through becomes a row or a property here. Makers of the data are in tests/helpers/kinds.py.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hub import fresh_caches
from kinds import KINDS, Kind, built, configured, experiment_on, facts_of, lists_of, rows_of
from own_arrays import examples_of_clients
from scipy import ndimage

from lit_cfl import load_experiment, load_run, run
from lit_cfl.algorithms import FedAvg
from lit_cfl.data import FederatedData
from lit_cfl.datamodules import (
    IID,
    ArrayData,
    Blurs,
    Brightnesses,
    ClassesPerClient,
    Colours,
    Dirichlet,
    DirichletSizes,
    DominantClass,
    FederatedDataModule,
    FreeRotations,
    InnerDirichlet,
    LabelGroups,
    LabelPermutations,
    LabelShifts,
    LabelSwaps,
    LogNormalSizes,
    NoiseLevels,
    PowerLawSizes,
    Rotations,
    Shards,
)
from lit_cfl.datamodules.partition import PartitionWithTestRule
from lit_cfl.errors import InputError
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


def names_sizes_and_true_clusters_are_those_of_the_source(case: Case) -> None:
    names = sorted({client for client, _, _ in case.kind.rows()} - {""}) if case.kind.rows else []
    assert list(case.plain.names) == names
    sizes = case.plain.test.sizes.tolist()
    assert case.plain.num_clients == case.kind.clients
    assert case.kind.test in (sizes, sum(sizes))
    assert case.plain.true_clusters.tolist() == (case.kind.clusters or [-1] * case.kind.clients)


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
    for whole, train, part in zip(before["train"], now["train"], now["validation"], strict=True):
        assert sorted(train + part) == whole
        assert len(part) == min(round(0.3 * len(whole)), len(whole) - 1)
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
    names_sizes_and_true_clusters_are_those_of_the_source,
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
# each with the true clusters of its four clients
PARTITIONS: dict[str, tuple[PartitionWithTestRule, list[int]]] = {
    "IID": (IID(4, 0.25), [0] * 4),
    "LogNormalSizes": (LogNormalSizes(4, 0.25, min_size=5, sigma=1.0), [0] * 4),
    "PowerLawSizes": (PowerLawSizes(4, 0.25, min_size=5), [0] * 4),
    "DirichletSizes": (DirichletSizes(4, 0.25, min_size=5), [0] * 4),
    "Dirichlet": (Dirichlet(4, 0.25, min_size=5), [-1] * 4),
    "InnerDirichlet": (InnerDirichlet(4, 0.25), [-1] * 4),
    "given sizes": (InnerDirichlet(4, 0.25, sizes=[30, 5, 14, 9]), [-1] * 4),
    "ClassesPerClient": (ClassesPerClient(4, 0.25, classes=3), [0, 1, 2, 3]),
    "Shards": (Shards(4, 0.25, shards_per_client=3), [-1] * 4),
    "LabelGroups": (LabelGroups(test=0.25, groups=[[1, 5], [0, 2, 3, 4]], clients_per_group=2), [0, 0, 1, 1]),
    "DominantClass": (DominantClass(4, 0.25, num_clusters=3, beta=0.5), [0, 1, 2, 0]),
}


def divided(partition: PartitionWithTestRule, seed: int = SEED, **options: Any) -> FederatedData:
    """Divides `POOL` among four clients."""
    data = ArrayData(np.arange(82)[:, None] / 82, POOL, partition=partition, allow_unseen_labels=True, **options)
    return data.federated(seed)


def a_partition_depends_on_its_seed_alone(partition: PartitionWithTestRule, clusters: list[int]) -> None:
    data, again, other = (divided(partition, seed) for seed in (SEED, SEED, SEED + 1))
    assert lists_of(data) == lists_of(again) != lists_of(other)
    assert lists_of(divided(partition, 0, partition_seed=SEED)) == lists_of(data)
    assert data.true_clusters.tolist() == other.true_clusters.tolist() == clusters
    assert data.skew == ("other" if clusters == [0] * 4 else "label")


def a_partition_uses_no_example_twice(partition: PartitionWithTestRule, clusters: list[int]) -> None:
    clients = examples_of_clients(divided(partition, validation=0.3))
    held = list(chain(*clients))
    assert len(set(held)) == len(held) <= 82
    assert clients == examples_of_clients(divided(partition, newcomers=0.5))


def a_partition_tests_by_its_rule(partition: PartitionWithTestRule, clusters: list[int]) -> None:
    is_test = (np.arange(82) % 3 == 2) & (POOL != 5)  # the label 5 is in the training part alone
    first = 82 - int(is_test.sum())  # the source's test part is numbered from here on
    tests = {}
    for rule in ("alike", "shared", "everything"):
        data = divided(replace(partition, test=rule), is_test=is_test)
        lists = lists_of(data)
        assert {number for one in lists["train"] for number in one} <= set(range(first))
        tests[rule] = [set(one) for one in lists["test"]]
    part, counts = set(range(first, 82)), data.label_counts
    stored = data.examples.labels.tolist()
    assert tests["everything"] == [part] * 4
    for client, cluster in enumerate(clusters):
        mates = [other for other in range(4) if other == client or (cluster >= 0 and clusters[other] == cluster)]
        known = set(counts[mates].sum(0).nonzero().flatten().tolist())
        assert tests["shared"][client] == {number for number in part if stored[number] in known}
    for label in {stored[number] for number in part}:
        number = torch.tensor([sum(stored[one] == label for one in own) for own in tests["alike"]])
        total, weights = sum(stored[one] == label for one in part), counts[:, label].double()
        assert int(number.sum()) == (total if weights.any() else 0)
        assert bool(((number - weights / weights.sum().clamp(min=1) * total).abs() < 1).all())


OF_PARTITIONS: Sequence[Callable[..., None]] = (
    a_partition_depends_on_its_seed_alone,
    a_partition_uses_no_example_twice,
    a_partition_tests_by_its_rule,
)


@pytest.mark.parametrize("check", OF_PARTITIONS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", PARTITIONS)
def test_every_partition(name: str, check: Callable[..., None]):
    check(*PARTITIONS[name])


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


def blurred(image: np.ndarray) -> np.ndarray:
    return ndimage.gaussian_filter(image, (0, 0.7, 0.7), mode="nearest", radius=(0, 3, 3))


KEPT, SHIFTED = [0, 1, 2, 3], [1, 2, 3, 0]
PERMUTED = np.random.default_rng(5).permutation(4).tolist()
# each cluster's view: the image that its clients see, and the label that they see for each of the labels 0 to 3
SKEWS: dict[str, tuple[Any, list[tuple[See, list[int]]]]] = {
    "rotations": (
        [Rotations([0, 90, 180, 270])],
        [(lambda image, k=k: np.rot90(image, k, (-2, -1)), KEPT) for k in range(4)],
    ),
    "free rotations": ([FreeRotations([0, 30, 130])], [(same, KEPT), (turned(30), KEPT), (turned(130), KEPT)]),
    "blurs": ([Blurs([0, 0.7])], [(same, KEPT), (blurred, KEPT)]),
    "brightnesses": ([Brightnesses([1, 0.5])], [(same, KEPT), (by(0.5, 0.5, 0.5), KEPT)]),
    "colours": ([Colours([[1, 0, 0.5], [0.25, 1, 0]])], [(by(1, 0, 0.5), KEPT), (by(0.25, 1, 0), KEPT)]),
    "label shifts": ([LabelShifts([0, 1])], [(same, KEPT), (same, SHIFTED)]),
    "label swaps": ([LabelSwaps([[], [3, 0, 1]])], [(same, KEPT), (same, [1, 3, 2, 0])]),
    "label permutations": ([LabelPermutations(2, seed=5)], [(same, KEPT), (same, PERMUTED)]),
    "two skews": (
        [Rotations([0, 90]), LabelShifts([0, 1])],
        [(see, seen) for see in (same, lambda image: np.rot90(image, 1, (-2, -1))) for seen in (KEPT, SHIFTED)],
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
