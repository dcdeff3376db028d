"""Tests that states with a model per client are saved incrementally and resumed exactly."""

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from weakref import ReferenceType, ref

import pytest
import torch
from torch import Tensor

from lit_cfl.algorithms import Algorithm, Assignment, Info
from lit_cfl.datamodules import Digits
from lit_cfl.errors import InputError, SaveError
from lit_cfl.experiment import CheckpointPlan, Experiment
from lit_cfl.nets import MCLR
from lit_cfl.runs.run import run
from lit_cfl.storage import checkpoint
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.tasks import Classification

pytestmark = pytest.mark.nightly  # a table of tests states these facts


@dataclass(frozen=True, eq=False)
class PersonalState:
    models: dict[int, Tensor]


@dataclass(frozen=True)
class Personal(Algorithm):
    """Algorithm in which every client keeps its own model."""

    state_type = PersonalState

    def init(self, work, rng):
        return PersonalState({}), Info()

    def round(self, state, cohort, work, rng):
        w0, models = work.initial(0), dict(state.models)
        for client in cohort.tolist():
            models[client] = work.fit(models.get(client, w0)[None], torch.tensor([client])).rows[0]
        return PersonalState(models), Info(loss=1.0, down=0, up=0)

    def place(self, state, clients, work, rng):
        models = state.models | {client: work.initial(0) for client in clients.tolist()}
        return replace(state, models=models), Info()

    def serve(self, state, clients):
        known = list(state.models)
        index = torch.tensor([known.index(client) if client in state.models else -1 for client in clients.tolist()])
        return Assignment(torch.stack(list(state.models.values())) if known else torch.empty(0, 1), index)


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
    assert saved is not None
    assert (saved["round"], saved["state"]["models"][2][0]) == (1, 3.0)
    last = 100
    with pytest.raises(InputError, match="was saved again each time it was read; wait until its run has ended"):
        reader.load()


def test_only_changed_models_are_written_many_in_a_file(tmp_path: Path):
    rows = {client: torch.full((100,), float(client)) for client in (3, 0, 4, 1, 2)}
    writer = Checkpoint(tmp_path)
    writer.save({"round": 0}, {"models": rows, "count": 3})
    ((first, (written, models)),) = files(tmp_path).items()
    assert len(models) == 5
    changed = rows | {1: torch.ones(100), 4: torch.zeros(100)}
    writer.save({"round": 1}, {"models": changed, "count": 4})
    second = files(tmp_path)
    assert second.pop(first)[0] == written  # three of its five models are still used
    assert [len(models) for _, models in second.values()] == [2]
    assert_saved(tmp_path, changed, count=4)


def test_a_file_that_is_mostly_superseded_is_replaced(tmp_path: Path):
    rows = {client: torch.full((100,), float(client)) for client in range(5)}
    writer = Checkpoint(tmp_path)
    writer.save({"round": 0}, {"models": rows})
    first = {*files(tmp_path)}
    rows |= {client: rows[client] + 10 for client in (0, 2, 3)}
    # only two of five would still be used, so they are written again, with the three that changed
    writer.save({"round": 1}, {"models": rows})
    second = files(tmp_path)
    assert [len(models) for _, models in second.values()] == [5]
    assert not first & {*second}
    assert_saved(tmp_path, rows)
    again = Checkpoint(tmp_path)
    loaded = again.load()
    assert loaded is not None
    again.save({"round": 1}, loaded["state"])  # no model has changed
    assert {*files(tmp_path)} == {*second}
    half = loaded["state"]["models"] | {client: torch.zeros(100) for client in (0, 1, 2)}
    again.save({"round": 1}, {"models": half})
    assert not {*second} & {*files(tmp_path)}
    assert_saved(tmp_path, half)


def test_files_grow_with_the_saves_and_not_with_the_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoint, "_FILE_BYTES", 400 * 4)
    rng, clients = torch.Generator().manual_seed(0), 1000
    rows, writer = {client: torch.rand(4, generator=rng) for client in range(clients)}, Checkpoint(tmp_path)
    for number in range(60):
        writer.save({"round": number}, {"models": rows})
        found = files(tmp_path)
        assert len(found) <= 40
        assert sum(len(models) for _, models in found.values()) <= 2 * clients
        for client in torch.randperm(clients, generator=rng)[:100].tolist():
            rows[client] = torch.rand(4, generator=rng)


