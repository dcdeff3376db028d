"""Tests partition files: saved with a run, loaded, hashed, and refused for other data."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.data.partition_file import load_partition, partition_hash, save_partition
from lit_cfl.datamodules import ArrayData, Digits
from lit_cfl.datamodules.partition import IID
from lit_cfl.datamodules.skew import LabelShifts, NoiseLevels
from lit_cfl.errors import InputError

MODULE = Digits(num_clients=7, validation=0.25, newcomers=0.3)


def saved(path: Path, seed: int = 3) -> FederatedData:
    data = MODULE.federated(seed)
    save_partition(path, data)
    return data


def test_loaded_partition_is_the_one_saved(tmp_path: Path):
    data = saved(tmp_path / "p.npz")
    again = load_partition(tmp_path / "p.npz", MODULE.examples)
    for name in ("train", "validation", "test"):
        one, other = data.split(name), again.split(name)
        assert torch.equal(one.entries, other.entries)
        assert torch.equal(one.sizes, other.sizes)
    assert torch.equal(data.true_clusters, again.true_clusters)
    assert torch.equal(data.newcomers, again.newcomers)
    assert (again.skew, partition_hash(again)) == (data.skew, partition_hash(data))


def test_file_keeps_the_names_of_clients_and_clusters(tmp_path: Path):
    own = np.arange(12) // 2
    module = ArrayData(np.zeros((12, 2)), own % 2, client=own + 3, cluster=np.array(["north", "south"])[own % 2])
    save_partition(tmp_path / "p.npz", module.federated(0))
    again = load_partition(tmp_path / "p.npz", module.examples)
    assert (again.names, again.cluster_names) == (("3", "4", "5", "6", "7", "8"), ("north", "south"))


@pytest.mark.parametrize(("partition_seed", "expected"), [(None, 3), (0, 0), (11, 11)])
def test_file_says_under_which_seed_the_partition_was_drawn(tmp_path: Path, partition_seed: int | None, expected: int):
    data = Digits(num_clients=7, partition_seed=partition_seed).federated(3)
    save_partition(tmp_path / "p.npz", data)
    with np.load(tmp_path / "p.npz") as file:
        assert json.loads(str(file["about"]))["seed"] == expected
    again = Digits(partition_file=tmp_path / "p.npz", partition_seed=5).federated(99)
    assert (data.partition_seed, again.partition_seed) == (expected, expected)


def test_file_of_a_partition_without_a_seed_has_none(tmp_path: Path):
    save_partition(tmp_path / "p.npz", replace(MODULE.federated(0), partition_seed=None))
    assert load_partition(tmp_path / "p.npz", MODULE.examples).partition_seed is None


def test_file_brings_its_own_validation_part_and_newcomers(tmp_path: Path):
    data = saved(tmp_path / "p.npz")
    again = Digits(validation=0.0, newcomers=0.0, partition_file=tmp_path / "p.npz").federated(0)
    assert again.validation.sizes.tolist() == data.validation.sizes.tolist() != [0] * 7
    assert torch.equal(again.newcomers, data.newcomers)


def test_file_keeps_the_names_of_the_clients(tmp_path: Path):
    names = ("Åse", "0042", "a_b", "", "écrivain", "w5", "w6")
    data = replace(MODULE.federated(3), names=names)
    save_partition(tmp_path / "p.npz", data)
    assert load_partition(tmp_path / "p.npz", MODULE.examples).names == names
    with np.load(tmp_path / "p.npz") as file:
        assert file["names"].tolist() == list(names)
    assert partition_hash(data) != partition_hash(MODULE.federated(3))
    save_partition(tmp_path / "p.npz", MODULE.federated(3))
    assert load_partition(tmp_path / "p.npz", MODULE.examples).names == ()


def test_names_of_natural_clients_go_from_the_source_to_the_file(tmp_path: Path):
    client = np.array(["ulm", "bonn", "ulm", "kiel"] * 5)
    module = ArrayData(np.zeros((20, 3)), np.arange(20) % 2, client, skew=[NoiseLevels([0, 1])], copies=True)
    save_partition(tmp_path / "p.npz", module.federated(0))
    assert load_partition(tmp_path / "p.npz", module.examples).names == ("bonn", "kiel", "ulm") * 2


def test_data_module_takes_the_partition_of_a_file(tmp_path: Path):
    data = saved(tmp_path / "p.npz")
    other = Digits(num_clients=20, partition_file=tmp_path / "p.npz").federated(99)
    assert partition_hash(other) == partition_hash(data)


def test_hash_distinguishes_partitions():
    hashes = {
        partition_hash(module.federated(seed))
        for seed, module in [
            (0, MODULE),
            (1, MODULE),
            (0, Digits(7, validation=0.25)),
            (0, Digits(7, rotations=[0, 90, 270, 180])),
        ]
    }
    assert len(hashes) == 4
    assert partition_hash(MODULE.federated(0)) in hashes


def test_clients_that_share_test_data_share_them_in_the_file(tmp_path: Path):
    examples = Examples(torch.arange(6.0)[:, None], torch.tensor([0, 1] * 3), 2)
    own = ClientIndex.from_lists([torch.tensor([0]), torch.tensor([1]), torch.tensor([2])])
    shared = ClientIndex(torch.tensor([3, 4, 5]), torch.zeros(3, dtype=torch.int64), torch.full((3,), 3))
    data = FederatedData(examples, own, ClientIndex.empty(3), shared, torch.zeros(3, dtype=torch.int64))
    save_partition(tmp_path / "p.npz", data)
    again = load_partition(tmp_path / "p.npz", examples).test
    assert ([one.tolist() for one in again], len(again.values)) == ([[3, 4, 5]] * 3, 3)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Digits(rotations=[0, 90]), "another skew or shift"),
        (Digits(partition=IID(7), skew=[LabelShifts()]), "another skew or shift"),
    ],
)
def test_partition_of_another_skew_is_refused(tmp_path: Path, module: Digits, message: str):
    saved(tmp_path / "p.npz")
    with pytest.raises(InputError, match=message):
        load_partition(tmp_path / "p.npz", module.examples)


def test_partition_of_other_data_is_refused(tmp_path: Path):
    saved(tmp_path / "p.npz")
    other = Examples(torch.rand(1797, 1, 8, 8), torch.arange(1797) % 10, 10, views=MODULE.examples.views)
    with pytest.raises(InputError, match="made for other data"):
        load_partition(tmp_path / "p.npz", other)


def test_missing_file_says_where_runs_save_theirs(tmp_path: Path):
    with pytest.raises(InputError, match=r"RUN_DIR/partition\.npz"):
        load_partition(tmp_path / "none.npz", MODULE.examples)


@pytest.mark.parametrize("size", [0, 10, 300])
def test_truncated_file_is_refused(tmp_path: Path, size: int):
    saved(tmp_path / "p.npz")
    (tmp_path / "p.npz").write_bytes((tmp_path / "p.npz").read_bytes()[:size])
    with pytest.raises(InputError, match=r"is damaged, is not a \.npz file"):
        load_partition(tmp_path / "p.npz", MODULE.examples)


def changed(path: Path, **arrays: np.ndarray) -> None:
    with np.load(path) as file:
        content = dict(file)
    np.savez(path, **(content | arrays))


def test_changed_file_does_not_match_its_hash(tmp_path: Path):
    data = saved(tmp_path / "p.npz")
    changed(tmp_path / "p.npz", true_cluster=data.true_clusters.flip(0).numpy())
    with pytest.raises(InputError, match="does not match its own hash"):
        load_partition(tmp_path / "p.npz", MODULE.examples)


def test_true_clusters_have_the_name_of_all_files(tmp_path: Path):
    data = saved(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as file:
        assert file["true_cluster"].tolist() == data.true_clusters.tolist()
        assert "true_clusters" not in file


def test_file_of_another_format_is_refused(tmp_path: Path):
    saved(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as file:
        about = json.loads(str(file["about"]))
    changed(tmp_path / "p.npz", about=np.array(json.dumps(about | {"format": 99})))
    with pytest.raises(InputError, match="has format 99"):
        load_partition(tmp_path / "p.npz", MODULE.examples)


def test_file_without_a_list_is_refused(tmp_path: Path):
    saved(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as file:
        content = {name: file[name] for name in file.files if name != "test_sizes"}
    np.savez(tmp_path / "p.npz", **content)
    with pytest.raises(InputError, match="test_sizes"):
        load_partition(tmp_path / "p.npz", MODULE.examples)
