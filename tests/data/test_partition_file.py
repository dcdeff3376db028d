import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.data.partition_file import load_partition, partition_hash, save_partition
from lit_cfl.datamodules import Blurs, Digits
from lit_cfl.datamodules.partition import IID
from lit_cfl.datamodules.skew import LabelShifts
from lit_cfl.errors import InputError

MODULE = Digits(num_clients=7, validation=0.25, newcomers=0.3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "p.npz"


@pytest.fixture
def saved(path: Path) -> FederatedData:
    data = MODULE.federated(3)
    save_partition(path, data)
    return data


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


def test_loaded_partition_is_the_one_saved_whatever_the_other_options_say(path: Path, saved: FederatedData):
    other = Digits(num_clients=20, validation=0.0, newcomers=0.0, partition_file=path, partition_seed=5).federated(99)
    for again in (load_partition(path, MODULE.examples), other):
        for name in ("train", "validation", "test"):
            one, same = saved.split(name), again.split(name)
            assert torch.equal(one.entries, same.entries)
            assert torch.equal(one.sizes, same.sizes)
        assert torch.equal(saved.newcomers, again.newcomers)
        assert (again.true_clusters.tolist(), again.skew) == (saved.true_clusters.tolist(), saved.skew)
        assert (partition_hash(again), again.partition_seed) == (partition_hash(saved), 3)
    assert min(saved.validation.sizes.tolist()) > 0
    assert arrays_of(path)["true_cluster"].tolist() == saved.true_clusters.tolist()  # the name in all files of a run


@pytest.mark.parametrize("names", [("Åse", "0042", "a_b", "", "écrivain", "w5", "w6"), ()])
def test_file_keeps_unusual_names_and_their_absence(path: Path, names: tuple[str, ...]):
    data = replace(MODULE.federated(3), names=names)
    save_partition(path, data)
    assert load_partition(path, MODULE.examples).names == names
    assert (partition_hash(data) == partition_hash(MODULE.federated(3))) == (not names)


def test_hash_distinguishes_partitions():
    others = [Digits(7, validation=0.25), Digits(7, rotations=[0, 90, 270, 180])]
    others += [Digits(partition=IID(7, 0.2), skew=[Blurs([sigma])]) for sigma in (1.0, 2.0)]
    hashes = {partition_hash(data) for data in (MODULE.federated(1), *(module.federated(0) for module in others))}
    assert len(hashes | {partition_hash(MODULE.federated(0))}) == 6
    assert partition_hash(MODULE.federated(0)) == partition_hash(MODULE.federated(0))


def test_clients_that_share_test_data_share_them_in_the_file(path: Path):
    examples = Examples(torch.arange(6.0)[:, None], torch.tensor([0, 1] * 3), 2)
    own = ClientIndex.from_lists([torch.tensor([0]), torch.tensor([1]), torch.tensor([2])])
    shared = ClientIndex(torch.tensor([3, 4, 5]), torch.zeros(3, dtype=torch.int64), torch.full((3,), 3))
    data = FederatedData(examples, own, ClientIndex.empty(3), shared, torch.zeros(3, dtype=torch.int64))
    save_partition(path, data)
    again = load_partition(path, examples).test
    assert ([one.tolist() for one in again], len(again.values)) == ([[3, 4, 5]] * 3, 3)


@pytest.mark.parametrize(
    ("examples", "quoted"),
    [
        (Digits(rotations=[0, 90]).examples, "another skew or shift"),
        (Digits(partition=IID(7), skew=[LabelShifts()]).examples, "another skew or shift"),
        (replace(MODULE.examples, inputs=MODULE.examples.inputs.flip(0)), "other data"),
    ],
)
def test_partition_of_other_data_is_refused(path: Path, saved: FederatedData, examples: Examples, quoted: str):
    with pytest.raises(InputError, match=quoted):
        load_partition(path, examples)


@pytest.mark.parametrize("change", ["true_cluster", "about", "test_sizes"])
def test_changed_file_is_refused(path: Path, saved: FederatedData, change: str):
    arrays = arrays_of(path)
    about = json.dumps(json.loads(str(arrays["about"])) | {"format": 99})
    new = {"true_cluster": arrays["true_cluster"][::-1], "about": np.array(about), "test_sizes": None}[change]
    np.savez(path, **{name: array for name, array in (arrays | {change: new}).items() if array is not None})
    quoted = {"true_cluster": "its own hash", "about": "format 99", "test_sizes": "test_sizes"}[change]
    with pytest.raises(InputError, match=quoted):
        load_partition(path, MODULE.examples)
