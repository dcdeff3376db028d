"""Tests the files that a run writes: checkpoints, also with a model per client, its directory, and its lock."""

import gc
import json
import os
import pickle
import subprocess
import threading
import time
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO, ClassVar
from weakref import ReferenceType, ref

import numpy as np
import pytest
import torch
import yaml
from digits_experiment import digits
from filelock import FileLock
from torch import Tensor

from lit_cfl.algorithms import Local
from lit_cfl.datamodules import Digits
from lit_cfl.errors import InputError
from lit_cfl.experiment import CheckpointPlan
from lit_cfl.metric_names import CLIENTS, CLUSTERS, METRICS
from lit_cfl.runs.run import run
from lit_cfl.runs.run_directory import RunDirectory, default_run_directory
from lit_cfl.storage import checkpoint, csv_log
from lit_cfl.storage.atomic_writes import write_json
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.storage.csv_log import CsvLog, read_table
from lit_cfl.storage.digests import SUMS, find_changed
from lit_cfl.storage.lock import lock_directory


@dataclass(frozen=True, eq=False)
class SomeState:
    models: Tensor
    personal: dict[int, Tensor]
    splits: list[Tensor]
    phase: str
    count: int
    gap: float


def new_directory(path: Path, config: dict[str, object] | None = None, columns: tuple[str, ...] = ()) -> RunDirectory:
    path.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(path, columns)
    directory.create(config or {})
    return directory


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("before", [{}, {"file": b"something old and long"}])
def test_a_write_replaces_a_whole_file_or_nothing(before: dict[str, bytes], error: type[BaseException], tmp_path: Path):
    def write_half(file: IO[bytes]) -> None:
        file.write(b"half of the new conte")
        raise error

    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error):
        checkpoint.write_atomically(tmp_path / "file", write_half)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    checkpoint.write_atomically(tmp_path / "file", lambda file: file.write(b"new"))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"file": b"new"}


def test_state_survives_saving(tmp_path: Path):
    models = torch.tensor([[0.1, 2.0], [float("nan"), -0.0]], dtype=torch.float64)
    personal = {7: torch.tensor([1.5]), 2: torch.empty(0)}
    before = SomeState(models, personal, [torch.tensor([3, 1]), torch.tensor([True])], "warm", 4, 1 / 3)
    checkpoint.Checkpoint(tmp_path).save({"round": 3}, checkpoint.state_to_dict(before))
    content = checkpoint.Checkpoint(tmp_path).load()
    after = checkpoint.state_from_dict(SomeState, content["state"])
    assert content["round"] == 3
    torch.testing.assert_close(after.models, before.models, rtol=0, atol=0, equal_nan=True)
    assert [(key, value.tolist()) for key, value in after.personal.items()] == [(7, [1.5]), (2, [])]
    assert [value.tolist() for value in after.splits] == [[3, 1], [True]]
    assert (after.phase, after.count, after.gap) == ("warm", 4, 1 / 3)


def test_views_are_saved_without_the_rest_of_their_storage_as_copies(tmp_path: Path):
    whole = torch.zeros(1000, 1000)  # a tensor of 4 MB
    values = checkpoint.state_to_dict(SomeState(whole[3:4], {5: whole[0]}, [whole[:, 2]], "cold", 0, 0.0))
    checkpoint.Checkpoint(tmp_path).save({"round": 0}, values)
    assert (tmp_path / "checkpoint.pt").stat().st_size < 20_000
    values["models"].fill_(9)
    assert not whole.any()


def test_file_with_code_is_not_loaded(tmp_path: Path):
    ran = tmp_path / "ran"

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return os.mkdir, (str(ran),)

    for save in (torch.save, lambda content, path: path.write_bytes(pickle.dumps(content, protocol=2))):
        save({"format": 1, "state": Trap()}, tmp_path / "checkpoint.pt")
        with pytest.raises(InputError, match=r"checkpoint\.pt cannot be read"):
            checkpoint.Checkpoint(tmp_path).load()
    assert not ran.exists()


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path):
    checkpoint.Checkpoint(tmp_path).save({"round": 1}, {"count": 1})
    content = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    unnumbered = {name: value for name, value in content.items() if name != "format"}
    for other, named in ((content | {"format": 2}, "format 2"), (unnumbered, "is not a checkpoint")):
        torch.save(other, tmp_path / "checkpoint.pt")
        with pytest.raises(InputError, match=rf"checkpoint\.pt .*{named}"):
            checkpoint.Checkpoint(tmp_path).load()


