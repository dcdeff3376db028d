"""Tests that names of clients, clusters and labels stay as they are written, in all ways in which they come in."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Value
from hub import write

from lit_cfl.data import FederatedData
from lit_cfl.datamodules import ArrayData, HFDataset, Natural

pytestmark = pytest.mark.usefixtures("caches")

NUMBERS = ["1e3", "1000", "1000.0", " 1000", "007", "7", "+7", "7.0", "07", "-0", "0", "9007199254740993"]
SPELLED = [*NUMBERS, "1_000", "0x7", "A", "a", "á", "á "]
ROWS = np.arange(40.0)


def drawn(seed: int) -> list[str]:
    """Returns the names of 40 examples: numbers, words among them, or drawn words of the letters of numbers."""
    rng = np.random.default_rng(seed)
    random = ["".join(rng.choice(list("01.e+-_ a"), rng.integers(1, 5))) for _ in range(40)]
    known = (NUMBERS, SPELLED, [word for word in random if word.strip()])[min(seed, 2)]
    return [known[number % len(known)] for number in rng.permutation(40)]


def text(folder: Path, names: list[str], separator: str) -> FederatedData:
    """Reads names from a text file, as names of clients and of clusters, and as labels."""
    with (folder / "own.csv").open("w", newline="") as file:
        rows = [[number, name, name, name] for number, name in enumerate(names)]
        csv.writer(file, delimiter=separator).writerows([["x", "client", "cluster", "y"], *rows])
    return ArrayData(source=folder / "own.csv", test=0).federated(0)


def arrays(names: Any) -> FederatedData:
    return ArrayData(ROWS[:, None], names, names, names, test=0).federated(0)


def parquet(folder: Path, names: list[str]) -> FederatedData:
    table = pd.DataFrame({"x": ROWS, "client": names, "cluster": names, "y": names})
    table.to_parquet(folder / "own.parquet")
    return ArrayData(source=folder / "own.parquet", test=0).federated(0)


def npz(folder: Path, names: list[str]) -> FederatedData:
    np.savez(folder / "own.npz", x=ROWS[:, None], y=names, client=names, cluster=names)
    return ArrayData(source=folder / "own.npz", test=0).federated(0)


def folder_of_npz(folder: Path, names: list[str]) -> FederatedData:
    (folder / "clients").mkdir()
    for name in set(names):
        np.savez(folder / "clients" / f"{name}.npz", x=ROWS[np.array(names) == name, None])
    return ArrayData(source=folder / "clients", test=0).federated(0)


def hub(folder: Path, names: list[str], is_text: bool) -> FederatedData:
    columns = {"x": ROWS.tolist(), "who": names, "y": names}
    if is_text:
        (folder / "hub").mkdir()
        pd.DataFrame(columns).to_csv(folder / "hub" / "train.csv", index=False)
    else:
        write(folder / "hub", {"x": Value("float64"), "who": Value("string"), "y": Value("string")}, train=columns)
    return HFDataset(str(folder / "hub"), "x", "y", "who", partition=Natural(test=0.0)).federated(0)


WAYS = {
    "commas": lambda folder, names: text(folder, names, ","),
    "semicolons": lambda folder, names: text(folder, names, ";"),
    "parquet": parquet,
    "npz": npz,
    "folder of npz": folder_of_npz,
    "list": lambda folder, names: arrays(names),
    "array": lambda folder, names: arrays(np.array(names)),
    "bytes": lambda folder, names: arrays([name.encode() for name in names]),
    "pandas": lambda folder, names: arrays(pd.Series(names)),
    "categories": lambda folder, names: arrays(pd.Series(names, dtype="category")),
    "arrow": lambda folder, names: arrays(pd.Series(names, dtype="string[pyarrow]")),
    "Hub": lambda folder, names: hub(folder, names, is_text=False),
    "Hub, text": lambda folder, names: hub(folder, names, is_text=True),
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


@pytest.mark.parametrize("way", WAYS)
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
