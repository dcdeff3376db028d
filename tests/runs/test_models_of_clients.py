"""Tests that states with a model per client are saved incrementally, and read from their files."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from weakref import ReferenceType, ref

import pytest
import torch
from digits_experiment import digits
from torch import Tensor

from lit_cfl.algorithms import Local
from lit_cfl.datamodules import Digits
from lit_cfl.errors import InputError
from lit_cfl.experiment import CheckpointPlan
from lit_cfl.runs.run import run
from lit_cfl.storage.checkpoint import Checkpoint


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
    assert loaded is not None
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