def test_text_of_a_table_is_saved_once_and_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(csv_log, "_PART", 100)
    table, checkpoint_ = CsvLog(tmp_path / "a.csv", ("round", "x")), checkpoint.Checkpoint(tmp_path)
    table.start()
    for number in range(40):
        table.append([{"round": number, "x": "ä" * (number % 7)}])
        checkpoint_.save({"parts": {"a.csv": dict(table.parts)}, "tables": {"a.csv": bytes(table.rest)}}, {})
    text = (tmp_path / "a.csv").read_bytes()
    assert table.size == len(text)
    assert len(list((tmp_path / "rows").iterdir())) == len(text) // 100  # each part was written once
    saved = checkpoint.Checkpoint(tmp_path).load()
    (tmp_path / "a.csv").write_text("whatever a kill or an editor left")
    again = CsvLog(tmp_path / "a.csv", ("round", "x"))
    again.restore(saved["parts"]["a.csv"], saved["tables"]["a.csv"])
    assert (tmp_path / "a.csv").read_bytes() == text
    again.append([{"round": 40}])
    assert (tmp_path / "a.csv").read_bytes() == text + b"40,\n"
    assert again.size == len(text) + 4


def test_new_directory_says_what_the_run_is(tmp_path: Path):
    path = tmp_path / "deep" / "run"
    new_directory(path, {"name": "mine", "seeds": [1, 2]}, ("cfl/gap",))
    assert names(path) == ["clusters.csv", "config.yaml", "environment.json", "metrics.csv"]
    assert yaml.safe_load((path / "config.yaml").read_text()) == {"format": 1, "name": "mine", "seeds": [1, 2]}
    assert json.loads((path / "environment.json").read_text())["packages"]["torch"]
    assert (path / "metrics.csv").read_text() == ",".join([*METRICS, "cfl/gap"]) + "\n"
    assert (path / "clusters.csv").read_text() == ",".join(CLUSTERS) + "\n"


def test_files_of_a_run_that_was_stopped_while_starting_are_replaced_and_others_are_not(tmp_path: Path):
    for _ in range(2):
        new_directory(tmp_path)
        (tmp_path / "config.yaml").unlink()  # the file that is written last
    (tmp_path / "checkpoint.pt").touch()
    with pytest.raises(InputError, match=r"no config\.yaml, but holds .*checkpoint\.pt"):
        new_directory(tmp_path)


def test_nan_and_missing_values_are_blank(tmp_path: Path):
    directory = new_directory(tmp_path)
    written = directory.add_row({"round": 0, "val/loss": float("nan"), "train/loss": np.float64("nan")})
    assert (tmp_path / "metrics.csv").read_text().split("\n")[1] == "0" + "," * (len(METRICS) - 1)
    assert written == {column: 0 if column == "round" else None for column in METRICS}
    assert read_table(tmp_path / "metrics.csv") == directory.rows == [written]


def test_numbers_are_read_back_exactly(tmp_path: Path):
    directory = new_directory(tmp_path, {}, ("score",))
    values = [1 / 3, 0.1 + 0.2, 1e-300, -2 / 7, 1.0, float("inf"), 5e-324, 123456789.123456789]
    for number, value in enumerate(values):
        directory.add_row({"round": number, "score": value})
    table = read_table(tmp_path / "metrics.csv")
    assert [row["score"] for row in table] == values
    assert (type(table[0]["round"]), type(table[4]["score"])) == (int, float)


