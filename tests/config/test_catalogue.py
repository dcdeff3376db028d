import importlib
import inspect
import re
from abc import ABC
from pathlib import Path

import pytest
from lightning import LightningModule

from lit_cfl.algorithms import Algorithm
from lit_cfl.cli.main import main
from lit_cfl.config import catalogue
from lit_cfl.data.shift import Shift
from lit_cfl.datamodules import FederatedDataModule
from lit_cfl.datamodules.partition import Partition
from lit_cfl.datamodules.skew import Skew
from lit_cfl.nets import Net

PACKAGES = {
    "algorithms": ("lit_cfl.algorithms", Algorithm),
    "data": ("lit_cfl.datamodules", FederatedDataModule),
    "partitions": ("lit_cfl.datamodules.partition", Partition),
    "skews": ("lit_cfl.datamodules", Skew),
    "shifts": ("lit_cfl.datamodules.shift", Shift),
    "nets": ("lit_cfl.nets", Net),
    "tasks": ("lit_cfl.tasks", LightningModule),
}


def is_one(found: object, base: type) -> bool:
    if not inspect.isclass(found) or not issubclass(found, base) or found is base:
        return False
    return not inspect.isabstract(found) and ABC not in found.__bases__


@pytest.mark.parametrize("kind", PACKAGES)
def test_names_are_those_that_importing_gives(kind: str):
    package, base = PACKAGES[kind]
    module = importlib.import_module(package)
    assert catalogue.names(kind) == sorted(name for name in module.__all__ if is_one(getattr(module, name), base))


@pytest.mark.parametrize("kind", PACKAGES)
def test_an_entry_has_the_paper_of_its_class_and_a_whole_sentence(kind: str):
    module = importlib.import_module(PACKAGES[kind][0])
    papers = {entry.name: entry.paper for entry in catalogue.entries(kind)}
    assert papers == {name: getattr(getattr(module, name), "paper", "") for name in papers}
    if kind == "algorithms":  # FedGrouProx has FedGroup's paper
        assert [name for name, paper in papers.items() if not re.search(r"\b20\d\d\b", paper)] == []
        assert papers["FedGrouProx"] == papers["FedGroup"] != papers["FlexCFL"]
    assert [entry.line for entry in catalogue.entries(kind) if not entry.line.endswith(".")] == []


@pytest.mark.parametrize(
    "text", ["net:\n  class_path: MLP  # as in the paper\n", "net: {class_path: MLP, init_args: {hidden: 3}}\n"]
)
def test_configuration_of_a_class_is_found_however_it_names_it(text: str, tmp_path: Path, monkeypatch):
    config = tmp_path / "mine.yaml"
    config.write_text(text)
    monkeypatch.setattr(catalogue, "configs", lambda: {"all": config, "mlp/mine": config})
    found = {entry.name: entry.config for entry in catalogue.entries("nets")}
    assert {name: config for name, config in found.items() if config} == {"MLP": "mlp/mine"}


def test_list_shows_every_kind_or_one(capsys: pytest.CaptureFixture[str]):
    assert main(["list"]) == 0
    whole = capsys.readouterr().out
    assert [kind for kind in catalogue.KINDS if f"{kind}:\n" not in whole] == []
    assert main(["list", "nets"]) == 0
    nets = capsys.readouterr().out
    for name in ("FedAvg", "Digits", "MCLR", "Classification", "quickstart"):
        assert (f"  {name} " in whole, f"  {name} " in nets) == (True, name == "MCLR")
