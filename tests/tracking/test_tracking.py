"""Tests trackers without W&B's service: mode, folders of killed runs, models, failing loggers, and what they show."""

import json
import os
import signal
import struct
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from digits_experiment import digits
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from processes import in_child, resume, start, wait
from quadratic import ids
from ragged import SGD
from tensorboardX import event_file_writer
from tensorboardX.proto.event_pb2 import Event, SessionLog
from torch import Tensor, nn

from lit_cfl.algorithms import Assignment, FedAvg
from lit_cfl.cli.main import main
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError, Notice
from lit_cfl.pictures.round_view import RoundView
from lit_cfl.runs.run import RunCallbacks, run
from lit_cfl.scores import ACCURACY
from lit_cfl.storage import csv_log
from lit_cfl.storage.checkpoint import Checkpoint
from lit_cfl.storage.csv_log import CsvLog, latest_rows, read_table
from lit_cfl.tasks import Classification
from lit_cfl.tracking.artifacts import cluster_models
from lit_cfl.tracking.media import media
from lit_cfl.tracking.offline import last_kept_round, mark_complete, set_offline_aside, sync_line
from lit_cfl.tracking.options import Tracking
from lit_cfl.tracking.trackers import Trackers


@pytest.mark.parametrize(
    ("option", "variable", "mode"),
    [
        (None, None, None),
        (None, "offline", "offline"),
        ("offline", "disabled", "offline"),
        ("disabled", "sometimes", "disabled"),
    ],
)
def test_an_option_goes_before_the_variable(option: Any, variable: str | None, mode: str | None, monkeypatch):
    monkeypatch.delenv("WANDB_MODE")
    if variable is not None:
        monkeypatch.setenv("WANDB_MODE", variable)
    assert Tracking(wandb=option).requested_mode() == mode
    monkeypatch.setenv("WANDB_MODE", "sometimes")
    with pytest.raises(InputError, match="WANDB_MODE is 'sometimes'"):
        Tracking().requested_mode()


class FullDisk(CSVLogger):
    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        if step == 3:
            raise OSError(28, "No space left on device")
        super().log_metrics(metrics, step)


@dataclass(frozen=True)
class Odd(FedAvg):
    """FedAvg with a score column that is sometimes NaN, and a table with unusual column names."""

    score_columns: ClassVar[tuple[str, ...]] = (*FedAvg.score_columns, "odd/figure")
    tables: ClassVar[dict[str, tuple[str, ...]]] = {"odd": ("who, when", "what")}

    def round(self, state, cohort, work, rng):
        state, info = super().round(state, cohort, work, rng)
        odd = {"odd/figure": float("nan") if work.round == 1 else 1.5}
        rows = [{"who, when": '<b>a</b>, "b"', "what": "$x_1$"}]
        return state, replace(info, scores=info.scores | odd, tables={"odd": rows})


def test_logger_on_a_full_disk_is_left_out_with_one_notice_and_others_get_every_row(tmp_path: Path):
    loggers = [partial(FullDisk, tmp_path / "full"), partial(CSVLogger, tmp_path / "whole")]
    with pytest.warns(Notice, match="^FullDisk failed and is left out of the rest") as given:
        run(digits(algorithm=Odd(), rounds=4, tracking=Tracking(loggers=loggers)), tmp_path / "run")
    assert len([one for one in given if one.category is Notice]) == 1
    own = read_table(tmp_path / "run" / "metrics.csv")
    full, whole = (read_table(next((tmp_path / name).rglob("metrics.csv"))) for name in ("full", "whole"))
    assert [row["step"] for row in whole] == [row["round"] for row in own] == [1, 2, 3, 4]
    assert [row["step"] for row in full] == [1, 2]
    # a figure that is not a number is blank everywhere, and names with commas and HTML survive tables
    assert [row["odd/figure"] for row in whole] == [row["odd/figure"] for row in own] == [1.5, None, 1.5, 1.5]
    odd = {"round": 1, "who, when": '<b>a</b>, "b"', "what": "$x_1$"}
    assert read_table(tmp_path / "run" / "odd.csv")[0] == odd