def files(folder: Path) -> dict[str, tuple[int, Tensor]]:
    """Returns the modification time and the content of each file of model rows."""
    return {
        file.name: (file.stat().st_mtime_ns, torch.load(file, weights_only=True)[file.name])
        for file in sorted((folder / "rows").iterdir())
    }


def assert_saved(folder: Path, rows: dict[int, Tensor], **others: object) -> None:
    loaded = Checkpoint(folder).load()
    assert loaded is not None
    assert list(loaded["state"]["models"]) == list(rows)
    assert all(torch.equal(loaded["state"]["models"][client], row) for client, row in rows.items())
    assert {name: value for name, value in loaded["state"].items() if name != "models"} == others


def test_loaded_models_stay_in_their_files(tmp_path: Path):
    Checkpoint(tmp_path).save({"round": 0}, {"models": {client: torch.full((2**21,), 1.0) for client in range(8)}})
    before = _private_mib()
    loaded = Checkpoint(tmp_path).load()
    assert loaded is not None
    models = loaded["state"]["models"]
    assert sum(float(row.sum()) for row in models.values()) == 8 * 2**21  # reads all 64 MiB
    assert _private_mib() < before + 32
    models[3].mul_(0)  # the change is not written to the file
    again = Checkpoint(tmp_path).load()
    assert again is not None
    assert torch.equal(again["state"]["models"][3], torch.ones(2**21))


def _private_mib() -> float:
    """Returns the anonymous memory of this process in MiB."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) / 1024


def test_failed_save_leaves_the_models_of_the_save_before(tmp_path: Path, monkeypatch):
    rows = {client: torch.full((100,), float(client)) for client in range(4)}
    Checkpoint(tmp_path).save({"round": 0}, {"models": rows})
    writer = Checkpoint(tmp_path)
    loaded = writer.load()
    assert loaded is not None
    sync = os.fsync

    def full(descriptor: int) -> None:
        if "models-" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    changed = loaded["state"]["models"] | {2: torch.ones(100), 3: torch.ones(100)}
    with pytest.raises(SaveError, match=r"models-[0-9a-f]+\.pt could not be written"):
        writer.save({"round": 1}, {"models": changed})
    again = Checkpoint(tmp_path).load()
    assert again is not None
    assert again["round"] == 0
    assert all(torch.equal(again["state"]["models"][client], rows[client]) for client in rows)


def experiment(algorithm: Personal, **options: Any) -> Experiment:
    def task() -> Classification:
        return Classification(MCLR([1, 8, 8], 10), partial(torch.optim.SGD, lr=0.1))

    return Experiment(Digits(10), task, algorithm, **options)


def test_run_with_a_model_for_each_client_is_resumed_exactly(tmp_path: Path):
    whole = experiment(Personal(), rounds=6, cohort_size=3, checkpoint=CheckpointPlan(0))
    run(whole, tmp_path / "whole")
    run(replace(whole, rounds=3), tmp_path / "run")
    run(whole, tmp_path / "run", mode="resume")
    saved = [Checkpoint(tmp_path / name).load() for name in ("whole", "run")]
    assert saved[0] is not None
    assert saved[1] is not None
    mine, other = saved[1]["state"]["models"], saved[0]["state"]["models"]
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[client], other[client]) for client in other)
    assert (tmp_path / "run" / "clients.csv").read_text() == (tmp_path / "whole" / "clients.csv").read_text()


class Watched(Personal):
    """Algorithm that counts how many of the models given to its rounds so far are still in memory."""

    seen: ClassVar[list[ReferenceType[Tensor]]] = []
    alive: ClassVar[list[int]] = []

    def round(self, state, cohort, work, rng):
        if state.models:
            self.seen.extend(ref(model) for model in state.models.values())
            self.alive.append(sum(model() is not None for model in self.seen))
        return super().round(state, cohort, work, rng)


@pytest.mark.parametrize("every_seconds", [0, 1000])
def test_models_of_earlier_rounds_are_freed_after_a_resume_too(tmp_path: Path, every_seconds: int):
    Watched.seen.clear()
    Watched.alive.clear()
    whole = experiment(Watched(), rounds=7, cohort_size=10, checkpoint=CheckpointPlan(every_seconds))
    run(replace(whole, rounds=3), tmp_path / "run")
    run(whole, tmp_path / "run", mode="resume")
    assert Watched.alive == [10] * 6  # only the models of the previous round were kept