def test_clients_are_written_whole_each_time_with_their_weights_and_names(tmp_path: Path):
    directory, row = new_directory(tmp_path), [4, None, 2, 9, 0, 0, None, None, 1]
    directory.write_clients([[[0, 1, 1, 5, 0, 2, 0.5, 0.1, 0]], [[1, 0, 0, 5, 0, 2, 1.0, 0.2, 0]]])
    directory.write_clients([[row]])
    assert read_table(tmp_path / "clients.csv") == [dict(zip(CLIENTS, row, strict=True))]
    directory.write_clients([[[*row, 0.5, "St. Mary, Köln"]]], models=1, named=True)
    assert (tmp_path / "clients.csv").read_text("utf-8").splitlines() == [
        "client,cluster,true_cluster,n_train,n_val,n_test,accuracy,loss,newcomer,weight_0,name",
        '4,,2,9,0,0,,,1,0.5,"St. Mary, Köln"',
    ]
    assert not [name for name in names(tmp_path) if name.endswith(".tmp")]


def test_digests_are_those_of_sha256sum_and_of_what_was_written(tmp_path: Path):
    directory = new_directory(tmp_path)
    directory.write_snapshot(1, {"a": np.arange(3)})
    directory.conclude([])
    checked = subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    tables = {f"{name}: OK" for name in ("clusters.csv", "config.yaml", "environment.json", "metrics.csv")}
    assert set(checked.stdout.splitlines()) == tables | {"snapshots/1.npz: OK"}
    assert find_changed(tmp_path) == []
    (tmp_path / "metrics.csv").write_text("edited")
    assert find_changed(tmp_path) == ["metrics.csv"]
    (tmp_path / "snapshots" / "1.npz").write_bytes(b"damaged before the end of the run")
    directory.conclude([])
    assert find_changed(tmp_path) == ["snapshots/1.npz"]
    whole = (tmp_path / SUMS).read_text()
    (tmp_path / SUMS).write_text(whole[: whole.index("metrics.csv")])
    assert find_changed(tmp_path) is None  # without its end, the file is not believed


def test_default_directory_is_one_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Noon:
        @staticmethod
        def now() -> datetime:
            return datetime(2026, 3, 9, 12)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lit_cfl.runs.run_directory.datetime", Noon)
    for expected in ("fed-20260309-120000", "fed-20260309-120000-2", "fed-20260309-120000-3"):
        path = default_run_directory("fed")
        assert path == Path("runs", expected)
        path.mkdir(parents=True)


def test_numbers_that_are_not_finite_are_null_in_json(tmp_path: Path):
    content = {"loss": float("nan"), "round": 3, "baseline": {"best": float("inf"), "round": 2}}
    write_json(tmp_path / "summary.json", content)
    expected = {"loss": None, "round": 3, "baseline": {"best": None, "round": 2}}
    assert json.loads((tmp_path / "summary.json").read_text()) == expected


def test_a_directory_that_is_held_for_a_moment_is_waited_for_and_else_refused(tmp_path: Path):
    other = FileLock(tmp_path / ".lock", thread_local=False)
    other.acquire()
    (tmp_path / ".lock").write_text("4711")
    with pytest.raises(InputError, match="in use by process 4711"), lock_directory(tmp_path):
        pass
    free = threading.Thread(target=lambda: (time.sleep(0.1), other.release()))
    free.start()
    with lock_directory(tmp_path):
        assert not other.is_locked
    free.join()


def test_checkpoint_that_is_saved_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = {client: torch.full((100,), float(client)) for client in range(3)}
    writer, reader = Checkpoint(tmp_path), Checkpoint(tmp_path)
    writer.save({"round": 0}, {"models": rows})
    load_file, saved_rounds, last = Checkpoint._load_file, 0, 1

    def meanwhile(checkpoint: Checkpoint, name: str) -> Tensor:
        nonlocal saved_rounds
        if saved_rounds < last:
            saved_rounds += 1
            writer.save({"round": saved_rounds}, {"models": {client: row + 1 for client, row in rows.items()}})
        return load_file(checkpoint, name)

    monkeypatch.setattr(Checkpoint, "_load_file", meanwhile)
    saved = reader.load()
    assert (saved["round"], saved["state"]["models"][2][0]) == (1, 3.0)
    last = 100
    with pytest.raises(InputError, match="was saved again each time it was read; wait until its run has ended"):
        reader.load()


