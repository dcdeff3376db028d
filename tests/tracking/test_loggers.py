"""Tests the content of TensorBoard and other loggers for a run that was killed and resumed."""

import json
import os
import signal
import struct
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from digits_experiment import digits
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from processes import in_child, resume, start, wait
from tensorboardX import event_file_writer
from tensorboardX.proto.event_pb2 import Event, SessionLog

from lit_cfl.cli.main import main
from lit_cfl.runs.run import run
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tracking.options import Tracking


def events(file: Path) -> list[Event]:
    """Reads the complete entries of a TensorBoard file."""
    data, found, at = file.read_bytes(), [], 0
    while at + 12 <= len(data):
        end = at + 12 + struct.unpack_from("<Q", data, at)[0]
        if end + 4 > len(data):
            break  # the file was cut off
        found.append(Event.FromString(data[at + 12 : end]))
        at = end + 4
    return found


def shown(folder: Path) -> dict[tuple[str, int], list[float]]:
    """Returns the values that TensorBoard shows for a folder: a new session hides older values from its step on."""
    found: dict[tuple[str, int], list[float]] = {}
    for file in sorted(folder.glob("events.*")):
        for event in events(file):
            if event.session_log.status == SessionLog.START:
                found = {key: values for key, values in found.items() if key[1] < event.step}
            for value in event.summary.value:
                found.setdefault((value.tag, event.step), []).append(value.simple_value)
    return {key: values for key, values in found.items() if key[1] > 0}  # the hyper-parameters are logged at step 0


def figures(run: Path) -> dict[tuple[str, int], Any]:
    rows = read_table(run / "metrics.csv")
    return {
        (name, row["round"]): [pytest.approx(value, rel=1e-6)]
        for row in rows
        for name, value in row.items()
        if value is not None
    }


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_between_the_figures_of_round_5() -> None:
    whole = TensorBoardLogger.log_metrics

    def half(self: TensorBoardLogger, metrics: dict[str, float], step: int | None = None) -> None:
        whole(self, metrics if step != 5 else dict(list(metrics.items())[:12]), step)
        if step == 5:
            self.save()
            die()

    TensorBoardLogger.log_metrics = half  # type: ignore[assignment, method-assign]


def die_with_the_last_figures_of_round_5_on_their_way() -> None:
    write, save = event_file_writer.EventsWriter.write_event, Checkpoint.save

    def late(self: Any, event: Event) -> Any:
        if event.step == 5 and any(value.tag == "time/training_seconds" for value in event.summary.value):
            time.sleep(600)
        return write(self, event)

    def last(self: Checkpoint, content: dict[str, Any], state: dict[str, Any]) -> None:
        save(self, content, state)
        if content["round"] == 5:
            die()

    event_file_writer.EventsWriter.write_event = late
    Checkpoint.save = last  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize(
    "window", [die_between_the_figures_of_round_5, die_with_the_last_figures_of_round_5_on_their_way]
)
def test_tensorboard_has_each_figure_once_after_a_kill(window: Any, output: Path, tmp_path: Path):
    logger = {
        "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
        "init_args": {"save_dir": str(tmp_path / "tb")},
    }
    options = ("--baseline", "null", "--checkpoint.every_seconds", "0", "--tracking.loggers", json.dumps([logger]))
    assert wait(in_child(start(tmp_path / "run", *options), window)) == -signal.SIGKILL
    (folder,) = (tmp_path / "tb").glob("*/*")
    killed = shown(folder)
    assert ("time/elapsed_seconds", 4) in killed
    assert ("time/elapsed_seconds", 5) not in killed
    assert main(resume(tmp_path / "run")) == 0
    assert [*(tmp_path / "tb").glob("*/*")] == [folder]
    assert shown(folder) == figures(tmp_path / "run")


def test_run_extended_by_more_rounds_continues_in_its_folder_or_in_the_one_that_the_user_names(tmp_path: Path):
    builds = [partial(TensorBoardLogger, tmp_path / "tb"), partial(CSVLogger, tmp_path / "csv")]
    builds.append(partial(TensorBoardLogger, tmp_path / "own", name="mine", version=7))
    for rounds in (2, 4):
        run(digits(rounds=rounds, tracking=Tracking(loggers=builds)), tmp_path / "run", mode="resume")
    identity = json.loads((tmp_path / "run" / "environment.json").read_text())["run_id"]
    for parent, name in (("tb/lightning_logs", f"run-{identity}"), ("own/mine", "version_7")):
        assert [folder.name for folder in (tmp_path / parent).iterdir()] == [name]
        assert shown(tmp_path / parent / name) == figures(tmp_path / "run")
    parts = sorted((tmp_path / "csv").rglob("metrics.csv"))
    assert [[row["step"] for row in read_table(part)] for part in parts] == [[1, 2], [3, 4]]