def test_logger_whose_package_is_missing_is_refused_before_anything_is_trained(tmp_path: Path):
    def no_such_package() -> CSVLogger:
        raise ModuleNotFoundError("no package of the name nowhere")

    with pytest.raises(InputError, match=r"tracking\.loggers .*nowhere"):
        run(digits(tracking=Tracking(loggers=[no_such_package])), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_loggers_receive_no_folders(tmp_path: Path):
    logger = CSVLogger(tmp_path / "csv")
    config = {"data": {"path": "/home/alice/images.npz", "own": ["~/x/y.py", "a/b"]}, "code": ["/home/alice/code"]}
    Trackers(Tracking(loggers=[lambda: logger]), "mine", tmp_path, config, None).log({"round": 0, "x": 1.0})
    assert logger.experiment.hparams == {"data": {"path": "images.npz", "own": ["y.py", "a/b"]}}


def test_what_a_killed_process_left_is_set_aside_and_its_rounds_are_logged_again(tmp_path: Path):
    assert last_kept_round(tmp_path / "wandb", "abc") == 0  # W&B was off until now
    files = [tmp_path / f"{name}-{time}-abc" / "run-abc.wandb" for time, name in enumerate(("offline-run", "run"))]
    for file in files:
        file.parent.mkdir()
        file.touch()
    mark_complete(files[0].parent, 7)
    for _ in range(2):  # also if the next process was killed before it had a folder of its own
        assert last_kept_round(tmp_path, "abc") == 7  # these rounds are in the complete folder, which will be uploaded
        assert [file.with_suffix(".wandb.synced").exists() for file in files] == [False, True]
    assert last_kept_round(tmp_path, "of another run") == 0
    later = tmp_path / "offline-run-2-abc"
    later.mkdir()
    mark_complete(later, 9)
    later.rmdir()
    assert last_kept_round(tmp_path, "abc") == 9  # the folder was uploaded and removed
    set_offline_aside(tmp_path, "abc")  # the run continues online, and the server has no round yet
    assert all(file.with_suffix(".wandb.synced").exists() for file in files)


def test_line_names_what_waits_to_be_uploaded_and_the_caller_of_a_run_is_told_once(tmp_path: Path):
    runs = [tmp_path / f"seed {seed}" for seed in range(2)]
    assert sync_line(runs) is None
    for run_path in (runs[0], runs[0] / "baseline", runs[1]):
        folder = run_path / "wandb" / "offline-run-1-abc"
        folder.mkdir(parents=True)
        (folder / "run-abc.wandb").touch()
    names = [f"'{path}/wandb'" for path in (runs[0], runs[0] / "baseline", runs[1])]
    assert f"`wandb sync {' '.join(names)}`" in str(sync_line(runs))
    told: list[str] = []
    run(digits(rounds=1), runs[1], RunCallbacks(notice=told.append))
    assert told == [sync_line(runs[1:])]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 100).requires_grad_(False)
        self.head = nn.Linear(100, 10)
        self.same = self.head

    def forward(self, inputs: Tensor) -> Tensor:
        return self.same(self.base(inputs.flatten(1)).relu())


@dataclass(frozen=True)
class Served:
    assignment: Assignment

    def serve(self, state, clients):
        return self.assignment