def test_only_changed_models_are_written_and_a_file_that_is_mostly_superseded_is_replaced(tmp_path: Path):
    rows = {client: torch.full((100,), float(client)) for client in (3, 0, 4, 1, 2)}
    writer = Checkpoint(tmp_path)
    writer.save({"round": 0}, {"models": rows, "count": 3})
    ((first, (written, models)),) = files(tmp_path).items()
    assert len(models) == 5
    rows |= {1: torch.ones(100), 4: torch.zeros(100)}
    writer.save({"round": 1}, {"models": rows, "count": 4})
    second = files(tmp_path)
    assert second.pop(first)[0] == written  # three of its five models are still used
    assert [len(models) for _, models in second.values()] == [2]
    assert_saved(tmp_path, rows, count=4)
    again = Checkpoint(tmp_path)
    loaded = again.load()
    again.save({"round": 1}, loaded["state"])  # no model has changed
    assert {*files(tmp_path)} == {first, *second}
    rows = loaded["state"]["models"] | {0: torch.ones(100)}
    again.save({"round": 2}, {"models": rows})  # two of the first five are still used: they are written again
    third = files(tmp_path)
    assert first not in third
    assert {*second} < {*third}
    assert sorted(len(models) for _, models in third.values()) == [2, 3]
    assert_saved(tmp_path, rows)


def files(folder: Path) -> dict[str, tuple[int, Tensor]]:
    """Returns the modification time and the content of each file of model rows."""
    return {
        file.name: (file.stat().st_mtime_ns, torch.load(file, weights_only=True)[file.name])
        for file in sorted((folder / "rows").iterdir())
    }


def assert_saved(folder: Path, rows: dict[int, Tensor], **others: object) -> None:
    loaded = Checkpoint(folder).load()
    assert list(loaded["state"]["models"]) == list(rows)
    assert all(torch.equal(loaded["state"]["models"][client], row) for client, row in rows.items())
    assert {name: value for name, value in loaded["state"].items() if name != "models"} == others


def test_loaded_models_stay_in_their_files(tmp_path: Path):
    Checkpoint(tmp_path).save({"round": 0}, {"models": {client: torch.full((2**21,), 1.0) for client in range(8)}})
    before = _private_mib()
    loaded = Checkpoint(tmp_path).load()
    models = loaded["state"]["models"]
    assert sum(float(row.sum()) for row in models.values()) == 8 * 2**21  # reads all 64 MiB
    assert _private_mib() < before + 32
    models[3].mul_(0)  # the change is not written to the file
    again = Checkpoint(tmp_path).load()
    assert torch.equal(again["state"]["models"][3], torch.ones(2**21))


def _private_mib() -> float:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) / 1024


class Watched(Local):
    """Algorithm with a model per client; counts how many of the models given to its rounds are still in memory."""

    seen: ClassVar[list[ReferenceType[Tensor]]] = []
    alive: ClassVar[list[int]] = []

    def round(self, state, cohort, work, rng):
        if state.personal:
            self.seen.extend(ref(model) for model in state.personal.values())
            self.alive.append(sum(model() is not None for model in self.seen))
        return super().round(state, cohort, work, rng)


@pytest.mark.parametrize("every_seconds", [0, 1000])
def test_models_of_earlier_rounds_are_freed_after_a_resume_too(tmp_path: Path, every_seconds: int):
    Watched.seen.clear()
    Watched.alive.clear()
    saving = CheckpointPlan(every_seconds)
    whole = digits(algorithm=Watched(), data=Digits(10), rounds=7, cohort_size=10, checkpoint=saving)
    run(replace(whole, rounds=3), tmp_path / "run")
    gc.collect()  # a resume is another process
    run(whole, tmp_path / "run", mode="resume")
    assert Watched.alive == [10] * 6  # only the models of the previous round were kept
