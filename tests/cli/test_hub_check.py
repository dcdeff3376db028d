"""`lit-cfl data --check-hub`, on a Hub that is played by this file; there is no network here."""

from types import SimpleNamespace

import datasets
import huggingface_hub
import pytest

from lit_cfl import datamodules
from lit_cfl.cli.main import main
from lit_cfl.config import catalogue
from lit_cfl.datamodules.hub import EXPECTED
from lit_cfl.errors import InputError

SHA = "0123456789abcdef0123456789abcdef01234567"


def played(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """A Hub that holds what is expected, but for `changes`: rows of MNIST's train split, a column of CIFAR10."""
    by_source = {expected.source: expected for expected in EXPECTED.values()}

    def builder(source: str, revision: str | None) -> SimpleNamespace:
        rows = dict(by_source[source].rows)
        columns = dict.fromkeys(by_source[source].columns, "a feature")
        if source == "ylecun/mnist":
            rows["train"] = changes.get("rows", rows["train"])
        if source == "uoft-cs/cifar10" and "column" in changes:
            columns = {changes["column"]: "a feature", "label": "a feature"}
        splits = {name: SimpleNamespace(num_examples=count) for name, count in rows.items()}
        return SimpleNamespace(info=SimpleNamespace(features=columns, splits=splits))

    info = SimpleNamespace(sha=SHA)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda self, source, revision, timeout: info)
    monkeypatch.setattr(datasets, "load_dataset_builder", builder)


def test_hub_as_expected(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    played(monkeypatch)
    assert main(["data", "--check-hub"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(EXPECTED)
    assert lines[0] == f"MNIST          ylecun/mnist {SHA}: as expected"


def test_what_differs_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    played(monkeypatch, rows=59_999, column="image")
    assert main(["data", "--check-hub"]) == 1
    out = capsys.readouterr().out
    assert "split 'train' has 59,999 rows, 60,000 are expected" in out
    assert "no column 'img' (it has image, label)" in out
    assert out.count("as expected") == len(EXPECTED) - 2


def test_no_network_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def unreachable(self: object, source: str, revision: str | None, timeout: float) -> None:
        raise ConnectionError("no route to host\nand more")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    assert main(["data", "--check-hub"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "lit-cfl: error: the Hugging Face Hub cannot be reached from here (ConnectionError: no route to host); "
        "run lit-cfl data --check-hub where there is a network\n"
    )


def test_expected_are_the_data_modules_of_the_hub_with_their_own_ids():
    ids = {}
    for name in catalogue.names("data"):
        try:
            ids[name] = getattr(datamodules, name)().source
        except (TypeError, AttributeError, InputError):  # it has no data set of its own
            continue
    assert {name: source for name, source in ids.items() if source} == {n: e.source for n, e in EXPECTED.items()}
