"""Tests runs tracked by the real client of Weights & Biases: files, privacy, kills, and that it never stops a run."""

import getpass
import json
import os
import re
import signal
import socket
import struct
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from drawing import let_runs_draw
from processes import descendants, in_child, resume, start, wait

from lit_cfl.runs.load_run import load_run
from lit_cfl.runs.run_directory import RunDirectory
from lit_cfl.storage.csv_log import read_table
from lit_cfl.tracking import trackers
from lit_cfl.tracking.offline import folders_of

pytestmark = pytest.mark.nightly  # each test starts a process, and most of them the service of wandb
MIN_LOGGED = 20  # rounds in a folder before its process is killed
ONLINE = {"API_KEY": "0123456789" * 4, "BASE_URL": "http://127.0.0.1:9"}  # a key, and a server that does not answer


def tracked(path: Path, *options: str, rounds: int = 4, **variables: str | None) -> int:
    """Runs a small quickstart tracked by W&B, with these `WANDB_*` variables; returns the exit code."""
    return tracked_command(start(path, "--pictures.formats", "[png]", *options, rounds=rounds), **variables)


def tracked_command(arguments: list[str], **variables: str | None) -> int:
    return wait(in_child(arguments, lambda: set_variables(**variables)))


def set_variables(**variables: str | None) -> None:
    """Prepares a child process: sets W&B's variables, prints notices, and draws pictures only at the end."""
    trackers.DRAW_SECONDS = float("inf")
    warnings.simplefilter("default")
    warnings.showwarning = lambda *warning: print(warnings.formatwarning(*warning[:4]), file=sys.stderr)
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        del os.environ[name]
    own = {"NETRC": "/dev/null", "WANDB_CONFIG_DIR": "/dev/null"}  # hides the user's login
    os.environ.update(own | {f"WANDB_{name}": value for name, value in variables.items() if value is not None})


def notes(output: Path) -> list[str]:
    return re.findall(r"^Note: (.*)\.$", output.read_text(), flags=re.MULTILINE)


def folders(run: Path) -> list[Path]:
    """Returns a run's W&B folders, oldest first."""
    return folders_of(run / "wandb", "*")


def records(folder: Path) -> Iterator[Any]:
    """Yields the records in the `.wandb` file of a folder, up to the point where it was cut off."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in folder.glob("*.wandb"):
        yield from map(Record.FromString, entries(path.read_bytes()))


def history(folder: Path) -> list[dict[str, Any]]:
    found = [record.history.item for record in records(folder) if record.WhichOneof("record_type") == "history"]
    return [{item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items} for items in found]


def logged(run: Path) -> list[dict[str, Any]]:
    return [row for folder in folders(run) for row in history(folder)]


def entries(data: bytes) -> Iterator[bytes]:
    """Yields the complete entries of a file.

    They are stored in blocks of 32 KiB; each piece is preceded by a checksum, its length and its place in the entry.
    """
    at, pieces, header = 7, b"", 7  # skips the header of the file
    while at + header <= len(data):
        room = 32768 - at % 32768
        if room < header:
            at += room
            continue
        length, place = struct.unpack_from("<HB", data, at + 4)
        at += header + length
        if at > len(data):  # the file was cut off
            return
        pieces += data[at - length : at]
        if place in (1, 4):  # a whole entry, or the last piece of one
            yield pieces
            pieces = b""


def numbers(row: dict[str, object]) -> dict[str, object]:
    """Returns the values of our metrics in a logged row, or in a row of `metrics.csv`."""
    return {
        name: value
        for name, value in row.items()
        # skips columns of media, such as picture.size
        if isinstance(value, int | float) and not name.startswith("_") and "." not in name
    }


def own_rows(run: Path) -> list[dict[str, object]]:
    return [numbers(row) for row in read_table(run / "metrics.csv")]


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs an experiment with a baseline offline, without a W&B key or `WANDB_*` variables."""
    folder = tmp_path_factory.mktemp("offline")
    os.environ["CHILD_OUTPUT"] = str(folder / "output.txt")
    let_runs_draw(True)
    assert tracked(folder / "run", "--name", "a, b <b>&c", "--tracking.notes", "first, <i>try</i>") == 0
    let_runs_draw(False)
    return folder


def of_kind(folder: Path, kind: str) -> list[Any]:
    return [getattr(one, kind) for one in records(folder) if one.WhichOneof("record_type") == kind]


def concluded(folder: Path) -> dict[str, object]:
    found = of_kind(folder, "summary")
    return {item.key: json.loads(item.value_json) for one in found for item in one.update if item.key}


