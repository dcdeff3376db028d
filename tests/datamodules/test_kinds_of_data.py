"""Tables of data: kinds of data by properties, and skews by what their clients see.

A bug that gets through becomes a row or a property here. Makers of the data are in tests/helpers/kinds.py.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hub import fresh_caches
from kinds import KINDS, Kind, built, experiment_on, lists_of
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
    Colours,
    FederatedDataModule,
    FreeRotations,
    LabelPermutations,
    LabelShifts,
    LabelSwaps,
    NoiseLevels,
    Rotations,
)
from lit_cfl.errors import InputError
from lit_cfl.storage import read_table

SEED = 3
every_kind = pytest.mark.parametrize("case", KINDS, indirect=True)


def configured(value: Any) -> Any:
    """Returns a description as it stands in a YAML file."""
    if isinstance(value, dict):
        return {key: configured(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [configured(part) for part in value]
    return str(value) if isinstance(value, Path) else value


def facts_of(data: FederatedData) -> dict[str, Any]:
    """Returns everything that two equal data have in common, with the order of the examples."""
    examples = data.examples
    lists = {name: [one.tolist() for one in getattr(data, name)] for name in ("train", "validation", "test")}
    return lists | {
        "true clusters": data.true_clusters.tolist(),
        "newcomers": None if data.newcomers is None else data.newcomers.tolist(),
        "names": (data.names, data.cluster_names, examples.label_names, examples.input_names),
        "skew": data.skew,
        "examples": (examples.fingerprint, examples.num_labels, examples.vocabulary, examples.words, examples.views),
        "batch": [sha256(part.numpy().tobytes()).hexdigest() for part in examples.batch(data.train.entries)],
    }


def rows_of(data: FederatedData, numbers: Sequence[int]) -> Counter[tuple[Any, tuple[float, ...]]]:
    """Counts pairs of label and input of these examples; labels have their names, if they have some."""
    inputs, labels = data.examples.batch(torch.tensor(numbers, dtype=torch.int64))
    names = data.examples.label_names if data.examples.num_labels else ()
    named = [tuple(label) if labels.ndim > 1 else names[label] if names else label for label in labels.tolist()]
    return Counter(zip(named, map(tuple, inputs.flatten(1).tolist()), strict=True))


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
        return self.described | {"init_args": usual | self.described["init_args"] | options}

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


@every_kind
def test_every_example_has_exactly_one_client(case: Case):
    data = case.data(validation=0.3)
    assert sorted(chain(*examples_of_clients(data))) == list(range(len(data.examples)))


@every_kind
def test_clients_have_the_examples_of_their_source(case: Case):
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


@every_kind
def test_names_sizes_and_true_clusters_are_those_of_the_source(case: Case):
    names = sorted({client for client, _, _ in case.kind.rows()} - {""}) if case.kind.rows else []
    assert list(case.plain.names) == names
    sizes = case.plain.test.sizes.tolist()
    assert case.plain.num_clients == case.kind.clients
    assert case.kind.test in (sizes, sum(sizes))
    assert case.plain.true_clusters.tolist() == (case.kind.clusters or [-1] * case.kind.clients)


@every_kind
def test_same_seed_gives_the_same_clients(case: Case):
    options = {"validation": 0.3, "newcomers": 0.5}
    assert facts_of(case.data(**options)) == facts_of(case.data(**options))
    assert facts_of(case.data(0, partition_seed=SEED, **options)) == facts_of(case.data(**options))


@every_kind
def test_another_seed_gives_other_clients(case: Case):
    other = lists_of(case.data(SEED + 1))
    assert (other != lists_of(case.plain)) == case.kind.drawn


@every_kind
def test_validation_leaves_the_test_data_alone(case: Case):
    data = case.data(validation=0.3)
    now, before = lists_of(data), lists_of(case.plain)
    assert now["test"] == before["test"]
    for whole, train, part in zip(before["train"], now["train"], now["validation"], strict=True):
        assert sorted(train + part) == whole
        assert len(part) == min(round(0.3 * len(whole)), len(whole) - 1)
    other = lists_of(case.data(validation=0.3, partition_seed=SEED + 1))
    assert other["validation"] != now["validation"]


@every_kind
def test_newcomers_are_of_the_same_partition_and_do_not_train(case: Case):
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


@every_kind
def test_is_rebuilt_from_its_configuration(case: Case):
    more = {"validation": 0.3, "newcomers": 0.5}
    description = {"data": configured(case.with_options(**more))}
    if case.kind.only_python:
        with pytest.raises(InputError, match="made in Python"):
            load_run(case.finished)
        return
    task = {"class_path": "Classification", "init_args": {"net": "MCLR", "optimizer": "torch.optim.SGD"}}
    experiment = load_experiment(description | {"task": task, "algorithm": "FedAvg"})
    assert facts_of(experiment.data.federated(SEED)) == facts_of(case.data(**more))


@every_kind
def test_a_run_ends_with_finite_scores(case: Case):
    rows = read_table(case.finished / "metrics.csv")
    assert [row["round"] for row in rows] == [1, 2]
    for row in rows:
        assert np.isfinite([row["train/loss"], row["test/loss"]]).all()
        assert row["clients/evaluated"] == case.kind.clients


@every_kind
def test_a_saved_partition_gives_the_same_clients(case: Case):
    data = case.data(SEED + 1, partition_file=case.finished)
    with np.load(case.finished / "partition.npz") as saved:
        assert saved["true_cluster"].tolist() == data.true_clusters.tolist()  # the name in all files of a run
    assert facts_of(data) == facts_of(case.data(validation=0.2))


@pytest.mark.parametrize("case", [name for name, kind in KINDS.items() if kind.cached], indirect=True)
def test_a_second_loading_reads_the_cache_and_not_the_source(case: Case, monkeypatch: pytest.MonkeyPatch):
    expected = facts_of(case.data())

    for module in ("datasets", "pyarrow", "PIL", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, module, None)  # importing it fails
    assert facts_of(case.data()) == expected
    monkeypatch.setenv("LITCFL_CACHE", "off")
    with pytest.raises(ImportError):
        case.data()


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
        [Rotations([0, 90, 540, -90])],
        [(lambda image, k=k: np.rot90(image, k, (-2, -1)), KEPT) for k in range(4)],
    ),
    "free rotations": (
        [FreeRotations([0, 30, 130, -10])],
        [(same, KEPT), (turned(30), KEPT), (turned(130), KEPT), (turned(-10), KEPT)],
    ),
    "blurs": ([Blurs([0, 0.7])], [(same, KEPT), (blurred, KEPT)]),
    "brightnesses": ([Brightnesses([1, 0.5])], [(same, KEPT), (by(0.5, 0.5, 0.5), KEPT)]),
    "colours": ([Colours([[1, 0, 0.5], [0.25, 1, 0]])], [(by(1, 0, 0.5), KEPT), (by(0.25, 1, 0), KEPT)]),
    "label shifts": ([LabelShifts([0, 1, -2])], [(same, KEPT), (same, SHIFTED), (same, [2, 3, 0, 1])]),
    # a label takes the name of the next one, and the others stay
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