def test_each_used_cluster_has_its_weights_and_all_share_what_is_frozen(tmp_path: Path):
    engine = Engine(lambda: Classification(Tied(), SGD), Plan("loop", "cpu"), 0)
    rows = torch.stack([engine.initial(number) for number in range(4)])
    served = Served(Assignment(rows[:3], ids(2, -1, 0, 2), {"global": rows[3]}))
    models = cluster_models(served, None, engine, ids(0, 1, 2, 3))
    assert list(models) == ["0", "2", "global"]
    for name, row in (("0", rows[0]), ("2", rows[2]), ("global", rows[3])):
        state = models[name]
        weight, bias = row[:1000].view(10, 100), row[1000:]
        for layer in ("net.head", "net.same"):
            assert torch.equal(state[f"{layer}.weight"], weight)
            assert torch.equal(state[f"{layer}.bias"], bias)
        assert torch.equal(state["net.base.weight"], engine.template.state_dict()["net.base.weight"])
    assert len({state["net.base.weight"].data_ptr() for state in models.values()}) == 1
    torch.save(models, tmp_path / "models.pt")
    assert (tmp_path / "models.pt").stat().st_size < 2 * 6500 * 4  # one frozen layer and three heads
    nobody = Served(Assignment(rows[:1], ids(-1, -1)))
    assert cluster_models(nobody, None, engine, ids(0, 1)) == {}


def test_wandb_gets_the_last_thousand_rows_of_a_table():
    rows = [{"round": number, "what": 2 * number} for number in range(1, 1003)]
    view = SimpleNamespace(values=np.empty(0), score=ACCURACY, tables={"moves": None}, table=lambda name: rows)
    view.clusters = [{"round": 3, "cluster": 0, "size": 7}, {"round": 3, "cluster": 1, "size": 5, "u": 0.5}]
    found = media(view, {}, with_tables=True)
    assert found["tables/moves"].columns == ["round", "what"]
    assert found["tables/moves"].data == [[number, 2 * number] for number in range(3, 1003)]
    assert found["tables/clusters"].columns == ["round", "cluster", "size", "u"]
    assert found["tables/clusters"].data == [[3, 0, 7, None], [3, 1, 5, 0.5]]
    assert set(found) == {"tables/moves", "tables/clusters"}


def test_rows_that_come_later_are_not_seen(tmp_path: Path):
    table = CsvLog(tmp_path / "odd.csv", ("round", "who, when"))
    table.start()
    table.append({"round": number, "who, when": 'a, "b"'} for number in range(3))
    size = table.size
    with table.path.open("ab") as file:
        file.write(b"3,half a r")
    nobody = np.empty(0)
    view = RoundView(Path(), ACCURACY, False, dict, nobody, nobody, [], {"odd": (table.path, size)})
    assert view.table("odd") == [{"round": number, "who, when": 'a, "b"'} for number in range(3)]


def test_of_the_last_bytes_of_a_table_no_half_row_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(csv_log, "_MIB", 95)  # number of bytes that are read
    table = CsvLog(tmp_path / "odd.csv", ("round", "what"))
    table.start()
    table.append({"round": number, "what": number / 2} for number in range(1000, 1040))  # 11 bytes each
    assert latest_rows(table.path, table.size) == [{"round": k, "what": k / 2} for k in range(1032, 1040)]
    assert latest_rows(table.path, 33) == [{"round": k, "what": k / 2} for k in (1000, 1001)]  # all of them


def test_wandb_gets_the_histogram_of_the_clients_that_have_a_score():
    values = np.array([0.02, 0.99, 0.97, np.nan, 0.5])
    view = SimpleNamespace(values=values, score=ACCURACY, tables={}, clusters=[])
    (histogram,) = media(view, {}, with_tables=False).values()
    assert sum(histogram.histogram) == 4
    assert (histogram.histogram[0], histogram.histogram[-1]) == (1, 2)
    assert (histogram.bins[0], histogram.bins[-1]) == (0.0, 1.0)  # the whole range of an accuracy, whatever its values


def events(file: Path) -> list[Event]:
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

    TensorBoardLogger.log_metrics = half


def die_with_the_last_figures_on_their_way() -> None:
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
    Checkpoint.save = last


@pytest.mark.parametrize("window", [die_between_the_figures_of_round_5, die_with_the_last_figures_on_their_way])
def test_tensorboard_has_each_figure_once_after_a_kill(window: Any, output: Path, tmp_path: Path):
    logger = {"class_path": "TensorBoardLogger", "init_args": {"save_dir": str(tmp_path / "tb")}}
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