def artifacts(folder: Path) -> list[Any]:
    requested = [r.request.log_artifact.artifact for r in records(folder) if r.request.HasField("log_artifact")]
    return requested + of_kind(folder, "artifact")


def test_a_run_and_its_baseline_are_kept_offline_with_every_figure_and_picture(offline: Path):
    line = f"W&B keeps this offline; `wandb sync {offline}/run/wandb {offline}/run/baseline/wandb` uploads it"
    assert notes(offline / "output.txt") == [line]
    names = []
    for run in (offline / "run", offline / "run" / "baseline"):
        (folder,) = folders(run)
        names.append(folder.name)
        assert [numbers(row) for row in logged(run)] == own_rows(run)
    assert [name[:12] for name in names] == ["offline-run-"] * 2
    assert names[0][-8:] != names[1][-8:]
    # pictures stand in the entry of the last round
    rows = logged(offline / "run")
    media = [{name.partition(".")[0] for name in row if "." in name} for row in rows]
    drawn = {f"pictures/{name}" for name in ("curve", "similarity", "map", "memberships", "histogram")}
    assert media == [set(), set(), set(), {"clients/accuracy", "tables/clusters"} | drawn]
    for name in drawn:
        picture = folders(offline / "run")[0] / "files" / str(rows[-1][f"{name}.path"])
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_names_configuration_and_summary_are_logged_and_round_is_the_step(offline: Path):
    (folder,) = folders(offline / "run")
    (begun, *_) = of_kind(folder, "run")
    assert (begun.display_name, begun.notes) == ("a, b <b>&c", "first, <i>try</i>")
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert config["algorithm"]["init_args"]["num_clusters"] == 4
    assert [(step.glob_name, step.step_metric) for step in of_kind(folder, "metric")] == [("*", "round")]
    own = json.loads((offline / "run" / "summary.json").read_text())
    names = ("algorithm", "seed", "partition", "test/max_weighted_accuracy")
    assert [concluded(folder)[name] for name in names] == [own[name] for name in names]
    assert own.keys() - concluded(folder).keys() == {name for name, value in own.items() if value is None} | {"notes"}


def test_artifact_holds_models_memberships_and_partition(offline: Path):
    folder = folders(offline / "run")[0]
    (kept,) = (artifact for artifact in artifacts(folder) if artifact.type == "clusters")
    assert sorted(entry.path for entry in kept.manifest.contents) == ["memberships.npz", "models.pt", "partition.npz"]
    models = torch.load(folder / "artifact" / "models.pt", weights_only=True)
    assert sorted(models) == ["0", "1", "2", "3", "global"]
    for name, value in load_run(offline / "run").module(2).state_dict().items():
        assert torch.equal(value, models["2"][name])


def test_nothing_of_machine_user_and_folders_is_logged_but_where_files_wait(offline: Path):
    for record in records(folders(offline / "run")[0]):
        kind = record.WhichOneof("record_type")
        assert kind not in ("environment", "stats", "output", "output_raw")
        if kind != "artifact":  # artifacts name files that wait for their upload
            words = str(record)
            assert socket.gethostname() not in re.findall(r'"([^"]*)"', words)
            assert f'"{getpass.getuser()}"' not in words
            assert str(Path.home()) not in words.replace("/root/.", "")
            assert str(offline) not in words


def kill_after(rounds: int, words: list[str], run: Path, already: int) -> None:
    """Starts a run offline, and kills it by -9 once it has trained some rounds and its W&B folder has the last ones.

    The file of that folder is cut off in the middle of an entry, as a kill often does.
    """

    def stop() -> None:
        set_variables(MODE="offline")
        add_row = RunDirectory.add_row

        def waiting(directory: RunDirectory, row: dict[str, object]) -> dict[str, object]:
            if len(directory.rows) == rounds:
                signal.pause()
            return add_row(directory, row)

        RunDirectory.add_row = waiting  # in the child alone, which is killed

    child = in_child(words, stop)
    deadline = time.monotonic() + 120
    while len(folders(run)) <= already or len(history(folders(run)[-1])) < MIN_LOGGED:
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    assert wait(child) == -signal.SIGKILL
    (torn,) = folders(run)[-1].glob("*.wandb")
    os.truncate(torn, torn.stat().st_size - 5)


