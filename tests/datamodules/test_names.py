"""Tests that names of clients, clusters and labels stay as they are written, in all ways in which they come in."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Value
from hub import fresh_caches, write
from PIL import Image

from lit_cfl.data import ClientIndex, Division, Examples, FederatedData
from lit_cfl.data.partition_file import save_partition
from lit_cfl.datamodules import ArrayData, FederatedDataModule, HFDataset
from lit_cfl.datamodules.partition.natural import Natural

NUMBERS = ["1e3", "1000", "1000.0", " 1000", "007", "7", "+7", "7.0", "07", "-0", "0"]
SPELLED = [*NUMBERS, "1_000", "0x7", "A", "a", "á", "á "]


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_caches(tmp_path / "caches", monkeypatch)


def drawn(seed: int) -> list[str]:
    """Returns the names of 40 examples: numbers, words among them, or drawn words of the letters of numbers."""
    rng = np.random.default_rng(seed)
    random = ["".join(rng.choice(list("01.e+-_ a"), rng.integers(1, 5))) for _ in range(40)]
    known = (NUMBERS, SPELLED, [word for word in random if word.strip()])[min(seed, 2)]
    return [known[number % len(known)] for number in rng.permutation(40)]


class Own(FederatedDataModule):
    """A user's data module, which names its clients."""

    def __init__(self, names: Sequence[Any], **options: Any) -> None:
        super().__init__(**options)
        self.given = names

    def load(self) -> Examples:
        return Examples(torch.arange(40.0)[:, None], torch.arange(40) % 2, 2)

    def divide(self, examples: Examples, rng: np.random.Generator) -> Division:
        names = sorted(set(self.given), key=str)
        lists = [torch.tensor([k for k, name in enumerate(self.given) if name == one]) for one in names]
        train = ClientIndex.from_lists(lists)
        return Division(train, ClientIndex.empty(len(lists)), torch.full((len(lists),), -1), names=tuple(names))


def text(folder: Path, names: list[str], separator: str) -> FederatedData:
    """Reads names from a text file, as names of clients and of clusters, and as labels."""
    with (folder / "own.csv").open("w", newline="") as file:
        rows = [[number, name, name, name] for number, name in enumerate(names)]
        csv.writer(file, delimiter=separator).writerows([["x", "client", "cluster", "y"], *rows])
    return ArrayData(source=folder / "own.csv", test=0).federated(0)


def arrays(names: Any) -> FederatedData:
    return ArrayData(np.arange(40.0)[:, None], names, names, names, test=0).federated(0)


def parquet(folder: Path, names: list[str]) -> FederatedData:
    pd.DataFrame({"x": np.arange(40.0), "client": names, "cluster": names, "y": names}).to_parquet(
        folder / "own.parquet"
    )
    return ArrayData(source=folder / "own.parquet", test=0).federated(0)


def npz(folder: Path, names: list[str]) -> FederatedData:
    np.savez(folder / "own.npz", x=np.arange(40.0)[:, None], y=names, client=names, cluster=names)
    return ArrayData(source=folder / "own.npz", test=0).federated(0)


def folder_of_npz(folder: Path, names: list[str]) -> FederatedData:
    (folder / "clients").mkdir()
    for name in set(names):
        mine = [float(number) for number, other in enumerate(names) if other == name]
        np.savez(folder / "clients" / f"{name}.npz", x=np.array(mine)[:, None])
    return ArrayData(source=folder / "clients", test=0).federated(0)


def hub(folder: Path, names: list[str], is_text: bool) -> FederatedData:
    columns = {"x": np.arange(40.0).tolist(), "who": names, "y": names}
    if is_text:
        (folder / "hub").mkdir()
        pd.DataFrame(columns).to_csv(folder / "hub" / "train.csv", index=False)
    else:
        write(folder / "hub", {"x": Value("float64"), "who": Value("string"), "y": Value("string")}, train=columns)
    return HFDataset(str(folder / "hub"), "x", "y", "who", partition=Natural(test=0.0)).federated(0)


def photos(folder: Path, names: list[str]) -> FederatedData:
    (folder / "photos").mkdir()
    for row in range(40):
        Image.fromarray(np.full((2, 2), row, np.uint8)).save(folder / "photos" / f"{row:02}.png")
    table = pd.DataFrame({"file_name": [f"{row:02}.png" for row in range(40)], "who": names, "y": names})
    table.to_csv(folder / "photos" / "metadata.csv", index=False)
    return HFDataset(str(folder / "photos"), "image", "y", "who", partition=Natural(test=0.0)).federated(0)


def partition_file(folder: Path, names: list[str]) -> FederatedData:
    save_partition(folder / "partition.npz", Own(names).federated(0))
    return Own(names, partition_file=folder / "partition.npz").federated(0)


WAYS: dict[str, Callable[[Path, list[str]], FederatedData]] = {
    "commas": lambda folder, names: text(folder, names, ","),
    "semicolons": lambda folder, names: text(folder, names, ";"),
    "tabs": lambda folder, names: text(folder, names, "\t"),
    "parquet": parquet,
    "npz": npz,
    "folder of npz": folder_of_npz,
    "list": lambda folder, names: arrays(names),
    "array": lambda folder, names: arrays(np.array(names)),
    "objects": lambda folder, names: arrays(np.array(names, object)),
    "bytes": lambda folder, names: arrays([name.encode() for name in names]),
    "pandas": lambda folder, names: arrays(pd.Series(names)),
    "categories": lambda folder, names: arrays(pd.Series(names, dtype="category")),
    "Hub": lambda folder, names: hub(folder, names, is_text=False),
    "Hub, text": lambda folder, names: hub(folder, names, is_text=True),
    "Hub, photos": photos,
    "own data module": lambda folder, names: Own(names).federated(0),
    "partition file": partition_file,
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", WAYS)
def test_names_stay_as_they_are_written(way: str, seed: int, tmp_path: Path):
    names = drawn(seed)
    data = WAYS[way](tmp_path, names)
    found = {}  # the client of each example
    for client, numbers in enumerate(data.train):
        inputs = data.examples.inputs[numbers].flatten(1)[:, 0].long().tolist()
        found |= dict.fromkeys(inputs, data.names[client])
    assert [found[number] for number in range(40)] == names
    assert sorted(data.names) == sorted(set(names))
    if len(data.true_clusters) and (data.true_clusters >= 0).all():
        assert len(data.true_clusters.unique()) == len(data.names)
    if data.examples.label_names:
        inputs = data.examples.inputs.flatten(1)[:, 0].long().tolist()
        labels = dict(zip(inputs, data.examples.labels.tolist(), strict=True))
        assert [data.examples.label_names[labels[number]] for number in range(40)] == names


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("own data module", "partition file")])
def test_names_that_are_numbers_have_the_order_of_their_values(way: str, tmp_path: Path):
    names = [["10", "9", "1e1", "-3.5", "007", "7"][number % 6] for number in range(40)]
    assert WAYS[way](tmp_path, names).names == ("-3.5", "007", "7", "9", "10", "1e1")


def test_a_number_in_a_column_of_numbers_is_one_name(tmp_path: Path):
    numbers = [float(number % 3) for number in range(40)]
    expected = ("0", "1", "2")
    pd.DataFrame({"x": numbers, "client": numbers, "y": 0}).to_parquet(tmp_path / "own.parquet")
    assert ArrayData(source=tmp_path / "own.parquet").pool().names == expected
    assert ArrayData(np.zeros((40, 1)), client=numbers).pool().names == expected
    assert ArrayData(np.zeros((40, 1)), client=torch.tensor(numbers).long()).pool().names == expected