def test_run_that_was_killed_twice_and_extended_is_uploaded_with_every_round_once(output: Path, tmp_path: Path):
    run = tmp_path / "run"
    kill_after(60, start(run, "--checkpoint.every_seconds", "0", "--baseline", "null", rounds=90), run, already=0)
    kill_after(75, resume(run), run, already=1)
    assert tracked_command(resume(run), MODE="offline") == 0
    assert [numbers(row) for row in history(folders(run)[-1])] == own_rows(run)
    assert tracked_command(resume(run, "--rounds", "92"), MODE="offline") == 0
    assert [len(history(folder)) for folder in folders(run)[2:]] == [90, 2]
    assert len({folder.name[-8:] for folder in folders(run)}) == 1
    uploaded = [folder for folder in folders(run) if not list(folder.glob("*.synced"))]
    assert [row["round"] for folder in uploaded for row in history(folder)] == list(range(1, 93))


def test_run_killed_after_its_summary_is_concluded_by_a_resume(output: Path, tmp_path: Path):
    run = tmp_path / "run"

    def die_before_the_conclusion() -> None:
        set_variables(MODE="offline")
        trackers.Trackers.conclude = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # in a child

    assert wait(in_child(start(run, "--baseline", "null", rounds=2), die_before_the_conclusion)) == -signal.SIGKILL
    own = json.loads((run / "summary.json").read_text())
    assert tracked_command(resume(run), MODE="offline") == 0
    found = concluded(folders(run)[-1])
    for name in ("algorithm", "seed", "round", "test/max_weighted_accuracy"):
        assert found[name] == own[name]
    assert artifacts(folders(run)[-1])
    assert [row["round"] for row in history(folders(run)[-1])] == [1, 2]


@pytest.mark.parametrize(
    ("variables", "why"),
    [(ONLINE, "http://127.0.0.1:9 does not answer"), ({"BASE_URL": ONLINE["BASE_URL"]}, "no key is set")],
    ids=["no server", "no key"],
)
def test_a_run_that_cannot_be_online_is_offline_with_one_notice(
    variables: dict[str, str], why: str, output: Path, tmp_path: Path
):
    options = ("--tracking.wandb", "online")  # the baseline gives the same notice
    assert tracked(tmp_path / "run", *options, rounds=2, **variables) == 0
    first, second = notes(output)
    assert first.startswith("W&B stays offline: ")
    assert why in first
    assert second.startswith("W&B keeps this offline")
    for run in (tmp_path / "run", tmp_path / "run" / "baseline"):
        assert [numbers(row) for row in logged(run)] == own_rows(run)


def test_a_run_stays_offline_after_wandb_offline(output: Path, tmp_path: Path):
    (tmp_path / "settings").write_text("[default]\nmode = offline\n")  # the line that `wandb offline` writes
    variables = ONLINE | {"CONFIG_DIR": str(tmp_path)}
    assert tracked(tmp_path / "run", "--baseline", "null", rounds=2, **variables) == 0
    assert [line[:24] for line in notes(output)] == ["W&B keeps this offline; "]
    assert [numbers(row) for row in logged(tmp_path / "run")] == own_rows(tmp_path / "run")


def test_when_its_service_dies_wandb_is_left_out_with_one_notice_and_the_next_run_has_one(output: Path, tmp_path: Path):
    child = in_child(start(tmp_path / "run", rounds=80), lambda: set_variables(MODE="offline"))
    while not (folders(tmp_path / "run") and logged(tmp_path / "run")):
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        time.sleep(0.02)
    (service,) = [one for one in descendants(child) if b"wandb-core" in Path(f"/proc/{one}/cmdline").read_bytes()]
    os.kill(service, signal.SIGKILL)
    assert wait(child) == 0
    first, second = notes(output)
    assert first.startswith("W&B failed and is left out of the rest of this run")
    assert second.startswith("W&B keeps this offline")
    assert "Traceback" not in output.read_text()
    assert len(logged(tmp_path / "run")) < 80 == len(own_rows(tmp_path / "run"))
    assert [numbers(row) for row in logged(tmp_path / "run" / "baseline")] == own_rows(tmp_path / "run" / "baseline")


def test_on_a_full_disk_wandb_is_left_out_with_one_notice_and_the_run_continues(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lit_cfl.tracking.wandb_run._MIN_FREE", 2**60)  # wandb itself does not notice a full disk
    assert tracked(tmp_path / "run", "--baseline", "null", MODE="offline") == 0
    first, second = notes(output)
    assert first.startswith("W&B failed and is left out of the rest of this run (OSError")
    assert second.startswith("W&B keeps this offline")
    assert len(own_rows(tmp_path / "run")) == 4
